#include "model/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "base/units.h"
#include "model/variations.h"

namespace penstock::model {
namespace {

// Bounds of what a config may ask for. The largest known models: vocabulary 262,208, hidden 53,248,
// 252 layers, head size 512, 896 experts in each of 92 layers.
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
constexpr int64_t kMaxHidden = int64_t{1} << 18;
constexpr int64_t kMaxIntermediate = int64_t{1} << 22;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = int64_t{1} << 14;
constexpr int64_t kMaxHeadDim = 2048;
constexpr int64_t kMaxContext = int64_t{1} << 31;
constexpr int64_t kMaxExpertsOfModel = int64_t{1} << 17;

struct NamedActivation {
  std::string_view name;
  Activation activation;
};

constexpr NamedActivation kActivations[] = {
    {"silu", Activation::kSilu},         {"swish", Activation::kSilu},
    {"gelu", Activation::kGelu},         {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"gelu_new", Activation::kGeluTanh}, {"relu", Activation::kRelu},
    {"relu2", Activation::kReluSquared},
};

Result<Activation> ReadActivation(const JsonReader& config, const DecoderDefaults& defaults) {
  if (!config.Has(defaults.activation_key)) {
    return defaults.activation;
  }
  PENSTOCK_TRY_ASSIGN(const std::string name, config.String(defaults.activation_key));
  std::string known;
  for (const NamedActivation& entry : kActivations) {
    if (entry.name == name) {
      return entry.activation;
    }
    known += known.empty() ? "" : ", ";
    known += entry.name;
  }
  return MakeError(ErrorCode::kUnsupported, "[model.config] {}: {}: got '{}', supported are {}",
                   config.where(), defaults.activation_key, name, known);
}

// Keys that change the mathematics of any family and that nobody here knows.
Result<> RefuseUnknownMathematics(const JsonReader& config, bool variations) {
  std::vector<std::string_view> keys = {"quantization_config"};
  if (!variations) {
    keys.insert(keys.end(), VariationKeys().begin(), VariationKeys().end());
  }
  for (const std::string_view key : keys) {
    if (config.Has(key)) {
      return MakeError(ErrorCode::kUnsupported,
                       "[model.config] {}: {}: not supported; wanted a model without it",
                       config.where(), key);
    }
  }
  PENSTOCK_TRY_ASSIGN(const bool both_ways, config.BoolOr("use_bidirectional_attention", false));
  if (both_ways) {
    return MakeError(ErrorCode::kUnsupported,
                     "[model.config] {}: use_bidirectional_attention: got true, supported is false",
                     config.where());
  }
  return {};
}

Result<int64_t> IntOrRequired(const JsonReader& config, std::string_view key, int64_t fallback,
                              int64_t high) {
  return fallback > 0 ? config.IntOr(key, fallback, 1, high) : config.Int(key, 1, high);
}

Result<> ReadHeads(const JsonReader& config, const DecoderDefaults& defaults,
                   DecoderConfig& decoder) {
  PENSTOCK_TRY_ASSIGN(decoder.heads,
                      IntOrRequired(config, "num_attention_heads", defaults.heads, kMaxHeads));
  const int64_t absent_kv = defaults.kv_heads > 0 && IsAbsent(config, "num_key_value_heads")
                                ? defaults.kv_heads
                                : decoder.heads;
  PENSTOCK_TRY_ASSIGN(decoder.kv_heads,
                      config.IntOr("num_key_value_heads", absent_kv, 1, decoder.heads));
  if (decoder.heads % decoder.kv_heads != 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.config] {}: num_key_value_heads: got {}, wanted a divisor of "
                     "num_attention_heads ({})",
                     config.where(), decoder.kv_heads, decoder.heads);
  }
  if (config.Has("head_dim")) {
    PENSTOCK_TRY_ASSIGN(decoder.head_dim, config.Int("head_dim", 1, kMaxHeadDim));
    return {};
  }
  if (defaults.head_dim > 0 && IsAbsent(config, "head_dim")) {
    decoder.head_dim = defaults.head_dim;
    return {};
  }
  if (decoder.hidden % decoder.heads != 0 || decoder.hidden / decoder.heads > kMaxHeadDim) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.config] {}: head_dim: absent, and hidden_size ({}) over "
                     "num_attention_heads ({}) is not an integer from 1 to {}; wanted head_dim, or "
                     "a hidden_size that the heads divide",
                     config.where(), decoder.hidden, decoder.heads, kMaxHeadDim);
  }
  decoder.head_dim = decoder.hidden / decoder.heads;
  return {};
}

std::vector<TensorId> Biases(GraphBuilder& b, bool wanted, const std::string& prefix,
                             const std::vector<std::pair<std::string, int64_t>>& parts) {
  std::vector<TensorId> ids;
  if (wanted) {
    for (const auto& [name, rows] : parts) {
      ids.push_back(b.Vector(prefix + name + ".bias", rows));
    }
  }
  return ids;
}

