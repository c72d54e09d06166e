// From a compute-only schedule to what a rank runs: edges of this graph and cut, then the passes.

#include <algorithm>
#include <set>

#include "base/units.h"
#include "runtime/train_edges.h"
#include "runtime/train_rank.h"
#include "schedule/passes.h"
#include "schedule/validate.h"

namespace penstock::runtime {
namespace {

using schedule::Edge;
using schedule::EdgeKind;
using schedule::OpKind;
using schedule::Schedule;

// Names of values and tensors have dots, edges don't.
std::string EdgeName(const std::string& name) {
  std::string text = name;
  for (char& c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '-') {
      c = '/';
    }
  }
  return text;
}

// Per value: stages that read it, ascending.
std::vector<std::vector<StageId>> ReadingStages(const model::Graph& graph,
                                                const model::Partition& partition) {
  std::vector<std::vector<StageId>> readers(graph.values.size());
  for (const model::Op& op : graph.ops) {
    const StageId stage = partition.StageOf(op.layer);
    for (const ValueId id : op.inputs) {
      std::vector<StageId>& list = readers[static_cast<size_t>(id.value())];
      if (list.empty() || list.back() != stage) {
        list.push_back(stage);
      }
    }
  }
  return readers;
}

bool HasStepEnd(const Schedule& schedule) {
  for (const auto& program : schedule.ranks) {
    for (const schedule::Action& a : program) {
      if (a.kind == OpKind::kReduceGrad || a.kind == OpKind::kOptimizer) {
        return true;
      }
    }
  }
  return false;
}

// "'embedding' 0 -> 1 2, 'block/1' 0 -> 2": the value edges of `edges` that `other` lacks.
std::string Lacking(const std::vector<Edge>& edges, const std::vector<Edge>& other) {
  constexpr size_t kListed = 64;
  const auto same = [](const Edge& a, const Edge& b) {
    return a.kind == b.kind && a.name == b.name && a.from == b.from && a.to == b.to;
  };
  std::string list;
  size_t count = 0;
  for (const Edge& edge : edges) {
    if (edge.kind != EdgeKind::kValue ||
        std::any_of(other.begin(), other.end(), [&](const Edge& e) { return same(e, edge); })) {
      continue;
    }
    if (++count <= kListed) {
      list += fmt::format("{}'{}' {} ->", count > 1 ? ", " : "", edge.name, edge.from);
      for (const StageId to : edge.to) {
        list += fmt::format(" {}", to);
      }
    }
  }
  return count > kListed ? fmt::format("{} and {} more", list, count - kListed) : list;
}

// A lowered schedule must bring the values that this graph and cut need, and no others.
Result<> CheckEdges(const Schedule& schedule, const std::vector<Edge>& wanted) {
  const std::string without = Lacking(wanted, schedule.edges);
  const std::string with = Lacking(schedule.edges, wanted);
  if (without.empty() && with.empty()) {
    return {};
  }
  return MakeError(
      ErrorCode::kInvalidSchedule,
      "[runtime.schedule] {} is lowered{}{}{}{}{}: wanted the values that later stages "
      "of this model and cut read; give the compute-only schedule instead",
      schedule.name, without.empty() ? "" : " without ", without,
      without.empty() || with.empty() ? "" : " and", with.empty() ? "" : " with ", with);
}

// Edges of tied tensors that a lowered schedule lacks, after its own.
void AppendTied(Schedule& schedule, const std::vector<Edge>& wanted) {
  for (const Edge& edge : wanted) {
    const auto same = [&](const Edge& e) { return e.kind == edge.kind && e.name == edge.name; };
    if (edge.kind == EdgeKind::kTied &&
        std::none_of(schedule.edges.begin(), schedule.edges.end(), same)) {
      schedule.edges.push_back(edge);
    }
  }
}

}  // namespace

Result<Recompute> ParseRecompute(std::string_view text) {
  if (text == "none") {
    return Recompute::kNone;
  }
  if (text == "selective") {
    return Recompute::kSelective;
  }
  if (text == "full") {
    return Recompute::kFull;
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   "[runtime.schedule] recompute: got '{}', wanted none, selective or full", text);
}

Schedule ForwardOf(const Schedule& compute) {
  Schedule forward = compute;
  forward.name += " forward";
  forward.forward_only = true;
  for (auto& program : forward.ranks) {
    std::erase_if(program, [](const schedule::Action& a) { return a.kind != OpKind::kForward; });
    for (schedule::Action& a : program) {
      a.joined = false;
    }
  }
  return forward;
}

std::vector<bool> TrainableTensors(const model::Graph& graph) {
  std::vector<bool> trainable(graph.tensors.size(), true);
  for (const model::Op& op : graph.ops) {
    const auto* moe = std::get_if<model::MoeOp>(&op.params);
    if (moe != nullptr && moe->router_bias.valid()) {
      trainable[static_cast<size_t>(moe->router_bias.value())] = false;
    }
  }
  return trainable;
}

