#include "runtime/train_stage_plan.h"

#include <algorithm>

#include "runtime/stage_layout.h"
#include "runtime/train_edges.h"

namespace penstock::runtime {
namespace {

bool Candidate(const TrainOp& op, Recompute recompute, bool is_loss) {
  switch (recompute) {
    case Recompute::kNone:
      return false;
    case Recompute::kSelective:
      return op.traits.cheap && !is_loss;
    case Recompute::kFull:
      return !is_loss;
  }
  return false;
}

bool KeepsExtras(const TrainOp& op) {
  return std::any_of(op.traits.extras.begin(), op.traits.extras.end(),
                     [](const ExtraSpec& e) { return e.from_forward && !e.whole_micro_batch; });
}

// Marks what R runs: backwards from what I and W read.
void MarkRecomputed(TrainStagePlan& plan, Recompute recompute, size_t num_values) {
  std::vector<bool> needed(num_values, false);
  const auto need = [&](ValueId id) { needed[static_cast<size_t>(id.value())] = true; };
  for (const PlannedOp& op : plan.ops) {
    const model::Op& node = op.run->node();
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (InputRead(*op.run, i) != kNotRead) {
        need(node.inputs[i]);
      }
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (OutputRead(*op.run, i) != kNotRead) {
        need(node.outputs[i]);
      }
    }
  }
  for (auto op = plan.ops.rbegin(); op != plan.ops.rend(); ++op) {
    const model::Op& node = op->run->node();
    const bool wanted = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) {
      return needed[static_cast<size_t>(id.value())];
    });
    if (op->run->traits.view) {
      if (wanted) {
        need(node.inputs[0]);
      }
      continue;
    }
    if (Candidate(*op->run, recompute, op->term >= 0) && (wanted || KeepsExtras(*op->run))) {
      op->recomputed = true;
      std::for_each(node.inputs.begin(), node.inputs.end(), need);
    }
  }
}

// One input twice would mean two gradients into one place at once.
Result<> CheckInputs(const model::Graph& graph, const TrainOp& op) {
  const std::vector<ValueId>& inputs = op.node().inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (IntoOf(op, i) != GradientInto::kEither &&
        std::count(inputs.begin(), inputs.end(), inputs[i]) > 1) {
      return MakeError(ErrorCode::kUnsupported,
                       "[runtime.train] {}: {} reads '{}' twice, which can't be trained",
                       graph.layers[static_cast<size_t>(op.node().layer.value())].name,
                       model::OpName(op.node()), graph.value(inputs[i]).name);
    }
  }
  return {};
}

}  // namespace

Result<TrainStagePlan> TrainStagePlan::Create(const TrainSpec& spec, const model::CutSets& cuts,
                                              StageId stage, std::span<const model::Op> losses) {
  const model::Graph& graph = *spec.graph;
  const model::Partition& partition = *spec.partition;
  TrainStagePlan plan;
  plan.stage = stage;
  plan.front = GradientsInFront(graph, cuts, partition, stage);
  if (stage.value() + 1 < partition.num_stages()) {
    plan.behind = GradientsInFront(graph, cuts, partition, StageId(stage.value() + 1));
  }
  if (partition.empty(stage)) {
    return plan;
  }
  const TrainOpContext context{graph, spec.products, spec.schedule->slices,
                               spec.forward_only ? 0.0F : spec.dropout};
  const auto loss_index = static_cast<int32_t>(graph.ops.size());
  const auto first = static_cast<size_t>(partition.first_layer(stage));
  const auto last = static_cast<size_t>(partition.end_layer(stage)) - 1;
  for (int32_t i = graph.layers[first].first_op; i < graph.layers[last].last_op; ++i) {
    PENSTOCK_TRY_ASSIGN(std::unique_ptr<TrainOp> op, MakeTrainOp(i, context));
    PENSTOCK_TRY(CheckInputs(graph, *op));
    const std::vector<ValueId>& made = op->node().outputs;
    plan.ops.push_back({i, std::move(op), false});
    // A term of the loss stands right after its logits, so that they live no longer.
    for (size_t k = 0; k < losses.size(); ++k) {
      if (std::find(made.begin(), made.end(), losses[k].inputs[0]) != made.end()) {
        const auto term = static_cast<int32_t>(k);
        plan.ops.push_back({loss_index + term, MakeLossOp(losses[k], k), false, term});
      }
    }
  }
  MarkRecomputed(plan, spec.forward_only ? Recompute::kNone : spec.recompute, graph.values.size());
  return plan;
}

