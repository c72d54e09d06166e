// Cutting a layer graph into stages: which layers a stage has, and which values cross.
//
// A boundary b (1 .. layers-1) lies in front of layer b. What crosses it is worked out from the
// graph: every value that is written before b and read in b or later. A stage that does not read
// such a value itself passes it on.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "model/graph.h"

namespace penstock::model {

// Contiguous layers per stage, in forward order; every layer is in exactly one stage. A stage may
// be empty. Thread-safe for reading.
class Partition {
 public:
  // REQUIRES: starts non-decreasing, starts[0] == 0, every entry within 0..layers.
  Partition(std::vector<int32_t> starts, int32_t layers);

  int32_t num_stages() const { return static_cast<int32_t>(starts_.size()) - 1; }

  int32_t num_layers() const { return starts_.back(); }

  // Layers [first_layer, end_layer).
  int32_t first_layer(StageId stage) const { return starts_[static_cast<size_t>(stage.value())]; }

  int32_t end_layer(StageId stage) const { return starts_[static_cast<size_t>(stage.value()) + 1]; }

  bool empty(StageId stage) const { return first_layer(stage) == end_layer(stage); }

  // O(log stages).
  StageId StageOf(LayerId layer) const;

  friend bool operator==(const Partition&, const Partition&) = default;

 private:
  std::vector<int32_t> starts_;  // stages + 1 entries
};

// `--cut`: new stages start at these layers. Equal entries make empty stages; the first and the
// last stage are never empty. Errors: kInvalidArgument (out of order, outside 1..layers-1), with
// the nearest legal cut.
Result<Partition> CutAt(int32_t layers, std::span<const int64_t> cut);

// The legal cut that is nearest to `cut`: entries within 1..layers-1, in order; with `stages` above
// 0 as many entries as make so many stages (the longest stage is halved until there are enough;
// stages that are shortest together are joined while there are too many). REQUIRES: layers >= 2.
// O(n log n + n x entries to add or drop).
std::vector<int64_t> NearestCut(int32_t layers, std::span<const int64_t> cut, int64_t stages = 0);

// "; the nearest legal cut is 3,5", for the ends of errors; "" for cuts too long to read.
std::string NearestCutText(int32_t layers, std::span<const int64_t> cut, int64_t stages = 0);

// `--stages` without a cut: the heaviest stage as light as can be, then the stages as equal as can
// be (least sum of squares), then earlier stages the heavier. `weights` has one entry per layer.
// No stage is empty; with `allow_empty` and more stages than layers, each layer is a stage and the
// rest (in front of the last) are empty. Errors: kInvalidArgument (no stages, more than layers).
// Deterministic. O(layers^2) for even weights.
Result<Partition> CutBalanced(std::span<const double> weights, int64_t stages,
                              bool allow_empty = false);

// Weights for CutBalanced that count decoder layers only.
std::vector<double> LayerCountWeights(const Graph& graph);

// `--balance`.
enum class Balance : uint8_t {
  kTime,    // equal time
  kMemory,  // equal bytes of weights and state
  kLayers,  // equal numbers of decoder layers
};

Result<Balance> ParseBalance(std::string_view text);

// Bytes of one value per token, activations with `element_bytes` each; token ids take 4.
int64_t BytesPerToken(const Value& value, int64_t element_bytes);

// The values that cross each boundary. O(operations) to build; queries are O(1).
class CutSets {
 public:
  explicit CutSets(const Graph& graph);

  // Ascending by value id; boundary 0 has what the model is given (the token ids), boundary
  // `layers` has nothing. REQUIRES: 0 <= boundary <= layers.
  const std::vector<ValueId>& Crossing(int32_t boundary) const {
    return crossing_[static_cast<size_t>(boundary)];
  }

  // Last layer that reads the value; -1 for one that nobody reads.
  int32_t LastReader(ValueId id) const { return last_reader_[static_cast<size_t>(id.value())]; }

 private:
  std::vector<std::vector<ValueId>> crossing_;
  std::vector<int32_t> last_reader_;
};

// What one stage has and moves.
struct StageContent {
  int32_t first_layer = 0;
  int32_t end_layer = 0;
  int32_t first_op = 0;  // operations [first_op, end_op)
  int32_t end_op = 0;
  std::vector<ValueId> receives;  // cross the boundary in front; the token ids for stage 0
  std::vector<ValueId> reads;     // those of `receives` that its own operations read
  std::vector<ValueId> sends;     // cross the boundary behind: written here, or passed on
  std::vector<TensorId> tensors;  // in the order of first use; a tied one stands on both stages
  std::vector<int32_t> states;    // indices into Graph::states
};

// One entry per stage. Layers are conserved: each operation is in exactly one entry.
// O(operations + stages x crossing values).
std::vector<StageContent> Contents(const Graph& graph, const CutSets& cuts,
                                   const Partition& partition);

// A message between stages on different ranks: to the next stage, or straight to a later one that
// reads what the stages between do not.
struct Hop {
  StageId from_stage;
  StageId to_stage;
  RankId from_rank;
  RankId to_rank;
  std::vector<ValueId> values;  // what the receiving rank lacks and reads
  std::vector<ValueId> naive;   // everything that crosses; between neighbours only
};

// What a rank has of values that cross boundaries at one moment, for one token of one micro-batch:
// those it received or wrote that one of its stages has still to read or send.
struct Held {
  StageId stage;        // at one of its stages:
  bool behind = false;  // when that has run and has nothing sent yet; else when it begins
  std::vector<ValueId> values;
};

// What stays on a rank from one of its stages to its next.
struct Kept {
  StageId from_stage;
  StageId to_stage;
  std::vector<ValueId> values;  // ascending
};

struct HopPlan {
  std::vector<Hop> hops;   // by (from_stage, to_stage); a stage and its successor on one rank: none
  std::vector<Held> held;  // per rank: when it has most; an invalid stage where it never has any
  std::vector<Kept> kept;  // for each stage and the next one on its rank, by from_stage
};

// Forward communication of training when stage s runs on rank_of[s]: each rank that reads a value
// gets it once, from the stage that read it last (or made it), and keeps it while a later stage of
// its own reads or sends it, whatever runs on the ranks between: no value is on a rank twice. (What
// the backward pass saves comes on top.) The same messages as those of schedule::AddCommunication
// with LongRoute::kNearest. Token ids are no part: every rank is given them. (Serving has one stage
// per rank and hands everything that crosses a boundary on in the one message to the next stage.)
// REQUIRES: one rank per stage, each below `ranks`.
HopPlan PlanHops(const Graph& graph, const CutSets& cuts, const Partition& partition,
                 std::span<const RankId> rank_of, int32_t ranks, int64_t element_bytes);

}  // namespace penstock::model
