#include "weights/gguf_model.h"

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "base/units.h"
#include "weights/dequantize.h"
#include "weights/derived_source.h"
#include "weights/gguf_config.h"
#include "weights/gguf_names.h"
#include "weights/matrix_slice.h"
#include "weights/shapes.h"

namespace penstock::weights {
namespace {

class GgufModel final : public ModelFiles {
 public:
  GgufModel(GgufSet set, const GgufArchitecture* architecture, Json config, Json generation)
      : set_(std::move(set)),
        architecture_(architecture),
        config_(std::move(config)),
        generation_(std::move(generation)) {}

  ModelKind kind() const override { return ModelKind::kGguf; }

  const std::string& path() const override { return set_.path(); }

  const Json& config() const override { return config_; }

  const Json& generation_config() const override { return generation_; }

  const std::vector<StoredTensor>& tensors() const override { return set_.tensors(); }

  int64_t file_bytes() const override { return set_.file_bytes(); }

  bool Has(std::string_view name) const override {
    if (Locate(name).tensor != nullptr) {
      return true;
    }
    const std::vector<GgufPlace> places = GgufPlaces(name, false);
    if (!name.ends_with("self_attn.kv_b_proj.weight") || places.empty()) {
      return false;
    }
    std::string keys = places.front().name;
    return set_.Has(keys.replace(keys.find("attn_kv_b"), 9, "attn_k_b"));
  }

  Result<std::unique_ptr<MatrixSource>> Source(std::string_view name,
                                               std::span<const int64_t> shape) const override {
    const Located located = Locate(name);
    if (located.tensor == nullptr && name.ends_with("self_attn.kv_b_proj.weight")) {
      return SplitKeyValue(name, shape);
    }
    if (located.tensor == nullptr) {
      return MakeError(ErrorCode::kNotFound, "[weights.gguf] {}: no tensor for {} ({}), wanted {}",
                       set_.path(), name,
                       located.place.name.empty() ? "GGUF has no name for it"
                                                  : "looked for " + located.place.name,
                       ShapeText(shape));
    }
    const StoredTensor& tensor = *located.tensor;
    const GgufPlace& place = located.place;
    const std::string& path = set_.file(tensor.file)->path();
    PENSTOCK_TRY(CheckLoadable(tensor, path));
    PENSTOCK_TRY_ASSIGN(const Rows rows,
                        RowsOf(tensor, path, name, shape, {place.expert, place.part, place.parts}));
    MatrixSlice slice;
    slice.name = std::string(name);
    slice.file = set_.file(tensor.file);
    slice.type = *tensor.type;
    slice.rows = rows.count;
    slice.columns = rows.columns;
    slice.offset =
        tensor.offset + static_cast<uint64_t>(rows.begin * RowBytes(*tensor.type, rows.columns));
    slice.minus_one = architecture_->norms_plus_one && place.norm;
    PENSTOCK_TRY_ASSIGN(slice.permuted_head_rows,
                        PermutedHeadRows(place, shape.front(), name, path));
    std::unique_ptr<MatrixSource> source = MakeMatrixSource(std::move(slice));
    return name.ends_with(".A_log") ? MakeLogOfNegativeSource(std::move(source))
                                    : std::move(source);
  }

  Result<TokenizerMaterial> Tokenizer() const override {
    TokenizerMaterial material;
    material.source = set_.path();
    PENSTOCK_TRY_ASSIGN(material.gguf, ReadGgufTokenizer(set_.metadata()));
    material.chat_template = material.gguf->chat_template;
    return material;
  }

 private:
  struct Located {
    const StoredTensor* tensor = nullptr;
    GgufPlace place;  // the first one looked for when nothing was found
  };

  Located Locate(std::string_view name) const {
    if (architecture_ == nullptr) {
      return {};
    }
    const std::vector<GgufPlace> places = GgufPlaces(name, architecture_->sandwich_norms);
    for (const GgufPlace& place : places) {
      if (const StoredTensor* tensor = set_.Find(place.name); tensor != nullptr) {
        return {tensor, place};
      }
    }
    return places.empty() ? Located{} : Located{nullptr, places.front()};
  }

