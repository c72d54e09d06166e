#include "weights/folder_model.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "base/units.h"
#include "weights/derived_source.h"
#include "weights/folder_names.h"
#include "weights/matrix_slice.h"
#include "weights/safetensors.h"

namespace penstock::weights {
namespace {

constexpr size_t kMaxTokenizerBytes = size_t{1} << 28;
constexpr size_t kMaxIndexBytes = size_t{1} << 28;
constexpr size_t kMaxShards = 100'000;
constexpr size_t kMaxConfigBytes = size_t{1} << 22;
constexpr int64_t kMaxConfigMembers = 20'000;

// A JSON object of a configuration. The number of members is bounded beforehand, since ordered
// objects take quadratic time to fill.
Result<Json> ReadConfigFile(const std::string& path) {
  PENSTOCK_TRY_ASSIGN(const std::string text, ReadFile(path, kMaxConfigBytes));
  if (const auto members = std::count(text.begin(), text.end(), ':'); members > kMaxConfigMembers) {
    return MakeError(ErrorCode::kCorruptData,
                     "[weights.folder] {}: {} members, wanted at most {} in a configuration", path,
                     members, kMaxConfigMembers);
  }
  PENSTOCK_TRY_ASSIGN(Json config, ParseJson(text, path));
  if (!config.is_object()) {
    return MakeError(ErrorCode::kCorruptData, "[weights.folder] {}: not an object", path);
  }
  return config;
}

// The tensors of a folder: which files hold them, and where.
class FolderIndex {
 public:
  static Result<FolderIndex> Open(const std::string& folder) {
    FolderIndex index;
    index.folder_ = folder;
    const std::string list = folder + "/model.safetensors.index.json";
    if (FileExists(folder + "/model.safetensors")) {
      PENSTOCK_TRY(index.AddFile("model.safetensors"));
      return index;
    }
    if (!FileExists(list)) {
      return MakeError(ErrorCode::kNotFound,
                       "[weights.folder] {}: no model.safetensors and no "
                       "model.safetensors.index.json\nPyTorch .bin files are not "
                       "read; save the model as safetensors.",
                       folder);
    }
    index.indexed_ = true;
    PENSTOCK_TRY(index.AddShards(list));
    return index;
  }

  const std::vector<StoredTensor>& tensors() const { return tensors_; }

  const StoredTensor* Find(const std::string& name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &tensors_[found->second];
  }

  const std::shared_ptr<const FileBytes>& file(int32_t number) const {
    return files_[static_cast<size_t>(number)];
  }

  // "model.safetensors", "the 3 files that model.safetensors.index.json names".
  std::string FilesText() const {
    if (!indexed_) {
      return "model.safetensors";
    }
    return fmt::format("the {} that model.safetensors.index.json names",
                       Counted(files_.size(), "file"));
  }

  int64_t file_bytes() const {
    int64_t total = 0;
    for (const auto& file : files_) {
      total += static_cast<int64_t>(file->bytes().size());
    }
    return total;
  }

 private:
  Result<> AddFile(const std::string& name) {
    PENSTOCK_TRY_ASSIGN(auto file, FileBytes::Map(folder_ + "/" + name));
    PENSTOCK_TRY_ASSIGN(SafetensorsHeader header, ParseSafetensors(file->bytes(), file->path()));
    const auto number = static_cast<int32_t>(files_.size());
    for (StoredTensor& tensor : header.tensors) {
      tensor.file = number;
      const auto [place, fresh] = index_.emplace(tensor.name, tensors_.size());
      if (!fresh) {
        return MakeError(ErrorCode::kCorruptData, "[weights.folder] {}: tensor {} stands in {} too",
                         file->path(), tensor.name,
                         files_[static_cast<size_t>(tensors_[place->second].file)]->path());
      }
      tensors_.push_back(std::move(tensor));
    }
    files_.push_back(std::move(file));
    return {};
  }

  // The index's weight_map: tensor name to file name.
  static Result<std::map<std::string, std::string>> ReadWeightMap(const std::string& path) {
    PENSTOCK_TRY_ASSIGN(const std::string text, ReadFile(path, kMaxIndexBytes));
    PENSTOCK_TRY_ASSIGN(auto members, ParseStringMap(text, path, "weight_map"));
    std::map<std::string, std::string> files;
    for (auto& [name, file_name] : members) {
      if (file_name.empty() || file_name.find('/') != std::string::npos ||
          file_name.find('\0') != std::string::npos || !file_name.ends_with(".safetensors")) {
        return MakeError(ErrorCode::kCorruptData,
                         "[weights.folder] {}: weight_map: {} is in \"{}\", wanted the name of a "
                         ".safetensors file of this folder",
                         path, name, file_name.substr(0, 200));
      }
      files.emplace(std::move(name), std::move(file_name));
    }
    return files;
  }

