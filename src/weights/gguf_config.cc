#include "weights/gguf_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/json.h"
#include "base/units.h"
#include "weights/gguf_config_latent.h"

namespace penstock::weights {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24;  // widths, heads, experts
constexpr int64_t kMaxLayers = int64_t{1} << 16;
constexpr int64_t kMaxContext = int64_t{1} << 40;
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;

constexpr std::array kArchitectures = {
    GgufArchitecture{.name = "llama", .permuted_heads = true},
    GgufArchitecture{.name = "mistral3", .permuted_heads = true},
    GgufArchitecture{.name = "qwen2"},
    GgufArchitecture{.name = "qwen3"},
    GgufArchitecture{.name = "qwen3moe"},
    GgufArchitecture{.name = "phi3"},
    GgufArchitecture{.name = "deepseek2"},
    GgufArchitecture{.name = "kimi-linear"},
    GgufArchitecture{.name = "kimi-k3"},
    GgufArchitecture{.name = "gemma2", .norms_plus_one = true, .sandwich_norms = true},
    GgufArchitecture{.name = "gemma3", .norms_plus_one = true, .sandwich_norms = true},
};

// The double that the shortest decimal of a float32 names: 1e-05 instead of 9.999999747378752e-06,
// as config.json writes it.
double Decimal(double value) {
  const auto narrow = static_cast<float>(value);
  if (static_cast<double>(narrow) != value) {
    return value;
  }
  const std::string text = fmt::to_string(narrow);
  double wide = value;
  std::from_chars(text.data(), text.data() + text.size(), wide);
  return wide;
}

class Translator {
 public:
  Translator(const GgufSet& set, const GgufArchitecture& architecture)
      : set_(set), metadata_(set.metadata()), architecture_(architecture.name) {}

  Result<Json> Translate() {
    PENSTOCK_TRY(Sizes());
    if (IsLatentArchitecture(architecture_)) {
      PENSTOCK_TRY(TranslateLatentConfig(set_, architecture_, config_));
      PENSTOCK_TRY(TokenIds());
      return std::move(config_);
    }
    PENSTOCK_TRY(Heads());
    PENSTOCK_TRY(Family());
    PENSTOCK_TRY(Rope());
    PENSTOCK_TRY(TokenIds());
    return std::move(config_);
  }

 private:
  std::string Key(std::string_view rest) const { return fmt::format("{}.{}", architecture_, rest); }

  Result<int64_t> Int(std::string_view rest, int64_t low, int64_t high) const {
    return metadata_.Int(Key(rest), low, high);
  }

  Result<std::optional<int64_t>> MaybeInt(std::string_view rest, int64_t low, int64_t high) const {
    return metadata_.MaybeInt(Key(rest), low, high);
  }

  Result<std::optional<double>> MaybeNumber(std::string_view rest) const {
    PENSTOCK_TRY_ASSIGN(auto number, metadata_.MaybeNumber(Key(rest)));
    if (number.has_value()) {
      number = Decimal(*number);
    }
    return number;
  }

  template <class... Args>
  Error Unsupported(fmt::format_string<Args...> format, Args&&... args) const {
    return MakeError(ErrorCode::kUnsupported, "[weights.gguf] {}: {}", set_.path(),
                     fmt::format(format, std::forward<Args>(args)...));
  }

  // One number, or an array with one per layer that are all the same.
  Result<std::optional<int64_t>> SameInEveryLayer(std::string_view rest, int64_t low,
                                                  int64_t high) const {
    const GgufValue* value = metadata_.Find(Key(rest));
    if (value == nullptr || value->type != GgufType::kArray) {
      return MaybeInt(rest, low, high);
    }
    PENSTOCK_TRY_ASSIGN(const auto numbers,
                        metadata_.IntsOr(Key(rest), low, high, static_cast<size_t>(layers_)));
    if (numbers.empty() || std::adjacent_find(numbers.begin(), numbers.end(),
                                              std::not_equal_to<>()) != numbers.end()) {
      return Unsupported("{} differs from layer to layer, wanted one number", Key(rest));
    }
    return std::optional<int64_t>(numbers.front());
  }

