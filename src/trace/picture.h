// Pictures of a timeline: a text grid for terminals and an SVG for papers.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "schedule/schedule.h"
#include "trace/timeline.h"

namespace penstock::trace {

struct GridOptions {
  int width = 100;      // columns, label included
  bool colour = false;  // ANSI 256 colours; else letters alone
  double from_s = 0;    // seconds after the window's begin
  double to_s = -1;     // negative: as far as fits, or the end
};

// One line per rank over a ruler: a cell per action with its kind and micro-batch, '.' where idle.
// The scale is the largest at which labels fit and the part asked for is as long as the width;
// where the whole does not fit, the first part is drawn and the last line says how to see the rest.
// With `schedule`, cells of further chunks (or of the second copy of the weights) have another
// shade, or the whole action text in plain form. Cost O(slices + ranks * width).
// Errors: kInvalidArgument (an empty part).
Result<std::string> TextGrid(const Timeline& timeline, const schedule::Schedule* schedule,
                             const GridOptions& options);

// What one hop of the pipeline carries per micro-batch, and what ranks hold; for a chart.
struct HopBytes {
  std::string name;  // "rank 0 to 1, stage 0 to 1"
  int64_t forward = 0;
  int64_t backward = 0;
};

struct SvgOptions {
  std::string title;
  std::vector<std::string> notes;  // lines under the picture
  double from_s = 0;
  double to_s = -1;                    // negative: the end
  bool memory = true;                  // curve of the counter "activations" under each rank
  double cell_width = 17;              // points that the shortest action gets, at least 1
  std::vector<HopBytes> hops;          // a chart of bytes per hop under the picture
  std::vector<int64_t> held_per_rank;  // beside it: most bytes of earlier layers' values held
};

// Ranks as rows, time to the right; kinds in colours that colour-blind readers tell apart, further
// chunks lighter, the micro-batch in each cell, idle time hatched, the activations below each rank;
// light or dark as the viewer prefers; with `hops` a bar per hop and direction, the fullest in bold
// (of more than 40, the fullest 40). Stand-alone SVG 1.1 with CSS, no script. Errors:
// kInvalidArgument (more than 100,000 actions in the part asked for, an empty part, no time at
// all).
Result<std::string> Svg(const Timeline& timeline, const schedule::Schedule* schedule,
                        const SvgOptions& options);

// The part of a timeline that a picture shows is not empty. Errors: kInvalidArgument "[trace.PART]
// ...".
Result<> CheckWindow(const Timeline& timeline, double from_s, double to_s, std::string_view part);

// A round time at an axis: "0", "5 s", "250 ms".
std::string AxisSeconds(double seconds);

// The duration that the scale of a picture goes by: the shortest, but for the shortest tenth, which
// a measured timeline may have by accident. `otherwise_s` where there is none.
double ShortCell(std::vector<double> durations_s, double otherwise_s);

// Shade of a slice's cell: the chunk on its rank, or with two copies of the weights the copy; 0
// without a schedule.
int ShadeOf(const Slice& slice, const schedule::Schedule* schedule);

}  // namespace penstock::trace
