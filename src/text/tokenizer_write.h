// A GGUF file's vocabulary as the files that a Hugging Face folder has: tokenizer.json and
// tokenizer_config.json, which give the same ids.

#pragma once

#include <string>
#include <string_view>

#include "base/json_reader.h"
#include "base/result.h"
#include "text/gguf_vocabulary.h"

namespace penstock::text {

// tokenizer.json. Vocabularies of the kind "gpt2" keep their merges; for "llama", which has scores
// instead, each way to put a token together from two others is a merge, in the order of the scores
// (as transformers converts SentencePiece models). Errors: those of Tokenizer::FromGguf for
// contents that contradict themselves; kUnsupported for other kinds.
Result<Json> TokenizerJsonFromGguf(const GgufVocabulary& vocabulary, const std::string& source);

// tokenizer_config.json: the special tokens by name, and the chat template where there is one.
Json TokenizerConfigFromGguf(const GgufVocabulary& vocabulary, std::string_view chat_template);

}  // namespace penstock::text