  Result<> Sizes() {
    PENSTOCK_TRY_ASSIGN(layers_, Int("block_count", 1, kMaxLayers));
    PENSTOCK_TRY_ASSIGN(hidden_, Int("embedding_length", 1, kMaxSize));
    PENSTOCK_TRY_ASSIGN(const int64_t context, Int("context_length", 1, kMaxContext));
    PENSTOCK_TRY_ASSIGN(const auto epsilon, MaybeNumber("attention.layer_norm_rms_epsilon"));
    if (!epsilon.has_value()) {
      return MakeError(ErrorCode::kCorruptData,
                       "[weights.gguf] {}: metadata {} is missing, wanted a number", set_.path(),
                       Key("attention.layer_norm_rms_epsilon"));
    }
    PENSTOCK_TRY_ASSIGN(const auto inner, SameInEveryLayer("feed_forward_length", 0, kMaxSize));
    const StoredTensor* embedding = set_.Find("token_embd.weight");
    if (embedding == nullptr || embedding->shape.size() != 2) {
      return MakeError(ErrorCode::kNotFound,
                       "[weights.gguf] {}: no tensor token_embd.weight with two dimensions",
                       set_.path());
    }
    if (embedding->shape[0] > kMaxVocabulary) {
      return MakeError(ErrorCode::kCorruptData,
                       "[weights.gguf] {}: token_embd.weight has {} rows, wanted at most {}",
                       set_.path(), embedding->shape[0], kMaxVocabulary);
    }
    config_["architectures"] = Json::array();
    config_["model_type"] = "";
    config_["vocab_size"] = embedding->shape[0];
    config_["hidden_size"] = hidden_;
    if (inner.has_value() && *inner > 0) {
      config_["intermediate_size"] = *inner;
    }
    config_["num_hidden_layers"] = layers_;
    config_["max_position_embeddings"] = context;
    config_["rms_norm_eps"] = *epsilon;
    config_["hidden_act"] = "silu";
    config_["tie_word_embeddings"] = !set_.Has("output.weight");
    return {};
  }

  Result<> Heads() {
    PENSTOCK_TRY_ASSIGN(const auto heads, SameInEveryLayer("attention.head_count", 1, kMaxSize));
    if (!heads.has_value()) {
      return MakeError(ErrorCode::kCorruptData,
                       "[weights.gguf] {}: metadata {} is missing, wanted an integer", set_.path(),
                       Key("attention.head_count"));
    }
    PENSTOCK_TRY_ASSIGN(const auto key_heads,
                        SameInEveryLayer("attention.head_count_kv", 1, kMaxSize));
    PENSTOCK_TRY_ASSIGN(const auto key_length, MaybeInt("attention.key_length", 1, kMaxSize));
    PENSTOCK_TRY_ASSIGN(const auto value_length, MaybeInt("attention.value_length", 1, kMaxSize));
    if (!key_length.has_value() && hidden_ % *heads != 0) {
      return MakeError(ErrorCode::kCorruptData,
                       "[weights.gguf] {}: {} heads do not divide a width of {}, wanted {}",
                       set_.path(), *heads, hidden_, Key("attention.key_length"));
    }
    heads_ = *heads;
    head_dim_ = key_length.value_or(hidden_ / *heads);
    if (value_length.value_or(head_dim_) != head_dim_) {
      return Unsupported("{} is {}, wanted that of the keys, {}", Key("attention.value_length"),
                         *value_length, head_dim_);
    }
    config_["num_attention_heads"] = *heads;
    config_["num_key_value_heads"] = key_heads.value_or(*heads);
    config_["head_dim"] = head_dim_;
    config_["attention_bias"] = set_.Has("blk.0.attn_q.bias");
    return {};
  }

  void Name(std::string_view model_type, std::string_view class_name) {
    config_["architectures"] = Json::array({class_name});
    config_["model_type"] = model_type;
  }

  Result<> Family() {
    if (architecture_ == "llama" || architecture_ == "mistral3") {
      return Llama();
    }
    if (architecture_ == "qwen2") {
      Name("qwen2", "Qwen2ForCausalLM");
      config_["use_sliding_window"] = false;
      return {};
    }
    if (architecture_ == "qwen3") {
      Name("qwen3", "Qwen3ForCausalLM");
      config_["use_sliding_window"] = false;
      return {};
    }
    if (architecture_ == "qwen3moe") {
      return Qwen3Moe();
    }
    if (architecture_ == "phi3") {
      return Phi3();
    }
    return Gemma();
  }

