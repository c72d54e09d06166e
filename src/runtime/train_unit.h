// A unit of work: one micro-batch on one copy of the weights, or one sequence slice of it. Holds
// the values, saved activations and gradients of all stages of this rank, each until it was read
// for the last time.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/result.h"
#include "runtime/train_memory.h"
#include "runtime/train_op.h"
#include "runtime/train_stage_plan.h"
#include "tensor/tensor.h"

namespace penstock::runtime {

// What all slices of a micro-batch share: per operation, memory of the whole micro-batch.
struct MicroBatchExtras {
  std::map<int32_t, std::vector<Block>> blocks;
  std::map<int32_t, int32_t> done;  // slices that have passed the operation's last reader
};

class TrainUnit {
 public:
  // How many rows: of tokens, of those selected for logits, of the whole micro-batch.
  struct Sizes {
    int64_t rows = 0;
    int64_t selected = 0;
    int64_t micro_rows = 0;
  };

  // `recomputes`: per stage of the plan, whether the unit has an R there.
  TrainUnit(const DirectionPlan& plan, int32_t index, const Sizes& sizes,
            std::vector<bool> recomputes, std::shared_ptr<MicroBatchExtras> shared);

  const DirectionPlan& plan() const { return plan_; }

  int32_t index() const { return index_; }

  const Sizes& sizes() const { return sizes_; }

  bool recomputes(size_t at) const { return recomputes_[at]; }

  int64_t RowsOf(ValueId id) const { return plan_.selected(id) ? sizes_.selected : sizes_.rows; }

  // ---- Values ----

  // Makes memory for the root of `id`, to be read `readings` times.
  Result<> Define(BlockPool& pool, ValueId id, int32_t readings);
  // The same for a value that another rank sent. One that came or was made before (where a schedule
  // sends over every hop) has had all its readings counted: nothing changes.
  Result<> DefineReceived(BlockPool& pool, ValueId id);
  bool Has(ValueId id) const;
  Tensor Value(ValueId id);
  // One reading less; the last one gives the memory back.
  void Read(ValueId id, int32_t times = 1);

  // All readings that the rank's stages and sends have in store for a value that is defined now.
  int32_t ReadingsOfAll(ValueId id) const;

  // A SEND that will read the value.
  void ExpectSend(ValueId id) { ++sends_[plan_.value(id).root]; }

  // ---- Gradients ----

  bool HasGradient(ValueId id) const { return present_[Index(id)] != 0; }

  // Makes memory for the gradient's root if there is none, and marks it as there. Its contents are
  // whatever they were.
  Result<Tensor> MakeGradient(BlockPool& pool, ValueId id);
  Tensor Gradient(ValueId id);
  // Gives the memory of the gradient's root back.
  void DropGradient(ValueId id);
  // `to` has no gradient yet and takes over the memory of `from`'s. REQUIRES: CanMove.
  void MoveGradient(ValueId from, ValueId to);
  bool CanMoveGradient(ValueId from, ValueId to) const;
  // The gradient of `id` takes over the memory of its value, if nobody else reads that. The value
  // stays readable through a view that was made before.
  bool ValueBecomesGradient(ValueId id);

  // ---- Extras of operations ----

  std::map<int32_t, std::vector<Block>>& extras() { return extras_; }

  MicroBatchExtras& shared() { return *shared_; }

  // True when nothing is held any more.
  bool Empty() const;

  UnitRows rows;  // empty in a dry run

 private:
  static size_t Index(ValueId id) { return static_cast<size_t>(id.value()); }

  size_t Root(ValueId id) const { return static_cast<size_t>(plan_.value(id).root); }

  size_t GradientRoot(ValueId id) const { return static_cast<size_t>(plan_.gradient(id).root); }

  const DirectionPlan& plan_;
  int32_t index_;
  Sizes sizes_;
  std::vector<bool> recomputes_;
  std::shared_ptr<MicroBatchExtras> shared_;
  std::vector<Block> values_;                     // per root
  std::vector<int32_t> readings_;                 // per root
  std::map<int32_t, int32_t> sends_;              // per root
  std::vector<Block> gradients_;                  // per root
  std::vector<uint8_t> present_;                  // per value
  std::vector<uint8_t> known_;                    // per root: it was defined before
  std::map<int32_t, std::vector<Block>> extras_;  // per operation
};

}  // namespace penstock::runtime
