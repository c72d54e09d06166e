// Schedules as text: the native form with its header, and PyTorch's CSV in its three generations.
// docs/formats.md has the grammars.
//
// Files come from strangers: every cell is matched in full, numbers are bounded, nothing is
// allocated on the word of a header, and the cost is linear in the length of the text.

#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "schedule/schedule.h"

namespace penstock::schedule {

enum class Dialect : uint8_t {
  kNative,
  kBw,     // PyTorch, old: B is the input gradient, BW the full backward
  kPlain,  // PyTorch: F, I, W, B and SEND/RECV
  kWait,   // PyTorch since 2.15: also WAIT_SEND_F, WAIT_SEND_B, WAIT_REDUCE_GRAD
};

// "native", "bw", "plain", "wait".
std::string_view DialectText(Dialect dialect);
// Errors: kInvalidArgument.
Result<Dialect> ParseDialect(std::string_view text);

// Where a text can't be read, both from 1; 0: not at one place. In CSV the column counts cells, in
// the native form characters.
struct TextPlace {
  int row = 0;
  int column = 0;
  bool cells = false;  // a CSV: the row is that of rank row - 1, the column counts its cells
};

struct ScheduleText {
  Schedule schedule;
  Dialect dialect = Dialect::kNative;
};

// Reads either form; the native one begins with its version line. `source` names the text in errors
// ("file.csv:3:7: ..."). A CSV file has no header: ranks are its rows, stages and micro-batches the
// highest numbers plus one, placement the rows on which stages appear. What is read need not be
// legal: run Validate. Errors: kCorruptData (also an empty text), with `place` filled in where one
// is given.
Result<ScheduleText> ParseSchedule(std::string_view text, const std::string& source,
                                   TextPlace* place = nullptr);

// ReadFile and ParseSchedule. Errors: also kNotFound.
Result<ScheduleText> ReadScheduleFile(const std::string& path, TextPlace* place = nullptr);

// The native form; ParseSchedule gives the same schedule back.
std::string WriteNative(const Schedule& schedule);

// PyTorch's form. `dialect` other than kNative. For kWait a lowered schedule gets the WAIT cells
// that it lacks; the other dialects leave WAIT cells out. Name, ring, idle cells at the end of a
// row and the flag `lowered` where nothing is sent are not kept, all else is: ParseSchedule gives
// the same program. Errors: kUnsupported with the list of what this form can't say: edges beyond
// the chain, tied weights, slices, R, FREE, OPT, BARRIER, several steps.
Result<std::string> WriteCsv(const Schedule& schedule, Dialect dialect);

}  // namespace penstock::schedule
