// What run and bench say at the end: one JSON object, or a calm table.

#pragma once

#include <string>

#include "base/json_reader.h"
#include "cli/engine_planning.h"
#include "cli/generate.h"
#include "serve/engine.h"
#include "trace/timeline.h"

namespace penstock::cli {

// {"weights_bytes", ..., "peak_bytes"}
Json MemoryJson(const MemoryFigures& figures);

// "stages", "prefill", "decode", "ttft_s", "tpot_s", "bubble_ratio", "planned".
void AddRunJson(Json& json, const serve::Engine& engine, const serve::RunReport& report,
                const Rates& rates, const Foretold& foretold);

Json OutputJson(const Output& output);

// The measured timeline, ranks in order, for --trace.
trace::Timeline TimelineOf(const serve::RunReport& report, const std::string& name);

// Rows of stages with layers, memory planned beside measured, busy and idle time and its causes;
// then the rates.
std::string RunTable(const serve::Engine& engine, const serve::RunReport& report,
                     const Rates& rates, const Foretold& foretold, bool colour);

}  // namespace penstock::cli
