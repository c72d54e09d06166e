// A schedule as one rank runs it: facts about its units and stages that hold for every step.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "runtime/train_rank.h"
#include "runtime/train_stage_plan.h"
#include "runtime/train_unit.h"
#include "schedule/schedule.h"

namespace penstock::runtime {

class TrainProgram {
 public:
  // `plans`: of the rank's stages. The schedule and the plans must outlive it. Errors:
  // kUnsupported (actions that training does not run); kInvalidSchedule (a gradient that is not
  // reduced before its OPT).
  static Result<std::unique_ptr<TrainProgram>> Create(
      const model::Graph& graph, const schedule::Schedule& schedule, int32_t rank,
      const std::map<int32_t, TrainStagePlan>& plans);

  const schedule::Schedule& schedule() const { return schedule_; }

  const std::vector<schedule::Action>& actions() const {
    return schedule_.ranks[static_cast<size_t>(rank_)];
  }

  int32_t units() const { return schedule_.micro_batches * schedule_.slices; }

  int32_t UnitOf(const schedule::Action& action) const {
    return action.micro_batch.value() * schedule_.slices + action.slice;
  }

  int32_t MicroBatchOf(int32_t unit) const { return unit / schedule_.slices; }

  int32_t SliceOf(int32_t unit) const { return unit % schedule_.slices; }

  const DirectionPlan& direction(int32_t unit) const;

  // Index of a stage among the unit's stages on this rank.
  size_t At(int32_t unit, StageId stage) const;

  // F, B, I, W, R and messages of a unit in this rank's list.
  int32_t ActionsOf(int32_t unit) const { return actions_of_[static_cast<size_t>(unit)]; }

  std::unique_ptr<TrainUnit> MakeUnit(int32_t unit, const TrainUnit::Sizes& sizes,
                                      std::shared_ptr<MicroBatchExtras> shared) const;

  // How many REDUCE_GRAD of a tied edge the list has: the last one acts.
  int32_t TiedActions(size_t edge) const;

  // Values that a SEND_F takes along.
  void SetSends(std::vector<std::vector<ValueId>> sends) { sends_ = std::move(sends); }

 private:
  TrainProgram(const schedule::Schedule& schedule, int32_t rank)
      : schedule_(schedule), rank_(rank) {}

  Result<> Check() const;

  const schedule::Schedule& schedule_;
  int32_t rank_;
  std::vector<std::unique_ptr<DirectionPlan>> directions_;
  std::vector<int32_t> actions_of_;            // per unit
  std::vector<std::vector<bool>> recomputes_;  // per unit, per stage of its direction
  std::vector<std::vector<ValueId>> sends_;    // per unit
  std::map<size_t, int32_t> tied_actions_;
};

// Whether an action belongs to a unit (not to a step's end).
constexpr bool OfUnit(schedule::OpKind kind) {
  return schedule::IsCompute(kind) || schedule::IsMessage(kind) ||
         kind == schedule::OpKind::kWaitSendForward ||
         kind == schedule::OpKind::kWaitSendBackward || kind == schedule::OpKind::kRelease;
}

}  // namespace penstock::runtime
