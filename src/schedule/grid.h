// A schedule as a plain text grid: one row per rank, one column per cell.

#pragma once

#include <string>

#include "schedule/schedule.h"

namespace penstock::schedule {

struct GridOptions {
  int mark_rank = -1;  // with mark_cell: this cell is put in [brackets]
  int mark_cell = -1;
  int from_cell = 0;  // first column
  int max_cells = 0;  // columns; 0: all
  int from_rank = 0;
  int max_ranks = 0;  // rows; 0: all
};

// Cells in program order, not in time: "rank 0 | 0F0 0F1 . 0B0". An overlapped pair is one cell,
// "4F4&3B0". Cost O(cells shown).
std::string GridText(const Schedule& schedule, const GridOptions& options = {});

}  // namespace penstock::schedule