  Result<> Llama() {
    PENSTOCK_TRY_ASSIGN(const auto temperature, MaybeNumber("attention.temperature_scale"));
    if (temperature.value_or(0) != 0) {
      return Unsupported("{} is {}: attention scaled by position is not supported",
                         Key("attention.temperature_scale"), *temperature);
    }
    PENSTOCK_TRY_ASSIGN(const auto experts, MaybeInt("expert_count", 0, kMaxSize));
    PENSTOCK_TRY_ASSIGN(const auto window, MaybeInt("attention.sliding_window", 0, kMaxContext));
    config_["mlp_bias"] = set_.Has("blk.0.ffn_gate.bias");
    if (experts.value_or(0) > 0) {
      Name("mixtral", "MixtralForCausalLM");
      PENSTOCK_TRY_ASSIGN(const int64_t chosen, Int("expert_used_count", 1, *experts));
      config_["num_local_experts"] = *experts;
      config_["num_experts_per_tok"] = chosen;
    } else if (window.value_or(0) > 0) {
      Name("mistral", "MistralForCausalLM");
    } else {
      Name("llama", "LlamaForCausalLM");
    }
    if (window.value_or(0) > 0) {
      config_["sliding_window"] = *window;
    }
    return {};
  }

  Result<> Qwen3Moe() {
    Name("qwen3_moe", "Qwen3MoeForCausalLM");
    PENSTOCK_TRY_ASSIGN(const int64_t experts, Int("expert_count", 1, kMaxSize));
    PENSTOCK_TRY_ASSIGN(const int64_t chosen, Int("expert_used_count", 1, experts));
    PENSTOCK_TRY_ASSIGN(const int64_t inner, Int("expert_feed_forward_length", 1, kMaxSize));
    PENSTOCK_TRY_ASSIGN(const auto normalize, metadata_.MaybeBool(Key("expert_weights_norm")));
    PENSTOCK_TRY_ASSIGN(const auto scale, MaybeNumber("expert_weights_scale"));
    if (scale.value_or(0) != 0 && *scale != 1) {
      return Unsupported("{} is {}, wanted 1", Key("expert_weights_scale"), *scale);
    }
    config_["num_experts"] = experts;
    config_["num_experts_per_tok"] = chosen;
    config_["moe_intermediate_size"] = inner;
    config_["norm_topk_prob"] = normalize.value_or(true);
    config_["decoder_sparse_step"] = 1;
    config_["mlp_only_layers"] = Json::array();
    for (int64_t layer = 0; layer < layers_; ++layer) {
      if (set_.Has(fmt::format("blk.{}.ffn_gate.weight", layer))) {
        config_["mlp_only_layers"].push_back(layer);
      }
    }
    config_["use_sliding_window"] = false;
    return {};
  }

  Result<> Phi3() {
    Name("phi3", "Phi3ForCausalLM");
    PENSTOCK_TRY_ASSIGN(const auto window, MaybeInt("attention.sliding_window", 0, kMaxContext));
    config_["sliding_window"] = window.value_or(0) > 0 ? Json(*window) : Json(nullptr);
    PENSTOCK_TRY_ASSIGN(const auto original,
                        MaybeInt("rope.scaling.original_context_length", 1, kMaxContext));
    config_["original_max_position_embeddings"] =
        original.has_value() ? Json(*original) : config_["max_position_embeddings"];
    return {};
  }

  // True for layers whose attention has the window: from an array, a period (every n-th layer is
  // without), or the default.
  Result<std::vector<bool>> WindowedLayers(int64_t default_period) const {
    std::vector<bool> windowed(static_cast<size_t>(layers_));
    const std::string key = Key("attention.sliding_window_pattern");
    int64_t period = default_period;
    if (const GgufValue* value = metadata_.Find(key);
        value != nullptr && value->type == GgufType::kArray) {
      PENSTOCK_TRY_ASSIGN(const auto flags,
                          metadata_.IntsOr(key, 0, 1, static_cast<size_t>(layers_)));
      if (flags.size() != windowed.size()) {
        return MakeError(ErrorCode::kCorruptData,
                         "[weights.gguf] {}: metadata {} has {}, wanted {} (one per layer)",
                         set_.path(), key, Counted(flags.size(), "element"), layers_);
      }
      std::transform(flags.begin(), flags.end(), windowed.begin(),
                     [](int64_t flag) { return flag != 0; });
      return windowed;
    }
    PENSTOCK_TRY_ASSIGN(const auto stated, metadata_.MaybeInt(key, 1, kMaxLayers));
    period = stated.value_or(period);
    for (int64_t layer = 0; layer < layers_; ++layer) {
      windowed[static_cast<size_t>(layer)] = (layer + 1) % period != 0;
    }
    return windowed;
  }

