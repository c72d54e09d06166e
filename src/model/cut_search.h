// Cuts that weigh what crosses: the search behind CutBalanced, exact for any weights; also for
// planners whose stages have limits of their own.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "model/cut.h"

namespace penstock::model {

// What a cut is weighed by: the work of each layer, and what crosses each boundary.
struct CutWeights {
  std::vector<double> work;            // by layer
  std::vector<double> crossing_bytes;  // by boundary 0 .. layers; empty: all boundaries are alike
  // What sending a byte costs the stage in front of a boundary, and receiving it the stage behind,
  // in the unit of `work`.
  double work_per_byte = 0;
};

// As CutBalanced(work, ...), but a stage's weight has in it what its boundaries send and receive,
// and among the cuts whose heaviest stage is within 1 % of the best the one is taken that sends
// less where that costs little evenness: what crosses a boundary of the average counts as much as 2
// % more of a stage's mean square. Where all boundaries are alike, or nothing is saved, the cut is
// that of the work alone. Deterministic. O(stages x layers^2) at worst.
Result<Partition> CutBalanced(const CutWeights& weights, int64_t stages, bool allow_empty = false);

// What a cut comes to, in the units of the weights.
struct CutFigures {
  double heaviest = 0;        // stage, with what it sends and receives
  double crossing_bytes = 0;  // of all boundaries between stages
};

CutFigures FiguresOf(const CutWeights& weights, const Partition& partition);

// Bytes of activations of `element_bytes` each (no token ids) that cross each boundary; ends: 0.
std::vector<double> CrossingBytes(const Graph& graph, int64_t element_bytes);

// Whether stage `stage` may hold layers [first, end). Where it may, it may hold fewer.
using StageFits = std::function<bool(int32_t stage, int32_t first, int32_t end)>;

// First layer of each stage, by the rules of CutBalanced; nothing where the limits leave no cut.
// `fits` may be null. REQUIRES: 1 <= stages <= layers.
std::optional<std::vector<int32_t>> FindBalancedCut(const CutWeights& weights, int32_t stages,
                                                    const StageFits& fits = nullptr);

}  // namespace penstock::model
