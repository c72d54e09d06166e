// The text side of a model: its tokenizer and its chat template, from whatever its files hold.

#pragma once

#include <string>

#include "base/result.h"
#include "text/chat_template.h"
#include "text/gguf_vocabulary.h"
#include "text/tokenizer.h"
#include "weights/model_files.h"

namespace penstock::train {

struct LoadedTokenizer {
  text::Tokenizer tokenizer;
  std::string chat_template;  // the model's Jinja text; empty: it has none
  std::string source;
};

// The tokenizer fields of a GGUF file as text/ takes them.
text::GgufVocabulary VocabularyOf(const weights::GgufTokenizerData& data);

// Errors: those of Tokenizer::FromGguf and FromTokenizerJson.
Result<LoadedTokenizer> LoadTokenizer(const weights::TokenizerMaterial& material);

// The template to use: `name` when given, else the model's own, recognised whole. `flag` is how the
// user can name one. Errors: kUnsupported listing the names.
Result<const text::ChatTemplate*> PickTemplate(const LoadedTokenizer& tokenizer,
                                               const std::string& name, const std::string& flag);

// Differs between materials that may give other ids or other templates.
std::string TokenizerDigest(const weights::TokenizerMaterial& material);

}  // namespace penstock::train