  Result<> Gemma() {
    const bool third = architecture_ == "gemma3";
    Name(third ? "gemma3_text" : "gemma2", third ? "Gemma3ForCausalLM" : "Gemma2ForCausalLM");
    config_["hidden_act"] = "gelu_pytorch_tanh";
    config_["hidden_activation"] = "gelu_pytorch_tanh";
    PENSTOCK_TRY_ASSIGN(const int64_t window, Int("attention.sliding_window", 1, kMaxContext));
    config_["sliding_window"] = window;
    PENSTOCK_TRY_ASSIGN(const auto windowed, WindowedLayers(third ? 6 : 2));
    config_["layer_types"] = Json::array();
    for (const bool with : windowed) {
      config_["layer_types"].push_back(with ? "sliding_attention" : "full_attention");
    }
    PENSTOCK_TRY_ASSIGN(const auto attention_cap, MaybeNumber("attn_logit_softcapping"));
    PENSTOCK_TRY_ASSIGN(const auto final_cap, MaybeNumber("final_logit_softcapping"));
    config_["attn_logit_softcapping"] =
        attention_cap.value_or(0) > 0 ? Json(*attention_cap) : Json(nullptr);
    config_["final_logit_softcapping"] =
        final_cap.value_or(0) > 0 ? Json(*final_cap) : Json(nullptr);
    // The file may state the scale of the scores; else it is 1/sqrt(head_dim), and in the two 27B
    // models (46 layers of Gemma 2, 62 of Gemma 3), which llama.cpp knows by their depth,
    // 1/sqrt(width / heads).
    PENSTOCK_TRY_ASSIGN(const auto scale, MaybeNumber("attention.scale"));
    const bool largest = layers_ == (third ? 62 : 46) && hidden_ % heads_ == 0;
    if (scale.value_or(0) > 0) {
      config_["query_pre_attn_scalar"] = 1.0 / (*scale * *scale);
    } else {
      config_["query_pre_attn_scalar"] = largest ? hidden_ / heads_ : head_dim_;
    }
    if (third) {
      PENSTOCK_TRY_ASSIGN(const auto local, MaybeNumber("rope.freq_base_swa"));
      config_["rope_local_base_freq"] = local.value_or(10000.0);
    }
    return {};
  }

  Result<> Rope() {
    PENSTOCK_TRY_ASSIGN(const auto theta, MaybeNumber("rope.freq_base"));
    config_["rope_theta"] = theta.value_or(10000.0);
    if (theta.has_value() && *theta <= 0) {
      return MakeError(ErrorCode::kCorruptData,
                       "[weights.gguf] {}: {} is {}, wanted a positive number", set_.path(),
                       Key("rope.freq_base"), *theta);
    }
    PENSTOCK_TRY_ASSIGN(const auto rotary, MaybeInt("rope.dimension_count", 1, kMaxSize));
    rotary_ = rotary.value_or(head_dim_);
    if (rotary_ > head_dim_ || rotary_ % 2 != 0) {
      return MakeError(ErrorCode::kCorruptData,
                       "[weights.gguf] {}: {} is {}, wanted an even number up to {}", set_.path(),
                       Key("rope.dimension_count"), rotary_, head_dim_);
    }
    if (rotary_ != head_dim_) {
      if (architecture_ != "phi3") {
        return Unsupported(
            "{} is {}: rotating {} of {} columns is not supported in this architecture",
            Key("rope.dimension_count"), rotary_, rotary_, head_dim_);
      }
      config_["partial_rotary_factor"] =
          static_cast<double>(rotary_) / static_cast<double>(head_dim_);
    }
    return RopeScaling();
  }

