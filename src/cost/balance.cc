#include <algorithm>

#include "cost/profile.h"
#include "hw/engine.h"
#include "model/cut_search.h"

namespace penstock::cost {
namespace {

// Decode at this many positions is what the cut is balanced for.
constexpr double kTypicalPositions = 512;
// Multiply-adds of a matrix product that take as long as one element of a norm, rotation or
// activation.
constexpr double kElementCost = 64;
// Multiply-adds that take as long as sending or receiving a byte, where nothing was measured.
constexpr double kWorkPerByte = 4;
// Rows of a step's product: sequences of a group while decoding, tokens of a micro-batch in
// training.
constexpr double kDecodeRows = 4;
constexpr double kTrainRows = 512;
// Outputs and inputs of the product that stands for all.
constexpr double kProductSize = 2048;

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

// Seconds of a further byte of a message over seconds of a multiply-add while all stages work.
double WorkPerByte(const hw::Engine& engine, hw::Precision weights, double rows,
                   bool across_processes) {
  const hw::Curve& messages =
      across_processes && !engine.mpi_message_s.empty() ? engine.mpi_message_s : engine.message_s;
  if (messages.empty() || engine.products.empty()) {
    return 0;
  }
  const double one = 4 * kProductSize * rows;  // bytes of one vector of each row
  const double many = 16 * one;
  const double byte_s = (messages.At(many) - messages.At(one)) / (many - one);
  const double multiply_add_s =
      engine.ProductSeconds(weights, kProductSize, kProductSize, rows).together_s /
      (rows * kProductSize * kProductSize);
  constexpr double kLeast = 1e-6;  // nothing to speak of; 0 would say that nobody measured
  return multiply_add_s > 0 ? std::max(byte_s / multiply_add_s, kLeast) : 0;
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

model::CutWeights DecodeCut(const model::Graph& graph, double work_per_byte) {
  return {DecodeWork(graph), model::CrossingBytes(graph, 4),
          work_per_byte > 0 ? work_per_byte : kWorkPerByte};
}

double DecodeWorkPerByte(const hw::Engine& engine, hw::Precision weights, bool across_processes) {
  return WorkPerByte(engine, weights, kDecodeRows, across_processes);
}

double TrainWorkPerByte(const hw::Engine& engine, bool across_processes) {
  return WorkPerByte(engine, hw::Precision::kFp32, kTrainRows, across_processes) * 2 / 3;
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
