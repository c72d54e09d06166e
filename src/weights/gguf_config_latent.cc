#include "weights/gguf_config_latent.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/json.h"
#include "base/units.h"

namespace penstock::weights {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24;

// Keys that are read here or with the common sizes, and those that repeat what tensors say or do
// not reach what the model computes. Without the architecture in front.
constexpr std::array<std::string_view, 46> kKnown = {"activation.situ_beta",
                                                     "activation.situ_linear_beta",
                                                     "attention.causal",
                                                     "attention.head_count",
                                                     "attention.head_count_kv",
                                                     "attention.key_length",
                                                     "attention.key_length_mla",
                                                     "attention.kv_lora_rank",
                                                     "attention.layer_norm_rms_epsilon",
                                                     "attention.q_lora_rank",
                                                     "attention.value_length",
                                                     "attention.value_length_mla",
                                                     "attn_res.block_size",
                                                     "block_count",
                                                     "context_length",
                                                     "embedding_length",
                                                     "expert_count",
                                                     "expert_feed_forward_length",
                                                     "expert_gating_func",
                                                     "expert_group_count",
                                                     "expert_group_used_count",
                                                     "expert_latent_length",
                                                     "expert_shared_count",
                                                     "expert_shared_feed_forward_length",
                                                     "expert_used_count",
                                                     "expert_weights_norm",
                                                     "expert_weights_scale",
                                                     "feed_forward_length",
                                                     "kda.gate_lower_bound",
                                                     "kda.head_dim",
                                                     "leading_dense_block_count",
                                                     "rope.dimension_count",
                                                     "rope.freq_base",
                                                     "rope.scaling.factor",
                                                     "rope.scaling.finetuned",
                                                     "rope.scaling.original_context_length",
                                                     "rope.scaling.type",
                                                     "rope.scaling.yarn_beta_fast",
                                                     "rope.scaling.yarn_beta_slow",
                                                     "rope.scaling.yarn_log_multiplier",
                                                     "ssm.conv_kernel",
                                                     "ssm.group_count",
                                                     "ssm.inner_size",
                                                     "ssm.state_size",
                                                     "ssm.time_step_rank",
                                                     "vocab_size"};

class LatentTranslator {
 public:
  LatentTranslator(const GgufSet& set, std::string_view architecture, Json& config)
      : set_(set), metadata_(set.metadata()), architecture_(architecture), config_(config) {}

  Result<> Translate() {
    layers_ = config_["num_hidden_layers"].get<int64_t>();
    PENSTOCK_TRY(RefuseUnknownKeys());
    PENSTOCK_TRY(Attention());
    PENSTOCK_TRY(Experts());
    return architecture_ == "deepseek2" ? Deepseek() : Kimi();
  }

 private:
  std::string Key(std::string_view rest) const { return fmt::format("{}.{}", architecture_, rest); }

  Result<int64_t> Int(std::string_view rest, int64_t low, int64_t high = kMaxSize) const {
    return metadata_.Int(Key(rest), low, high);
  }

  Result<int64_t> IntOr(std::string_view rest, int64_t fallback, int64_t low,
                        int64_t high = kMaxSize) const {
    PENSTOCK_TRY_ASSIGN(const auto value, metadata_.MaybeInt(Key(rest), low, high));
    return value.value_or(fallback);
  }

  Result<double> NumberOr(std::string_view rest, double fallback) const {
    PENSTOCK_TRY_ASSIGN(const auto value, metadata_.MaybeNumber(Key(rest)));
    return value.value_or(fallback);
  }

  bool Has(int64_t layer, std::string_view tensor) const {
    return set_.Has(fmt::format("blk.{}.{}", layer, tensor));
  }

  Result<> RefuseUnknownKeys() const {
    for (const std::string_view key : metadata_.KeysThatBeginWith(Key(""))) {
      const std::string_view rest = key.substr(architecture_.size() + 1);
      const auto number = metadata_.MaybeNumber(key);
      const auto truth = metadata_.MaybeBool(key);
      const bool nothing =
          (number.ok() && number.value() == 0.0) || (truth.ok() && truth.value() == false);
      if (!nothing && std::find(kKnown.begin(), kKnown.end(), rest) == kKnown.end()) {
        return MakeError(ErrorCode::kUnsupported,
                         "[weights.gguf] {}: metadata {}: this key is not known here and may "
                         "change what the model computes",
                         set_.path(), key.substr(0, 80));
      }
    }
    return {};
  }

