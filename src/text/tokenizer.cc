#include "text/tokenizer.h"

#include <algorithm>

#include "text/byte_level.h"
#include "text/tokenizer_state.h"
#include "text/utf8.h"

namespace penstock::text {
namespace {

// Special tokens whose names say that a turn or a text ends.
constexpr std::string_view kEndNames[] = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
    "<eos>",
    "<|EOT|>",
    "<|eot|>",
    "<EOT>",
    "<｜end▁of▁sentence｜>",
};

// Of one added token in its normalized form.
constexpr size_t kMaxAddedTokenBytes = 2 * kMaxTokenBytes;

// One encoding in progress.
class Encoding {
 public:
  Encoding(const Tokenizer::State& state, bool parse_special, size_t text_bytes)
      : state_(state), parse_special_(parse_special), limit_bytes_(64 * text_bytes + (1 << 20)) {
    ids_.reserve(text_bytes / 3 + 4);
  }

  // A well-formed stretch of the text. `at_start`: it begins where the text does.
  Result<> Add(std::string_view text, bool at_start) {
    const bool continues = !at_start;
    std::vector<AddedSpan> spans;
    report_.work += state_.raw_tokens.Find(text, parse_special_, spans);
    for (size_t i = 0; i < spans.size(); ++i) {
      const AddedSpan& span = spans[i];
      if (span.id >= 0) {
        ids_.push_back(span.id);
        continue;
      }
      const std::string_view inside = text.substr(span.begin, span.end - span.begin);
      PENSTOCK_TRY(AddBetweenTokens(inside, at_start && span.begin == 0, continues && i == 0));
    }
    return {};
  }

  void AddIllFormed(uint8_t byte) {
    ++report_.ill_formed_bytes;
    const int32_t id = state_.byte_ids[byte] >= 0 ? state_.byte_ids[byte] : state_.model_unknown_id;
    if (id >= 0) {
      ids_.push_back(id);
    } else {
      ++report_.lost;
    }
  }

  std::vector<int32_t>& ids() { return ids_; }

  EncodeReport report() const {
    EncodeReport report = report_;
    report.work += scratch_.work;
    return report;
  }

 private:
  // Text between the tokens that are looked for in the text as it came.
  Result<> AddBetweenTokens(std::string_view raw, bool at_start, bool continues) {
    std::string text(raw);
    bool start = at_start;
    if (state_.normalizer != nullptr) {
      PENSTOCK_TRY(state_.normalizer->Apply(text, {continues, limit_bytes_}));
    }
    std::vector<AddedSpan> spans;
    if (state_.normalized_tokens.empty()) {
      spans.push_back({0, text.size(), -1});
    } else {
      report_.work += state_.normalized_tokens.Find(text, parse_special_, spans);
      // A part of a text that lost its start is not where the input starts; a whole one counts as
      // if it were.
      start &= spans.size() == 1 || !state_.normalizer || !state_.normalizer->StripsStart();
    }
    for (const AddedSpan& span : spans) {
      if (span.id >= 0) {
        ids_.push_back(span.id);
        continue;
      }
      Pieces pieces;
      pieces.text = text.substr(span.begin, span.end - span.begin);
      pieces.continues = continues && span.begin == 0;
      pieces.limit_bytes = limit_bytes_;
      if (!pieces.text.empty()) {
        pieces.list.push_back({0, pieces.text.size(), start && span.begin == 0});
      }
      PENSTOCK_TRY(AddPieces(std::move(pieces)));
    }
    return {};
  }

  Result<> AddPieces(Pieces pieces) {
    if (state_.pretokenizer != nullptr && !pieces.list.empty()) {
      PENSTOCK_TRY(state_.pretokenizer->Apply(pieces));
    }
    for (const Piece& piece : pieces.list) {
      state_.model->Encode(
          std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin), scratch_,
          ids_, report_.lost);
    }
    return {};
  }

  const Tokenizer::State& state_;
  const bool parse_special_;
  const size_t limit_bytes_;
  ModelScratch scratch_;
  std::vector<int32_t> ids_;
  EncodeReport report_;
};

}  // namespace

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, const EncodeOptions& options,
                                               EncodeReport* report) const {
  if (text.size() > kMaxTextBytes) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[text.tokenizer] a text of {} bytes, wanted up to {}", text.size(),
                     kMaxTextBytes);
  }
  Encoding encoding(*state_, options.parse_special, text.size());
  std::vector<int32_t>& ids = encoding.ids();
  if (options.add_special) {
    ids = state_->prefix_ids;
  }
  for (size_t at = 0; at < text.size();) {
    const size_t end = FindIllFormed(text, at);
    if (end > at) {
      PENSTOCK_TRY(encoding.Add(text.substr(at, end - at), at == 0));
    }
    if (end < text.size()) {
      encoding.AddIllFormed(static_cast<uint8_t>(text[end]));
    }
    at = end + 1;
  }
  if (options.add_special) {
    ids.insert(ids.end(), state_->suffix_ids.begin(), state_->suffix_ids.end());
  }
  if (report != nullptr) {
    *report = encoding.report();
  }
  return std::move(ids);
}

