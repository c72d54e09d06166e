// Timelines as Chrome trace events (JSON), which Perfetto (ui.perfetto.dev) and chrome://tracing
// open: one thread per rank, a slice per action named by its text, a slice per recorded wait, a
// flow arrow per message, a counter track per counter. Format: "Trace Event Format", Google, 2016.
// docs/formats.md says which fields the reader needs.

#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "trace/timeline.h"

namespace penstock::trace {

// Takes the text piece by piece.
using TextSink = std::function<void(std::string_view)>;

// Writes the timeline in pieces of about 64 kB: memory does not grow with it (but for the index of
// the messages' readers). Times are microseconds with four digits after the point.
void WriteChromeTrace(const Timeline& timeline, const TextSink& sink);

// Errors: kInvalidArgument (the file can't be made or written).
Result<> WriteChromeTraceFile(const Timeline& timeline, const std::string& path);

// Reads what WriteChromeTrace wrote; events of other tools are ignored where they have no action's
// text as name. Errors: kCorruptData naming the source and what is wrong (not JSON, no traceEvents,
// no action at all, a time that is not a number, a rank above 65535), kInvalidArgument (the name of
// an action of ours that can't be read).
Result<Timeline> ReadChromeTrace(std::string_view text, const std::string& source);
Result<Timeline> ReadChromeTraceFile(const std::string& path);

}  // namespace penstock::trace
