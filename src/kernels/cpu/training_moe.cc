// Mixture of experts in training: the rules of cpu/moe_routing.h, and experts in ascending order.
//
// A slot is a (row, chosen expert). What is kept per slot lies by ascending expert, then ascending
// row. Gradients flow through the weights of the chosen experts, not through the choice.

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/cpu/moe_routing.h"
#include "kernels/cpu/training_device.h"
#include "kernels/cpu/training_ops.h"

namespace penstock::kernels {
namespace {

struct MoeShape {
  int64_t experts = 0;
  int64_t chosen = 0;
  int64_t width = 0;
  int64_t ffn = 0;
  int64_t rows = 0;

  int64_t slots() const { return rows * chosen; }
};

// Deals out pieces of memory, each from a cache line on.
class Pieces {
 public:
  int64_t Take(int64_t bytes) {
    const int64_t at = bytes_;
    bytes_ += (bytes + 63) / 64 * 64;
    return at;
  }

  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

Tensor FloatsAt(Tensor memory, int64_t at, int64_t rows, int64_t columns) {
  return {memory.Bytes().data() + at, DType::kF32, rows, columns};
}

int32_t* IntsAt(Tensor memory, int64_t at) {
  return reinterpret_cast<int32_t*>(memory.Bytes().data() + at);
}

struct Saved {
  Pieces pieces;
  int64_t chosen;   // [rows, chosen] int32
  int64_t weights;  // [rows, chosen]
  int64_t scores;   // [rows, experts]
  int64_t gate_up;  // [slots, 2 ffn]

  explicit Saved(const MoeShape& s)
      : chosen(pieces.Take(s.slots() * 4)),
        weights(pieces.Take(s.slots() * 4)),
        scores(pieces.Take(s.rows * s.experts * 4)),
        gate_up(pieces.Take(s.slots() * 2 * s.ffn * 4)) {}
};

struct Held {
  Pieces pieces;
  int64_t gate_up;  // gradient, [slots, 2 ffn]
  int64_t logits;   // gradient, [rows, experts]

  explicit Held(const MoeShape& s)
      : gate_up(pieces.Take(s.slots() * 2 * s.ffn * 4)),
        logits(pieces.Take(s.rows * s.experts * 4)) {}
};

struct Work {
  Pieces pieces;
  int64_t row_list;     // [rows] int32: of one expert
  int64_t slot_list;    // [rows] int32: row * chosen + rank
  int64_t row_weight;   // [rows]
  int64_t slot_slopes;  // gradient of the weights, [rows, chosen]
  int64_t wide;         // [rows, width]
  int64_t wide2;        // [rows, width]
  int64_t inner;        // [rows, ffn]
  int64_t inner2;       // [rows, ffn]
  int64_t product;
  int64_t product_bytes;

  Work(const MoeShape& s, int64_t bytes)
      : row_list(pieces.Take(s.rows * 4)),
        slot_list(pieces.Take(s.rows * 4)),
        row_weight(pieces.Take(s.rows * 4)),
        slot_slopes(pieces.Take(s.slots() * 4)),
        wide(pieces.Take(s.rows * s.width * 4)),
        wide2(pieces.Take(s.rows * s.width * 4)),
        inner(pieces.Take(s.rows * s.ffn * 4)),
        inner2(pieces.Take(s.rows * s.ffn * 4)),
        product(pieces.Take(bytes)),
        product_bytes(bytes) {}

