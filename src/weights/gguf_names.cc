#include "weights/gguf_names.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

namespace penstock::weights {
namespace {

struct Pair {
  std::string_view canonical;
  std::string_view stored;
};

// Of the whole model.
constexpr Pair kModel[] = {
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
    {"model.output_attn_res_proj", "output_res_score"},
};

// Within "model.layers.N." and "blk.N.", with all of their names.
constexpr Pair kLayerWhole[] = {
    {"self_attn.A_log", "ssm_a"},
    {"self_attn.dt_bias", "ssm_dt.bias"},
    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"block_sparse_moe.gate.e_score_correction_bias", "exp_probs_b.bias"},
};

// Within "model.layers.N." and "blk.N.".
constexpr Pair kLayer[] = {
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"input_layernorm", "attn_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.gate_up_proj", "ffn_up"},
    {"block_sparse_moe.gate", "ffn_gate_inp"},
    {"mlp.gate", "ffn_gate_inp"},
    // Latent and delta attention, experts behind a latent, reads over depth.
    {"self_attn.q_a_proj", "attn_q_a"},
    {"self_attn.q_a_layernorm", "attn_q_a_norm"},
    {"self_attn.q_b_proj", "attn_q_b"},
    {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
    {"self_attn.kv_b_proj", "attn_kv_b"},
    {"self_attn.q_conv1d", "ssm_conv1d_q"},
    {"self_attn.k_conv1d", "ssm_conv1d_k"},
    {"self_attn.v_conv1d", "ssm_conv1d_v"},
    {"self_attn.f_a_proj", "ssm_f_a"},
    {"self_attn.f_b_proj", "ssm_f_b"},
    {"self_attn.b_proj", "ssm_beta"},
    {"self_attn.g_a_proj", "ssm_g_a"},
    {"self_attn.g_b_proj", "ssm_g_b"},
    {"self_attn.o_norm", "ssm_norm"},
    {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
    {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
    {"block_sparse_moe.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"block_sparse_moe.shared_experts.up_proj", "ffn_up_shexp"},
    {"block_sparse_moe.shared_experts.down_proj", "ffn_down_shexp"},
    {"block_sparse_moe.routed_expert_down_proj", "ffn_routed_down"},
    {"block_sparse_moe.routed_expert_norm", "ffn_routed_norm"},
    {"block_sparse_moe.routed_expert_up_proj", "ffn_routed_up"},
    {"self_attention_res_proj", "attn_res_score"},
    {"mlp_res_proj", "ffn_res_score"},
};

std::optional<int64_t> TakeNumber(std::string_view* text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || number < 0) {
    return std::nullopt;
  }
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return number;
}

bool TakePrefix(std::string_view prefix, std::string_view* text) {
  if (!text->starts_with(prefix)) {
    return false;
  }
  text->remove_prefix(prefix.size());
  return true;
}

// "5.w1" and the like, after "experts.".
std::vector<GgufPlace> ExpertPlaces(int64_t layer, std::string_view rest, std::string_view suffix) {
  const auto expert = TakeNumber(&rest);
  if (!expert.has_value() || !TakePrefix(".", &rest)) {
    return {};
  }
  std::string_view kind;
  int32_t part = -1;  // within a fused gate and up
  if (rest == "w1" || rest == "gate_proj") {
    kind = "gate";
    part = 0;
  } else if (rest == "w3" || rest == "up_proj") {
    kind = "up";
    part = 1;
  } else if (rest == "w2" || rest == "down_proj") {
    kind = "down";
  } else {
    return {};
  }
  std::vector<GgufPlace> places;
  places.push_back(
      {.name = fmt::format("blk.{}.ffn_{}_exps.{}", layer, kind, suffix), .expert = *expert});
  if (part >= 0) {
    places.push_back({.name = fmt::format("blk.{}.ffn_gate_up_exps.{}", layer, suffix),
                      .expert = *expert,
                      .part = part,
                      .parts = 2});
  }
  // Files of early Mixtral converters.
  places.push_back({.name = fmt::format("blk.{}.ffn_{}.{}.{}", layer, kind, *expert, suffix)});
  return places;
}

std::vector<GgufPlace> LayerPlaces(int64_t layer, std::string_view rest, std::string_view suffix,
                                   bool sandwich_norms) {
  if (TakePrefix("block_sparse_moe.experts.", &rest) || TakePrefix("mlp.experts.", &rest)) {
    return ExpertPlaces(layer, rest, suffix);
  }
  GgufPlace place;
  place.norm = rest.ends_with("norm");
  if (rest == "self_attn.q_proj") {
    place.heads = GgufHeads::kQuery;
  } else if (rest == "self_attn.k_proj") {
    place.heads = GgufHeads::kKey;
  }
  if (rest == "post_attention_layernorm") {
    place.name = fmt::format("blk.{}.{}.{}", layer,
                             sandwich_norms ? "post_attention_norm" : "ffn_norm", suffix);
    return {place};
  }
  if (rest == "self_attn.g_proj") {  // one name in both kinds of layers
    GgufPlace delta = place;
    place.name = fmt::format("blk.{}.attn_gate.{}", layer, suffix);
    delta.name = fmt::format("blk.{}.ssm_g.{}", layer, suffix);
    return {place, delta};
  }
  for (const Pair& pair : kLayer) {
    if (pair.canonical == rest) {
      place.name = fmt::format("blk.{}.{}.{}", layer, pair.stored, suffix);
      return {place};
    }
  }
  return {};
}

}  // namespace

std::vector<GgufPlace> GgufPlaces(std::string_view canonical, bool sandwich_norms) {
  std::string_view whole = canonical;
  if (TakePrefix("model.layers.", &whole)) {
    const auto layer = TakeNumber(&whole);
    if (layer.has_value() && TakePrefix(".", &whole)) {
      for (const Pair& pair : kLayerWhole) {
        if (whole == pair.canonical) {
          return {{.name = fmt::format("blk.{}.{}", *layer, pair.stored)}};
        }
      }
    }
  }
  const size_t dot = canonical.rfind('.');
  if (dot == std::string_view::npos) {
    return {};
  }
  const std::string_view suffix = canonical.substr(dot + 1);
  std::string_view rest = canonical.substr(0, dot);
  if (suffix != "weight" && suffix != "bias") {
    return {};
  }
  for (const Pair& pair : kModel) {
    if (pair.canonical == rest) {
      return {{.name = fmt::format("{}.{}", pair.stored, suffix), .norm = rest == "model.norm"}};
    }
  }
  if (!TakePrefix("model.layers.", &rest)) {
    return {};
  }
  const auto layer = TakeNumber(&rest);
  if (!layer.has_value() || !TakePrefix(".", &rest)) {
    return {};
  }
  return LayerPlaces(*layer, rest, suffix, sandwich_norms);
}

}  // namespace penstock::weights
