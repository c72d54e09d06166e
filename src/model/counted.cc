#include "model/counted.h"

#include <fmt/format.h>

namespace penstock::model {

ValueId CountedLayerNorm(GraphBuilder& b, ValueId x, const std::string& tensor, bool bias,
                         std::string name) {
  CountedOp op;
  op.kind = "layer norm";
  op.weights.push_back(b.Vector(tensor + ".weight", b.width(x)));
  if (bias) {
    op.weights.push_back(b.Vector(tensor + ".bias", b.width(x)));
  }
  op.saved_bytes_per_row = 2 * static_cast<double>(b.width(x));
  return b.Counted({x}, op, std::nullopt, {{std::move(name), b.width(x)}})[0];
}

ValueId CountedDropout(GraphBuilder& b, ValueId x, std::string name) {
  CountedOp op;
  op.kind = "dropout";
  op.saved_bytes_per_row = static_cast<double>(b.width(x));
  return b.Counted({x}, op, std::nullopt, {{std::move(name), b.width(x)}})[0];
}

ValueId CountedMoe(GraphBuilder& b, ValueId x, ValueId z, const CountedExperts& piece,
                   const std::string& router, const std::string& prefix, const std::string& tag) {
  CountedOp op;
  op.kind = "experts";
  op.experts = piece.experts;
  op.chosen = piece.chosen;
  const int64_t width = b.width(z);
  op.weights.push_back(
      b.Tensor(router + ".weight", {piece.experts, b.width(x)}, TensorRole::kMatrix));
  if (piece.router_bias) {
    op.weights.push_back(b.Vector(router + ".bias", piece.experts));
  }
  op.weights.push_back(b.Tensor(prefix + "gate_up", {piece.experts * 2 * piece.inner, width},
                                TensorRole::kMatrix, true));
  op.weights.push_back(
      b.Tensor(prefix + "down", {piece.experts * width, piece.inner}, TensorRole::kMatrix, true));
  if (piece.bias > 0) {
    op.weights.push_back(
        b.Tensor(prefix + "bias", {piece.experts * piece.bias}, TensorRole::kVector, true));
  }
  std::vector<ValueId> inputs = {z};
  if (x != z) {
    inputs.push_back(x);
  }
  return b.Counted(inputs, op, std::nullopt, {{"experts." + tag, width}})[0];
}

}  // namespace penstock::model
