#include "model/decoder_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "model/attention_residuals.h"
#include "model/auxiliary_heads.h"
#include "model/hyper_connections.h"
#include "model/per_layer_embeddings.h"
#include "model/residual.h"
#include "model/shared_layers.h"
#include "model/skip_connections.h"
#include "model/variations.h"

namespace penstock::model {
namespace {

struct Variations {
  std::optional<AttentionResiduals> attention_residuals;
  std::optional<HyperConnections> hyper_connections;
  std::vector<Skip> skips;
  std::vector<int64_t> owners;
  bool parallel = false;
  PerLayerEmbeddings per_layer;
  EarlyExits exits;
  TokenPrediction prediction;
};

Result<Variations> ReadVariations(const JsonReader& config, const DecoderConfig& decoder) {
  PENSTOCK_TRY(CheckVariations(config));
  Variations v;
  PENSTOCK_TRY_ASSIGN(v.attention_residuals, ReadAttentionResiduals(config, decoder));
  PENSTOCK_TRY_ASSIGN(v.hyper_connections, ReadHyperConnections(config, decoder));
  PENSTOCK_TRY_ASSIGN(v.skips, ReadSkips(config, decoder));
  PENSTOCK_TRY_ASSIGN(v.owners, ReadWeightOwners(config, decoder));
  PENSTOCK_TRY_ASSIGN(v.parallel, config.BoolOr("use_parallel_residual", false));
  PENSTOCK_TRY_ASSIGN(v.per_layer, ReadPerLayerEmbeddings(config, decoder));
  PENSTOCK_TRY_ASSIGN(v.exits, ReadEarlyExits(config, decoder));
  PENSTOCK_TRY_ASSIGN(v.prediction, ReadTokenPrediction(config));
  return v;
}

std::unique_ptr<Residual> MakeResidual(const Variations& v, ValueId embedding) {
  if (v.attention_residuals) {
    return std::make_unique<AttentionResidual>(embedding, *v.attention_residuals);
  }
  if (v.hyper_connections) {
    return std::make_unique<StreamResidual>(embedding, *v.hyper_connections);
  }
  if (!v.skips.empty()) {
    return std::make_unique<SkipResidual>(embedding, v.skips);
  }
  return std::make_unique<PlainResidual>(embedding);
}

class DecoderBuilder {
 public:
  DecoderBuilder(const DecoderSpec& spec, const Variations& variations)
      : spec_(spec), variations_(variations) {}

  Result<Graph> Build() && {
    embedding_ = EmbeddingLayer(b_, spec_.decoder, spec_.embedding_scale);
    residual_ = MakeResidual(variations_, embedding_);
    for (int64_t i = 0; i < spec_.decoder.layers; ++i) {
      Layer(i);
    }
    const std::vector<ValueId> predicted = PredictionLayers();
    b_.BeginLayer(LayerKind::kHead, "head");
    const ValueId rows = b_.SelectRows(residual_->Output(b_, "head"), "rows");
    const ValueId logits = HeadLogits(b_, rows, HeadTensor(b_, spec_.decoder), spec_.norm,
                                      "model.norm", spec_.logit_cap, "");
    for (size_t k = 0; k < predicted.size(); ++k) {
      const auto depth = static_cast<int64_t>(k);
      AddPredictionHead(b_, predicted[k], depth, variations_.prediction, spec_.decoder, spec_.norm,
                        spec_.logit_cap, LayerPrefix(spec_.decoder.layers + depth));
    }
    return std::move(b_).Build(logits);
  }

 private:
  void Layer(int64_t layer) {
    const int64_t owner = variations_.owners[static_cast<size_t>(layer)];
    const LayerPlace place = {layer, owner, LayerPrefix(owner), std::to_string(layer)};
    b_.BeginLayer(LayerKind::kDecoder, "layer " + place.tag);
    const Sublayer attention = {layer, SublayerKind::kAttention};
    const Sublayer mlp = {layer, SublayerKind::kMlp};
    const ValueId x = residual_->Read(b_, attention);
    const ValueId y = spec_.attention(b_, x, place);
    if (variations_.parallel) {
      const ValueId z = spec_.mlp(b_, x, place);
      residual_->Write(b_, mlp, b_.Add(y, z, "branches." + place.tag));
    } else {
      residual_->Write(b_, attention, y);
      residual_->Write(b_, mlp, spec_.mlp(b_, residual_->Read(b_, mlp), place));
    }
    if (variations_.per_layer.width > 0) {
      const Sublayer extra = {layer, SublayerKind::kExtra};
      residual_->Write(
          b_, extra,
          PerLayerAddition(b_, residual_->Read(b_, extra), embedding_, spec_.decoder.vocabulary,
                           variations_.per_layer, spec_.norm, LayerPrefix(layer), place.tag));
    }
    if (std::ranges::binary_search(variations_.exits.layers, layer)) {
      AddEarlyExit(b_, residual_->Output(b_, fmt::format("exit.{}", layer)), layer,
                   variations_.exits, spec_.decoder, spec_.norm, spec_.logit_cap);
    }
  }

  // Layers behind the last one, each with the attributes of the last one. Their outputs.
  std::vector<ValueId> PredictionLayers() {
    std::vector<ValueId> outputs;
    ValueId h;
    for (int64_t k = 0; k < variations_.prediction.depths; ++k) {
      const int64_t last = spec_.decoder.layers - 1;
      const LayerPlace place = {last, last, LayerPrefix(last + 1 + k), fmt::format("next.{}", k)};
      b_.BeginLayer(LayerKind::kDecoder, fmt::format("next {}", k + 1));
      h = k == 0 ? residual_->Output(b_, "next") : h;
      const ValueId x =
          PredictionInput(b_, h, k, spec_.decoder, spec_.norm, spec_.embedding_scale, place.prefix);
      const ValueId y = b_.Add(x, spec_.attention(b_, x, place), "middle." + place.tag);
      h = b_.Add(y, spec_.mlp(b_, y, place), "hidden." + place.tag);
      outputs.push_back(h);
    }
    return outputs;
  }

  const DecoderSpec& spec_;
  const Variations& variations_;
  GraphBuilder b_;
  ValueId embedding_;
  std::unique_ptr<Residual> residual_;
};

}  // namespace

SublayerPiece PreNormAttention(NormStyle norm, const AttentionPiece& attention) {
  return [norm, attention](GraphBuilder& b, ValueId x, const LayerPlace& place) {
    const ValueId y =
        Norm(b, x, norm, place.prefix + "input_layernorm", "attention_norm." + place.tag);
    return SelfAttention(b, y, attention, place.prefix + "self_attn.", place.tag);
  };
}

SublayerPiece PreNormMlp(NormStyle norm, SublayerPiece mlp) {
  return [norm, mlp = std::move(mlp)](GraphBuilder& b, ValueId x, const LayerPlace& place) {
    const ValueId y =
        Norm(b, x, norm, place.prefix + "post_attention_layernorm", "mlp_norm." + place.tag);
    return mlp(b, y, place);
  };
}

SublayerPiece PreNormGatedMlp(NormStyle norm, const MlpPiece& mlp) {
  return PreNormMlp(norm, [mlp](GraphBuilder& b, ValueId x, const LayerPlace& place) {
    return GatedMlp(b, x, mlp, place.prefix + "mlp.", place.tag);
  });
}

Result<Graph> BuildDecoder(const JsonReader& config, const DecoderSpec& spec) {
  PENSTOCK_TRY_ASSIGN(const Variations variations, ReadVariations(config, spec.decoder));
  return DecoderBuilder(spec, variations).Build();
}

}  // namespace penstock::model
