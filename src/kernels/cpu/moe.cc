// Mixture of experts on the CPU: routing, and the experts' products over gathered rows.

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/moe_routing.h"
#include "kernels/cpu/vector_ops.h"

namespace penstock::kernels {
namespace {

// Pieces of the workspace, in bytes from its start; each begins at a cache line.
struct MoeWorkspace {
  int64_t logits = 0;      // [rows, experts] float
  int64_t chosen = 0;      // [rows, chosen] int32
  int64_t weights = 0;     // [rows, chosen] float
  int64_t row_list = 0;    // [rows] int32
  int64_t row_weight = 0;  // [rows] float
  int64_t gathered = 0;    // [rows, width] float
  int64_t gate_up = 0;     // [rows, 2 ffn] float
  int64_t down = 0;        // [rows, width] float
  int64_t linear = 0;
  int64_t linear_bytes = 0;
  int64_t bytes = 0;
};

struct MoeShape {
  int64_t experts = 0;
  int64_t chosen = 0;
  int64_t width = 0;
  int64_t ffn = 0;
};

MoeWorkspace Layout(const MoeShape& shape, int64_t linear_bytes, int64_t rows) {
  MoeWorkspace w;
  const auto take = [&w](int64_t bytes) {
    const int64_t at = w.bytes;
    w.bytes += (bytes + 63) / 64 * 64;
    return at;
  };
  w.logits = take(rows * shape.experts * 4);
  w.chosen = take(rows * shape.chosen * 4);
  w.weights = take(rows * shape.chosen * 4);
  w.row_list = take(rows * 4);
  w.row_weight = take(rows * 4);
  w.gathered = take(rows * shape.width * 4);
  w.gate_up = take(rows * 2 * shape.ffn * 4);
  w.down = take(rows * shape.width * 4);
  w.linear_bytes = linear_bytes;
  w.linear = take(linear_bytes);
  return w;
}

}  // namespace

int64_t CpuDevice::MoeWorkspaceBytes(int64_t experts, int64_t chosen, int64_t width, int64_t ffn,
                                     WeightType type, int64_t rows) const {
  const int64_t linear_bytes = std::max(LinearWorkspaceBytes(2 * ffn, width, type, rows),
                                        LinearWorkspaceBytes(width, ffn, type, rows));
  return Layout(MoeShape{experts, chosen, width, ffn}, linear_bytes, rows).bytes;
}

void CpuDevice::Moe(const MoeParams& params, Tensor x, Tensor out, Tensor workspace) {
  const int64_t rows = x.rows();
  const int64_t experts = params.router.rows();
  const int64_t width = x.columns();
  PENSTOCK_CHECK(static_cast<int64_t>(params.gate_up.size()) == experts &&
                     params.down.size() == params.gate_up.size(),
                 "each expert has its matrices");
  PENSTOCK_CHECK(params.chosen >= 1 && params.chosen <= experts, "experts to choose from");
  PENSTOCK_CHECK(experts % params.groups == 0 && params.chosen_groups >= 1 &&
                     params.chosen <= experts / params.groups * params.chosen_groups,
                 "the chosen groups hold enough experts");
  int64_t linear_bytes = 0;
  for (const std::span<const Matrix* const> matrices : {params.gate_up, params.down}) {
    for (const Matrix* matrix : matrices) {
      linear_bytes = std::max(linear_bytes, LinearWorkspaceBytes(matrix->rows(), matrix->columns(),
                                                                 matrix->type(), rows));
    }
  }
  const MoeShape shape{experts, params.chosen, width, params.gate_up[0]->rows() / 2};
  const MoeWorkspace at = Layout(shape, linear_bytes, rows);
  PENSTOCK_CHECK(workspace.bytes() >= at.bytes, "the workspace is large enough");
  std::byte* base = workspace.Bytes().data();
  const auto floats = [&](int64_t offset, int64_t columns) {
    return Tensor(base + offset, DType::kF32, rows, columns);
  };
  auto* logits = reinterpret_cast<float*>(base + at.logits);
  auto* chosen = reinterpret_cast<int32_t*>(base + at.chosen);
  auto* weights = reinterpret_cast<float*>(base + at.weights);
  auto* row_list = reinterpret_cast<int32_t*>(base + at.row_list);
  auto* row_weight = reinterpret_cast<float*>(base + at.row_weight);

  const Tensor routed = params.router_input.empty() ? x : params.router_input;
  pool_.Split(rows, rows * experts * routed.columns() < kSerialElements,
              [&](int64_t begin, int64_t end) {
                RouterRows(routed, params.router, logits, {begin, end});
                for (int64_t r = begin; r < end; ++r) {
                  RouteRow(params, logits + r * experts, chosen + r * params.chosen,
                           weights + r * params.chosen);
                }
              });

  for (int64_t r = 0; r < rows; ++r) {
    std::ranges::fill(out.Row<float>(r), 0.0F);
  }
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t count = ListSlots({chosen, weights, rows, params.chosen}, static_cast<int32_t>(e),
                                    {row_list, nullptr, row_weight});
    if (count == 0) {
      continue;
    }
    const auto index = static_cast<size_t>(e);
    const int64_t ffn = params.gate_up[index]->rows() / 2;
    const Tensor gathered = floats(at.gathered, width).Rows(0, count);
    const Tensor both = floats(at.gate_up, 2 * ffn).Rows(0, count);
    const Tensor down = floats(at.down, width).Rows(0, count);
    const Tensor scratch(base + at.linear, DType::kU8, 1, at.linear_bytes);
    GatherRows(x, {row_list, static_cast<size_t>(count)}, gathered);
    Linear(*params.gate_up[index], gathered, {}, both, scratch);
    const Tensor gate = both.Columns(0, ffn);
    if (params.activation == Activation::kSitu) {
      Situ(params.situ, gate, both.Columns(ffn, ffn), gate);
    } else {
      Gated(params.activation, gate, both.Columns(ffn, ffn), gate);
    }
    Linear(*params.down[index], both.Columns(0, ffn), {}, down, scratch);
    OverRows(down, 1,
             [&](RowRange range) { AddScaledRows(down, row_list, row_weight, out, range); });
  }
}

}  // namespace penstock::kernels