  Result<> RopeScaling() {
    PENSTOCK_TRY_ASSIGN(const auto stated, metadata_.MaybeString(Key("rope.scaling.type")));
    PENSTOCK_TRY_ASSIGN(auto factor, MaybeNumber("rope.scaling.factor"));
    if (!factor.has_value()) {
      PENSTOCK_TRY_ASSIGN(factor, MaybeNumber("rope.scale_linear"));
    }
    std::string_view type = stated.value_or(factor.has_value() ? "linear" : "none");
    if (type == "linear" && factor.value_or(0) == 0) {
      type = "none";  // llama.cpp takes 0 for "not scaled"
    }
    Json scaling = Json::object();
    if (set_.Has("rope_factors_long.weight") || set_.Has("rope_factors_short.weight")) {
      PENSTOCK_TRY(LongRope(&scaling));
    } else if (set_.Has("rope_freqs.weight")) {
      PENSTOCK_TRY(Divisors(type == "linear" ? *factor : 1.0, type, &scaling));
    } else if (type == "linear") {
      scaling = {{"rope_type", "linear"}, {"factor", *factor}};
    } else if (type == "yarn") {
      PENSTOCK_TRY(Yarn(factor, &scaling));
    } else if (type != "none") {
      return Unsupported("{} is \"{}\", wanted none, linear, yarn, or the factors as tensors",
                         Key("rope.scaling.type"), type);
    }
    config_["rope_scaling"] = scaling.empty() ? Json(nullptr) : scaling;
    return {};
  }

  Result<> Yarn(std::optional<double> factor, Json* scaling) const {
    PENSTOCK_TRY_ASSIGN(const int64_t original,
                        Int("rope.scaling.original_context_length", 1, kMaxContext));
    if (!(factor.value_or(0) >= 1)) {
      return MakeError(ErrorCode::kCorruptData, "[weights.gguf] {}: {} is {}, wanted at least 1",
                       set_.path(), Key("rope.scaling.factor"), factor.value_or(0));
    }
    (*scaling) = {
        {"rope_type", "yarn"}, {"factor", *factor}, {"original_max_position_embeddings", original}};
    PENSTOCK_TRY_ASSIGN(const auto fast, MaybeNumber("rope.scaling.yarn_beta_fast"));
    PENSTOCK_TRY_ASSIGN(const auto slow, MaybeNumber("rope.scaling.yarn_beta_slow"));
    (*scaling)["beta_fast"] = fast.value_or(32.0);
    (*scaling)["beta_slow"] = slow.value_or(1.0);
    // llama.cpp multiplies this key with YaRN's own 0.1 ln(factor) + 1.
    PENSTOCK_TRY_ASSIGN(auto attention, MaybeNumber("rope.scaling.attn_factor"));
    if (!attention.has_value()) {
      PENSTOCK_TRY_ASSIGN(attention, MaybeNumber("rope.scaling.yarn_attn_factor"));
    }
    if (attention.value_or(1.0) != 1.0) {
      (*scaling)["attention_factor"] = *attention * (0.1 * std::log(*factor) + 1.0);
    }
    return {};
  }

  Result<std::vector<float>> Factors(std::string_view name) const {
    PENSTOCK_TRY_ASSIGN(auto factors, set_.Floats(name, kMaxSize));
    if (static_cast<int64_t>(factors.size()) != rotary_ / 2) {
      return MakeError(
          ErrorCode::kCorruptData,
          "[weights.gguf] {}: tensor {} has {}, wanted {} (half of the rotated part of a head)",
          set_.path(), name, Counted(factors.size(), "element"), rotary_ / 2);
    }
    if (std::any_of(factors.begin(), factors.end(), [](float factor) { return !(factor > 0); })) {
      return MakeError(ErrorCode::kCorruptData,
                       "[weights.gguf] {}: tensor {} holds a divisor that is not positive",
                       set_.path(), name);
    }
    return factors;
  }

  Result<> LongRope(Json* scaling) const {
    PENSTOCK_TRY_ASSIGN(const auto short_factors, Factors("rope_factors_short.weight"));
    PENSTOCK_TRY_ASSIGN(const auto long_factors, Factors("rope_factors_long.weight"));
    (*scaling) = {
        {"rope_type", "longrope"}, {"short_factor", short_factors}, {"long_factor", long_factors}};
    PENSTOCK_TRY_ASSIGN(const auto original,
                        MaybeInt("rope.scaling.original_context_length", 1, kMaxContext));
    PENSTOCK_TRY_ASSIGN(const auto attention, MaybeNumber("rope.scaling.attn_factor"));
    if (original.has_value()) {
      (*scaling)["original_max_position_embeddings"] = *original;
    }
    if (attention.has_value()) {
      (*scaling)["attention_factor"] = *attention;
    }
    return {};
  }

