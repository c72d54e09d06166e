// A model on disk, opened by its headers: configuration, tensor index, tokenizer material. No
// weight is read until a source's rows are asked for, and then only the pages of those rows.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_reader.h"
#include "base/result.h"
#include "tensor/matrix_source.h"
#include "weights/gguf_tokenizer.h"
#include "weights/stored_tensor.h"

namespace penstock::weights {

enum class ModelKind : uint8_t { kFolder, kGguf };

// What tokenizers and chat templates are made from. A folder gives the texts of its files, a GGUF
// file its fields.
struct TokenizerMaterial {
  std::string source;                 // path, for messages
  std::string tokenizer_json;         // text of tokenizer.json; empty for GGUF
  std::string tokenizer_config_json;  // text of tokenizer_config.json; empty when there is none, or
                                      // for GGUF
  std::string chat_template;  // chat_template.jinja, or tokenizer.chat_template; empty: look in
                              // tokenizer_config_json
  std::optional<GgufTokenizerData> gguf;
};

// Immutable, thread-safe for reading.
class ModelFiles {
 public:
  virtual ~ModelFiles() = default;

  virtual ModelKind kind() const = 0;

  virtual const std::string& path() const = 0;

  // Configuration in the form of Hugging Face's config.json (of a multimodal folder: its text
  // model). For GGUF: translated from the metadata. Null for a GGUF file that holds a vocabulary
  // only.
  virtual const Json& config() const = 0;

  // generation_config.json; an empty object when there is none. For GGUF: from general.sampling.*
  // and the token ids.
  virtual const Json& generation_config() const = 0;

  // Every tensor of the files, by the names they have there.
  virtual const std::vector<StoredTensor>& tensors() const = 0;

  // Bytes of all files that hold weights.
  virtual int64_t file_bytes() const = 0;

  // True when Source could find this canonical name.
  virtual bool Has(std::string_view name) const = 0;

  // The matrix or vector of a canonical name, which is the one it has in a Hugging Face folder of
  // its family, with rows in the canonical order whatever the file does (GGUF: permuted q and k,
  // norms stored as 1 + w, stacked experts; folders: other prefixes, fused experts). `shape` is
  // what the graph wants: [n] or [outputs, inputs]; vectors have one row. Errors: kNotFound (the
  // tensor), kCorruptData (another shape), kUnsupported (its type); they name tensor, file, got,
  // wanted. The source keeps its file mapped and may outlive this object.
  virtual Result<std::unique_ptr<MatrixSource>> Source(std::string_view name,
                                                       std::span<const int64_t> shape) const = 0;

  // Errors: kNotFound (no tokenizer.json), kCorruptData, kUnsupported (a GGUF without vocabulary).
  virtual Result<TokenizerMaterial> Tokenizer() const = 0;
};

// Opens a .gguf file (whole, or the first part of a split set) or a folder in Hugging Face layout
// (config.json, and model.safetensors or what model.safetensors.index.json names; other files are
// not touched). Errors, each with exit status 2: kNotFound, kCorruptData, kUnsupported
// (architecture, type), kInvalidArgument. Cost: linear in the headers.
Result<std::unique_ptr<ModelFiles>> OpenModel(const std::string& path);

// The tokenizer alone, of a model that need not be complete: a folder with tokenizer.json, a GGUF
// file of any architecture.
Result<TokenizerMaterial> OpenTokenizer(const std::string& path);

}  // namespace penstock::weights