// One Linear per call: `parts` are names and output widths of matrices that read x.
std::vector<ValueId> Project(GraphBuilder& b, ValueId x, const std::string& prefix, bool bias,
                             const std::vector<std::pair<std::string, int64_t>>& parts,
                             const std::vector<std::string>& names) {
  LinearOp op;
  for (const auto& [name, rows] : parts) {
    op.weights.push_back(b.Matrix(prefix + name + ".weight", rows, b.width(x)));
  }
  op.biases = Biases(b, bias, prefix, parts);
  return b.Linear(x, op, names);
}

}  // namespace

Result<std::vector<int64_t>> ReadTokenIds(const JsonReader& config, std::string_view key,
                                          int64_t vocabulary) {
  constexpr int64_t kAnyId = int64_t{1} << 31;
  PENSTOCK_TRY_ASSIGN(std::vector<int64_t> ids, config.IntsOr(key, -1, kAnyId));
  std::erase_if(ids, [&](int64_t id) { return id < 0 || id >= vocabulary; });
  return ids;
}

std::string EntriesText(const Json& list) {
  return list.is_array() ? Counted(list.size(), "entry", "entries")
                         : fmt::format("a {}", list.type_name());
}

bool IsAbsent(const JsonReader& config, std::string_view key) {
  return !config.Contains(key);
}

Result<DecoderConfig> ReadDecoder(const JsonReader& config, const DecoderDefaults& defaults) {
  PENSTOCK_TRY(RefuseUnknownMathematics(config, defaults.variations));
  DecoderConfig decoder;
  PENSTOCK_TRY_ASSIGN(decoder.vocabulary,
                      IntOrRequired(config, "vocab_size", defaults.vocabulary, kMaxVocabulary));
  PENSTOCK_TRY_ASSIGN(decoder.hidden, config.Int("hidden_size", 1, kMaxHidden));
  if (defaults.dense || config.Has("intermediate_size")) {
    PENSTOCK_TRY_ASSIGN(decoder.intermediate, config.Int("intermediate_size", 1, kMaxIntermediate));
  }
  PENSTOCK_TRY_ASSIGN(decoder.layers, config.Int("num_hidden_layers", 1, kMaxLayers));
  PENSTOCK_TRY(ReadHeads(config, defaults, decoder));
  PENSTOCK_TRY_ASSIGN(decoder.max_positions,
                      config.IntOr("max_position_embeddings", defaults.context, 1, kMaxContext));
  PENSTOCK_TRY_ASSIGN(const double epsilon,
                      config.NumberOr("rms_norm_eps", defaults.epsilon, 1e-30, 1.0));
  decoder.epsilon = static_cast<float>(epsilon);
  PENSTOCK_TRY_ASSIGN(decoder.activation, ReadActivation(config, defaults));
  PENSTOCK_TRY_ASSIGN(decoder.tied, config.BoolOr("tie_word_embeddings", defaults.tied));
  PENSTOCK_TRY_ASSIGN(decoder.bos, ReadTokenIds(config, "bos_token_id", decoder.vocabulary));
  PENSTOCK_TRY_ASSIGN(decoder.eos, ReadTokenIds(config, "eos_token_id", decoder.vocabulary));
  return decoder;
}

Result<int64_t> ReadWindow(const JsonReader& config, int64_t fallback) {
  return config.IntOr("sliding_window", IsAbsent(config, "sliding_window") ? fallback : 0, 1,
                      kMaxContext);
}

Result<std::optional<std::vector<bool>>> ReadLayerTypes(const JsonReader& config, int64_t layers) {
  const Json* types = config.Find("layer_types");
  if (types == nullptr) {
    return std::optional<std::vector<bool>>();
  }
  if (!types->is_array() || static_cast<int64_t>(types->size()) != layers) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[model.config] {}: layer_types: got {}, wanted a list with one per layer ({})",
        config.where(), EntriesText(*types), layers);
  }
  std::vector<bool> sliding;
  for (const Json& type : *types) {
    const bool is_sliding = type == "sliding_attention";
    if (!is_sliding && type != "full_attention") {
      return MakeError(ErrorCode::kUnsupported,
                       "[model.config] {}: layer_types: got {}, supported are \"full_attention\" "
                       "and \"sliding_attention\"",
                       config.where(), DumpJson(type).substr(0, 60));
    }
    sliding.push_back(is_sliding);
  }
  return std::optional<std::vector<bool>>(std::move(sliding));
}