  // All rows of a stored tensor [a, b, columns] as one matrix [a b, columns].
  Result<std::unique_ptr<MatrixSource>> Flattened(const std::string& stored, int64_t heads,
                                                  int64_t rows, int64_t columns) const {
    const StoredTensor* tensor = set_.Find(stored);
    const std::vector<int64_t> wanted = {heads, rows, columns};
    if (tensor == nullptr || tensor->shape != wanted) {
      return MakeError(tensor == nullptr ? ErrorCode::kNotFound : ErrorCode::kCorruptData,
                       "[weights.gguf] {}: tensor {}: {}, wanted {}", set_.path(), stored,
                       tensor == nullptr ? "not there" : "got shape " + tensor->ShapeText(),
                       ShapeText(wanted));
    }
    PENSTOCK_TRY(CheckLoadable(*tensor, set_.file(tensor->file)->path()));
    MatrixSlice slice;
    slice.name = stored;
    slice.file = set_.file(tensor->file);
    slice.type = *tensor->type;
    slice.rows = heads * rows;
    slice.columns = columns;
    slice.offset = tensor->offset;
    return MakeMatrixSource(std::move(slice));
  }

  // kv_b_proj in two tensors, keys transposed, as files for absorbed attention keep it.
  Result<std::unique_ptr<MatrixSource>> SplitKeyValue(std::string_view name,
                                                      std::span<const int64_t> shape) const {
    const auto heads = config_["num_attention_heads"].get<int64_t>();
    const auto nope = config_["qk_nope_head_dim"].get<int64_t>();
    const auto value = config_["v_head_dim"].get<int64_t>();
    if (shape.size() != 2 || shape[0] != heads * (nope + value)) {
      return MakeError(ErrorCode::kCorruptData, "[weights.gguf] {}: {}: wanted {}", set_.path(),
                       name, ShapeText(shape));
    }
    std::string stored = GgufPlaces(name, false).front().name;  // blk.3.attn_kv_b.weight
    const size_t at = stored.find("attn_kv_b");
    std::string keys = stored;
    keys.replace(at, 9, "attn_k_b");
    stored.replace(at, 9, "attn_v_b");
    PENSTOCK_TRY_ASSIGN(auto key_rows, Flattened(keys, heads, shape[1], nope));
    PENSTOCK_TRY_ASSIGN(auto value_rows, Flattened(stored, heads, value, shape[1]));
    return MakeSplitKeyValueSource(std::string(name), heads, std::move(key_rows),
                                   std::move(value_rows));
  }

  // Rows of a head where they are permuted, else 0.
  Result<int64_t> PermutedHeadRows(const GgufPlace& place, int64_t rows, std::string_view name,
                                   const std::string& path) const {
    if (!architecture_->permuted_heads || place.heads == GgufHeads::kNone) {
      return 0;
    }
    const auto heads =
        config_[place.heads == GgufHeads::kQuery ? "num_attention_heads" : "num_key_value_heads"]
            .get<int64_t>();
    if (rows % heads != 0 || rows / heads % 2 != 0) {
      return MakeError(ErrorCode::kCorruptData,
                       "[weights.gguf] {}: tensor {} has {}, wanted an even number for each of {}",
                       path, name, Counted(rows, "row"), Counted(heads, "head"));
    }
    return rows / heads;
  }

  GgufSet set_;
  const GgufArchitecture* architecture_;  // null: a vocabulary only
  Json config_;
  Json generation_;
};

}  // namespace

Result<std::unique_ptr<ModelFiles>> OpenGgufModel(GgufSet set) {
  const GgufArchitecture* architecture = nullptr;
  Json config;
  if (!set.tensors().empty()) {
    PENSTOCK_TRY_ASSIGN(architecture, FindGgufArchitecture(set.metadata()));
    for (const StoredTensor& tensor : set.tensors()) {
      if (!tensor.type.has_value()) {
        return MakeError(ErrorCode::kUnsupported,
                         "[weights.gguf] {}: tensor {} has quantization type {}, supported: {}",
                         set.file(tensor.file)->path(), tensor.name, tensor.type_name,
                         LoadableGgufTypes());
      }
    }
    PENSTOCK_TRY_ASSIGN(config, TranslateGgufConfig(set));
  }
  PENSTOCK_TRY_ASSIGN(Json generation, TranslateGgufGeneration(set.metadata()));
  return std::unique_ptr<ModelFiles>(std::make_unique<GgufModel>(
      std::move(set), architecture, std::move(config), std::move(generation)));
}

}  // namespace penstock::weights
