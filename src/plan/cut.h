// Cutting the model's layers into contiguous stages: the cut whose slowest stage is the fastest,
// with memory as a constraint of each stage. Exact for any costs.
//
// The least bound is found by bisection over the bound; for one bound, taking as many layers as
// each stage may hold, from the left, reaches furthest (each stage's limits depend on that stage
// alone), so it decides whether a cut exists. Known as the chains-on-chains problem: Pinar and
// Aykanat, "Fast optimal load balancing algorithms for 1D partitioning", JPDC 2004.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace penstock::plan {

struct CutProblem {
  std::span<const double> seconds;      // by unit
  std::span<const double> fixed_bytes;  // by unit: held once (weights, optimizer, KV); or empty
  std::span<const double> live_bytes;   // by unit: held `live` times (activations); or empty
  std::span<const double> live;         // by stage
  double capacity_bytes = 0;            // of each stage; 0: no limit
  int32_t stages = 1;
  // By boundary 0 .. units, where boundaries differ in what crosses; else empty. A stage's seconds
  // then have in them what its boundaries take, and cuts within 1 % of the fastest give way to one
  // that sends less (model/cut_search.h).
  std::span<const double> crossing_bytes;
  double seconds_per_byte = 0;        // of a boundary, on the stage in front and on the one behind
  double live_per_crossing_byte = 0;  // held of each byte that comes in, times `live`
};

struct CutResult {
  std::vector<int32_t> units;  // by stage; sums to the number of units
  double bottleneck_s = 0;     // of the slowest stage, with what it sends and receives
};

// Nothing where no cut keeps within the capacity. Stages hold one unit at least while there are
// enough. O(units + stages) per bisection step, about 40 steps; with crossing bytes O(units^2).
std::optional<CutResult> FindCut(const CutProblem& problem);

// The same by trying every cut. For tests: O(units^stages).
std::optional<CutResult> FindCutExhaustively(const CutProblem& problem);

}  // namespace penstock::plan