ModelConfig MakeModelConfig(std::string_view family, const DecoderConfig& decoder, int64_t context,
                            const std::vector<int64_t>& windows) {
  ModelConfig config;
  config.family = std::string(family);
  config.vocabulary = decoder.vocabulary;
  config.hidden = decoder.hidden;
  config.layers = decoder.layers;
  config.context = context;
  config.bos = decoder.bos;
  config.eos = decoder.eos;
  config.tied = decoder.tied;
  for (const int64_t window : windows) {
    if (window > 0) {
      config.window = config.window == 0 ? window : std::min(config.window, window);
      ++config.windowed_layers;
    }
  }
  return config;
}

ValueId Norm(GraphBuilder& b, ValueId x, NormStyle style, const std::string& tensor,
             std::string name) {
  const TensorId weight = b.Vector(tensor + ".weight", b.width(x));
  return b.RmsNorm(
      x, {.weight = weight, .epsilon = style.epsilon, .add_one = style.add_one, .group = 0},
      std::move(name));
}

float InverseRoot(double x) {
  return static_cast<float>(1.0 / std::sqrt(x));
}

ValueId SelfAttention(GraphBuilder& b, ValueId x, const AttentionPiece& piece,
                      const std::string& prefix, const std::string& tag) {
  const int64_t q_width = piece.heads * piece.head_dim;
  const int64_t kv_width = piece.kv_heads * piece.head_dim;
  std::vector<ValueId> qkv;
  const std::vector<std::string> names = {"q." + tag, "k." + tag, "v." + tag};
  if (piece.fused) {
    const ValueId all = Project(b, x, prefix, piece.qkv_bias,
                                {{"qkv_proj", q_width + 2 * kv_width}}, {"qkv." + tag})[0];
    qkv = b.Split(all, {.widths = {q_width, kv_width, kv_width}}, names);
  } else {
    qkv = Project(b, x, prefix, piece.qkv_bias,
                  {{"q_proj", q_width}, {"k_proj", kv_width}, {"v_proj", kv_width}}, names);
  }
  if (piece.qk_norm) {
    for (size_t i = 0; i < 2; ++i) {
      const char* part = i == 0 ? "q_norm" : "k_norm";
      const TensorId weight = b.Vector(fmt::format("{}{}.weight", prefix, part), piece.head_dim);
      qkv[i] = b.RmsNorm(qkv[i],
                         {.weight = weight,
                          .epsilon = piece.qk_norm->epsilon,
                          .add_one = piece.qk_norm->add_one,
                          .group = piece.head_dim},
                         fmt::format("{}.{}", part, tag));
    }
  }
  if (piece.rope != nullptr) {
    for (size_t i = 0; i < 2; ++i) {
      qkv[i] = b.Rope(qkv[i],
                      {.heads = i == 0 ? piece.heads : piece.kv_heads,
                       .head_dim = piece.head_dim,
                       .rotary_dim = piece.rope->rotary_dim,
                       .interleaved = false,
                       .table = piece.rope->table},
                      (i == 0 ? "q_rope." : "k_rope.") + tag);
    }
  }
  const ValueId o = b.Attention(qkv[0], qkv[1], qkv[2],
                                {.heads = piece.heads,
                                 .kv_heads = piece.kv_heads,
                                 .head_dim = piece.head_dim,
                                 .value_dim = piece.head_dim,
                                 .scale = piece.scale,
                                 .soft_cap = piece.soft_cap,
                                 .window = piece.window},
                                "attention." + tag);
  LinearOp out;
  // The output projection gives back the width of the residual stream, which is x's.
  out.weights.push_back(b.Matrix(prefix + "o_proj.weight", b.width(x), q_width));
  out.biases = Biases(b, piece.output_bias, prefix, {{"o_proj", b.width(x)}});
  return b.Linear(o, out, {"o." + tag})[0];
}

ValueId GatedMlp(GraphBuilder& b, ValueId x, const MlpPiece& piece, const std::string& prefix,
                 const std::string& tag) {
  std::vector<ValueId> gate_up;
  const std::vector<std::string> names = {"gate." + tag, "up." + tag};
  const int64_t inner = piece.intermediate;
  if (piece.fused) {
    const ValueId both =
        Project(b, x, prefix, piece.bias, {{"gate_up_proj", 2 * inner}}, {"gate_up." + tag})[0];
    gate_up = b.Split(both, {.widths = {inner, inner}}, names);
  } else {
    gate_up = Project(b, x, prefix, piece.bias, {{"gate_proj", inner}, {"up_proj", inner}}, names);
  }
  const ValueId y = b.Gated(
      gate_up[0], gate_up[1],
      {.activation = piece.activation, .beta = piece.beta, .linear_beta = piece.linear_beta},
      "gated." + tag);
  return Project(b, y, prefix, piece.bias, {{"down_proj", b.width(x)}}, {"down." + tag})[0];
}

