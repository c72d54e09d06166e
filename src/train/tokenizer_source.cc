#include "train/tokenizer_source.h"

#include <span>

#include "base/json.h"
#include "train/sha256.h"

namespace penstock::train {

text::GgufVocabulary VocabularyOf(const weights::GgufTokenizerData& data) {
  text::GgufVocabulary vocabulary;
  vocabulary.architecture = data.architecture;
  vocabulary.model = data.model;
  vocabulary.pre = data.pre;
  vocabulary.tokens = data.tokens;
  vocabulary.scores = data.scores;
  vocabulary.token_types = data.types;
  vocabulary.merges = data.merges;
  vocabulary.bos_id = data.bos_id;
  vocabulary.eos_id = data.eos_id;
  vocabulary.unknown_id = data.unknown_id;
  vocabulary.padding_id = data.padding_id;
  vocabulary.eot_id = data.eot_id;
  vocabulary.add_bos = data.add_bos;
  vocabulary.add_eos = data.add_eos;
  vocabulary.add_space_prefix = data.add_space_prefix;
  vocabulary.remove_extra_whitespaces = data.remove_extra_whitespaces;
  vocabulary.precompiled_charsmap.assign(data.precompiled_charsmap.begin(),
                                         data.precompiled_charsmap.end());
  return vocabulary;
}

Result<LoadedTokenizer> LoadTokenizer(const weights::TokenizerMaterial& material) {
  if (material.gguf) {
    PENSTOCK_TRY_ASSIGN(text::Tokenizer tokenizer,
                        text::Tokenizer::FromGguf(VocabularyOf(*material.gguf), material.source));
    return LoadedTokenizer{std::move(tokenizer), material.chat_template, material.source};
  }
  Json config;
  if (!material.tokenizer_config_json.empty()) {
    PENSTOCK_TRY_ASSIGN(config, ParseJson(material.tokenizer_config_json,
                                          material.source + "/tokenizer_config.json"));
  }
  PENSTOCK_TRY_ASSIGN(text::Tokenizer tokenizer,
                      text::Tokenizer::FromTokenizerJson(material.tokenizer_json,
                                                         config.is_null() ? nullptr : &config,
                                                         material.source + "/tokenizer.json"));
  std::string chat_template = material.chat_template;
  if (chat_template.empty() && !config.is_null()) {
    chat_template = text::ChatTemplateText(config);
  }
  return LoadedTokenizer{std::move(tokenizer), std::move(chat_template), material.source};
}

Result<const text::ChatTemplate*> PickTemplate(const LoadedTokenizer& tokenizer,
                                               const std::string& name, const std::string& flag) {
  if (!name.empty()) {
    return text::ChatTemplateNamed(name);
  }
  if (tokenizer.chat_template.empty()) {
    std::string names;
    for (const text::ChatTemplate& known : text::ChatTemplates()) {
      names += (names.empty() ? "" : ", ") + known.name;
    }
    return MakeError(ErrorCode::kUnsupported,
                     "[train.tokenizer] {}: the model has no chat template; choose one with {}: {}",
                     tokenizer.source, flag, names);
  }
  return text::RecognizeChatTemplate(tokenizer.chat_template, tokenizer.source);
}

std::string TokenizerDigest(const weights::TokenizerMaterial& material) {
  Sha256 digest;
  const auto add = [&digest](std::string_view text) {
    digest.Update(fmt::format("{}:", text.size()));
    digest.Update(text);
  };
  add(material.tokenizer_json);
  add(material.tokenizer_config_json);
  add(material.chat_template);
  if (material.gguf) {
    const weights::GgufTokenizerData& data = *material.gguf;
    add(data.model);
    add(data.pre);
    add(data.architecture);
    for (const std::string& token : data.tokens) {
      add(token);
    }
    for (const std::string& merge : data.merges) {
      add(merge);
    }
    digest.Update(std::as_bytes(std::span(data.scores)));
    digest.Update(std::as_bytes(std::span(data.types)));
    add(data.precompiled_charsmap);
    for (const auto& id : {data.bos_id, data.eos_id, data.unknown_id, data.eot_id}) {
      add(std::to_string(id.value_or(-1)));
    }
    for (const auto& flag :
         {data.add_bos, data.add_eos, data.add_space_prefix, data.remove_extra_whitespaces}) {
      add(flag.has_value() ? (*flag ? "1" : "0") : "-");
    }
  }
  return digest.Hex();
}

}  // namespace penstock::train
