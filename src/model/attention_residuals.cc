#include "model/attention_residuals.h"

#include <fmt/format.h>

#include <numeric>

#include "base/check.h"
#include "base/json.h"
#include "model/variations.h"

namespace penstock::model {
namespace {

constexpr std::string_view kKey = "attention_residuals";

// `block_size`: one number, or the sizes of all blocks in order.
Result<std::vector<bool>> ReadBlocks(const JsonReader& object, int64_t sublayers) {
  if (!object.Has("block_size")) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.config] {}: block_size: missing, wanted 1 to {} (sublayers: two per "
                     "decoder layer), or a list of sizes",
                     object.where(), sublayers);
  }
  PENSTOCK_TRY_ASSIGN(const std::vector<int64_t> sizes, object.IntsOr("block_size", 1, sublayers));
  if (!object.Find("block_size")->is_array()) {
    return EvenBlocks(sublayers, sizes[0]);
  }
  const int64_t sum = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  if (sum != sublayers) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.config] {}: block_size: {} blocks of {} sublayers together, wanted {} "
                     "(two per decoder layer)",
                     object.where(), sizes.size(), sum, sublayers);
  }
  std::vector<bool> ends(static_cast<size_t>(sublayers), false);
  int64_t end = 0;
  for (const int64_t size : sizes) {
    end += size;
    ends[static_cast<size_t>(end) - 1] = true;
  }
  return ends;
}

}  // namespace

ValueId DepthRead(GraphBuilder& b, const std::vector<ValueId>& sources, const DepthReadPiece& piece,
                  const std::string& tensor, std::string name) {
  const int64_t width = b.width(sources.back());
  DepthReadOp op;
  op.query = b.Tensor(tensor + "_proj.weight", {1, width}, TensorRole::kVector);
  if (piece.key_norm) {
    op.key_norm = b.Vector(tensor + "_norm.weight", width);
  }
  op.epsilon = piece.epsilon;
  return b.DepthRead(sources, op, std::move(name));
}

void BlockSums::Add(GraphBuilder& b, ValueId y, bool ends, const std::string& tag) {
  if (partial_.valid()) {
    y = b.Add(partial_, y, ends ? fmt::format("block.{}", bank_.size()) : "partial." + tag);
  }
  if (ends) {
    bank_.push_back(y);
    partial_ = ValueId();
  } else {
    partial_ = y;
  }
}

std::vector<ValueId> BlockSums::Sources() const {
  std::vector<ValueId> sources = bank_;
  if (partial_.valid()) {
    sources.push_back(partial_);
  }
  return sources;
}

std::vector<bool> EvenBlocks(int64_t sublayers, int64_t size) {
  std::vector<bool> ends;
  for (int64_t i = 1; i <= sublayers; ++i) {
    ends.push_back(i % size == 0 || i == sublayers);
  }
  return ends;
}

Result<std::optional<AttentionResiduals>> ReadAttentionResiduals(const JsonReader& config,
                                                                 const DecoderConfig& decoder) {
  if (!config.Has(kKey)) {
    return std::optional<AttentionResiduals>();
  }
  PENSTOCK_TRY_ASSIGN(
      const JsonReader object,
      ReadVariation(config, kKey, {"residual", "block_size", "key_norm_weight", "output"}));
  AttentionResiduals result;
  const int64_t sublayers = 2 * decoder.layers;
  PENSTOCK_TRY_ASSIGN(const bool full, ReadChoice(object, "residual", "full", "block", {}));
  if (full && object.Has("block_size")) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.config] {}: block_size: contradicts residual 'full', whose blocks are "
                     "single sublayers; wanted it absent, or residual 'block'",
                     object.where());
  }
  if (full) {
    result.ends = EvenBlocks(sublayers, 1);
  } else {
    PENSTOCK_TRY_ASSIGN(result.ends, ReadBlocks(object, sublayers));
  }
  PENSTOCK_TRY_ASSIGN(result.read.key_norm, object.BoolOr("key_norm_weight", false));
  PENSTOCK_TRY_ASSIGN(result.attend, ReadChoice(object, "output", "attend", "sum", "attend"));
  result.read.epsilon = decoder.epsilon;
  return std::optional<AttentionResiduals>(std::move(result));
}

ValueId AttentionResidual::Read(GraphBuilder& b, const Sublayer& place) {
  const bool attention = place.kind == SublayerKind::kAttention;
  return DepthRead(b, sums_.Sources(), residuals_.read,
                   LayerPrefix(place.layer) + (attention ? "self_attention_res" : "mlp_res"),
                   fmt::format("{}_read.{}", SublayerName(place.kind), place.layer));
}

void AttentionResidual::Write(GraphBuilder& b, const Sublayer& place, ValueId y) {
  const int64_t index = 2 * place.layer + (place.kind == SublayerKind::kMlp ? 1 : 0);
  PENSTOCK_CHECK(index < std::ssize(residuals_.ends), "every sublayer has a block");
  sums_.Add(b, y, residuals_.ends[static_cast<size_t>(index)], SublayerTag(place));
}

ValueId AttentionResidual::Output(GraphBuilder& b, const std::string& tag) {
  const std::vector<ValueId> sources = sums_.Sources();
  if (residuals_.attend) {
    return DepthRead(b, sources, residuals_.read, "model.output_attn_res", "output_read." + tag);
  }
  ValueId sum = sources[0];
  for (size_t i = 1; i < sources.size(); ++i) {
    sum = b.Add(sum, sources[i], fmt::format("output_sum.{}.{}", tag, i));
  }
  return sum;
}

}  // namespace penstock::model