  Result<> AddShards(const std::string& list) {
    PENSTOCK_TRY_ASSIGN(const auto weight_map, ReadWeightMap(list));
    std::map<std::string, size_t> shards;  // with the number of their tensors
    for (const auto& [name, file] : weight_map) {
      ++shards[file];
    }
    if (shards.empty() || shards.size() > kMaxShards) {
      return MakeError(ErrorCode::kCorruptData,
                       "[weights.folder] {}: names {} files, wanted 1 to {}", list, shards.size(),
                       kMaxShards);
    }
    std::string missing;
    for (const auto& [file, count] : shards) {
      if (!FileExists(folder_ + "/" + file)) {
        missing +=
            (missing.empty() ? "" : ", ") + fmt::format("{} ({})", file, Counted(count, "tensor"));
      }
    }
    if (!missing.empty()) {
      return MakeError(ErrorCode::kNotFound,
                       "[weights.folder] {}: the index names files that are not there: {}", folder_,
                       missing);
    }
    for (const auto& [file, count] : shards) {
      PENSTOCK_TRY(AddFile(file));
    }
    for (const auto& [name, file] : weight_map) {
      const StoredTensor* tensor = Find(name);
      if (tensor == nullptr ||
          files_[static_cast<size_t>(tensor->file)]->path() != folder_ + "/" + file) {
        return MakeError(ErrorCode::kCorruptData,
                         "[weights.folder] {}: the index says that {} holds {}, but {}", folder_,
                         file, name, tensor == nullptr ? "no file does" : "another file does");
      }
    }
    NoteUnnamed(weight_map, list);
    return {};
  }

  // A file that the index names counts whole, as in transformers: an index may be of another save.
  void NoteUnnamed(const std::map<std::string, std::string>& weight_map,
                   const std::string& list) const {
    const StoredTensor* first = nullptr;
    int64_t unnamed = 0;
    for (const StoredTensor& tensor : tensors_) {
      if (!weight_map.contains(tensor.name)) {
        first = first == nullptr ? &tensor : first;
        ++unnamed;
      }
    }
    if (unnamed > 0) {
      LogNote("{}: {} of its files not named there ({}{}); read all the same", list,
              Counted(unnamed, "tensor"), first->name, unnamed > 1 ? ", ..." : "");
    }
  }

  std::string folder_;
  bool indexed_ = false;  // files are those that an index names
  std::vector<std::shared_ptr<const FileBytes>> files_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string, size_t> index_;
};

class FolderModel final : public ModelFiles {
 public:
  FolderModel(std::string path, FolderIndex index, Json config, Json generation)
      : path_(std::move(path)),
        index_(std::move(index)),
        config_(std::move(config)),
        generation_(std::move(generation)) {
    const auto tied = config_.find("tie_word_embeddings");
    if (tied != config_.end() && tied->is_boolean()) {
      tied_ = tied->get<bool>();
    } else {
      const auto type = config_.find("model_type");  // Gemma is tied unless it says otherwise
      tied_ = type != config_.end() && type->is_string() &&
              type->get_ref<const std::string&>().starts_with("gemma");
    }
  }

  ModelKind kind() const override { return ModelKind::kFolder; }

  const std::string& path() const override { return path_; }

  const Json& config() const override { return config_; }

  const Json& generation_config() const override { return generation_; }

  const std::vector<StoredTensor>& tensors() const override { return index_.tensors(); }

  int64_t file_bytes() const override { return index_.file_bytes(); }

  bool Has(std::string_view name) const override {
    return Locate(name).tensor != nullptr || Locate(PackedName(name)).tensor != nullptr;
  }

