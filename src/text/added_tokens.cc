#include "text/added_tokens.h"

#include "base/check.h"
#include "text/utf8.h"

namespace penstock::text {
namespace {

bool EndsWithWord(std::string_view text) {
  if (text.empty()) {
    return false;
  }
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) {
    --at;
  }
  return IsWord(NextCodePoint(text, at));
}

bool StartsWithWord(std::string_view text) {
  size_t at = 0;
  return !text.empty() && IsWord(NextCodePoint(text, at));
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens,
                                   const std::vector<std::string>& texts)
    : tokens_(std::move(tokens)) {
  PENSTOCK_CHECK(tokens_.size() == texts.size(), "one text per added token");
  std::vector<std::pair<std::string_view, int32_t>> strings;
  for (size_t i = 0; i < texts.size(); ++i) {
    strings.emplace_back(texts[i], static_cast<int32_t>(i));
  }
  trie_ = PrefixTrie::Build(std::move(strings));
}

size_t AddedTokenFinder::Find(std::string_view text, bool special,
                              std::vector<AddedSpan>& out) const {
  size_t work = text.size();
  size_t covered = 0;
  size_t space_end = 0;  // end of the white space that an rstrip token swallowed last
  for (size_t at = 0; at < text.size();) {
    if (!trie_.Begins(text[at])) {
      ++at;
      continue;
    }
    size_t length = 0;
    int32_t index = -1;
    work += trie_.ForEachPrefix(text.substr(at), [&](size_t found_length, int32_t found) {
      length = found_length;
      index = found;
    });
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[index];
    size_t begin = at;
    size_t end = at + length;
    at = end;
    if (token.special && !special) {
      continue;
    }
    if (token.single_word &&
        (EndsWithWord(text.substr(0, begin)) || StartsWithWord(text.substr(end)))) {
      continue;
    }
    if (token.lstrip && begin > covered) {
      const size_t spaces = TrailingWhiteSpace(text.substr(covered, begin - covered));
      begin -= spaces;
      work += spaces;
    }
    if (token.rstrip) {
      if (end >= space_end) {  // else it lies in white space whose end is known
        space_end = end + LeadingWhiteSpace(text.substr(end));
        work += space_end - end;
      }
      end = space_end;
    }
    if (begin > covered) {
      out.push_back({covered, begin, -1});
    }
    out.push_back({begin, end, token.id});
    // Not the larger of the two: a token inside the white space that rstrip swallowed still counts,
    // and what follows it too.
    covered = end;
  }
  if (covered < text.size()) {
    out.push_back({covered, text.size(), -1});
  }
  return work;
}

}  // namespace penstock::text
