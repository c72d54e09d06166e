#include "train/export.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "train/checkpoint.h"

namespace penstock::train {

namespace fs = std::filesystem;

namespace {

// Largest weights file; transformers' own tools cut there too.
constexpr int64_t kShardBytes = int64_t{5} << 30;

Result<Checkpoint> OpenNewest(const std::string& path) {
  if (!IsFolder(path)) {
    return MakeError(ErrorCode::kNotFound, "[train.export] {}: no such folder", path);
  }
  if (FileExists((fs::path(path) / "checkpoint.json").string())) {
    return Checkpoint::Open(path, true);
  }
  PENSTOCK_TRY_ASSIGN(const FoundCheckpoint found, FindCheckpoint(path));
  if (!found.step.has_value()) {
    return MakeError(ErrorCode::kNotFound,
                     "[train.export] {}: no checkpoint.json and no step-... folder, wanted a "
                     "checkpoint or the folder of a run",
                     path);
  }
  for (const std::string& damaged : found.damaged) {
    LogWarning("{}", damaged);
  }
  return Checkpoint::Open((fs::path(path) / CheckpointName(*found.step)).string(), true);
}

uint16_t ToBf16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  bits += 0x7fffU + (bits >> 16 & 1U);  // to nearest, ties to even; weights are finite
  return static_cast<uint16_t>(bits >> 16);
}

struct WeightShard {
  std::string name;
  std::vector<std::string> tensors;
  int64_t bytes = 0;
};

Result<> WriteShard(const Checkpoint& checkpoint, const std::string& folder,
                    const WeightShard& shard, bool bf16) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  int64_t offset = 0;
  for (const std::string& name : shard.tensors) {
    const std::vector<int64_t>& shape = *checkpoint.Shape(name);
    int64_t bytes = bf16 ? 2 : 4;
    for (const int64_t n : shape) {
      bytes *= n;
    }
    header[name] = {{"dtype", bf16 ? "BF16" : "F32"},
                    {"shape", shape},
                    {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = DumpJson(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::string path = (fs::path(folder) / shard.name).string();
  std::ofstream out(path + ".tmp", std::ios::binary | std::ios::trunc);
  const uint64_t length = text.size();
  out.write(reinterpret_cast<const char*>(&length), sizeof(length));
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  std::vector<uint16_t> rounded;
  for (const std::string& name : shard.tensors) {
    int64_t elements = 1;
    for (const int64_t n : *checkpoint.Shape(name)) {
      elements *= n;
    }
    PENSTOCK_TRY_ASSIGN(const std::span<const float> values, checkpoint.Weight(name, elements));
    if (!bf16) {
      out.write(reinterpret_cast<const char*>(values.data()),
                static_cast<std::streamsize>(values.size_bytes()));
      continue;
    }
    rounded.resize(values.size());
    std::transform(values.begin(), values.end(), rounded.begin(), ToBf16);
    out.write(reinterpret_cast<const char*>(rounded.data()),
              static_cast<std::streamsize>(rounded.size() * sizeof(uint16_t)));
  }
  out.close();
  std::error_code code;
  if (!out) {
    fs::remove(path + ".tmp", code);
    return MakeError(ErrorCode::kInvalidArgument,
                     "[train.export] {}: cannot be written: {} (is the disk full?)", path,
                     std::strerror(errno));
  }
  fs::rename(path + ".tmp", path, code);
  if (code) {
    return MakeError(ErrorCode::kInvalidArgument, "[train.export] {}: cannot be written: {}", path,
                     code.message());
  }
  return {};
}

std::vector<WeightShard> Shards(const Checkpoint& checkpoint, bool bf16) {
  std::vector<WeightShard> shards(1);
  for (const std::string& name : checkpoint.Names()) {
    int64_t bytes = bf16 ? 2 : 4;
    for (const int64_t n : *checkpoint.Shape(name)) {
      bytes *= n;
    }
    if (shards.back().bytes > 0 && shards.back().bytes + bytes > kShardBytes) {
      shards.emplace_back();
    }
    shards.back().tensors.push_back(name);
    shards.back().bytes += bytes;
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].name = shards.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05d}-of-{:05d}.safetensors", i + 1, shards.size());
  }
  return shards;
}

Result<> WriteIndex(const std::vector<WeightShard>& shards, const std::string& folder) {
  Json map = Json::object();
  int64_t bytes = 0;
  for (const WeightShard& shard : shards) {
    bytes += shard.bytes;
    for (const std::string& name : shard.tensors) {
      map[name] = shard.name;
    }
  }
  const Json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", map}};
  return WriteFileAtomically((fs::path(folder) / "model.safetensors.index.json").string(),
                             DumpJson(index, 1));
}

// Weights of an earlier export, cut into other files: a reader would take them for this one's.
void RemoveOlderShards(const std::string& folder, const std::vector<WeightShard>& shards) {
  std::vector<fs::path> older;
  std::error_code code;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) {
    const std::string name = it->path().filename().string();
    const bool cut = name.starts_with("model-") && name.find("-of-") != std::string::npos &&
                     name.ends_with(".safetensors");
    if ((cut || name == "model.safetensors") &&
        std::none_of(shards.begin(), shards.end(),
                     [&](const WeightShard& shard) { return shard.name == name; })) {
      older.push_back(it->path());
    }
  }
  for (const fs::path& path : older) {
    fs::remove(path, code);
  }
}

}  // namespace

Result<ExportOutcome> ExportCheckpoint(const std::string& path, const std::string& folder,
                                       bool bf16) {
  PENSTOCK_TRY_ASSIGN(const Checkpoint checkpoint, OpenNewest(path));
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) {
    return MakeError(ErrorCode::kInvalidArgument, "[train.export] {}: cannot be made: {}", folder,
                     code.message());
  }
  if (fs::equivalent(folder, checkpoint.path(), code) ||
      fs::equivalent(folder, fs::path(checkpoint.path()).parent_path(), code)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[train.export] {}: holds the checkpoint itself, wanted another folder",
                     folder);
  }
  ExportOutcome outcome;
  outcome.checkpoint = checkpoint.path();
  outcome.step = checkpoint.manifest().step;
  for (const CheckpointFile& file : checkpoint.manifest().files) {
    if (file.name.ends_with(".safetensors") || file.name == "model.safetensors.index.json") {
      continue;
    }
    PENSTOCK_TRY_ASSIGN(std::string text,
                        ReadFile((fs::path(checkpoint.path()) / file.name).string()));
    if (file.name == "config.json" && bf16) {
      PENSTOCK_TRY_ASSIGN(Json config, ParseJson(text, file.name));
      config["torch_dtype"] = "bfloat16";
      text = DumpJson(config, 2);
    }
    PENSTOCK_TRY(WriteFileAtomically((fs::path(folder) / file.name).string(), text));
  }
  const std::vector<WeightShard> shards = Shards(checkpoint, bf16);
  for (const WeightShard& shard : shards) {
    PENSTOCK_TRY(WriteShard(checkpoint, folder, shard, bf16));
    outcome.tensors += std::ssize(shard.tensors);
    outcome.bytes += shard.bytes;
  }
  if (shards.size() > 1) {
    PENSTOCK_TRY(WriteIndex(shards, folder));
  } else {
    fs::remove(fs::path(folder) / "model.safetensors.index.json", code);
  }
  RemoveOlderShards(folder, shards);
  return outcome;
}

}  // namespace penstock::train