std::vector<std::vector<StageId>> TensorStages(const model::Graph& graph,
                                               const model::Partition& partition) {
  std::vector<std::vector<StageId>> stages(graph.tensors.size());
  for (const model::Op& op : graph.ops) {
    const StageId stage = partition.StageOf(op.layer);
    for (const TensorId id : model::TensorsOf(op)) {
      std::vector<StageId>& list = stages[static_cast<size_t>(id.value())];
      if (list.empty() || list.back() != stage) {
        list.push_back(stage);
      }
    }
  }
  return stages;
}

std::vector<ValueId> ChainValues(const model::Graph& graph, const model::Partition& partition,
                                 StageId stage) {
  std::vector<ValueId> chain;
  const auto readers = ReadingStages(graph, partition);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const model::Value& value = graph.values[v];
    if (value.type != model::ValueType::kActivation || partition.StageOf(value.producer) != stage) {
      continue;
    }
    std::vector<StageId> later = readers[v];
    std::erase(later, stage);
    if (later.size() == 1 && later[0].value() == stage.value() + 1) {
      chain.push_back(ValueId(static_cast<int32_t>(v)));
    }
  }
  return chain;
}

std::vector<ValueId> GradientsInFront(const model::Graph& graph, const model::CutSets& cuts,
                                      const model::Partition& partition, StageId stage) {
  std::vector<ValueId> values;
  for (const ValueId id : cuts.Crossing(partition.first_layer(stage))) {
    if (graph.value(id).type == model::ValueType::kActivation) {
      values.push_back(id);
    }
  }
  return values;
}

ValueId EdgeValue(const model::Graph& graph, const std::string& edge_name) {
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (EdgeName(graph.values[v].name) == edge_name) {
      return ValueId(static_cast<int32_t>(v));
    }
  }
  return {};
}

TensorId EdgeTensor(const model::Graph& graph, const std::string& edge_name) {
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    if (EdgeName(graph.tensors[t].name) == edge_name) {
      return TensorId(static_cast<int32_t>(t));
    }
  }
  return {};
}

std::vector<Edge> TrainEdges(const model::Graph& graph, const model::Partition& partition) {
  std::vector<Edge> edges;
  const auto readers = ReadingStages(graph, partition);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const model::Value& value = graph.values[v];
    if (value.type != model::ValueType::kActivation) {
      continue;
    }
    const StageId from = partition.StageOf(value.producer);
    std::vector<StageId> to = readers[v];
    std::erase(to, from);
    if (to.empty() || (to.size() == 1 && to[0].value() == from.value() + 1)) {
      continue;
    }
    edges.push_back({EdgeName(value.name), EdgeKind::kValue, from, to, 0});
  }
  const std::vector<bool> trainable = TrainableTensors(graph);
  const auto owners = TensorStages(graph, partition);
  for (size_t t = 0; t < owners.size(); ++t) {
    if (trainable[t] && owners[t].size() > 1) {
      edges.push_back({EdgeName(graph.tensors[t].name),
                       EdgeKind::kTied,
                       owners[t][0],
                       {owners[t].begin() + 1, owners[t].end()},
                       0});
    }
  }
  return edges;
}

Result<Schedule> PrepareTrainSchedule(const Schedule& compute, const model::Graph& graph,
                                      const model::Partition& partition,
                                      const TrainScheduleOptions& options) {
  if (compute.num_stages() != partition.num_stages()) {
    return MakeError(ErrorCode::kInvalidArgument, "[runtime.schedule] {} has {}, the cut has {}",
                     compute.name, Counted(compute.num_stages(), "stage"), partition.num_stages());
  }
  if (compute.steps != 1) {
    return MakeError(ErrorCode::kInvalidSchedule,
                     "[runtime.schedule] {} has {} steps, wanted one: it is repeated as it is",
                     compute.name, compute.steps);
  }
  std::vector<Edge> edges = TrainEdges(graph, partition);
  for (Edge& edge : edges) {
    if (edge.kind == EdgeKind::kValue) {
      edge.bytes = options.rows * graph.value(EdgeValue(graph, edge.name)).width * 4;
    }
  }
  Schedule made = compute;
  if (made.lowered) {
    PENSTOCK_TRY(CheckEdges(made, edges));
    AppendTied(made, edges);
  } else {
    made.edges = edges;
  }
  PENSTOCK_TRY_ASSIGN(made, schedule::RemoveIdle(made));
  if (options.recompute != Recompute::kNone && !made.forward_only) {
    PENSTOCK_TRY_ASSIGN(made, schedule::PlaceRecompute(made));
  }
  if (!made.lowered) {
    PENSTOCK_TRY_ASSIGN(made,
                        schedule::AddCommunication(made, {.route = schedule::LongRoute::kCheapest,
                                                          .naive = options.naive,
                                                          .credits = options.credits,
                                                          .link_seconds = options.link_seconds}));
    PENSTOCK_TRY_ASSIGN(made, schedule::ReleaseValues(made));
  }
  if (!made.forward_only && !HasStepEnd(made)) {
    PENSTOCK_TRY_ASSIGN(
        made, schedule::AddStepEnd(made, {.reduce = true, .optimizer = options.optimizer}));
  }
  schedule::ValidateOptions proof;
  proof.transport.credits = options.credits;
  PENSTOCK_TRY(schedule::Prove(made, proof));
  return made;
}

}  // namespace penstock::runtime
