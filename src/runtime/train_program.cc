#include "runtime/train_program.h"

#include <algorithm>
#include <set>

namespace penstock::runtime {

using schedule::Action;
using schedule::OpKind;

Result<std::unique_ptr<TrainProgram>> TrainProgram::Create(
    const model::Graph& graph, const schedule::Schedule& schedule, int32_t rank,
    const std::map<int32_t, TrainStagePlan>& plans) {
  std::unique_ptr<TrainProgram> program(new TrainProgram(schedule, rank));
  for (int d = 0; d < schedule.placement.num_directions(); ++d) {
    std::vector<const TrainStagePlan*> stages;
    for (const StageId stage : schedule.placement.StagesOf(RankId(rank), d)) {
      stages.push_back(&plans.at(stage.value()));
    }
    program->directions_.push_back(
        std::make_unique<DirectionPlan>(graph, std::move(stages), schedule.forward_only));
  }
  const auto units = static_cast<size_t>(program->units());
  program->actions_of_.assign(units, 0);
  program->sends_.resize(units);
  for (size_t u = 0; u < units; ++u) {
    program->recomputes_.emplace_back(program->direction(static_cast<int32_t>(u)).stages().size(),
                                      false);
  }
  PENSTOCK_TRY(program->Check());
  for (const Action& a : program->actions()) {
    if (OfUnit(a.kind)) {
      const int32_t unit = program->UnitOf(a);
      ++program->actions_of_[static_cast<size_t>(unit)];
      if (a.kind == OpKind::kRecompute) {
        program->recomputes_[static_cast<size_t>(unit)][program->At(unit, a.stage)] = true;
      }
    } else if (a.kind == OpKind::kReduceGrad && a.value != 0) {
      ++program->tied_actions_[a.value - 1U];
    }
  }
  return program;
}

Result<> TrainProgram::Check() const {
  std::set<int32_t> reduced;
  std::set<size_t> tied;
  for (const Action& a : actions()) {
    const auto refuse = [&](std::string_view why) {
      return MakeError(ErrorCode::kUnsupported, "[runtime.train] rank {}: {}: {}", rank_,
                       schedule::ActionText(a, schedule_.edges), why);
    };
    if (a.kind == OpKind::kUnshard || a.kind == OpKind::kReshard) {
      return refuse("weights are not sharded here, wanted a schedule without gathering");
    }
    if (a.kind == OpKind::kReduceGrad) {
      a.value == 0 ? static_cast<void>(reduced.insert(a.stage.value()))
                   : static_cast<void>(tied.insert(a.value - 1U));
    }
  }
  if (schedule_.forward_only) {
    return {};
  }
  for (const auto& direction : directions_) {
    for (const TrainStagePlan* stage : direction->stages()) {
      if (!reduced.contains(stage->stage.value())) {
        return MakeError(ErrorCode::kInvalidSchedule,
                         "[runtime.train] rank {} has no REDUCE_GRAD of stage {}", rank_,
                         stage->stage);
      }
      for (size_t e = 0; e < schedule_.edges.size(); ++e) {
        const schedule::Edge& edge = schedule_.edges[e];
        const bool owner = edge.kind == schedule::EdgeKind::kTied &&
                           (edge.from == stage->stage || std::find(edge.to.begin(), edge.to.end(),
                                                                   stage->stage) != edge.to.end());
        if (owner && !tied.contains(e)) {
          return MakeError(ErrorCode::kInvalidSchedule,
                           "[runtime.train] rank {} has no REDUCE_GRAD of '{}', which stage {} "
                           "shares with others",
                           rank_, edge.name, stage->stage);
        }
      }
    }
  }
  return {};
}

const DirectionPlan& TrainProgram::direction(int32_t unit) const {
  const int d = schedule_.DirectionOf(MicroBatchId(MicroBatchOf(unit)));
  return *directions_[static_cast<size_t>(d)];
}

size_t TrainProgram::At(int32_t unit, StageId stage) const {
  const auto& stages = direction(unit).stages();
  const auto it = std::find_if(stages.begin(), stages.end(),
                               [&](const TrainStagePlan* plan) { return plan->stage == stage; });
  PENSTOCK_CHECK(it != stages.end(), "a proven schedule runs a stage where it is placed");
  return static_cast<size_t>(it - stages.begin());
}

std::unique_ptr<TrainUnit> TrainProgram::MakeUnit(int32_t unit, const TrainUnit::Sizes& sizes,
                                                  std::shared_ptr<MicroBatchExtras> shared) const {
  auto made = std::make_unique<TrainUnit>(
      direction(unit), unit, sizes, recomputes_[static_cast<size_t>(unit)], std::move(shared));
  for (const ValueId id : sends_[static_cast<size_t>(unit)]) {
    made->ExpectSend(id);
  }
  return made;
}

int32_t TrainProgram::TiedActions(size_t edge) const {
  const auto it = tied_actions_.find(edge);
  return it == tied_actions_.end() ? 0 : it->second;
}

}  // namespace penstock::runtime