  Tensor Product(Tensor memory) const {
    return {memory.Bytes().data() + product, DType::kU8, 1, product_bytes};
  }
};

MoeShape ShapeOf(const TrainMoeParams& params, Tensor x) {
  PENSTOCK_CHECK(static_cast<int64_t>(params.gate_up.size()) == params.router.rows() &&
                     params.down.size() == params.gate_up.size(),
                 "each expert has its matrices");
  PENSTOCK_CHECK(params.chosen >= 1 && params.chosen <= params.router.rows(),
                 "experts to choose from");
  PENSTOCK_CHECK(params.router.rows() % params.groups == 0 && params.chosen_groups >= 1 &&
                     params.chosen <= params.router.rows() / params.groups * params.chosen_groups,
                 "the chosen groups hold enough experts");
  const Tensor& routed = params.router_input.empty() ? x : params.router_input;
  PENSTOCK_CHECK(routed.rows() == x.rows() && routed.columns() == params.router.columns(),
                 "the router reads a row for each row");
  return {params.router.rows(), params.chosen, x.columns(), params.down[0]->columns(), x.rows()};
}

Tensor RouterInput(const TrainMoeParams& params, Tensor x) {
  return params.router_input.empty() ? x : params.router_input;
}

void ActivateExpert(Device& device, const TrainMoeParams& params, Tensor gate, Tensor up,
                    Tensor out) {
  if (params.activation == Activation::kSitu) {
    device.Situ(params.situ, gate, up, out);
  } else {
    device.Gated(params.activation, gate, up, out);
  }
}

ProductType TypeOf(const TrainMatrix& matrix) {
  const WeightType type = static_cast<const CpuTrainMatrix&>(matrix).forward().type;
  return type == WeightType::kF32 ? ProductType::kF32 : ProductType::kBF16;
}

MoeParams Routing(const TrainMoeParams& params) {
  MoeParams routing;
  routing.sigmoid = params.sigmoid;
  routing.normalize = params.normalize;
  routing.chosen = params.chosen;
  routing.weight_scale = params.weight_scale;
  routing.groups = params.groups;
  routing.chosen_groups = params.chosen_groups;
  routing.router = params.router;
  routing.router_bias = params.router_bias;
  return routing;
}

// One expert's turn: its slots, and views of what is kept and of the workspace, a row for each.
struct Turn {
  size_t expert = 0;
  int64_t count = 0;
  std::span<const int32_t> rows;  // of x
  const int32_t* slots = nullptr;
  const float* weights = nullptr;
  Tensor gate_up;  // saved
  Tensor gate, up;
  int64_t first = 0;  // slots of the experts before
  Tensor wide, wide2, inner, inner2;
  Tensor product;
};

// Calls body(turn) for each expert that a row has chosen, ascending. Their slots are listed in the
// workspace, ascending.
template <class Body>
void ForEachExpert(const MoeShape& shape, Tensor saved, Tensor workspace, const Work& work,
                   const Body& body) {
  const Saved at(shape);
  const int64_t ffn = shape.ffn;
  const int32_t* chosen = IntsAt(saved, at.chosen);
  const float* weights = FloatsAt(saved, at.weights, 1, shape.slots()).Row<float>(0).data();
  const Tensor gate_up = FloatsAt(saved, at.gate_up, shape.slots(), 2 * ffn);
  const ExpertSlots lists = {
      IntsAt(workspace, work.row_list), IntsAt(workspace, work.slot_list),
      FloatsAt(workspace, work.row_weight, 1, shape.rows).Row<float>(0).data()};
  int64_t first = 0;
  for (int64_t e = 0; e < shape.experts; ++e) {
    const int64_t count =
        ListSlots({chosen, weights, shape.rows, shape.chosen}, static_cast<int32_t>(e), lists);
    if (count == 0) {
      continue;
    }
    Turn turn;
    turn.expert = static_cast<size_t>(e);
    turn.count = count;
    turn.rows = {lists.rows, static_cast<size_t>(count)};
    turn.slots = lists.slots;
    turn.weights = lists.weights;
    turn.gate_up = gate_up.Rows(first, count);
    turn.gate = turn.gate_up.Columns(0, ffn);
    turn.up = turn.gate_up.Columns(ffn, ffn);
    turn.first = first;
    turn.wide = FloatsAt(workspace, work.wide, count, shape.width);
    turn.wide2 = FloatsAt(workspace, work.wide2, count, shape.width);
    turn.inner = FloatsAt(workspace, work.inner, count, ffn);
    turn.inner2 = FloatsAt(workspace, work.inner2, count, ffn);
    turn.product = work.Product(workspace);
    body(turn);
    first += count;
  }
}

// Gradient of one row's logits from that of its weights. With scores s, weights are
// w = scale * s / (sum of the chosen s), or scale * s.
void RouteBack(const TrainMoeParams& params, const float* scores, const int32_t* chosen,
               const float* slopes, float* dlogits) {
  const int64_t experts = params.router.rows();
  float sum = 0;
  float mean = 0;
  for (int64_t i = 0; i < params.chosen; ++i) {
    sum += scores[chosen[i]];
    mean += scores[chosen[i]] * slopes[i];
  }
  mean /= sum;
  std::fill_n(dlogits, experts, 0.0F);
  float under_softmax = 0;
  for (int64_t i = 0; i < params.chosen; ++i) {
    const float slope = params.normalize ? (slopes[i] - mean) / sum : slopes[i];
    dlogits[chosen[i]] = slope * params.weight_scale;
    under_softmax += scores[chosen[i]] * dlogits[chosen[i]];
  }
  for (int64_t e = 0; e < experts; ++e) {
    dlogits[e] = params.sigmoid ? scores[e] * (1.0F - scores[e]) * dlogits[e]
                                : scores[e] * (dlogits[e] - under_softmax);
  }
}

}  // namespace

int64_t CpuTraining::MoeSavedBytes(int64_t experts, int64_t chosen, int64_t width, int64_t ffn,
                                   int64_t rows) const {
  return Saved(MoeShape{experts, chosen, width, ffn, rows}).pieces.bytes();
}

int64_t CpuTraining::MoeHeldBytes(int64_t experts, int64_t chosen, int64_t width, int64_t ffn,
                                  int64_t rows) const {
  return Held(MoeShape{experts, chosen, width, ffn, rows}).pieces.bytes();
}

int64_t CpuTraining::TrainMoeWorkspaceBytes(int64_t experts, int64_t chosen, int64_t width,
                                            int64_t ffn, ProductType type, int64_t rows) const {
  const int64_t product =
      std::max({ProductWorkspaceBytes(2 * ffn, width, type, rows),
                ProductWorkspaceBytes(width, ffn, type, rows),
                ProductWorkspaceBytes(experts, width, ProductType::kF32, rows)});
  return Work(MoeShape{experts, chosen, width, ffn, rows}, product).pieces.bytes();
}

int64_t CpuTraining::MoeProductBytes(const TrainMoeParams& params, Tensor x,
                                     Tensor workspace) const {
  const MoeShape s = ShapeOf(params, x);
  const ProductType type = TypeOf(*params.down[0]);
  PENSTOCK_CHECK(workspace.bytes() >=
                     TrainMoeWorkspaceBytes(s.experts, s.chosen, s.width, s.ffn, type, s.rows),
                 "the workspace is large enough");
  return std::max({ProductWorkspaceBytes(2 * s.ffn, s.width, type, s.rows),
                   ProductWorkspaceBytes(s.width, s.ffn, type, s.rows),
                   ProductWorkspaceBytes(s.experts, s.width, ProductType::kF32, s.rows)});
}

void CpuTraining::MoeForward(const TrainMoeParams& params, Tensor x, Tensor out, Tensor saved,
                             Tensor workspace) {
  const MoeShape shape = ShapeOf(params, x);
  const Saved at(shape);
  const Work work(shape, MoeProductBytes(params, x, workspace));
  PENSTOCK_CHECK(saved.bytes() >= at.pieces.bytes(), "what is saved fits");
  int32_t* chosen = IntsAt(saved, at.chosen);
  const Tensor weights = FloatsAt(saved, at.weights, shape.rows, shape.chosen);
  const Tensor scores = FloatsAt(saved, at.scores, shape.rows, shape.experts);
  const MoeParams routing = Routing(params);
  const Tensor routed = RouterInput(params, x);
  OverRows(x, shape.experts, [&](RowRange range) {
    RouterRows(routed, params.router, scores.Row<float>(0).data(), range);
    for (int64_t r = range.begin; r < range.end; ++r) {
      RouteRow(routing, scores.Row<float>(r).data(), chosen + r * shape.chosen,
               weights.Row<float>(r).data());
    }
  });
  Fill(out, 0.0F);
  ForEachExpert(shape, saved, workspace, work, [&](const Turn& t) {
    device_.GatherRows(x, t.rows, t.wide);
    LinearForward(*params.gate_up[t.expert], t.wide, {}, t.gate_up, t.product);
    ActivateExpert(device_, params, t.gate, t.up, t.inner);
    LinearForward(*params.down[t.expert], t.inner, {}, t.wide2, t.product);
    OverRows(t.wide2, 1,
             [&](RowRange range) { AddScaledRows(t.wide2, t.rows.data(), t.weights, out, range); });
  });
}

void CpuTraining::MoeBackwardInput(const TrainMoeParams& params, Tensor x, Tensor saved, Tensor dy,
                                   bool accumulate, Tensor dx, Tensor held, Tensor workspace) {
  const MoeShape shape = ShapeOf(params, x);
  const Saved at(shape);
  const Held to(shape);
  const Work work(shape, MoeProductBytes(params, x, workspace));
  PENSTOCK_CHECK(saved.bytes() >= at.pieces.bytes() && held.bytes() >= to.pieces.bytes(),
                 "what is saved and held fits");
  const int64_t ffn = shape.ffn;
  if (!accumulate) {
    Fill(dx, 0.0F);
  }
  const Tensor slopes = FloatsAt(workspace, work.slot_slopes, shape.rows, shape.chosen);
  const Tensor all_back = FloatsAt(held, to.gate_up, shape.slots(), 2 * ffn);
  ForEachExpert(shape, saved, workspace, work, [&](const Turn& t) {
    const Tensor back = all_back.Rows(t.first, t.count);
    device_.GatherRows(dy, t.rows, t.wide);
    LinearBackwardInput(*params.down[t.expert], t.wide, false, t.inner2, t.product);
    ActivateExpert(device_, params, t.gate, t.up, t.inner);
    // The weight's gradient is dy . down(inner) = (dy down) . inner.
    OverRows(t.inner, 1, [&](RowRange range) {
      for (int64_t r = range.begin; r < range.end; ++r) {
        slopes.All<float>()[static_cast<size_t>(t.slots[r])] =
            DotOf(t.inner.Row<float>(r).data(), t.inner2.Row<float>(r).data(), ffn);
        ScaleRows(t.inner2, t.weights[r], t.inner2, {r, r + 1});
      }
    });
    if (params.activation == Activation::kSitu) {
      SituBackward(params.situ, t.gate, t.up, t.inner2, false, back.Columns(0, ffn), false,
                   back.Columns(ffn, ffn));
    } else {
      GatedBackward(params.activation, t.gate, t.up, t.inner2, false, back.Columns(0, ffn), false,
                    back.Columns(ffn, ffn));
    }
    LinearBackwardInput(*params.gate_up[t.expert], back, false, t.wide, t.product);
    ScatterAddRows(t.wide, t.rows, dx);
  });
  const Tensor scores = FloatsAt(saved, at.scores, shape.rows, shape.experts);
  const Tensor dlogits = FloatsAt(held, to.logits, shape.rows, shape.experts);
  const int32_t* chosen = IntsAt(saved, at.chosen);
  const std::vector<int32_t> same(static_cast<size_t>(shape.experts), 0);
  const Tensor drouted = params.router_input.empty() ? dx : params.router_input_gradient;
  if (!params.router_input.empty() && !params.accumulate_router_input && !drouted.empty()) {
    Fill(drouted, 0.0F);
  }
  OverRows(dx, shape.experts, [&](RowRange range) {
    for (int64_t r = range.begin; r < range.end; ++r) {
      RouteBack(params, scores.Row<float>(r).data(), chosen + r * shape.chosen,
                slopes.Row<float>(r).data(), dlogits.Row<float>(r).data());
      if (!drouted.empty()) {
        AddScaledRows(params.router, same.data(), dlogits.Row<float>(r).data(), drouted.Rows(r, 1),
                      {0, shape.experts});
      }
    }
  });
}

void CpuTraining::MoeBackwardWeight(const TrainMoeParams& params, Tensor x, Tensor saved, Tensor dy,
                                    Tensor held, Tensor drouter, std::span<const Tensor> dgate_up,
                                    std::span<const Tensor> ddown, Tensor workspace) {
  const MoeShape shape = ShapeOf(params, x);
  const Held from(shape);
  const Work work(shape, MoeProductBytes(params, x, workspace));
  PENSTOCK_CHECK(dgate_up.size() == params.gate_up.size() && ddown.size() == params.down.size(),
                 "each expert has its gradients");
  const Tensor all_back = FloatsAt(held, from.gate_up, shape.slots(), 2 * shape.ffn);
  ForEachExpert(shape, saved, workspace, work, [&](const Turn& t) {
    const ProductType type = TypeOf(*params.down[t.expert]);
    device_.GatherRows(x, t.rows, t.wide);
    LinearBackwardWeight(type, all_back.Rows(t.first, t.count), t.wide, true, dgate_up[t.expert],
                         t.product);
    ActivateExpert(device_, params, t.gate, t.up, t.inner);
    device_.GatherRows(dy, t.rows, t.wide);
    OverRows(t.wide, 1, [&](RowRange range) {
      for (int64_t r = range.begin; r < range.end; ++r) {
        ScaleRows(t.wide, t.weights[r], t.wide, {r, r + 1});
      }
    });
    LinearBackwardWeight(type, t.wide, t.inner, true, ddown[t.expert], t.product);
  });
  const Tensor dlogits = FloatsAt(held, from.logits, shape.rows, shape.experts);
  // By columns of which the workspace is known to hold the product.
  const Tensor routed = RouterInput(params, x);
  for (int64_t c = 0; c < routed.columns(); c += shape.width) {
    const int64_t count = std::min(shape.width, routed.columns() - c);
    LinearBackwardWeight(ProductType::kF32, dlogits, routed.Columns(c, count), true,
                         drouter.Columns(c, count), work.Product(workspace));
  }
}

}  // namespace penstock::kernels