  Result<std::unique_ptr<MatrixSource>> Source(std::string_view name,
                                               std::span<const int64_t> shape) const override {
    const Located located = Locate(name);
    if (located.tensor == nullptr && Locate(PackedName(name)).tensor != nullptr) {
      return Packed(name, shape);
    }
    if (located.tensor == nullptr) {
      return Missing(name, shape);
    }
    if (name.ends_with(".A_log") && located.tensor->elements != shape.front()) {
      return PaddedVector(name, shape.front(), *located.tensor);
    }
    const StoredTensor& tensor = *located.tensor;
    const auto& file = index_.file(tensor.file);
    PENSTOCK_TRY(CheckLoadable(tensor, file->path()));
    PENSTOCK_TRY_ASSIGN(const Rows rows, RowsOf(tensor, file->path(), name, shape, located.part));
    MatrixSlice slice;
    slice.name = std::string(name);
    slice.file = file;
    slice.type = *tensor.type;
    slice.rows = rows.count;
    slice.columns = rows.columns;
    slice.offset =
        tensor.offset + static_cast<uint64_t>(rows.begin * RowBytes(*tensor.type, rows.columns));
    return MakeMatrixSource(std::move(slice));
  }

  Result<TokenizerMaterial> Tokenizer() const override { return ReadFolderTokenizer(path_); }

 private:
  struct Located {
    const StoredTensor* tensor = nullptr;
    TensorPart part;
  };

  Located Locate(std::string_view name) const {
    for (const FolderPlace& place : FolderPlaces(name)) {
      if (const StoredTensor* tensor = index_.Find(place.name); tensor != nullptr) {
        return {tensor, place.part};
      }
    }
    // Of two tied tensors a file may hold either.
    if (tied_ && name == "model.embed_tokens.weight") {
      return {index_.Find("lm_head.weight"), {}};
    }
    return {};
  }

  // "a.weight_packed" for "a.weight"; else a name that nothing has.
  static std::string PackedName(std::string_view name) {
    return name.ends_with(".weight") ? fmt::format("{}_packed", name) : std::string();
  }

  // 4-bit blocks in two tensors: numbers and scales.
  Result<std::unique_ptr<MatrixSource>> Packed(std::string_view name,
                                               std::span<const int64_t> shape) const {
    if (shape.size() != 2 || shape[1] % 32 != 0) {
      return MakeError(ErrorCode::kUnsupported,
                       "[weights.folder] {}: tensor {}: 4-bit blocks of 32 columns do not make {}",
                       path_, PackedName(name), ShapeText(shape));
    }
    const std::string scale_name = fmt::format("{}_scale", name);
    PENSTOCK_TRY_ASSIGN(auto packed, Bytes(PackedName(name), {shape[0], shape[1] / 2}));
    PENSTOCK_TRY_ASSIGN(auto scales, Bytes(scale_name, {shape[0], shape[1] / 32}));
    return MakeMxfp4Source(std::string(name), std::move(packed), std::move(scales));
  }

  Result<std::unique_ptr<MatrixSource>> Bytes(const std::string& name,
                                              const std::vector<int64_t>& shape) const {
    const StoredTensor* tensor = Locate(name).tensor;
    if (tensor == nullptr || tensor->shape != shape || tensor->type != DType::kU8) {
      return MakeError(tensor == nullptr ? ErrorCode::kNotFound : ErrorCode::kCorruptData,
                       "[weights.folder] {}: tensor {}: {}, wanted {} of type u8", path_, name,
                       tensor == nullptr ? "not there"
                                         : fmt::format("got {} of type {}", tensor->ShapeText(),
                                                       tensor->type_name),
                       ShapeText(shape));
    }
    MatrixSlice slice;
    slice.name = name;
    slice.file = index_.file(tensor->file);
    slice.type = DType::kU8;
    slice.rows = shape[0];
    slice.columns = shape[1];
    slice.offset = tensor->offset;
    return MakeMatrixSource(std::move(slice));
  }

  // The first `count` elements of a vector that is stored longer, the rest being zeros.
  Result<std::unique_ptr<MatrixSource>> PaddedVector(std::string_view name, int64_t count,
                                                     const StoredTensor& tensor) const {
    const auto& file = index_.file(tensor.file);
    PENSTOCK_TRY(CheckLoadable(tensor, file->path()));
    MatrixSlice slice;
    slice.name = std::string(name);
    slice.file = file;
    slice.type = *tensor.type;
    slice.rows = 1;
    slice.columns = tensor.elements;
    slice.offset = tensor.offset;
    constexpr int64_t kMost = 1 << 16;
    bool zeros =
        tensor.elements > count && tensor.elements <= kMost && !Traits(*tensor.type).quantized;
    if (zeros) {
      std::vector<float> all(static_cast<size_t>(tensor.elements));
      PENSTOCK_TRY(MakeMatrixSource(slice)->ReadRows(0, 1, all));
      zeros = std::all_of(all.begin() + count, all.end(), [](float x) { return x == 0.0F; });
    }
    if (!zeros) {
      return MakeError(ErrorCode::kCorruptData,
                       "[weights.folder] {}: tensor {}: got shape {}, wanted {} (one per head), "
                       "followed by nothing but zeros",
                       file->path(), name, tensor.ShapeText(), Counted(count, "element"));
    }
    slice.columns = count;
    return MakeMatrixSource(std::move(slice));
  }

