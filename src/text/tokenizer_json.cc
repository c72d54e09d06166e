// Loader of Hugging Face's tokenizer.json.

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "text/bpe.h"
#include "text/tokenizer_file.h"
#include "text/tokenizer_state.h"
#include "text/unigram.h"

namespace penstock::text {
namespace {

constexpr const char* kModels = "BPE Unigram";
constexpr const char* kPostProcessors =
    "ByteLevel TemplateProcessing BertProcessing RobertaProcessing Sequence";
constexpr int kMaxDepth = 16;
constexpr size_t kMaxSpecialIds = 256;  // that a template may put around a text

// "model.type", or what the members tell in files that lack it.
Result<std::string> ModelType(const JsonReader& model, const TokenizerFile& file) {
  if (model.Has("type")) {
    return model.String("type");
  }
  return std::string(file.vocabulary_is_list ? "Unigram" : "BPE");
}

Result<std::vector<AddedToken>> ReadAddedTokens(const JsonReader& root, const std::string& source) {
  std::vector<AddedToken> tokens;
  const Json* list = root.Find("added_tokens");
  if (list == nullptr) {
    return tokens;
  }
  if (!list->is_array()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[text.tokenizer_json] {}: added_tokens: wanted a list", source);
  }
  for (const Json& item : *list) {
    const JsonReader reader(item, fmt::format("{}: added_tokens[{}]", source, tokens.size()));
    AddedToken token;
    PENSTOCK_TRY_ASSIGN(const int64_t id, reader.Int("id", 0, kMaxTokens - 1));
    token.id = static_cast<int32_t>(id);
    PENSTOCK_TRY_ASSIGN(token.text, reader.String("content"));
    PENSTOCK_TRY_ASSIGN(token.special, reader.BoolOr("special", false));
    PENSTOCK_TRY_ASSIGN(token.single_word, reader.BoolOr("single_word", false));
    PENSTOCK_TRY_ASSIGN(token.lstrip, reader.BoolOr("lstrip", false));
    PENSTOCK_TRY_ASSIGN(token.rstrip, reader.BoolOr("rstrip", false));
    PENSTOCK_TRY_ASSIGN(token.normalized, reader.BoolOr("normalized", !token.special));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// The model's tokens with the added ones that it lacks. An added token that the model has keeps the
// model's id.
Result<Vocabulary> JoinVocabularies(
    const std::vector<std::pair<std::string, int32_t>>& model_tokens,
    std::vector<AddedToken>& added, const std::string& source) {
  PENSTOCK_TRY_ASSIGN(const Vocabulary model, Vocabulary::Build(model_tokens, source));
  std::vector<std::pair<std::string, int32_t>> all = model_tokens;
  for (AddedToken& token : added) {
    if (const int32_t id = model.Find(token.text); id >= 0) {
      token.id = id;
    } else {
      all.emplace_back(token.text, token.id);
    }
  }
  std::sort(all.begin() + static_cast<std::ptrdiff_t>(model_tokens.size()), all.end());
  all.erase(std::unique(all.begin() + static_cast<std::ptrdiff_t>(model_tokens.size()), all.end()),
            all.end());
  return Vocabulary::Build(all, source);
}

Result<> ReadBpe(const JsonReader& model, const TokenizerFile& file, const std::string& source,
                 Tokenizer::State& state) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    PENSTOCK_TRY_ASSIGN(const std::string affix, model.StringOr(key, ""));
    if (!affix.empty()) {
      return MakeError(ErrorCode::kUnsupported,
                       "[text.tokenizer_json] {}: model.{} is \"{}\", which is not supported, "
                       "wanted none",
                       source, key, affix);
    }
  }
  PENSTOCK_TRY_ASSIGN(const double dropout, model.NumberOr("dropout", 0, 0, 1));
  if (dropout != 0) {
    return MakeError(ErrorCode::kUnsupported,
                     "[text.tokenizer_json] {}: model.dropout is {}, which makes ids random, "
                     "wanted none",
                     source, dropout);
  }
  if (model.Has("merges")) {  // a list is in the file's merges already
    return MakeError(ErrorCode::kCorruptData,
                     "[text.tokenizer_json] {}: model.merges: wanted a list", source);
  }
  BpeOptions options;
  PENSTOCK_TRY_ASSIGN(options.fuse_unknown, model.BoolOr("fuse_unk", false));
  PENSTOCK_TRY_ASSIGN(options.byte_fallback, model.BoolOr("byte_fallback", false));
  PENSTOCK_TRY_ASSIGN(options.whole_pieces, model.BoolOr("ignore_merges", false));
  PENSTOCK_TRY_ASSIGN(const std::string unknown, model.StringOr("unk_token", ""));
  if (!unknown.empty()) {
    options.unknown_id = state.vocabulary.Find(unknown);
    if (options.unknown_id < 0) {
      return MakeError(ErrorCode::kCorruptData,
                       "[text.tokenizer_json] {}: model.unk_token \"{}\" is not in the vocabulary",
                       source, unknown);
    }
  }
  state.model_unknown_id = options.unknown_id;
  PENSTOCK_TRY_ASSIGN(state.model, MakeBpe(state.vocabulary, file.merges, options, source));
  return {};
}

Result<> ReadUnigram(const JsonReader& model, const TokenizerFile& file, const std::string& source,
                     Tokenizer::State& state) {
  const auto count = static_cast<int64_t>(file.vocabulary.size());
  PENSTOCK_TRY_ASSIGN(const int64_t unknown, model.IntOr("unk_id", -1, 0, count - 1));
  PENSTOCK_TRY_ASSIGN(const bool byte_fallback, model.BoolOr("byte_fallback", false));
  std::vector<double> scores(state.vocabulary.size(), 0.0);
  std::vector<bool> usable(scores.size(), false);
  for (size_t id = 0; id < file.scores.size(); ++id) {
    if (!std::isfinite(file.scores[id])) {
      return MakeError(
          ErrorCode::kCorruptData,
          "[text.tokenizer_json] {}: model.vocab[{}]: score {}, wanted a finite number", source, id,
          file.scores[id]);
    }
    scores[id] = file.scores[id];
    usable[id] = true;
  }
  state.model_unknown_id = static_cast<int32_t>(unknown);
  state.model = MakeUnigram(state.vocabulary, std::move(scores), usable, state.model_unknown_id,
                            byte_fallback);
  return {};
}

// --- post-processors: what surrounds a text ---

Error BadTemplate(const std::string& where, std::string_view what) {
  return MakeError(ErrorCode::kInvalidArgument, "[text.tokenizer_json] {}: {}", where, what);
}

// Ids of one special token of a template.
Result<std::vector<int32_t>> TemplateIds(const Json& special_tokens, const std::string& name,
                                         const std::string& where) {
  const JsonReader table(special_tokens, where + ".special_tokens");
  const Json* entry = table.Find(name);
  if (entry == nullptr) {
    return BadTemplate(where, fmt::format("special_tokens lacks \"{}\"", name));
  }
  PENSTOCK_TRY_ASSIGN(
      const std::vector<int64_t> wide,
      JsonReader(*entry, where + ".special_tokens." + name).IntsOr("ids", 0, kMaxTokens - 1));
  return std::vector<int32_t>(wide.begin(), wide.end());
}

Result<> ReadTemplate(const JsonReader& reader, Tokenizer::State& state) {
  const Json* single = reader.Find("single");
  const Json* table = reader.Find("special_tokens");
  static const Json kNone = Json::object();
  if (single == nullptr || !single->is_array()) {
    return BadTemplate(reader.where(), "single: wanted a list");
  }
  std::vector<int32_t> before;
  std::vector<int32_t> after;
  int sequences = 0;
  for (const Json& item : *single) {
    const JsonReader part(item, reader.where() + ".single");
    if (part.Has("Sequence")) {
      ++sequences;
      continue;
    }
    const Json* special = part.Find("SpecialToken");
    if (special == nullptr) {
      return BadTemplate(reader.where(), "single: wanted Sequence or SpecialToken parts");
    }
    PENSTOCK_TRY_ASSIGN(const std::string name, JsonReader(*special, part.where()).String("id"));
    PENSTOCK_TRY_ASSIGN(const std::vector<int32_t> ids,
                        TemplateIds(table == nullptr ? kNone : *table, name, reader.where()));
    std::vector<int32_t>& side = sequences == 0 ? before : after;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (sequences != 1) {
    return BadTemplate(reader.where(), "single: wanted the text exactly once");
  }
  state.prefix_ids.insert(state.prefix_ids.begin(), before.begin(), before.end());
  state.suffix_ids.insert(state.suffix_ids.end(), after.begin(), after.end());
  return {};
}

// BertProcessing and RobertaProcessing: [cls] text [sep], each given as [text, id].
Result<> ReadBertProcessing(const JsonReader& reader, Tokenizer::State& state) {
  for (const bool front : {true, false}) {
    const Json* pair = reader.Find(front ? "cls" : "sep");
    if (pair == nullptr || !pair->is_array() || pair->size() != 2 ||
        !(*pair)[1].is_number_unsigned() || (*pair)[1].get<uint64_t>() >= kMaxTokens) {
      return BadTemplate(reader.where(), "cls and sep: wanted [text, id]");
    }
    const auto id = (*pair)[1].get<int32_t>();
    if (front) {
      state.prefix_ids.insert(state.prefix_ids.begin(), id);
    } else {
      state.suffix_ids.push_back(id);
    }
  }
  return {};
}

Result<> ReadPostProcessor(const Json* json, const std::string& where, int depth,
                           Tokenizer::State& state) {
  if (json == nullptr) {
    return {};
  }
  if (depth > kMaxDepth || state.prefix_ids.size() + state.suffix_ids.size() > kMaxSpecialIds) {
    return BadTemplate(where, "nested too deep, or more than 256 special tokens");
  }
  const JsonReader reader(*json, where);
  PENSTOCK_TRY_ASSIGN(const std::string type, reader.String("type"));
  if (type == "ByteLevel") {
    return {};  // it only moves offsets
  }
  if (type == "TemplateProcessing") {
    return ReadTemplate(reader, state);
  }
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    return ReadBertProcessing(reader, state);
  }
  if (type == "Sequence") {
    const Json* list = reader.Find("processors");
    if (list == nullptr || !list->is_array()) {
      return BadTemplate(where, "processors: wanted a list");
    }
    for (size_t i = 0; i < list->size(); ++i) {
      PENSTOCK_TRY(
          ReadPostProcessor(&(*list)[i], fmt::format("{}[{}]", where, i), depth + 1, state));
    }
    return {};
  }
  return MakeError(ErrorCode::kUnsupported,
                   "[text.tokenizer_json] {}: post-processor \"{}\" is not supported, wanted one "
                   "of: {}",
                   where, type, kPostProcessors);
}

// --- tokenizer_config.json ---

// A token named by its text, or by {"content": text}.
Result<std::optional<int32_t>> NamedToken(const Json& config, std::string_view key,
                                          const Vocabulary& vocabulary) {
  const JsonReader reader(config, "tokenizer_config.json");
  const Json* value = reader.Find(key);
  if (value != nullptr && value->is_object()) {
    const JsonReader inner(*value, fmt::format("tokenizer_config.json: {}", key));
    value = inner.Find("content");
  }
  if (value == nullptr || !value->is_string()) {
    return std::optional<int32_t>();
  }
  const int32_t id = vocabulary.Find(value->get_ref<const std::string&>());
  return id >= 0 ? std::optional(id) : std::nullopt;
}

// The post-processor defines what surrounds a text (transformers 5 looks at nothing else). Where it
// puts no BOS or EOS, add_bos_token and add_eos_token add one, as transformers 4 did for Llama's
// tokenizers and GGUF files of such models do.
Result<> ApplyAddFlags(const JsonReader& config, Tokenizer::State& state) {
  PENSTOCK_TRY_ASSIGN(const bool add_bos, config.BoolOr("add_bos_token", false));
  PENSTOCK_TRY_ASSIGN(const bool add_eos, config.BoolOr("add_eos_token", false));
  const auto lacks = [](const std::vector<int32_t>& ids, std::optional<int32_t> id) {
    return id.has_value() && std::find(ids.begin(), ids.end(), *id) == ids.end();
  };
  if (add_bos && lacks(state.prefix_ids, state.bos_id)) {
    state.prefix_ids.insert(state.prefix_ids.begin(), *state.bos_id);
  }
  if (add_eos && lacks(state.suffix_ids, state.eos_id)) {
    state.suffix_ids.push_back(*state.eos_id);
  }
  return {};
}

Result<> ReadConfig(const Json* config, Tokenizer::State& state) {
  if (config == nullptr) {
    return {};
  }
  PENSTOCK_TRY_ASSIGN(state.bos_id, NamedToken(*config, "bos_token", state.vocabulary));
  PENSTOCK_TRY_ASSIGN(state.eos_id, NamedToken(*config, "eos_token", state.vocabulary));
  PENSTOCK_TRY_ASSIGN(state.padding_id, NamedToken(*config, "pad_token", state.vocabulary));
  PENSTOCK_TRY_ASSIGN(state.unknown_id, NamedToken(*config, "unk_token", state.vocabulary));
  return ApplyAddFlags(JsonReader(*config, "tokenizer_config.json"), state);
}

Json Member(const JsonReader& reader, std::string_view key) {
  const Json* value = reader.Find(key);
  return value == nullptr ? Json(nullptr) : *value;
}

}  // namespace

Result<Tokenizer> Tokenizer::FromTokenizerJson(std::string_view text, const Json* config,
                                               const std::string& source) {
  PENSTOCK_TRY_ASSIGN(const TokenizerFile file, ParseTokenizerFile(text, source));
  const JsonReader root(file.rest, source);
  const Json model_json = Member(root, "model");
  const JsonReader model(model_json, source + ": model");
  PENSTOCK_TRY_ASSIGN(const std::string type, ModelType(model, file));
  const bool unigram = type == "Unigram";
  if (!unigram && type != "BPE") {
    return MakeError(ErrorCode::kUnsupported,
                     "[text.tokenizer_json] {}: model \"{}\" is not supported, wanted one of: {}",
                     source, type, kModels);
  }
  if (unigram != file.vocabulary_is_list || file.vocabulary.empty()) {
    return MakeError(ErrorCode::kCorruptData,
                     "[text.tokenizer_json] {}: model.vocab: wanted {}, with at least one token",
                     source, unigram ? "a list of pairs" : "an object of ids");
  }
  auto state = std::make_shared<State>();
  PENSTOCK_TRY_ASSIGN(std::vector<AddedToken> added, ReadAddedTokens(root, source));
  PENSTOCK_TRY_ASSIGN(state->vocabulary, JoinVocabularies(file.vocabulary, added, source));
  PENSTOCK_TRY_ASSIGN(state->normalizer,
                      MakeNormalizer(Member(root, "normalizer"), source + ": normalizer"));
  PENSTOCK_TRY_ASSIGN(state->pretokenizer,
                      MakePreTokenizer(Member(root, "pre_tokenizer"), source + ": pre_tokenizer"));
  PENSTOCK_TRY_ASSIGN(state->decoder, Decoder::Make(Member(root, "decoder"), source + ": decoder"));
  if (unigram) {
    PENSTOCK_TRY(ReadUnigram(model, file, source, *state));
  } else {
    PENSTOCK_TRY(ReadBpe(model, file, source, *state));
  }
  PENSTOCK_TRY(
      ReadPostProcessor(root.Find("post_processor"), source + ": post_processor", 0, *state));
  for (const std::vector<int32_t>* side : {&state->prefix_ids, &state->suffix_ids}) {
    for (const int32_t id : *side) {
      if (!state->vocabulary.Has(id)) {
        return MakeError(ErrorCode::kCorruptData,
                         "[text.tokenizer_json] {}: post_processor: id {} has no token", source,
                         id);
      }
    }
  }
  PENSTOCK_TRY(ReadConfig(config, *state));
  if (!state->unknown_id.has_value() && state->model_unknown_id >= 0) {
    state->unknown_id = state->model_unknown_id;
  }
  const bool byte_level = state->pretokenizer != nullptr && state->pretokenizer->MapsBytes();
  PENSTOCK_TRY(FinishState(*state, std::move(added), byte_level, {}));
  return Tokenizer(std::move(state));
}

}  // namespace penstock::text
