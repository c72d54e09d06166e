// What decoder families have in common: the keys of config.json that mean the same everywhere, and
// the pieces that their layers are made of. A family file puts pieces together so that it reads
// like its formula.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_reader.h"
#include "base/result.h"
#include "model/config.h"
#include "model/graph.h"
#include "model/rope.h"

namespace penstock::model {

// Values of absent keys, as the family's configuration class in transformers has them. A key that
// is there but null is another thing.
struct DecoderDefaults {
  int64_t vocabulary = 0;  // 0: the key is required
  int64_t heads = 0;       // 0: the key is required
  int64_t kv_heads = 0;    // 0: as many as heads
  int64_t head_dim = 0;    // 0: hidden / heads
  double epsilon = 1e-6;
  bool tied = false;
  int64_t context = 2048;
  std::string_view activation_key = "hidden_act";
  Activation activation = Activation::kSilu;
  bool dense = true;        // intermediate_size is required; else it may be absent
  bool variations = false;  // the family takes those of variations.h; else their keys are refused
};

// The common keys.
struct DecoderConfig {
  int64_t vocabulary = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_positions = 0;
  float epsilon = 1e-6F;
  Activation activation = Activation::kSilu;
  bool tied = false;
  std::vector<int64_t> bos;
  std::vector<int64_t> eos;
};

// Errors name the key and the legal range. Refuses what no family here supports
// (quantization_config, an activation that is not known).
Result<DecoderConfig> ReadDecoder(const JsonReader& config, const DecoderDefaults& defaults);

// bos_token_id and the like. Ids outside the vocabulary never occur: configurations cut from larger
// ones keep such; they are left out.
Result<std::vector<int64_t>> ReadTokenIds(const JsonReader& config, std::string_view key,
                                          int64_t vocabulary);

// What stands where a list is wanted: "1 entry", "5 entries", or "a string" and the like.
std::string EntriesText(const Json& list);

// True when the key is not there at all; null counts as there.
bool IsAbsent(const JsonReader& config, std::string_view key);

// A window that may be absent (then `fallback`) or null (then 0: none).
Result<int64_t> ReadWindow(const JsonReader& config, int64_t fallback);

// The windows of all layers: `layer_types` ("full_attention", "sliding_attention") where the config
// has it, else `windowed(i)` for decoder layer i. 0: the layer sees everything.
template <class Rule>
Result<std::vector<int64_t>> ReadLayerWindows(const JsonReader& config, int64_t layers,
                                              int64_t window, Rule windowed);

// `layer_types` as flags (true: sliding), or nothing when absent. Errors: a wrong length, an
// unknown type.
Result<std::optional<std::vector<bool>>> ReadLayerTypes(const JsonReader& config, int64_t layers);

// Facts for ModelConfig; `windows` per decoder layer.
ModelConfig MakeModelConfig(std::string_view family, const DecoderConfig& decoder, int64_t context,
                            const std::vector<int64_t>& windows);

// ---- Pieces. `prefix` is the tensors' ("model.layers.3.self_attn."), `tag` ends the values' names
// ("3"). ----

struct NormStyle {
  float epsilon = 1e-6F;
  bool add_one = false;
};

// y = norm(x); the weight is `tensor` + ".weight".
ValueId Norm(GraphBuilder& b, ValueId x, NormStyle style, const std::string& tensor,
             std::string name);

// 1 / sqrt(x), rounded once.
float InverseRoot(double x);

struct AttentionPiece {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  bool qkv_bias = false;
  bool output_bias = false;
  bool fused = false;                // one stored matrix [q; k; v] named qkv_proj
  std::optional<NormStyle> qk_norm;  // per head, on q and k before the rotation
  const Rope* rope = nullptr;
  float scale = 1.0F;
  float soft_cap = 0.0F;
  int64_t window = 0;
};

// o_proj(attention(rope(q_proj x), rope(k_proj x), v_proj x)).
ValueId SelfAttention(GraphBuilder& b, ValueId x, const AttentionPiece& piece,
                      const std::string& prefix, const std::string& tag);

struct MlpPiece {
  int64_t intermediate = 0;
  Activation activation = Activation::kSilu;
  float beta = 0.0F;  // as in GatedOp
  float linear_beta = 0.0F;
  bool bias = false;
  bool fused = false;  // one stored matrix [gate; up] named gate_up_proj
};

// down_proj(act(gate_proj x) * up_proj x).
ValueId GatedMlp(GraphBuilder& b, ValueId x, const MlpPiece& piece, const std::string& prefix,
                 const std::string& tag);

struct MoePiece {
  int64_t experts = 0;
  int64_t chosen = 0;
  int64_t intermediate = 0;
  bool normalize = false;
  bool sigmoid = false;
  float weight_scale = 1.0F;
  int64_t groups = 1;
  int64_t chosen_groups = 1;
  Activation activation = Activation::kSilu;
  float beta = 0.0F;  // as in GatedOp
  float linear_beta = 0.0F;
  std::string router = "gate.weight";
  std::string router_bias;                                             // empty: none
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";  // of one expert
};

// Routed experts: tensors prefix + "experts.E." + gate + ".weight". `router`: what the router
// reads, if not x.
ValueId Experts(GraphBuilder& b, ValueId x, const MoePiece& piece, const std::string& prefix,
                const std::string& tag, ValueId router = ValueId());

// Reads `groups_key` and `topk_group`. Errors: groups that do not divide the experts, or that hold
// too few to choose from.
Result<> ReadGroups(const JsonReader& config, std::string_view groups_key, MoePiece& piece);

// Reads `experts_key` and `chosen_key`. Errors: also when layers x experts is out of bounds.
Result<MoePiece> ReadMoe(const JsonReader& config, const DecoderConfig& decoder,
                         std::string_view experts_key, std::string_view chosen_key,
                         std::string_view intermediate_key);

// Embedding layer: table * scale.
ValueId EmbeddingLayer(GraphBuilder& b, const DecoderConfig& decoder, float scale = 1.0F);

// Head layer: chosen rows, final norm, logits (tied or lm_head), soft cap if not 0. Gives the
// graph away.
Result<Graph> HeadLayer(GraphBuilder&& b, ValueId x, const DecoderConfig& decoder, NormStyle norm,
                        float soft_cap = 0.0F);

// The matrix of the head: the embedding's table when tied, else lm_head.
TensorId HeadTensor(GraphBuilder& b, const DecoderConfig& decoder);

// Logits of `rows`: norm (weight `norm_tensor` + ".weight"), the head's matrix, soft cap if not 0.
// `tag` ends the values' names.
ValueId HeadLogits(GraphBuilder& b, ValueId rows, TensorId head, NormStyle norm,
                   const std::string& norm_tensor, float soft_cap, const std::string& tag);

// "model.layers.3."
std::string LayerPrefix(int64_t layer);

template <class Rule>
Result<std::vector<int64_t>> ReadLayerWindows(const JsonReader& config, int64_t layers,
                                              int64_t window, Rule windowed) {
  PENSTOCK_TRY_ASSIGN(const auto types, ReadLayerTypes(config, layers));
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < layers; ++i) {
    const bool slides = types ? (*types)[static_cast<size_t>(i)] : windowed(i);
    windows.push_back(slides ? window : 0);
  }
  return windows;
}

}  // namespace penstock::model