ValueId Experts(GraphBuilder& b, ValueId x, const MoePiece& piece, const std::string& prefix,
                const std::string& tag, ValueId router) {
  const int64_t width = b.width(x);
  MoeOp op;
  op.router = b.Matrix(prefix + piece.router, piece.experts, b.width(router.valid() ? router : x));
  if (!piece.router_bias.empty()) {
    op.router_bias = b.Vector(prefix + piece.router_bias, piece.experts);
  }
  for (int64_t e = 0; e < piece.experts; ++e) {
    const std::string expert = fmt::format("{}experts.{}.", prefix, e);
    const auto matrix = [&](const std::string& name, int64_t rows, int64_t columns) {
      return b.Tensor(expert + name + ".weight", {rows, columns}, TensorRole::kMatrix, true);
    };
    op.gate.push_back(matrix(piece.gate, piece.intermediate, width));
    op.up.push_back(matrix(piece.up, piece.intermediate, width));
    op.down.push_back(matrix(piece.down, width, piece.intermediate));
  }
  op.chosen = piece.chosen;
  op.normalize = piece.normalize;
  op.activation = piece.activation;
  op.beta = piece.beta;
  op.linear_beta = piece.linear_beta;
  op.scoring = piece.sigmoid ? MoeOp::Scoring::kSigmoid : MoeOp::Scoring::kSoftmax;
  op.weight_scale = piece.weight_scale;
  op.groups = piece.groups;
  op.chosen_groups = piece.chosen_groups;
  return b.Moe(x, op, "experts." + tag, router);
}

Result<> ReadGroups(const JsonReader& config, std::string_view groups_key, MoePiece& piece) {
  PENSTOCK_TRY_ASSIGN(piece.groups, config.IntOr(groups_key, 1, 1, piece.experts));
  PENSTOCK_TRY_ASSIGN(piece.chosen_groups,
                      config.IntOr("topk_group", piece.groups, 1, piece.groups));
  if (piece.experts % piece.groups != 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.config] {}: {}: got {}, wanted a divisor of num_experts ({})",
                     config.where(), groups_key, piece.groups, piece.experts);
  }
  if (piece.chosen > piece.experts / piece.groups * piece.chosen_groups) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[model.config] {}: topk_group: got {}, whose groups of {} are too few to choose {} from",
        config.where(), piece.chosen_groups, Counted(piece.experts / piece.groups, "expert"),
        piece.chosen);
  }
  return {};
}

Result<MoePiece> ReadMoe(const JsonReader& config, const DecoderConfig& decoder,
                         std::string_view experts_key, std::string_view chosen_key,
                         std::string_view intermediate_key) {
  MoePiece piece;
  PENSTOCK_TRY_ASSIGN(piece.experts,
                      config.Int(experts_key, 1, kMaxExpertsOfModel / decoder.layers));
  PENSTOCK_TRY_ASSIGN(piece.chosen, config.Int(chosen_key, 1, piece.experts));
  PENSTOCK_TRY_ASSIGN(piece.intermediate, config.Int(intermediate_key, 1, kMaxIntermediate));
  piece.activation = decoder.activation;
  return piece;
}

ValueId EmbeddingLayer(GraphBuilder& b, const DecoderConfig& decoder, float scale) {
  b.BeginLayer(LayerKind::kEmbedding, "embedding");
  const TensorId table = b.Tensor("model.embed_tokens.weight", {decoder.vocabulary, decoder.hidden},
                                  TensorRole::kEmbedding);
  return b.Embed(table, scale, "embedding");
}

TensorId HeadTensor(GraphBuilder& b, const DecoderConfig& decoder) {
  return decoder.tied ? b.Tensor("model.embed_tokens.weight", {decoder.vocabulary, decoder.hidden},
                                 TensorRole::kEmbedding)
                      : b.Matrix("lm_head.weight", decoder.vocabulary, decoder.hidden);
}

ValueId HeadLogits(GraphBuilder& b, ValueId rows, TensorId head, NormStyle norm,
                   const std::string& norm_tensor, float soft_cap, const std::string& tag) {
  const ValueId normed = Norm(b, rows, norm, norm_tensor, "norm" + tag);
  const ValueId logits = b.Linear(normed, {.weights = {head}, .biases = {}}, {"logits" + tag})[0];
  return soft_cap > 0.0F ? b.SoftCap(logits, soft_cap, "capped_logits" + tag) : logits;
}

Result<Graph> HeadLayer(GraphBuilder&& b, ValueId x, const DecoderConfig& decoder, NormStyle norm,
                        float soft_cap) {
  b.BeginLayer(LayerKind::kHead, "head");
  const ValueId rows = b.SelectRows(x, "rows");
  const TensorId head = HeadTensor(b, decoder);
  const ValueId logits = HeadLogits(b, rows, head, norm, "model.norm", soft_cap, "");
  return std::move(b).Build(logits);
}

std::string LayerPrefix(int64_t layer) {
  return fmt::format("model.layers.{}.", layer);
}

}  // namespace penstock::model
