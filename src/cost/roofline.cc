#include "cost/roofline.h"

#include <algorithm>
#include <cmath>

#include "cost/engine_time.h"

namespace penstock::cost {
namespace {

// Adds one operation. `rate` is flops/s, `bandwidth` bytes/s as reached.
void AddOperation(LayerTime& out, double flops, double rate, double bytes, double bandwidth,
                  double start_s) {
  const double compute = flops / rate;
  const double memory = bytes / bandwidth;
  out.compute_s += compute;
  out.memory_s += memory;
  out.busy_s += std::max(compute, memory) + start_s;
  out.start_s += start_s;
  out.flops += flops;
}

struct Rates {
  double bandwidth = 0;
  double matrix_peak = 0;
  double end_peak = 0;
  const hw::Curve* matrix_efficiency = nullptr;
  const hw::Curve* end_efficiency = nullptr;
  double start_s = 0;
  double row_share = 1;  // of the rows between operations, through memory

  double Matrix(double flops) const {
    return matrix_peak * matrix_efficiency->At(std::max(flops * 1e-9, 1e-12));
  }

  double End(double flops) const {
    return end_peak * end_efficiency->At(std::max(flops * 1e-9, 1e-12));
  }
};

Rates FindRates(const Formats& formats, const Machine& machine) {
  const hw::Device& device = machine.system->device;
  const hw::Calibration& c = *machine.calibration;
  Rates r;
  r.bandwidth = device.memory_bandwidth * c.memory_efficiency;
  const auto [precision, peak] = device.Rate(formats.weights);
  r.matrix_peak = peak;
  r.matrix_efficiency = &c.MatrixEfficiency(precision);
  const auto [end_precision, end_peak] =
      device.Rate(hw::PrecisionBytes(formats.weights) < 2 ? hw::Precision::kBf16 : formats.weights);
  r.end_peak = end_peak;
  r.end_efficiency = &c.MatrixEfficiency(end_precision);
  r.start_s = c.operation_overhead_s;
  r.row_share = c.activations_through_memory;
  return r;
}

void AddExperts(LayerTime& out, const LayerProfile& layer, const StepShape& shape,
                const Sharding& s, const Formats& formats, const Machine& machine,
                const Rates& rates) {
  const ExpertWork& e = layer.experts;
  const double a = formats.activation_bytes;
  // Tensor-parallel groups, each with rows of its own, that meet in one expert group.
  const double replicas = std::max(1.0, static_cast<double>(s.ep) / static_cast<double>(s.tp));
  const double rows_together = shape.rows * (s.ep > 1 ? replicas : 1);
  const double divide = s.ep > 1 ? static_cast<double>(s.ep) : static_cast<double>(s.tp);
  const double touched = ExpertsTouched(e.experts, e.chosen, rows_together);
  const double per_expert = e.parameters / e.experts;
  const double weight_bytes = touched * per_expert * formats.matrix_bytes() / divide;
  const double routed_rows = rows_together * e.chosen / (s.ep > 1 ? divide : 1);
  const double flops = 2 * routed_rows * per_expert / (s.ep > 1 ? 1 : divide);
  const double inner_divide = s.ep > 1 ? 1 : divide;
  const double row_bytes =
      rates.row_share * routed_rows * a * (2 * e.inputs + 3 * e.inner / inner_divide);
  // The rate is that of one expert's product.
  const double experts_here = s.ep > 1 ? std::max(1.0, touched / divide) : touched;
  AddOperation(out, flops, rates.Matrix(flops / std::max(1.0, experts_here) / e.products),
               weight_bytes + row_bytes, rates.bandwidth, 3 * rates.start_s);
  if (s.ep > s.tp) {
    const double rows_per_device = shape.rows / static_cast<double>(s.tp);
    const double sent = rows_per_device * e.chosen * e.inputs * a;
    const hw::Group group{s.ep, s.ep_stride};
    out.expert_s += hw::AllToAllSeconds(*machine.system, group, sent * 0.5) +
                    hw::AllToAllSeconds(*machine.system, group, sent);
  }
}

void AddAttention(LayerTime& out, const LayerProfile& layer, const StepShape& shape,
                  const Sharding& s, const Formats& formats, const Machine& machine,
                  const Rates& rates) {
  const double kv_bytes = hw::PrecisionBytes(formats.kv);
  const double rate = rates.end_peak * machine.calibration->attention_efficiency;
  double state_bytes = 0;
  for (const StateWork& state : layer.states) {
    state_bytes += state.bytes(shape.sequences, shape.state_tokens, kv_bytes) * state.share(s.tp);
    if (state.sequence_bytes > 0) {  // read and written back
      state_bytes += shape.sequences * state.sequence_bytes * state.share(s.tp);
    }
  }
  double flops = layer.extra_flops_per_row * shape.rows / static_cast<double>(s.tp);
  double score_bytes = 0;  // of softmax and dropout as passes of their own
  for (const AttentionWork& work : layer.attention) {
    const double keys = work.window > 0 ? std::min(work.window, shape.context) : shape.context;
    const bool absorbed = shape.decode && work.decode_score_dim > 0;
    const double dims =
        absorbed ? work.decode_score_dim + work.decode_value_dim : work.score_dim + work.value_dim;
    flops += 2 * shape.rows * work.heads / static_cast<double>(s.tp) * dims * keys;
    score_bytes += machine.calibration->attention_score_bytes * shape.rows * work.heads /
                   static_cast<double>(s.tp) * keys;
  }
  if (flops == 0 && state_bytes == 0) {
    return;
  }
  const double before = out.busy_s;
  AddOperation(out, flops, rate, state_bytes, rates.bandwidth, rates.start_s);
  AddOperation(out, 0, rate, score_bytes, rates.bandwidth, 0);
  out.attention_busy_s += out.busy_s - before;
  out.attention_flops += flops;
  if (s.cp > 1) {
    double kept = 0;
    for (const StateWork& state : layer.states) {
      kept += state.elements_per_token * state.share(s.tp);
    }
    const double bytes = kept * shape.rows * static_cast<double>(s.cp) * formats.activation_bytes;
    const double exchange =
        hw::AllGatherSeconds(*machine.system, hw::Group{s.cp, s.cp_stride}, bytes);
    out.context_s += std::max(0.0, exchange - (out.busy_s - before));
  }
}

}  // namespace

LayerTime& LayerTime::operator+=(const LayerTime& o) {
  compute_s += o.compute_s;
  memory_s += o.memory_s;
  busy_s += o.busy_s;
  start_s += o.start_s;
  tensor_s += o.tensor_s;
  expert_s += o.expert_s;
  context_s += o.context_s;
  flops += o.flops;
  attention_busy_s += o.attention_busy_s;
  attention_flops += o.attention_flops;
  return *this;
}

LayerTime LayerTime::operator*(double f) const {
  LayerTime out = *this;
  for (double* v :
       {&out.compute_s, &out.memory_s, &out.busy_s, &out.start_s, &out.tensor_s, &out.expert_s,
        &out.context_s, &out.flops, &out.attention_busy_s, &out.attention_flops}) {
    *v *= f;
  }
  return out;
}

double ExpertsTouched(double experts, double chosen, double rows) {
  if (experts <= 0 || rows <= 0) {
    return 0;
  }
  return -experts * std::expm1(rows * std::log1p(-chosen / experts));
}

LayerTime ForwardTime(const LayerProfile& layer, const StepShape& shape, const Sharding& s,
                      const Formats& formats, const Machine& machine) {
  if (machine.system->engine) {
    return EngineForwardTime(layer, shape, s, formats, machine);
  }
  LayerTime out;
  const Rates rates = FindRates(formats, machine);
  const double a = formats.activation_bytes;
  const auto tp = static_cast<double>(s.tp);
  for (const Product& product : layer.products) {
    const bool end = product.role != Product::Role::kDense;
    const double rows = product.role == Product::Role::kHead ? shape.head_rows : shape.rows;
    const double parts = product.parts(s.tp);
    const double flops = 2 * rows * product.parameters() / parts;
    const double bytes =
        product.parameters() / parts * (end ? formats.end_bytes() : formats.matrix_bytes()) +
        rates.row_share * rows * a * (product.inputs + product.outputs) / parts;
    AddOperation(out, flops, end ? rates.End(flops) : rates.Matrix(flops), bytes, rates.bandwidth,
                 0);
  }
  AddAttention(out, layer, shape, s, formats, machine, rates);
  if (layer.experts.experts > 0) {
    AddExperts(out, layer, shape, s, formats, machine, rates);
  }
  const double rows =
      layer.kind == model::LayerKind::kHead ? std::max(shape.head_rows, 1.0) : shape.rows;
  const double element_bytes =
      rates.row_share * rows * a *
      (layer.whole_row_elements / (s.sequence_parallel ? tp : 1) + layer.split_row_elements / tp);
  AddOperation(out, 0, 1, element_bytes, rates.bandwidth,
               rates.start_s * layer.launches + machine.calibration->layer_overhead_s *
                                                    (layer.kind == model::LayerKind::kDecoder));
  if (s.tp > 1 && layer.collectives > 0) {
    out.tensor_s += layer.collectives * hw::AllReduceSeconds(*machine.system, hw::Group{s.tp, 1},
                                                             shape.rows * layer.width * a);
  }
  return out;
}

std::pair<double, double> ParametersPerDevice(const LayerProfile& layer, const Sharding& s) {
  double dense = layer.vector_parameters + layer.embedding_parameters / static_cast<double>(s.tp);
  for (const Product& product : layer.products) {
    dense += product.parameters() / product.parts(s.tp);
  }
  const double divide = static_cast<double>(s.ep > 1 ? s.ep : s.tp);
  return {dense, layer.experts.parameters / divide};
}

double WeightBytesPerDevice(const LayerProfile& layer, const Sharding& s, const Formats& formats) {
  double bytes = layer.vector_parameters * formats.end_bytes();
  bytes += formats.as_stored && layer.embedding_stored_bytes > 0
               ? layer.embedding_stored_bytes / static_cast<double>(s.tp)
               : layer.embedding_parameters / static_cast<double>(s.tp) * formats.end_bytes();
  for (const Product& product : layer.products) {
    const bool end = product.role != Product::Role::kDense;
    if (formats.as_stored && product.stored_bytes > 0) {
      bytes += product.stored_bytes / product.parts(s.tp);
      continue;
    }
    bytes += product.parameters() / product.parts(s.tp) *
             (end ? formats.end_bytes() : formats.matrix_bytes());
  }
  const double divide = static_cast<double>(s.ep > 1 ? s.ep : s.tp);
  return bytes + layer.experts.parameters / divide * formats.matrix_bytes();
}

double ModelFlops(const ModelProfile& model, double rows, double context, double head_rows) {
  double flops = 0;
  for (const int32_t c : model.class_of) {
    const LayerProfile& layer = model.classes[static_cast<size_t>(c)];
    for (const Product& product : layer.products) {
      flops += 2 * product.parameters() * (product.role == Product::Role::kHead ? head_rows : rows);
    }
    const ExpertWork& e = layer.experts;
    if (e.experts > 0) {
      flops += 2 * rows * e.parameters * e.chosen / e.experts;
    }
    for (const AttentionWork& work : layer.attention) {
      const double keys = work.window > 0 ? std::min(work.window, context) : context;
      flops += 2 * rows * work.heads * (work.score_dim + work.value_dim) * keys;
    }
    flops += rows * layer.extra_flops_per_row;
  }
  return flops;
}

}  // namespace penstock::cost
