// Loader of the vocabulary in a GGUF file.

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "text/bpe.h"
#include "text/charsmap.h"
#include "text/gguf_pre.h"
#include "text/score_bpe.h"
#include "text/tokenizer_state.h"
#include "text/unigram.h"

namespace penstock::text {
namespace {

constexpr const char* kModels = "gpt2 llama t5";
constexpr const char* kSpaceMark = "\u2581";

Error Bad(const std::string& source, std::string_view what) {
  return MakeError(ErrorCode::kCorruptData, "[text.tokenizer_gguf] {}: {}", source, what);
}

GgufTokenType TypeOf(const GgufVocabulary& file, size_t id) {
  return file.token_types.empty() ? GgufTokenType::kNormal
                                  : static_cast<GgufTokenType>(file.token_types[id]);
}

Result<> CheckCounts(const GgufVocabulary& file, const std::string& source) {
  const size_t count = file.tokens.size();
  if (count == 0) {
    return Bad(source, "tokenizer.ggml.tokens is missing or empty");
  }
  if (!file.token_types.empty() && file.token_types.size() != count) {
    return Bad(source, fmt::format("tokenizer.ggml.token_type has {}, wanted {} as tokens",
                                   Counted(file.token_types.size(), "entry", "entries"), count));
  }
  for (size_t id = 0; id < file.token_types.size(); ++id) {
    if (file.token_types[id] < 0 || file.token_types[id] > static_cast<int>(GgufTokenType::kByte)) {
      return Bad(source, fmt::format("tokenizer.ggml.token_type[{}] is {}, wanted 0 to 6", id,
                                     file.token_types[id]));
    }
  }
  if (file.model != "gpt2" && file.scores.size() != count) {
    return Bad(source, fmt::format("tokenizer.ggml.scores has {}, wanted {} as tokens",
                                   Counted(file.scores.size(), "entry", "entries"), count));
  }
  for (size_t id = 0; file.model != "gpt2" && id < count; ++id) {
    if (!std::isfinite(file.scores[id])) {
      return Bad(source, fmt::format("tokenizer.ggml.scores[{}] is {}, wanted a finite number", id,
                                     file.scores[id]));
    }
  }
  const std::pair<const char*, std::optional<int32_t>> named[] = {
      {"bos", file.bos_id},         {"eos", file.eos_id}, {"unknown", file.unknown_id},
      {"padding", file.padding_id}, {"eot", file.eot_id}, {"eom", file.eom_id},
  };
  for (const auto& [name, id] : named) {
    if (id.has_value() && (*id < 0 || static_cast<size_t>(*id) >= count)) {
      return Bad(source, fmt::format("tokenizer.ggml.{}_token_id is {}, wanted 0 to {}", name, *id,
                                     count - 1));
    }
  }
  return {};
}

Result<Vocabulary> BuildVocabulary(const GgufVocabulary& file, const std::string& source) {
  std::vector<std::pair<std::string, int32_t>> tokens;
  tokens.reserve(file.tokens.size());
  for (size_t id = 0; id < file.tokens.size(); ++id) {
    // Padding rows of some files have no text; each needs one that no text gives.
    tokens.emplace_back(file.tokens[id].empty() ? fmt::format("[EMPTY_{}]", id) : file.tokens[id],
                        static_cast<int32_t>(id));
  }
  return Vocabulary::Build(tokens, source);
}

// Control and user-defined tokens are found in the text as a whole.
std::vector<AddedToken> AddedTokens(const GgufVocabulary& file) {
  // Phi-3's control tokens swallow the white space behind them; GGUF has no key for it.
  const bool phi3 = file.architecture == "phi3" && file.model == "llama";
  std::vector<AddedToken> added;
  for (size_t id = 0; id < file.tokens.size(); ++id) {
    const GgufTokenType type = TypeOf(file, id);
    const bool special = type == GgufTokenType::kControl || type == GgufTokenType::kUnknown;
    const std::string& text = file.tokens[id];
    if (text.empty() || (!special && type != GgufTokenType::kUserDefined)) {
      continue;
    }
    AddedToken token;
    token.id = static_cast<int32_t>(id);
    token.text = text;
    token.special = special;
    token.rstrip = phi3 && text != "<unk>" && text != "<s>" && text != "<|endoftext|>";
    added.push_back(std::move(token));
  }
  return added;
}

Result<> MakeByteLevelState(const GgufVocabulary& file, const std::string& source,
                            Tokenizer::State& state, bool& add_bos) {
  const std::string pre_name = file.pre.empty() && file.architecture == "gpt2" ? "gpt-2" : file.pre;
  const GgufPre* pre = FindGgufPre(pre_name);
  if (pre == nullptr) {
    return MakeError(ErrorCode::kUnsupported,
                     "[text.tokenizer_gguf] {}: tokenizer.ggml.pre: got \"{}\", wanted one of: {}",
                     source, file.pre, GgufPreNames());
  }
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(file.merges.size());
  for (const std::string& line : file.merges) {
    const size_t space = line.find(' ', 1);
    if (space == std::string::npos) {
      return Bad(source, fmt::format("tokenizer.ggml.merges[{}] is \"{}\", wanted two texts with a "
                                     "space between",
                                     merges.size(), line));
    }
    merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  if (pre->nfc) {
    state.normalizer = MakeNfc();
  }
  PENSTOCK_TRY_ASSIGN(state.pretokenizer, MakeByteLevelSplits(pre->patterns, source));
  BpeOptions options;
  options.whole_pieces = pre->whole_pieces;
  PENSTOCK_TRY_ASSIGN(state.model, MakeBpe(state.vocabulary, merges, options, source));
  state.decoder = Decoder::ByteLevel();
  add_bos = pre->add_bos;
  return {};
}

// Spaces become U+2581, with one in front where the file wants it.
void SetSpaceNormalizer(const GgufVocabulary& file, std::unique_ptr<Normalizer> charsmap,
                        bool collapse, Tokenizer::State& state) {
  std::vector<std::unique_ptr<Normalizer>> parts;
  if (charsmap != nullptr) {
    parts.push_back(std::move(charsmap));
  }
  if (collapse) {
    parts.push_back(MakeCollapseSpaces());
  }
  if (file.add_space_prefix.value_or(true)) {
    parts.push_back(MakePrepend(" "));
  }
  parts.push_back(MakeReplace(" ", kSpaceMark));
  state.normalizer = MakeSequence(std::move(parts));
  state.decoder = Decoder::SentencePiece(file.add_space_prefix.value_or(true));
}

Result<std::unique_ptr<Normalizer>> ReadCharsmap(const GgufVocabulary& file,
                                                 const std::string& source) {
  if (file.precompiled_charsmap.empty()) {
    return std::unique_ptr<Normalizer>();
  }
  return MakeCharsmap(file.precompiled_charsmap, CharsmapRule::kLongestPrefix,
                      source + ": tokenizer.ggml.precompiled_charsmap");
}

Result<> MakeSentencePieceState(const GgufVocabulary& file, const std::string& source,
                                Tokenizer::State& state) {
  PENSTOCK_TRY_ASSIGN(auto charsmap, ReadCharsmap(file, source));
  std::vector<bool> usable(file.tokens.size());
  for (size_t id = 0; id < usable.size(); ++id) {
    const GgufTokenType type = TypeOf(file, id);
    usable[id] = !file.tokens[id].empty() && type != GgufTokenType::kControl &&
                 type != GgufTokenType::kUnknown && type != GgufTokenType::kByte &&
                 type != GgufTokenType::kUnused;
  }
  state.model_unknown_id = file.unknown_id.value_or(-1);
  if (file.model == "llama") {
    SetSpaceNormalizer(file, std::move(charsmap), false, state);
    state.model =
        MakeScoreBpe(state.vocabulary, file.scores, std::move(usable), state.model_unknown_id);
    return {};
  }
  SetSpaceNormalizer(file, std::move(charsmap), file.remove_extra_whitespaces.value_or(false),
                     state);
  std::vector<double> scores(file.scores.begin(), file.scores.end());
  state.model =
      MakeUnigram(state.vocabulary, std::move(scores), usable, state.model_unknown_id, true);
  return {};
}

}  // namespace

Result<Tokenizer> Tokenizer::FromGguf(const GgufVocabulary& file, const std::string& source) {
  const bool byte_level = file.model == "gpt2";
  if (!byte_level && file.model != "llama" && file.model != "t5") {
    return MakeError(
        ErrorCode::kUnsupported,
        "[text.tokenizer_gguf] {}: tokenizer.ggml.model: got \"{}\", wanted one of: {}", source,
        file.model, kModels);
  }
  PENSTOCK_TRY(CheckCounts(file, source));
  auto state = std::make_shared<State>();
  PENSTOCK_TRY_ASSIGN(state->vocabulary, BuildVocabulary(file, source));
  bool add_bos = file.model == "llama";
  if (byte_level) {
    PENSTOCK_TRY(MakeByteLevelState(file, source, *state, add_bos));
  } else {
    PENSTOCK_TRY(MakeSentencePieceState(file, source, *state));
  }
  state->bos_id = file.bos_id;
  state->eos_id = file.eos_id;
  state->unknown_id = file.unknown_id;
  state->padding_id = file.padding_id;
  if (file.add_bos.value_or(add_bos) && file.bos_id.has_value()) {
    state->prefix_ids = {*file.bos_id};
  }
  if (file.add_eos.value_or(file.model == "t5") && file.eos_id.has_value()) {
    state->suffix_ids = {*file.eos_id};
  }
  std::vector<int32_t> end_ids;
  for (const std::optional<int32_t>& id : {file.eot_id, file.eom_id}) {
    if (id.has_value()) {
      end_ids.push_back(*id);
    }
  }
  PENSTOCK_TRY(FinishState(*state, AddedTokens(file), byte_level, end_ids));
  return Tokenizer(std::move(state));
}

}  // namespace penstock::text
