#include <algorithm>

#include "cost/profile.h"
#include "model/cut_search.h"

namespace penstock::cost {
namespace {

// Decode at this many positions is what the cut is balanced for.
constexpr double kTypicalPositions = 512;
// Multiply-adds of a matrix product that take as long as one element of a norm, rotation or
// activation.
constexpr double kElementCost = 64;
// Multiply-adds that take as long as sending or receiving a byte.
constexpr double kWorkPerByte = 4;

// Of the routed experts, the part that one row multiplies with.
double ChosenShare(const model::Op& op) {
  if (const auto* moe = std::get_if<model::MoeOp>(&op.params)) {
    return static_cast<double>(moe->chosen) / static_cast<double>(moe->up.size());
  }
  if (const auto* counted = std::get_if<model::CountedOp>(&op.params);
      counted != nullptr && counted->experts > 0) {
    return static_cast<double>(counted->chosen) / static_cast<double>(counted->experts);
  }
  return 1;
}

double TensorWork(const model::Graph& graph, const model::Op& op) {
  double work = 0;
  for (const TensorId id : model::TensorsOf(op)) {
    const model::WeightTensor& tensor = graph.tensor(id);
    double elements = 1;
    for (const int64_t n : tensor.shape) {
      elements *= static_cast<double>(n);
    }
    if (tensor.routed_expert) {
      elements *= ChosenShare(op);
    }
    work += elements;
  }
  return work;
}

// Work of a row that looks back one position.
double PairWork(const model::AttentionOp& attention) {
  return static_cast<double>(attention.heads * (attention.head_dim + attention.value_dim));
}

double PairWork(const model::LatentAttentionOp& a) {
  return static_cast<double>(a.heads *
                             (a.absorbed ? 2 * a.latent + a.rope : a.nope + a.rope + a.value_dim));
}

}  // namespace

std::vector<double> DecodeWork(const model::Graph& graph) {
  std::vector<double> times(graph.layers.size(), 1.0);
  for (const model::Op& op : graph.ops) {
    double work = 0;
    if (std::holds_alternative<model::EmbedOp>(op.params)) {
      continue;
    }
    if (const auto* attention = std::get_if<model::AttentionOp>(&op.params)) {
      const double seen =
          attention->window > 0
              ? std::min<double>(kTypicalPositions, static_cast<double>(attention->window))
              : kTypicalPositions;
      work = PairWork(*attention) * seen;
    } else if (const auto* latent = std::get_if<model::LatentAttentionOp>(&op.params)) {
      work = PairWork(*latent) * kTypicalPositions + TensorWork(graph, op);
    } else if (const auto* delta = std::get_if<model::DeltaAttentionOp>(&op.params)) {
      work = 2.0 * static_cast<double>(delta->heads * delta->dim * delta->dim);
    } else {
      work = TensorWork(graph, op);
    }
    if (!std::holds_alternative<model::LinearOp>(op.params)) {
      work += kElementCost * static_cast<double>(graph.value(op.outputs[0]).width);
    }
    times[static_cast<size_t>(op.layer.value())] += work;
  }
  return times;
}

model::CutWeights DecodeCut(const model::Graph& graph) {
  return {DecodeWork(graph), model::CrossingBytes(graph, 4), kWorkPerByte};
}

double AttentionShare(const model::Graph& graph) {
  double per_position = 0;
  double per_row = 0;
  for (const model::Op& op : graph.ops) {
    if (const auto* attention = std::get_if<model::AttentionOp>(&op.params);
        attention != nullptr && attention->window == 0) {
      per_position += PairWork(*attention);
    } else if (const auto* latent = std::get_if<model::LatentAttentionOp>(&op.params)) {
      per_position += PairWork(*latent);
    }
  }
  for (const model::Op& op : graph.ops) {
    per_row += std::holds_alternative<model::EmbedOp>(op.params) ? 0.0 : TensorWork(graph, op);
  }
  return per_row > 0 ? per_position / per_row : 0;
}

}  // namespace penstock::cost
