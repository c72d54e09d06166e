#include "text/gguf_pre.h"

#include "text/pretokenizer.h"

namespace penstock::text {
namespace {

// Contractions of English, any case.
#define PENSTOCK_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
// What the patterns after GPT-2's share: symbols with line ends, white space with line ends, white
// space.
#define PENSTOCK_TAIL R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"
#define PENSTOCK_TAIL_SLASH R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"
// Words whose capitals come first, as tiktoken's o200k cuts them.
#define PENSTOCK_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define PENSTOCK_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define PENSTOCK_LEAD R"([^\r\n\p{L}\p{N}]?)"

constexpr const char* kLlama3 =
    PENSTOCK_CONTRACTIONS "|" PENSTOCK_LEAD R"(\p{L}+|\p{N}{1,3})" PENSTOCK_TAIL;
constexpr const char* kQwen2 =
    PENSTOCK_CONTRACTIONS "|" PENSTOCK_LEAD R"(\p{L}+|\p{N})" PENSTOCK_TAIL;
constexpr const char* kTekken =
    PENSTOCK_LEAD PENSTOCK_UPPER "*" PENSTOCK_LOWER "+|" PENSTOCK_LEAD PENSTOCK_UPPER
                                 "+" PENSTOCK_LOWER R"(*|\p{N})" PENSTOCK_TAIL_SLASH;
constexpr const char* kO200k = PENSTOCK_LEAD PENSTOCK_UPPER
    "*" PENSTOCK_LOWER "+" PENSTOCK_CONTRACTIONS "?|" PENSTOCK_LEAD PENSTOCK_UPPER
    "+" PENSTOCK_LOWER "*" PENSTOCK_CONTRACTIONS R"(?|\p{N}{1,3})" PENSTOCK_TAIL_SLASH;
constexpr const char* kDeepSeek3Words =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

#undef PENSTOCK_CONTRACTIONS
#undef PENSTOCK_TAIL
#undef PENSTOCK_TAIL_SLASH
#undef PENSTOCK_UPPER
#undef PENSTOCK_LOWER
#undef PENSTOCK_LEAD

const std::vector<GgufPre>& Table() {
  static const std::vector<GgufPre> table = [] {
    std::vector<GgufPre> rows;
    const auto add = [&rows](std::initializer_list<const char*> names, GgufPre row) {
      for (const char* name : names) {
        row.name = name;
        rows.push_back(row);
      }
    };
    const std::vector<std::string> gpt2 = {kGpt2Pattern};
    add({"gpt-2", "phi-2", "mpt", "olmo"}, {"", gpt2});
    // Single digits, then GPT-2's pattern.
    add({"smollm", "starcoder", "refact", "command-r", "codeshell"},
        {"", {R"(\p{N})", kGpt2Pattern}});
    add({"llama-bpe", "llama3", "llama-v3"}, {"", {kLlama3}, false, true, true});
    add({"dbrx", "smaug-bpe"}, {"", {kLlama3}});
    add({"qwen2"}, {"", {kQwen2}, true});
    add({"deepseek-r1-qwen", "stablelm2"}, {"", {kQwen2}});
    add({"tekken"}, {"", {kTekken}, false, true, true});
    add({"gpt-4o", "llama4"}, {"", {kO200k}});
    add({"deepseek-coder"},
        {"", {"[\\r\\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-퟿]+", R"(\p{N})"}});
    add({"deepseek-v3"}, {"", {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+", kDeepSeek3Words}});
    add({"falcon"}, {"", {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2Pattern, "[0-9][0-9][0-9]"}});
    // What llama.cpp does for files that name no pre-tokenizer.
    add({"default"}, {"",
                      {R"([\p{P}\$\+<=>\^~\|]+)",
                       R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))",
                       R"(\p{N}+)", "[0-9][0-9][0-9]"}});
    return rows;
  }();
  return table;
}

}  // namespace

const GgufPre* FindGgufPre(std::string_view name) {
  for (const GgufPre& row : Table()) {
    if (row.name == name) {
      return &row;
    }
  }
  return nullptr;
}

std::string GgufPreNames() {
  std::string names;
  for (const GgufPre& row : Table()) {
    names += names.empty() ? row.name : " " + row.name;
  }
  return names;
}

}  // namespace penstock::text