Result<std::string> Tokenizer::DecodeBytes(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  DecodeState state = StartDecoding(true);
  for (const int32_t id : ids) {
    if (!state_->vocabulary.Has(id)) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[text.tokenizer] id {} has no token, wanted 0 to {}", id,
                       vocabulary_size() - 1);
    }
    if (!skip_special || !IsSpecial(id)) {
      AppendDecoded(state, id, out);
    }
  }
  return out;
}

Result<std::string> Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  PENSTOCK_TRY_ASSIGN(const std::string bytes, DecodeBytes(ids, skip_special));
  return ReplaceIllFormed(bytes);
}

DecodeState Tokenizer::StartDecoding(bool at_start) const {
  return state_->decoder.Start(at_start);
}

void Tokenizer::AppendDecoded(DecodeState& state, int32_t id, std::string& out) const {
  if (!state_->vocabulary.Has(id)) {
    return;
  }
  const bool added = state_->is_added[id];
  std::string_view text = state_->vocabulary.Text(id);
  if (added) {
    const auto normalized = state_->decoded_texts.find(id);
    text = normalized != state_->decoded_texts.end() ? normalized->second : text;
  }
  state_->decoder.Append(state, text, added, out);
}

std::string_view Tokenizer::TokenText(int32_t id) const {
  return state_->vocabulary.Text(id);
}

std::string Tokenizer::TokenBytes(int32_t id) const {
  std::string out;
  DecodeState state = StartDecoding(false);
  AppendDecoded(state, id, out);
  return out;
}

std::optional<int32_t> Tokenizer::TokenId(std::string_view token_text) const {
  const int32_t id = state_->vocabulary.Find(token_text);
  return id >= 0 ? std::optional(id) : std::nullopt;
}

int32_t Tokenizer::vocabulary_size() const {
  return state_->vocabulary.size();
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && id < vocabulary_size() && state_->is_special[id];
}

std::optional<int32_t> Tokenizer::bos_id() const {
  return state_->bos_id;
}

std::optional<int32_t> Tokenizer::eos_id() const {
  return state_->eos_id;
}

std::optional<int32_t> Tokenizer::unknown_id() const {
  return state_->unknown_id;
}

std::optional<int32_t> Tokenizer::padding_id() const {
  return state_->padding_id;
}

const std::vector<int32_t>& Tokenizer::end_ids() const {
  return state_->end_ids;
}

std::span<const int32_t> Tokenizer::prefix_ids() const {
  return state_->prefix_ids;
}

std::span<const int32_t> Tokenizer::suffix_ids() const {
  return state_->suffix_ids;
}

bool Tokenizer::adds_bos() const {
  return state_->bos_id.has_value() && !state_->prefix_ids.empty() &&
         state_->prefix_ids.front() == *state_->bos_id;
}

Result<> FinishState(Tokenizer::State& state, std::vector<AddedToken> added, bool byte_level,
                     const std::vector<int32_t>& more_end_ids) {
  state.is_special.assign(state.vocabulary.size(), false);
  state.is_added.assign(state.vocabulary.size(), false);
  // Of two tokens with equal normalized texts the special one wins.
  std::stable_partition(added.begin(), added.end(),
                        [](const AddedToken& token) { return token.special; });
  std::vector<AddedToken> raw;
  std::vector<AddedToken> normalized;
  std::vector<std::string> raw_texts;
  std::vector<std::string> normalized_texts;
  for (AddedToken& token : added) {
    state.is_added[token.id] = true;
    state.is_special[token.id] = state.is_special[token.id] || token.special;
    std::string text = token.text;
    if (FindIllFormed(text, 0) != text.size()) {
      continue;  // text between ill-formed bytes cannot hold it
    }
    if (!token.normalized) {
      raw_texts.push_back(std::move(text));
      raw.push_back(std::move(token));
      continue;
    }
    if (state.normalizer != nullptr) {
      PENSTOCK_TRY(state.normalizer->Apply(text, {false, kMaxAddedTokenBytes}));
    }
    if (text != token.text) {
      state.decoded_texts[token.id] = text;
    }
    normalized_texts.push_back(std::move(text));
    normalized.push_back(std::move(token));
  }
  for (int b = 0; b < 256; ++b) {
    const auto byte = static_cast<uint8_t>(b);
    const int32_t named = state.vocabulary.Find(ByteTokenName(byte));
    state.byte_ids[b] = byte_level ? state.vocabulary.Find(ByteToLetterUtf8(byte)) : named;
  }
  state.raw_tokens = AddedTokenFinder(std::move(raw), raw_texts);
  state.normalized_tokens = AddedTokenFinder(std::move(normalized), normalized_texts);
  if (state.eos_id.has_value()) {
    state.end_ids.push_back(*state.eos_id);
  }
  state.end_ids.insert(state.end_ids.end(), more_end_ids.begin(), more_end_ids.end());
  for (const std::string_view name : kEndNames) {
    const int32_t id = state.vocabulary.Find(name);
    if (id >= 0 && state.is_special[id]) {
      state.end_ids.push_back(id);
    }
  }
  std::sort(state.end_ids.begin(), state.end_ids.end());
  state.end_ids.erase(std::unique(state.end_ids.begin(), state.end_ids.end()), state.end_ids.end());
  return {};
}

}  // namespace penstock::text