  Result<> Divisors(double linear_factor, std::string_view type, Json* scaling) const {
    PENSTOCK_TRY_ASSIGN(auto factors, Factors("rope_freqs.weight"));
    if (type == "yarn") {
      return Unsupported("rope_freqs.weight together with YaRN scaling is not supported");
    }
    for (float& factor : factors) {
      factor *= static_cast<float>(linear_factor);
    }
    if (std::all_of(factors.begin(), factors.end(), [](float factor) { return factor == 1.0F; })) {
      return {};
    }
    (*scaling) = {{"rope_type", "factors"}, {"factors", factors}};
    return {};
  }

  Result<> TokenIds() {
    for (const auto& [key, name] : {std::pair("tokenizer.ggml.bos_token_id", "bos_token_id"),
                                    std::pair("tokenizer.ggml.eos_token_id", "eos_token_id")}) {
      PENSTOCK_TRY_ASSIGN(const auto id, metadata_.MaybeInt(key, INT32_MIN, UINT32_MAX));
      const bool known = id.has_value() && *id >= 0 && *id < config_["vocab_size"].get<int64_t>();
      config_[name] = known ? Json(*id) : Json(nullptr);
    }
    return {};
  }

  const GgufSet& set_;
  const GgufMetadata& metadata_;
  std::string architecture_;
  Json config_ = Json::object();
  int64_t layers_ = 0;
  int64_t hidden_ = 0;
  int64_t heads_ = 0;
  int64_t head_dim_ = 0;
  int64_t rotary_ = 0;
};

}  // namespace

std::string SupportedGgufArchitectures() {
  std::string names;
  for (const GgufArchitecture& architecture : kArchitectures) {
    names += (names.empty() ? "" : ", ") + std::string(architecture.name);
  }
  return names;
}

Result<const GgufArchitecture*> FindGgufArchitecture(const GgufMetadata& metadata) {
  PENSTOCK_TRY_ASSIGN(const std::string_view name, metadata.String("general.architecture"));
  for (const GgufArchitecture& architecture : kArchitectures) {
    if (architecture.name == name) {
      return &architecture;
    }
  }
  return MakeError(ErrorCode::kUnsupported,
                   "[weights.gguf] {}: general.architecture is \"{}\", supported: {}",
                   metadata.path(), name.substr(0, 64), SupportedGgufArchitectures());
}

Result<Json> TranslateGgufConfig(const GgufSet& set) {
  PENSTOCK_TRY_ASSIGN(const GgufArchitecture* architecture, FindGgufArchitecture(set.metadata()));
  return Translator(set, *architecture).Translate();
}

Result<Json> TranslateGgufGeneration(const GgufMetadata& metadata) {
  Json config = Json::object();
  Json ends = Json::array();
  for (const std::string_view key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                     "tokenizer.ggml.eom_token_id"}) {
    PENSTOCK_TRY_ASSIGN(const auto id, metadata.MaybeInt(key, INT32_MIN, UINT32_MAX));
    if (id.has_value() && *id >= 0 && *id < INT32_MAX &&
        std::find(ends.begin(), ends.end(), Json(*id)) == ends.end()) {
      ends.push_back(*id);
    }
  }
  if (!ends.empty()) {
    config["eos_token_id"] = ends.size() == 1 ? ends[0] : ends;
  }
  bool sampled = false;
  for (const auto& [key, name] :
       {std::pair("general.sampling.temp", "temperature"),
        std::pair("general.sampling.top_k", "top_k"), std::pair("general.sampling.top_p", "top_p"),
        std::pair("general.sampling.min_p", "min_p"),
        std::pair("general.sampling.penalty_repeat", "repetition_penalty")}) {
    PENSTOCK_TRY_ASSIGN(const auto number, metadata.MaybeNumber(key));
    if (number.has_value()) {
      config[name] = std::string_view(name) == "top_k"
                         ? Json(static_cast<int64_t>(std::clamp(*number, 0.0, 1e9)))
                         : Json(Decimal(*number));
      sampled = sampled || std::string_view(name) != "repetition_penalty";
    }
  }
  if (sampled) {
    config["do_sample"] = config.value("temperature", 1.0) > 0;
  }
  return config;
}

}  // namespace penstock::weights
