// The schedule: for each rank, an ordered list of actions. The one object that is generated,
// proven, simulated, run and traced.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "schedule/action.h"
#include "schedule/placement.h"

namespace penstock::schedule {

enum class EdgeKind : uint8_t {
  kValue,  // `from` produces a value that later stages `to` read, beyond what the next stage gets
           // anyway
  kTied,   // `from` and `to` own the same weights: their gradients are reduced together
};

// A dependence between stages that are not neighbours, or a further value between neighbours. The
// chain (stage s to s+1) needs no Edge. Forward, a rank gets a value once; backward, its gradient
// travels with the chain, stage by stage.
struct Edge {
  std::string name;  // letters, digits, '_', '-', '/'; unique in a schedule
  EdgeKind kind = EdgeKind::kValue;
  StageId from;
  std::vector<StageId> to;  // ascending, all after `from`
  int64_t bytes = 0;        // of one micro-batch; 0: not known

  friend bool operator==(const Edge&, const Edge&) = default;
};

struct Schedule {
  std::string name;       // of the generator, or of the file; a label only
  int micro_batches = 0;  // m, of one step
  int steps = 1;          // steps that were unrolled; micro-batch j of step t has number t * m + j
  int slices = 1;         // sequence slices per micro-batch
  bool lowered = false;   // communication actions are in the lists (or none is needed)
  bool forward_only = false;  // no backward work exists for any micro-batch
  bool ring = false;  // the first stage's F of step t+1 needs the last stage's F of step t, same
                      // micro-batch (decoding)
  Placement placement;
  std::vector<Edge> edges;
  std::vector<std::vector<Action>> ranks;  // program order; kIdle cells are for grids and text only

  int num_ranks() const { return placement.num_ranks(); }  // p

  int num_stages() const { return placement.num_stages(); }  // S

  int chunks() const { return placement.chunks(); }  // v

  int total_micro_batches() const { return micro_batches * steps; }

  // First micro-batch (within a step) of the second copy of the weights: ceil(m / 2). Lanes of
  // decision "one accumulation order" are [0, split) and [split, m).
  int direction_split() const { return (micro_batches + 1) / 2; }

  // Copy of the weights, 0 or 1, that runs a micro-batch.
  int DirectionOf(MicroBatchId micro_batch) const {
    if (placement.num_directions() == 1)
      return 0;
    return micro_batch.value() % micro_batches >= direction_split() ? 1 : 0;
  }

  // The rank that runs an action of this stage and micro-batch.
  RankId RankOf(StageId stage, MicroBatchId micro_batch) const {
    return placement.RankOf(stage, DirectionOf(micro_batch));
  }

  // Actions without idle cells. O(actions).
  int64_t CountActions() const;

  // Everything but the name.
  friend bool operator==(const Schedule& a, const Schedule& b);
};

// Same ranks, placement and programs, whatever the name, edges' bytes and flags that a PyTorch file
// can't hold.
bool SameProgram(const Schedule& a, const Schedule& b);

// Bytes that cross from stage `boundary` to `boundary` + 1 in backward besides the chain's
// gradient: every value edge with from <= boundary < its last reader. O(edges).
int64_t LongGradientBytes(const Schedule& schedule, StageId boundary);

}  // namespace penstock::schedule