  Result<> Attention() {
    PENSTOCK_TRY_ASSIGN(const int64_t heads, Int("attention.head_count", 1));
    PENSTOCK_TRY_ASSIGN(const int64_t query_rank, IntOr("attention.q_lora_rank", 0, 0));
    PENSTOCK_TRY_ASSIGN(const int64_t latent, Int("attention.kv_lora_rank", 1));
    PENSTOCK_TRY_ASSIGN(const int64_t rope, Int("rope.dimension_count", 1));
    PENSTOCK_TRY_ASSIGN(const int64_t key, IntOr("attention.key_length", 0, 1));
    PENSTOCK_TRY_ASSIGN(const int64_t head, IntOr("attention.key_length_mla", key, rope + 1));
    PENSTOCK_TRY_ASSIGN(const int64_t wide, IntOr("attention.value_length", 0, 1));
    PENSTOCK_TRY_ASSIGN(const int64_t value, IntOr("attention.value_length_mla", wide, 1));
    config_["num_attention_heads"] = heads;
    config_["num_key_value_heads"] = heads;
    config_["q_lora_rank"] = query_rank > 0 ? Json(query_rank) : Json(nullptr);
    config_["kv_lora_rank"] = latent;
    config_["qk_rope_head_dim"] = rope;
    config_["qk_nope_head_dim"] = head - rope;
    config_["v_head_dim"] = value;
    return {};
  }

  Result<> Experts() {
    const bool deepseek = architecture_ == "deepseek2";
    PENSTOCK_TRY_ASSIGN(const int64_t experts, Int("expert_count", 1));
    PENSTOCK_TRY_ASSIGN(const int64_t chosen, Int("expert_used_count", 1, experts));
    PENSTOCK_TRY_ASSIGN(const int64_t shared, IntOr("expert_shared_count", 0, 0));
    PENSTOCK_TRY_ASSIGN(const int64_t inner, Int("expert_feed_forward_length", 1));
    PENSTOCK_TRY_ASSIGN(const int64_t dense, IntOr("leading_dense_block_count", 0, 0, layers_));
    PENSTOCK_TRY_ASSIGN(const int64_t gating, IntOr("expert_gating_func", deepseek ? 1 : 2, 0, 16));
    PENSTOCK_TRY_ASSIGN(const double scale, NumberOr("expert_weights_scale", 1.0));
    PENSTOCK_TRY_ASSIGN(const auto norm, metadata_.MaybeBool(Key("expert_weights_norm")));
    PENSTOCK_TRY_ASSIGN(const int64_t groups, IntOr("expert_group_count", 1, 1));
    PENSTOCK_TRY_ASSIGN(const int64_t open, IntOr("expert_group_used_count", groups, 1));
    if (gating != 2) {
      return MakeError(
          ErrorCode::kUnsupported,
          "[weights.gguf] {}: {} is {}, wanted 2 (sigmoid): routers of DeepSeek-V2 are "
          "not supported",
          set_.path(), Key("expert_gating_func"), gating);
    }
    config_[deepseek ? "n_routed_experts" : "num_experts"] = experts;
    config_[deepseek ? "num_experts_per_tok" : "num_experts_per_token"] = chosen;
    config_[deepseek ? "n_shared_experts" : "num_shared_experts"] = shared;
    config_["moe_intermediate_size"] = inner;
    config_["first_k_dense_replace"] = dense;
    config_["routed_scaling_factor"] = scale == 0 ? 1.0 : scale;
    config_[deepseek ? "norm_topk_prob" : "moe_renormalize"] = norm.value_or(!deepseek);
    config_[deepseek ? "n_group" : "num_expert_group"] = groups;
    config_["topk_group"] = open;
    return {};
  }

  Result<> Deepseek() {
    config_["architectures"] = Json::array({"DeepseekV3ForCausalLM"});
    config_["model_type"] = "deepseek_v3";
    PENSTOCK_TRY_ASSIGN(const double theta, NumberOr("rope.freq_base", 10000.0));
    config_["rope_theta"] = theta;
    PENSTOCK_TRY_ASSIGN(const auto type, metadata_.MaybeString(Key("rope.scaling.type")));
    if (type.value_or("none") == "none") {
      return {};
    }
    if (*type != "yarn") {
      return MakeError(ErrorCode::kUnsupported, "[weights.gguf] {}: {} is \"{}\", wanted yarn",
                       set_.path(), Key("rope.scaling.type"), type->substr(0, 40));
    }
    PENSTOCK_TRY_ASSIGN(const double factor, metadata_.Number(Key("rope.scaling.factor")));
    PENSTOCK_TRY_ASSIGN(const int64_t original,
                        Int("rope.scaling.original_context_length", 1, int64_t{1} << 40));
    PENSTOCK_TRY_ASSIGN(const double fast, NumberOr("rope.scaling.yarn_beta_fast", 32.0));
    PENSTOCK_TRY_ASSIGN(const double slow, NumberOr("rope.scaling.yarn_beta_slow", 1.0));
    // A tenth of mscale_all_dim, to which mscale is taken to be equal.
    PENSTOCK_TRY_ASSIGN(const double multiplier, NumberOr("rope.scaling.yarn_log_multiplier", 0.0));
    config_["rope_scaling"] = {{"type", "yarn"},
                               {"factor", factor},
                               {"original_max_position_embeddings", original},
                               {"beta_fast", fast},
                               {"beta_slow", slow}};
    if (multiplier > 0) {
      // Metadata is float32: nine tenths of its digits are not meant.
      const double all_dim = std::stod(fmt::format("{:.6g}", multiplier * 10));
      config_["rope_scaling"]["mscale"] = all_dim;
      config_["rope_scaling"]["mscale_all_dim"] = all_dim;
    }
    return {};
  }

