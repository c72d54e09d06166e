// What the readers share.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "schedule/text/text.h"

namespace penstock::schedule {

// kCorruptData "[schedule.PART] source:row:column: got X, wanted Y"; fills `place` when there is
// one. row or column 0: left out.
Error TextError(std::string_view part, const std::string& source, int row, int column,
                std::string_view got, std::string_view wanted, TextPlace* place);

// `'text'`, cut to a length that a terminal can take, control characters replaced.
std::string Shown(std::string_view text);

// "dir/name.csv" -> "name".
std::string StemOf(const std::string& path);

Result<ScheduleText> ParseCsv(std::string_view text, const std::string& source, TextPlace* place);
Result<ScheduleText> ParseNative(std::string_view text, const std::string& source,
                                 TextPlace* place);

// Which rank holds which stage, from the rows on which its computations appear; two copies of the
// weights where most stages run the two halves of the micro-batches on different rows.
Placement InferPlacement(const std::vector<std::vector<Action>>& rows, int stages,
                         int micro_batches);

// Most actions and idle cells of a file, over all ranks: 2 GB of them.
inline constexpr int64_t kMostCells = int64_t{1} << 27;

// First word of the native form.
inline constexpr std::string_view kNativeMagic = "penstock-schedule";

}  // namespace penstock::schedule
