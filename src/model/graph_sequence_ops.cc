// The operations that keep something per sequence beside keys and values: latent attention, short
// convolutions, delta attention.

#include <fmt/format.h>

#include "model/graph.h"

namespace penstock::model {

ValueId GraphBuilder::LatentAttention(ValueId q, ValueId latent, ValueId key,
                                      LatentAttentionOp params, std::string name) {
  const bool readable = CheckRead(name, q) && CheckRead(name, latent) && CheckRead(name, key);
  if (params.heads < 1 || params.nope < 1 || params.rope < 1 || params.value_dim < 1) {
    Fail(name, fmt::format("{} heads of {} + {} and values of {}, wanted at least 1 of each",
                           params.heads, params.nope, params.rope, params.value_dim));
  } else if (readable && (width(q) != params.heads * (params.nope + params.rope) ||
                          width(latent) != params.latent || width(key) != params.rope)) {
    Fail(name, fmt::format("widths of query, latent and key are {}, {}, {}, wanted {}, {}, {}",
                           width(q), width(latent), width(key),
                           params.heads * (params.nope + params.rope), params.latent, params.rope));
  } else {
    CheckTensor(name, params.expand,
                {params.heads * (params.nope + params.value_dim), params.latent});
  }
  params.state = static_cast<int32_t>(graph_.states.size());
  graph_.states.push_back({.kind = LayerState::Kind::kLatent,
                           .layer = LayerId(static_cast<int32_t>(graph_.layers.size()) - 1),
                           .key_width = params.latent + params.rope});
  const ValueId out = NewValue(std::move(name), params.heads * params.value_dim);
  AddOp({q, latent, key}, {out}, params);
  return out;
}

std::vector<ValueId> GraphBuilder::ShortConv(const std::vector<ValueId>& inputs, ShortConvOp params,
                                             const std::vector<std::string>& names) {
  const std::string_view first = names.empty() ? std::string_view("short_conv") : names.front();
  if (inputs.empty() || names.size() != inputs.size() || params.weights.size() != inputs.size()) {
    Fail(first, fmt::format("{} inputs, {} weights and {} names, wanted one of each per input",
                            inputs.size(), params.weights.size(), names.size()));
    return std::vector<ValueId>(names.size());
  }
  if (params.taps < 1 || params.taps > 64) {
    Fail(first, fmt::format("{} taps, wanted 1 to 64", params.taps));
  }
  std::vector<ValueId> outputs;
  int64_t sum = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (CheckRead(names[i], inputs[i])) {
      CheckTensor(names[i], params.weights[i], {width(inputs[i]), 1, params.taps});
    }
    sum += width(inputs[i]);
    outputs.push_back(NewValue(names[i], width(inputs[i])));
  }
  params.state = static_cast<int32_t>(graph_.states.size());
  graph_.states.push_back({.kind = LayerState::Kind::kRecurrent,
                           .layer = LayerId(static_cast<int32_t>(graph_.layers.size()) - 1),
                           .heads = inputs.empty() ? 0 : width(inputs[0]),
                           .sequence_bytes = (params.taps - 1) * sum * 2});
  AddOp(inputs, outputs, params);
  return outputs;
}

ValueId GraphBuilder::DeltaAttention(const std::vector<ValueId>& qkvfb, DeltaAttentionOp params,
                                     std::string name) {
  bool readable = qkvfb.size() == 5;
  if (!readable) {
    Fail(name, fmt::format("{} inputs, wanted q, k, v, f and b", qkvfb.size()));
  }
  for (const ValueId id : qkvfb) {
    readable = CheckRead(name, id) && readable;
  }
  const int64_t all = params.heads * params.dim;
  if (params.heads < 1 || params.dim < 1) {
    Fail(name, fmt::format("{} heads of {}, wanted at least 1 of each", params.heads, params.dim));
  } else if (readable) {
    for (size_t i = 0; i < 5; ++i) {
      const int64_t wanted = i < 4 ? all : params.heads;
      if (width(qkvfb[i]) != wanted) {
        Fail(name, fmt::format("'{}' has width {}, wanted {} ({} heads of {})",
                               graph_.value(qkvfb[i]).name, width(qkvfb[i]), wanted, params.heads,
                               params.dim));
      }
    }
    CheckTensor(name, params.a_log, {params.heads});
    CheckTensor(name, params.dt_bias, {all});
  }
  if (params.bounded && !(params.lower_bound < 0.0F)) {
    Fail(name, fmt::format("lower bound {}, wanted a negative number", params.lower_bound));
  }
  params.state = static_cast<int32_t>(graph_.states.size());
  graph_.states.push_back({.kind = LayerState::Kind::kRecurrent,
                           .layer = LayerId(static_cast<int32_t>(graph_.layers.size()) - 1),
                           .heads = params.heads,
                           .sequence_bytes = all * params.dim * 4});
  const ValueId out = NewValue(std::move(name), all);
  AddOp(qkvfb, {out}, params);
  return out;
}

void SetLatentAttention(Graph& graph, bool absorbed) {
  for (Op& op : graph.ops) {
    if (auto* attention = std::get_if<LatentAttentionOp>(&op.params)) {
      attention->absorbed = absorbed;
    }
  }
}

}  // namespace penstock::model