DirectionPlan::DirectionPlan(const model::Graph& graph, std::vector<const TrainStagePlan*> stages,
                             bool forward_only)
    : graph_(graph),
      stages_(std::move(stages)),
      forward_only_(forward_only),
      selected_(SelectedValues(graph)),
      value_(graph.values.size()),
      gradient_(graph.values.size()),
      value_width_(graph.values.size(), 0),
      gradient_width_(graph.values.size(), 0) {
  PlaceValues();
  Count();
}

void DirectionPlan::PlaceValues() {
  for (size_t v = 0; v < graph_.values.size(); ++v) {
    const model::Value& value = graph_.values[v];
    if (value.type == model::ValueType::kActivation) {
      value_[v] = gradient_[v] = {static_cast<int32_t>(v), 0};
      value_width_[v] = gradient_width_[v] = value.width;
    }
  }
  for (const TrainStagePlan* stage : stages_) {
    for (const PlannedOp& op : stage->ops) {
      const std::vector<ValueId>& outputs = op.run->node().outputs;
      if (outputs.empty()) {
        continue;
      }
      const bool view = op.run->traits.view;
      ValuePlace at = view ? value(op.run->node().inputs[0]) : ValuePlace{outputs[0].value(), 0};
      int64_t column = 0;
      for (const ValueId id : outputs) {
        const auto v = static_cast<size_t>(id.value());
        value_[v] = {at.root, at.column + column};
        // Gradients of a view's outputs lie by themselves: the view copies them together.
        if (!view) {
          gradient_[v] = {at.root, column};
        }
        column += graph_.values[v].width;
      }
      if (!view) {
        value_width_[static_cast<size_t>(at.root)] = column;
        gradient_width_[static_cast<size_t>(at.root)] = column;
      }
    }
  }
}

void DirectionPlan::Count() {
  for (const TrainStagePlan* stage : stages_) {
    Counts counts;
    counts.plain.assign(graph_.values.size(), 0);
    counts.once = counts.again = counts.plain;
    std::vector<bool> fresh(graph_.values.size(), false);  // roots that R makes
    for (const PlannedOp& op : stage->ops) {
      if (op.recomputed) {
        fresh[static_cast<size_t>(value(op.run->node().outputs[0]).root)] = true;
      }
    }
    const auto count = [&](ValueId id, int32_t forward, int32_t again, int32_t backward) {
      const ValuePlace place = value(id);
      if (place.root < 0) {
        return;
      }
      const auto root = static_cast<size_t>(place.root);
      counts.plain[root] += forward + backward;
      counts.once[root] += forward + (fresh[root] ? 0 : again + backward);
      counts.again[root] += fresh[root] ? again + backward : 0;
    };
    for (const PlannedOp& op : stage->ops) {
      if (op.run->traits.view) {
        continue;
      }
      const model::Op& node = op.run->node();
      const auto halves = [&](ReadIn read) {
        return forward_only_ ? 0
                             : ((read & kReadInI) != 0 ? 1 : 0) + ((read & kReadInW) != 0 ? 1 : 0);
      };
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        count(node.inputs[i], 1, op.recomputed ? 1 : 0, halves(InputRead(*op.run, i)));
      }
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        count(node.outputs[i], 0, 0, halves(OutputRead(*op.run, i)));
      }
    }
    counts_.push_back(std::move(counts));
  }
}

}  // namespace penstock::runtime
