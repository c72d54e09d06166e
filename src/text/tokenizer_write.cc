#include "text/tokenizer_write.h"

#include <algorithm>
#include <unordered_map>

#include "base/json.h"
#include "text/gguf_pre.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace penstock::text {
namespace {

constexpr const char* kSpaceMark = "\u2581";

GgufTokenType TypeOf(const GgufVocabulary& file, size_t id) {
  return file.token_types.empty() ? GgufTokenType::kNormal
                                  : static_cast<GgufTokenType>(file.token_types[id]);
}

std::string TextOf(const GgufVocabulary& file, size_t id) {
  // As Tokenizer::FromGguf names rows without a text.
  return file.tokens[id].empty() ? fmt::format("[EMPTY_{}]", id) : file.tokens[id];
}

// Control, unknown and user-defined tokens, which are found in a text as a whole.
Json AddedTokens(const GgufVocabulary& file) {
  const bool phi3 = file.architecture == "phi3" && file.model == "llama";
  Json list = Json::array();
  for (size_t id = 0; id < file.tokens.size(); ++id) {
    const GgufTokenType type = TypeOf(file, id);
    const bool special = type == GgufTokenType::kControl || type == GgufTokenType::kUnknown;
    const std::string& text = file.tokens[id];
    if (text.empty() || (!special && type != GgufTokenType::kUserDefined)) {
      continue;
    }
    list.push_back({{"id", id},
                    {"content", text},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", phi3 && text != "<unk>" && text != "<s>" && text != "<|endoftext|>"},
                    {"normalized", false},
                    {"special", special}});
  }
  return list;
}

Json Vocabulary(const GgufVocabulary& file) {
  Json vocabulary = Json::object();
  auto& members = vocabulary.get_ref<Json::object_t&>();
  members.reserve(file.tokens.size());
  for (size_t id = 0; id < file.tokens.size(); ++id) {
    // Names are unique: Tokenizer::FromGguf has checked. (Assignment by key would search each
    // time.)
    members.Container::emplace_back(TextOf(file, id), id);
  }
  return vocabulary;
}

Json Replace(const char* from, const char* to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

// BOS and EOS around a text; null where nothing is put there.
Json PostProcessor(const GgufVocabulary& file, bool add_bos, bool add_eos) {
  add_bos = add_bos && file.bos_id.has_value();
  add_eos = add_eos && file.eos_id.has_value();
  if (!add_bos && !add_eos) {
    return nullptr;
  }
  Json single = Json::array();
  Json pair = Json::array();
  Json specials = Json::object();
  const auto special = [&](int32_t id, int type) {
    const std::string text = TextOf(file, static_cast<size_t>(id));
    specials[text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
    return Json{{"SpecialToken", {{"id", text}, {"type_id", type}}}};
  };
  const auto add = [&](Json& list, const char* name, int type) {
    if (add_bos) {
      list.push_back(special(*file.bos_id, type));
    }
    list.push_back({{"Sequence", {{"id", name}, {"type_id", type}}}});
    if (add_eos) {
      list.push_back(special(*file.eos_id, type));
    }
  };
  add(single, "A", 0);
  add(pair, "A", 0);
  add(pair, "B", 1);
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", specials}};
}

Json Root(const GgufVocabulary& file) {
  return {{"version", "1.0"},          {"truncation", nullptr},
          {"padding", nullptr},        {"added_tokens", AddedTokens(file)},
          {"normalizer", nullptr},     {"pre_tokenizer", nullptr},
          {"post_processor", nullptr}, {"decoder", nullptr},
          {"model", nullptr}};
}

Json BpeModel(const GgufVocabulary& file, Json merges) {
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", Vocabulary(file)},
          {"merges", std::move(merges)}};
}

Json ByteLevelJson(const GgufVocabulary& file) {
  const std::string name = file.pre.empty() && file.architecture == "gpt2" ? "gpt-2" : file.pre;
  const GgufPre* pre = FindGgufPre(name);
  PENSTOCK_CHECK(pre != nullptr, "FromGguf has taken this vocabulary");
  Json root = Root(file);
  if (pre->nfc) {
    root["normalizer"] = {{"type", "NFC"}};
  }
  Json steps = Json::array();
  for (const std::string& pattern : pre->patterns) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  const Json bytes = {{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", true},
                      {"use_regex", false}};
  steps.push_back(bytes);
  root["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  root["post_processor"] =
      PostProcessor(file, file.add_bos.value_or(pre->add_bos), file.add_eos.value_or(false));
  root["decoder"] = bytes;
  Json merges = Json::array();
  for (const std::string& merge : file.merges) {
    merges.push_back(merge);
  }
  root["model"] = BpeModel(file, std::move(merges));
  root["model"]["ignore_merges"] = pre->whole_pieces;
  return root;
}

// Every way to make a usable token out of two others, best score first; those of one token in the
// order of the ids of its parts.
Json MergesFromScores(const GgufVocabulary& file) {
  struct Merge {
    int32_t whole, left, right;
  };

  std::unordered_map<std::string_view, int32_t> ids;
  const auto usable = [&](size_t id) {
    const GgufTokenType type = TypeOf(file, id);
    return !file.tokens[id].empty() && type != GgufTokenType::kControl &&
           type != GgufTokenType::kUnknown && type != GgufTokenType::kByte &&
           type != GgufTokenType::kUnused;
  };
  for (size_t id = 0; id < file.tokens.size(); ++id) {
    if (usable(id)) {
      ids.emplace(file.tokens[id], static_cast<int32_t>(id));
    }
  }
  std::vector<Merge> merges;
  for (const auto& [text, id] : ids) {
    for (size_t at = SequenceLength(text[0]); at < text.size();
         at += std::max<size_t>(1, SequenceLength(text[at]))) {
      const auto left = ids.find(text.substr(0, at));
      const auto right = ids.find(text.substr(at));
      if (left != ids.end() && right != ids.end()) {
        merges.push_back({id, left->second, right->second});
      }
    }
  }
  std::sort(merges.begin(), merges.end(), [&](const Merge& a, const Merge& b) {
    const float score_a = file.scores[static_cast<size_t>(a.whole)];
    const float score_b = file.scores[static_cast<size_t>(b.whole)];
    return std::tuple(-score_a, a.whole, a.left, a.right) <
           std::tuple(-score_b, b.whole, b.left, b.right);
  });
  Json list = Json::array();
  for (const Merge& merge : merges) {
    list.push_back(Json::array({file.tokens[static_cast<size_t>(merge.left)],
                                file.tokens[static_cast<size_t>(merge.right)]}));
  }
  return list;
}

Json SentencePieceJson(const GgufVocabulary& file) {
  Json root = Root(file);
  const bool prefix = file.add_space_prefix.value_or(true);
  Json normalizers = Json::array();
  if (prefix) {
    normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpaceMark}});
  }
  normalizers.push_back(Replace(" ", kSpaceMark));
  root["normalizer"] = {{"type", "Sequence"}, {"normalizers", normalizers}};
  root["post_processor"] =
      PostProcessor(file, file.add_bos.value_or(true), file.add_eos.value_or(false));
  Json decoders =
      Json::array({Replace(kSpaceMark, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (prefix) {
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  root["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
  root["model"] = BpeModel(file, MergesFromScores(file));
  if (file.unknown_id.has_value()) {
    root["model"]["unk_token"] = TextOf(file, static_cast<size_t>(*file.unknown_id));
  }
  root["model"]["fuse_unk"] = true;
  root["model"]["byte_fallback"] = true;
  return root;
}

}  // namespace

Result<Json> TokenizerJsonFromGguf(const GgufVocabulary& vocabulary, const std::string& source) {
  PENSTOCK_TRY(Tokenizer::FromGguf(vocabulary, source));  // checks everything
  if (vocabulary.model == "gpt2") {
    return ByteLevelJson(vocabulary);
  }
  if (vocabulary.model == "llama" && vocabulary.precompiled_charsmap.empty()) {
    return SentencePieceJson(vocabulary);
  }
  return MakeError(
      ErrorCode::kUnsupported,
      "[text.tokenizer_write] {}: a tokenizer.json is made of vocabularies of the kind "
      "\"gpt2\" or \"llama\", got \"{}\"{}",
      source, vocabulary.model,
      vocabulary.precompiled_charsmap.empty() ? "" : " with a precompiled charsmap");
}

Json TokenizerConfigFromGguf(const GgufVocabulary& vocabulary, std::string_view chat_template) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false}};
  const auto name = [&](const char* key, const std::optional<int32_t>& id) {
    if (id.has_value() && *id >= 0 && static_cast<size_t>(*id) < vocabulary.tokens.size()) {
      config[key] = TextOf(vocabulary, static_cast<size_t>(*id));
    }
  };
  name("bos_token", vocabulary.bos_id);
  name("eos_token", vocabulary.eos_id);
  name("unk_token", vocabulary.unknown_id);
  name("pad_token", vocabulary.padding_id);
  if (!chat_template.empty()) {
    config["chat_template"] = std::string(chat_template);
  }
  return config;
}

}  // namespace penstock::text