  Error Missing(std::string_view name, std::span<const int64_t> shape) const {
    std::string hint;
    if (name == "lm_head.weight") {
      hint =
          "\nconfig.json says that the head is not tied to the embedding (tie_word_embeddings: "
          "false). If it is, set that to true.";
    }
    return MakeError(ErrorCode::kNotFound,
                     "[weights.folder] {}: no tensor {} in {}, wanted shape {}{}", path_, name,
                     index_.FilesText(), ShapeText(shape), hint);
  }

  std::string path_;
  FolderIndex index_;
  Json config_;
  Json generation_;
  bool tied_ = false;
};

// The language model's part of a multimodal configuration, completed from the outer object.
Json TextConfig(Json config) {
  const auto text = config.find("text_config");
  if (text == config.end() || !text->is_object()) {
    return config;
  }
  Json inner = *text;
  for (const char* key :
       {"tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id", "dtype",
        "torch_dtype", "architectures", "model_type", "quantization_config"}) {
    if (config.contains(key) && !inner.contains(key)) {
      inner[key] = config[key];
    }
  }
  if (inner["model_type"] == "gemma3") {
    inner["model_type"] = "gemma3_text";
  }
  return inner;
}

Result<> CheckNotQuantized(const Json& config, const std::string& path) {
  const auto quantization = config.find("quantization_config");
  if (quantization == config.end() || quantization->is_null()) {
    return {};
  }
  const auto type = config.find("model_type");
  if (type != config.end() && (*type == "kimi_linear" || *type == "kimi_k3")) {
    return {};  // experts in 4-bit blocks; what else a method may leave is missed by name
  }
  const std::string method = quantization->is_object() && quantization->contains("quant_method")
                                 ? DumpJson((*quantization)["quant_method"])
                                 : "unknown";
  return MakeError(ErrorCode::kUnsupported,
                   "[weights.folder] {}/config.json: quantization_config with method {}, wanted "
                   "f32, f16 or bf16 weights, or a GGUF file",
                   path, method.substr(0, 80));
}

}  // namespace

Result<std::unique_ptr<ModelFiles>> OpenFolderModel(const std::string& path) {
  PENSTOCK_TRY_ASSIGN(Json config, ReadConfigFile(path + "/config.json"));
  config = TextConfig(std::move(config));
  PENSTOCK_TRY(CheckNotQuantized(config, path));
  Json generation = Json::object();
  const std::string generation_path = path + "/generation_config.json";
  if (FileExists(generation_path)) {
    PENSTOCK_TRY_ASSIGN(generation, ReadConfigFile(generation_path));
  }
  PENSTOCK_TRY_ASSIGN(FolderIndex index, FolderIndex::Open(path));
  const auto vision =
      std::count_if(index.tensors().begin(), index.tensors().end(), [](const StoredTensor& tensor) {
        return tensor.name.starts_with("vision_tower.") || tensor.name.starts_with("mm_projector.");
      });
  if (vision > 0) {
    LogNote("{}: {} of a vision tower skipped: the text model runs", path,
            Counted(vision, "tensor"));
  }
  return std::unique_ptr<ModelFiles>(std::make_unique<FolderModel>(
      path, std::move(index), std::move(config), std::move(generation)));
}

Result<TokenizerMaterial> ReadFolderTokenizer(const std::string& path) {
  TokenizerMaterial material;
  material.source = path;
  PENSTOCK_TRY_ASSIGN(material.tokenizer_json,
                      ReadFile(path + "/tokenizer.json", kMaxTokenizerBytes));
  if (FileExists(path + "/tokenizer_config.json")) {
    PENSTOCK_TRY_ASSIGN(material.tokenizer_config_json,
                        ReadFile(path + "/tokenizer_config.json", kMaxTokenizerBytes));
  }
  if (FileExists(path + "/chat_template.jinja")) {
    PENSTOCK_TRY_ASSIGN(material.chat_template,
                        ReadFile(path + "/chat_template.jinja", kMaxTokenizerBytes));
  }
  return material;
}

}  // namespace penstock::weights
