#include "model/known_keys.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/json.h"
#include "base/units.h"

namespace penstock::model {
namespace {

// Of transformers' PreTrainedConfig and of what models carry beside the architecture.
constexpr std::array<std::string_view, 57> kHarmless = {"_attn_implementation",
                                                        "_name_or_path",
                                                        "architectures",
                                                        "attention_dropout",
                                                        "auto_map",
                                                        "aux_loss_alpha",
                                                        "bad_words_ids",
                                                        "begin_suppress_tokens",
                                                        "bos_token_id",
                                                        "chunk_size_feed_forward",
                                                        "decoder_start_token_id",
                                                        "diversity_penalty",
                                                        "dtype",
                                                        "early_stopping",
                                                        "eos_token_id",
                                                        "ep_size",
                                                        "finetuning_task",
                                                        "forced_bos_token_id",
                                                        "forced_eos_token_id",
                                                        "id2label",
                                                        "initializer_range",
                                                        "is_decoder",
                                                        "is_encoder_decoder",
                                                        "label2id",
                                                        "length_penalty",
                                                        "max_length",
                                                        "min_length",
                                                        "model_type",
                                                        "name_or_path",
                                                        "num_beam_groups",
                                                        "num_beams",
                                                        "num_return_sequences",
                                                        "output_attentions",
                                                        "output_hidden_states",
                                                        "output_router_logits",
                                                        "output_scores",
                                                        "pad_token_id",
                                                        "prefix",
                                                        "pretraining_tp",
                                                        "problem_type",
                                                        "repetition_penalty",
                                                        "return_dict",
                                                        "return_dict_in_generate",
                                                        "router_aux_loss_coef",
                                                        "sep_token_id",
                                                        "seq_aux",
                                                        "suppress_tokens",
                                                        "task_specific_params",
                                                        "temperature",
                                                        "tf_legacy_loss",
                                                        "tie_encoder_decoder",
                                                        "tokenizer_class",
                                                        "top_k",
                                                        "top_p",
                                                        "torch_dtype",
                                                        "torchscript",
                                                        "transformers_version"};
constexpr std::array<std::string_view, 4> kHarmlessToo = {"typical_p", "use_bfloat16", "use_cache",
                                                          "no_repeat_ngram_size"};

constexpr std::array<std::string_view, 17> kSizes = {"head_dim",
                                                     "hidden_act",
                                                     "hidden_size",
                                                     "intermediate_size",
                                                     "max_position_embeddings",
                                                     "moe_intermediate_size",
                                                     "num_attention_heads",
                                                     "num_experts",
                                                     "num_experts_per_tok",
                                                     "num_hidden_layers",
                                                     "num_key_value_heads",
                                                     "num_local_experts",
                                                     "rms_norm_eps",
                                                     "rope_scaling",
                                                     "rope_theta",
                                                     "sliding_window",
                                                     "vocab_size"};

bool CountsAsAbsent(const Json& value) {
  return value.is_null() || value == false || value == 0 ||
         ((value.is_array() || value.is_object()) && value.empty());
}

template <class List>
bool Contains(const List& list, std::string_view key) {
  return std::find(list.begin(), list.end(), key) != list.end();
}

}  // namespace

Result<> RefuseUnknownKeys(const JsonReader& config, std::span<const std::string_view> known) {
  for (const auto& [key, value] : config.object().items()) {
    if (CountsAsAbsent(value) || Contains(known, key) || Contains(kHarmless, key) ||
        Contains(kHarmlessToo, key)) {
      continue;
    }
    const std::string near =
        NearestName(key, std::vector<std::string_view>(known.begin(), known.end()));
    return MakeError(ErrorCode::kUnsupported,
                     "[model.config] {}: {}: got {}; this key is not known here and may change "
                     "what the model computes{}",
                     config.where(), key.substr(0, 60), DumpJson(value).substr(0, 60),
                     near.empty() ? "" : fmt::format("\nDid you mean '{}'?", near));
  }
  return {};
}

Result<> RefuseNearKeys(const JsonReader& config) {
  for (const auto& [key, value] : config.object().items()) {
    for (const std::string_view size : kSizes) {
      const size_t longer = std::max(key.size(), size.size());
      const size_t shorter = std::min(key.size(), size.size());
      if (key == size || CountsAsAbsent(value) || config.Contains(size) || longer > shorter + 1 ||
          EditDistance(key, size) > 2) {
        continue;
      }
      return MakeError(ErrorCode::kInvalidArgument,
                       "[model.config] {}: {}: unknown key, which would be passed over in "
                       "silence\nDid you mean '{}'?",
                       config.where(), key, size);
    }
  }
  return {};
}

}  // namespace penstock::model
