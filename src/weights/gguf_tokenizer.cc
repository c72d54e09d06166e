#include "weights/gguf_tokenizer.h"

#include <cmath>
#include <string_view>

#include "base/units.h"

namespace penstock::weights {
namespace {

constexpr size_t kMaxTokens = size_t{1} << 22;
constexpr size_t kMaxMerges = size_t{1} << 23;

Result<> CheckCount(const GgufMetadata& metadata, std::string_view key, size_t got, size_t tokens) {
  if (got != 0 && got != tokens) {
    return MakeError(ErrorCode::kCorruptData,
                     "[weights.gguf] {}: {} has {}, wanted {} (one per token)", metadata.path(),
                     key, Counted(got, "element"), tokens);
  }
  return {};
}

Result<> ReadIds(const GgufMetadata& metadata, GgufTokenizerData* data) {
  const std::pair<std::string_view, std::optional<int32_t>*> ids[] = {
      {"tokenizer.ggml.bos_token_id", &data->bos_id},
      {"tokenizer.ggml.eos_token_id", &data->eos_id},
      {"tokenizer.ggml.eot_token_id", &data->eot_id},
      {"tokenizer.ggml.eom_token_id", &data->eom_id},
      {"tokenizer.ggml.unknown_token_id", &data->unknown_id},
      {"tokenizer.ggml.seperator_token_id", &data->separator_id},
      {"tokenizer.ggml.padding_token_id", &data->padding_id},
      {"tokenizer.ggml.mask_token_id", &data->mask_id},
  };
  for (const auto& [key, id] : ids) {
    PENSTOCK_TRY_ASSIGN(const auto number, metadata.MaybeInt(key, INT32_MIN, UINT32_MAX));
    // -1 (also as 2^32 - 1) is written for "none".
    if (!number.has_value() || *number == -1 || *number == int64_t{UINT32_MAX}) {
      continue;
    }
    if (*number < 0 || *number >= static_cast<int64_t>(data->tokens.size())) {
      return MakeError(ErrorCode::kCorruptData, "[weights.gguf] {}: {} is {}, wanted 0 to {}",
                       metadata.path(), key, *number, data->tokens.size() - 1);
    }
    *id = static_cast<int32_t>(*number);
  }
  return {};
}

Result<> ReadTemplates(const GgufMetadata& metadata, GgufTokenizerData* data) {
  PENSTOCK_TRY_ASSIGN(const auto chat_template, metadata.MaybeString("tokenizer.chat_template"));
  data->chat_template = chat_template.value_or("");
  PENSTOCK_TRY_ASSIGN(const auto names, metadata.StringsOr("tokenizer.chat_templates", 64));
  for (const std::string_view name : names) {
    PENSTOCK_TRY_ASSIGN(const auto named,
                        metadata.MaybeString(fmt::format("tokenizer.chat_template.{}", name)));
    if (named.has_value()) {
      data->named_chat_templates.emplace_back(name, *named);
    }
  }
  return {};
}

}  // namespace

Result<GgufTokenizerData> ReadGgufTokenizer(const GgufMetadata& metadata) {
  GgufTokenizerData data;
  PENSTOCK_TRY_ASSIGN(const auto model, metadata.MaybeString("tokenizer.ggml.model"));
  if (!model.has_value() || *model == "no_vocab" || *model == "none") {
    return MakeError(ErrorCode::kUnsupported,
                     "[weights.gguf] {}: the file holds no vocabulary (tokenizer.ggml.model: {})",
                     metadata.path(), model.value_or("missing"));
  }
  data.model = *model;
  PENSTOCK_TRY_ASSIGN(const auto pre, metadata.MaybeString("tokenizer.ggml.pre"));
  data.pre = pre.value_or("");
  PENSTOCK_TRY_ASSIGN(const auto architecture, metadata.MaybeString("general.architecture"));
  data.architecture = architecture.value_or("");
  PENSTOCK_TRY_ASSIGN(const auto tokens, metadata.StringsOr("tokenizer.ggml.tokens", kMaxTokens));
  if (tokens.empty()) {
    return MakeError(
        ErrorCode::kCorruptData,
        "[weights.gguf] {}: tokenizer.ggml.tokens is missing or empty, wanted the vocabulary",
        metadata.path());
  }
  data.tokens.assign(tokens.begin(), tokens.end());
  PENSTOCK_TRY_ASSIGN(data.scores, metadata.FloatsOr("tokenizer.ggml.scores", kMaxTokens));
  PENSTOCK_TRY(CheckCount(metadata, "tokenizer.ggml.scores", data.scores.size(), tokens.size()));
  for (size_t i = 0; i < data.scores.size(); ++i) {
    if (std::isnan(data.scores[i])) {
      return MakeError(ErrorCode::kCorruptData,
                       "[weights.gguf] {}: tokenizer.ggml.scores: element {} is NaN",
                       metadata.path(), i);
    }
  }
  PENSTOCK_TRY_ASSIGN(const auto types, metadata.IntsOr("tokenizer.ggml.token_type", INT32_MIN,
                                                        INT32_MAX, kMaxTokens));
  PENSTOCK_TRY(CheckCount(metadata, "tokenizer.ggml.token_type", types.size(), tokens.size()));
  data.types.assign(types.begin(), types.end());
  PENSTOCK_TRY_ASSIGN(const auto merges, metadata.StringsOr("tokenizer.ggml.merges", kMaxMerges));
  data.merges.assign(merges.begin(), merges.end());
  PENSTOCK_TRY(ReadIds(metadata, &data));
  PENSTOCK_TRY_ASSIGN(data.add_bos, metadata.MaybeBool("tokenizer.ggml.add_bos_token"));
  PENSTOCK_TRY_ASSIGN(data.add_eos, metadata.MaybeBool("tokenizer.ggml.add_eos_token"));
  PENSTOCK_TRY_ASSIGN(data.add_space_prefix, metadata.MaybeBool("tokenizer.ggml.add_space_prefix"));
  PENSTOCK_TRY_ASSIGN(data.remove_extra_whitespaces,
                      metadata.MaybeBool("tokenizer.ggml.remove_extra_whitespaces"));
  if (const GgufValue* map = metadata.Find("tokenizer.ggml.precompiled_charsmap");
      map != nullptr && map->type == GgufType::kArray && GgufTypeBytes(map->element) == 1) {
    data.precompiled_charsmap.assign(reinterpret_cast<const char*>(map->data.data()),
                                     map->data.size());
  }
  PENSTOCK_TRY(ReadTemplates(metadata, &data));
  return data;
}

}  // namespace penstock::weights
