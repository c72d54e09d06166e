#include "cost/engine_time.h"

#include <algorithm>

namespace penstock::cost {
namespace {

hw::Precision TypeOf(const Product& product, const Formats& formats) {
  return formats.as_stored && product.stored ? *product.stored : formats.weights;
}

// Products of a layer; those of one operation that are held alike are one matrix.
hw::Shared Products(const LayerProfile& layer, double rows, double selected, const Sharding& s,
                    const Formats& formats, const hw::Engine& engine) {
  hw::Shared sum;
  for (size_t i = 0; i < layer.products.size();) {
    const Product& first = layer.products[i];
    const hw::Precision type = TypeOf(first, formats);
    double outputs = 0;
    size_t end = i;
    for (; end < layer.products.size(); ++end) {
      const Product& p = layer.products[end];
      if (p.op != first.op || p.role != first.role || p.inputs != first.inputs ||
          TypeOf(p, formats) != type) {
        break;
      }
      outputs += p.outputs / p.parts(s.tp);
    }
    const double n = first.role == Product::Role::kHead ? selected : rows;
    // A router is read in float32 whatever the weights are.
    sum += engine.ProductSeconds(first.role == Product::Role::kRouter ? hw::Precision::kFp32 : type,
                                 outputs, first.inputs, n);
    i = end;
  }
  return sum;
}

hw::Shared Experts(const LayerProfile& layer, double rows, const Sharding& s,
                   const Formats& formats, const hw::Engine& engine) {
  const ExpertWork& e = layer.experts;
  if (e.experts <= 0 || rows <= 0) {
    return {};
  }
  const double touched = ExpertsTouched(e.experts, e.chosen, rows);
  const double each = rows * e.chosen / touched;
  const double inner = e.inner / static_cast<double>(s.ep > 1 ? 1 : s.tp);
  const double here = touched / static_cast<double>(std::max<int64_t>(1, s.ep));
  hw::Shared one = engine.ProductSeconds(formats.weights, 2 * inner, e.inputs, each);
  one += engine.ProductSeconds(formats.weights, e.inputs, inner, each);
  return here * one;
}

}  // namespace

hw::Shared EngineRowsSeconds(const LayerProfile& layer, double rows, double selected,
                             const Sharding& s, const Formats& formats, const hw::Engine& engine) {
  if (layer.kind == model::LayerKind::kHead && selected <= 0) {
    return {};
  }
  hw::Shared sum = Products(layer, rows, selected, s, formats, engine);
  sum += Experts(layer, rows, s, formats, engine);
  const double n = layer.kind == model::LayerKind::kHead ? selected : rows;
  const double elements =
      layer.whole_row_elements + layer.split_row_elements / static_cast<double>(s.tp);
  sum += layer.launches * engine.operation;
  sum += n * elements * engine.element;
  if (layer.kind == model::LayerKind::kHead) {
    double logits = 0;
    for (const Product& product : layer.products) {
      logits += product.outputs;
    }
    sum += selected * logits * engine.logit;
  }
  return sum;
}

hw::Shared EngineAttentionSeconds(const LayerProfile& layer, double rows, double first,
                                  const Sharding& s, const hw::Engine& engine) {
  hw::Shared sum;
  for (const AttentionWork& work : layer.attention) {
    double seen = first + (rows + 1) / 2;  // of a row, on average
    if (work.window > 0) {
      seen = std::min(seen, work.window);
    }
    const double heads = work.heads / static_cast<double>(s.tp);
    const double kv_heads =
        (work.kv_heads > 0 ? work.kv_heads : work.heads) / static_cast<double>(s.tp);
    sum += engine.AttentionSeconds(heads, std::max(1.0, kv_heads), work.score_dim + work.value_dim,
                                   rows, rows * seen);
  }
  return sum;
}

LayerTime EngineForwardTime(const LayerProfile& layer, const StepShape& shape, const Sharding& s,
                            const Formats& formats, const Machine& machine) {
  const hw::Engine& engine = *machine.system->engine;
  LayerTime out;
  hw::Shared rows = EngineRowsSeconds(layer, shape.rows, shape.head_rows, s, formats, engine);
  hw::Shared attention;
  if (!layer.attention.empty()) {
    const double each = shape.decode ? 1 : shape.rows / std::max(1.0, shape.sequences);
    const double first = std::max(0.0, shape.context - (each + 1) / 2);
    attention =
        std::max(1.0, shape.sequences) * EngineAttentionSeconds(layer, each, first, s, engine);
  }
  rows += attention;
  const double bandwidth = machine.system->device.memory_bandwidth;
  const auto tp = static_cast<double>(s.tp);
  for (const Product& product : layer.products) {
    const double n = product.role == Product::Role::kHead ? shape.head_rows : shape.rows;
    const double weights = product.parameters() / product.parts(s.tp);
    const hw::Precision type = TypeOf(product, formats);
    out.flops += 2 * n * weights;
    out.compute_s += 2 * n * weights / machine.system->device.Rate(type).second;
    out.memory_s += weights * (hw::PrecisionBytes(type) + hw::BlockScaleBytes(type)) / bandwidth;
  }
  out.attention_busy_s = attention.together_s;
  out.busy_s = rows.together_s;
  if (s.tp > 1 && layer.collectives > 0) {
    out.tensor_s += layer.collectives *
                    hw::AllReduceSeconds(*machine.system, hw::Group{s.tp, 1},
                                         shape.rows * layer.width * formats.activation_bytes);
  }
  (void)tp;
  return out;
}

EngineStage::EngineStage(const ModelProfile& model, int32_t first, int32_t end,
                         const Formats& formats, const hw::Engine& engine)
    : formats_(formats), engine_(engine) {
  for (int32_t l = first; l < end; ++l) {
    const LayerProfile* layer = &model.layer(l);
    const auto it =
        std::find_if(parts_.begin(), parts_.end(), [&](const Part& p) { return p.layer == layer; });
    if (it == parts_.end()) {
      parts_.push_back({layer, 1});
    } else {
      it->times += 1;
    }
  }
}

hw::Shared EngineStage::Seconds(double rows, double selected, std::span<const Slice> slices) {
  auto it = rows_.find({rows, selected});
  if (it == rows_.end()) {
    hw::Shared sum;
    for (const Part& part : parts_) {
      sum += part.times *
             EngineRowsSeconds(*part.layer, rows, selected, Sharding(), formats_, engine_);
    }
    it = rows_.emplace(std::pair(rows, selected), sum).first;
  }
  hw::Shared sum = it->second;
  for (const Part& part : parts_) {
    if (part.layer->attention.empty()) {
      continue;
    }
    for (const Slice& slice : slices) {
      sum += part.times *
             EngineAttentionSeconds(*part.layer, slice.rows, slice.first, Sharding(), engine_);
    }
  }
  return sum;
}

CostModel EngineTrainingCosts(const ModelProfile& model, std::span<const int32_t> units,
                              double rows, double sequence_tokens, const Formats& formats,
                              const hw::Engine& engine, bool across_processes) {
  CostModel out;
  int32_t unit = 0;
  const double sequences = std::max(1.0, rows / std::max(1.0, sequence_tokens));
  for (const int32_t count : units) {
    StageCost& stage = out.stages.emplace_back();
    for (int32_t i = 0; i < count; ++i, ++unit) {
      const LayerProfile& layer = model.layer(unit);
      const double all =
          EngineRowsSeconds(layer, rows, rows, Sharding(), formats, engine).together_s;
      const double attention =
          layer.attention.empty()
              ? 0
              : sequences * EngineAttentionSeconds(layer, rows / sequences, 0, Sharding(), engine)
                                .together_s;
      stage.f_s += all + attention;
      if (layer.kind != model::LayerKind::kEmbedding) {
        stage.i_s += all + 2 * attention;
      }
      stage.w_s += all;
    }
    const auto boundary = static_cast<size_t>(std::max(unit - 1, 0));
    stage.output_bytes = static_cast<int64_t>(rows * model.boundary_width[boundary] * 4);
    stage.gradient_bytes = stage.output_bytes;
  }
  const hw::Curve& messages =
      across_processes && !engine.mpi_message_s.empty() ? engine.mpi_message_s : engine.message_s;
  if (!messages.empty()) {
    const double bytes =
        out.stages.empty()
            ? 1e6
            : std::max<double>(1, static_cast<double>(out.stages.front().output_bytes));
    out.link.latency_s = messages.At(1);
    const double transfer = messages.At(bytes) - out.link.latency_s;
    out.link.bytes_per_s = transfer > 0 ? bytes / transfer : 0;
  }
  return out;
}

}  // namespace penstock::cost
