#include "schedule/grid.h"

#include <algorithm>
#include <vector>

namespace penstock::schedule {
namespace {

// Cells [from, from + max) of one rank.
std::vector<std::string> CellTexts(const Schedule& schedule, int rank, int from, int max_cells) {
  std::vector<std::string> cells;
  int cell = -1;
  for (const Action& a : schedule.ranks[static_cast<size_t>(rank)]) {
    if (!a.joined || cell < 0)
      ++cell;
    if (cell < from)
      continue;
    if (max_cells > 0 && cell >= from + max_cells)
      break;
    if (a.joined && !cells.empty()) {
      cells.back() += '&';
    } else {
      cells.emplace_back();
    }
    AppendActionText(cells.back(), a, schedule.edges);
  }
  return cells;
}

}  // namespace

std::string GridText(const Schedule& schedule, const GridOptions& options) {
  const int ranks = static_cast<int>(schedule.ranks.size());
  const int first = std::max(0, options.from_rank);
  const int last = options.max_ranks > 0 ? std::min(ranks, first + options.max_ranks) : ranks;
  const int from = std::max(0, options.from_cell);
  std::vector<std::vector<std::string>> rows;
  size_t width = 1;
  for (int r = first; r < last; ++r) {
    rows.push_back(CellTexts(schedule, r, from, options.max_cells));
    auto& row = rows.back();
    const int marked = options.mark_cell - from;
    if (r == options.mark_rank && marked >= 0 && marked < static_cast<int>(row.size())) {
      row[static_cast<size_t>(marked)] = '[' + row[static_cast<size_t>(marked)] + ']';
    }
    for (const std::string& cell : row)
      width = std::max(width, cell.size());
  }
  std::string text;
  const size_t label = std::to_string(std::max(0, last - 1)).size();
  for (int r = first; r < last; ++r) {
    text += fmt::format("rank {:>{}} |{}", r, label, from > 0 ? " ..." : "");
    for (const std::string& cell : rows[static_cast<size_t>(r - first)])
      text += fmt::format(" {:<{}}", cell, width);
    while (!text.empty() && text.back() == ' ')
      text.pop_back();
    text += '\n';
  }
  return text;
}

}  // namespace penstock::schedule