  // Which layers have which attention: head_count_kv is an array, 0 for delta attention.
  Result<> KimiLayers(Json& linear) {
    const std::string key = Key("attention.head_count_kv");
    PENSTOCK_TRY_ASSIGN(const auto kinds,
                        metadata_.IntsOr(key, 0, kMaxSize, static_cast<size_t>(layers_)));
    if (static_cast<int64_t>(kinds.size()) != layers_) {
      return MakeError(ErrorCode::kCorruptData,
                       "[weights.gguf] {}: metadata {} has {}, wanted one per layer ({})",
                       set_.path(), key, Counted(kinds.size(), "element"), layers_);
    }
    linear["full_attn_layers"] = Json::array();
    linear["kda_layers"] = Json::array();
    for (size_t i = 0; i < kinds.size(); ++i) {
      const auto layer = static_cast<int64_t>(i);
      linear[kinds[i] == 0 ? "kda_layers" : "full_attn_layers"].push_back(layer + 1);
      (kinds[i] == 0 ? delta_layer_ : latent_layer_) = layer;
      expert_layer_ = Has(layer, "ffn_gate_inp.weight") ? layer : expert_layer_;
    }
    return {};
  }

  Result<> Kimi() {
    config_["architectures"] = Json::array({"KimiLinearForCausalLM"});
    config_["model_type"] = "kimi_linear";
    Json linear = Json::object();
    PENSTOCK_TRY(KimiLayers(linear));
    PENSTOCK_TRY_ASSIGN(const int64_t dim, Int("kda.head_dim", 1));
    PENSTOCK_TRY_ASSIGN(const int64_t taps, Int("ssm.conv_kernel", 1, 64));
    linear["num_heads"] = config_["num_attention_heads"];
    if (const StoredTensor* a = set_.Find(fmt::format("blk.{}.ssm_a", delta_layer_))) {
      linear["num_heads"] = a->elements;
    }
    linear["head_dim"] = dim;
    linear["short_conv_kernel_size"] = taps;
    if (architecture_ == "kimi-k3") {
      // Without them it would be another model, not an older file.
      for (const char* key :
           {"kda.gate_lower_bound", "activation.situ_beta", "attn_res.block_size"}) {
        PENSTOCK_TRY(metadata_.Number(Key(key)));
      }
    }
    PENSTOCK_TRY_ASSIGN(const auto bound, metadata_.MaybeNumber(Key("kda.gate_lower_bound")));
    if (bound.has_value()) {
      linear["gate_lower_bound"] = *bound;
    }
    linear["use_full_rank_gate"] = Has(delta_layer_, "ssm_g.weight");
    config_["linear_attn_config"] = std::move(linear);
    config_["mla_use_nope"] = true;
    config_["mla_use_output_gate"] = Has(latent_layer_, "attn_gate.weight");
    PENSTOCK_TRY_ASSIGN(const int64_t latent, IntOr("expert_latent_length", 0, 0));
    if (latent > 0) {
      config_["routed_expert_hidden_size"] = latent;
      config_["latent_moe_use_norm"] = Has(expert_layer_, "ffn_routed_norm.weight");
    }
    PENSTOCK_TRY_ASSIGN(const auto beta, metadata_.MaybeNumber(Key("activation.situ_beta")));
    if (beta.has_value()) {
      config_["hidden_act"] = "situ";
      config_["activation_situ_beta"] = *beta;
      PENSTOCK_TRY_ASSIGN(const double linear_beta, NumberOr("activation.situ_linear_beta", 0.0));
      config_["activation_situ_linear_beta"] = linear_beta;
    }
    PENSTOCK_TRY_ASSIGN(const int64_t block, IntOr("attn_res.block_size", 0, 0, 4096));
    if (block > 0) {
      config_["attn_res_block_size"] = block;
      config_["attn_res_fused"] = true;
    }
    return {};
  }

  const GgufSet& set_;
  const GgufMetadata& metadata_;
  std::string architecture_;
  Json& config_;
  int64_t layers_ = 0;
  int64_t delta_layer_ = 0;  // one of each kind, to look at
  int64_t latent_layer_ = 0;
  int64_t expert_layer_ = 0;
};

}  // namespace

bool IsLatentArchitecture(std::string_view architecture) {
  return architecture == "deepseek2" || architecture == "kimi-linear" || architecture == "kimi-k3";
}

Result<> TranslateLatentConfig(const GgufSet& set, std::string_view architecture, Json& config) {
  return LatentTranslator(set, architecture, config).Translate();
}

}  // namespace penstock::weights
