#include "train/checkpoint.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "train/sha256.h"
#include "weights/safetensors.h"

namespace penstock::train {

namespace fs = std::filesystem;

namespace {

constexpr int kFormatVersion = 1;
constexpr size_t kWriteBytes = size_t{8} << 20;
constexpr const char* kManifest = "checkpoint.json";

Error WriteError(const std::string& path, int code) {
  return MakeError(ErrorCode::kInvalidArgument, "[train.checkpoint] {}: cannot be written: {}",
                   path, std::strerror(code));
}

// A file being written, with the digest of what went into it.
class OutputFile {
 public:
  explicit OutputFile(std::string path)
      : path_(std::move(path)),
        fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    if (fd_ < 0) {
      error_ = errno;
    }
  }

  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  ~OutputFile() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }

  void Write(std::span<const std::byte> bytes) {
    while (!bytes.empty() && error_ == 0) {
      const ssize_t count = ::write(fd_, bytes.data(), std::min(bytes.size(), kWriteBytes));
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count <= 0) {
        error_ = count == 0 ? ENOSPC : errno;
        return;
      }
      const auto written = bytes.first(static_cast<size_t>(count));
      digest_.Update(written);
      bytes_ += count;
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
  }

  Result<CheckpointFile> Close(const std::string& name) {
    if (error_ == 0 && ::fsync(fd_) != 0) {
      error_ = errno;
    }
    if (fd_ >= 0 && ::close(fd_) != 0 && error_ == 0) {
      error_ = errno;
    }
    fd_ = -1;
    if (error_ != 0) {
      return WriteError(path_, error_);
    }
    return CheckpointFile{name, bytes_, digest_.Hex()};
  }

 private:
  std::string path_;
  int fd_;
  int error_ = 0;
  int64_t bytes_ = 0;
  Sha256 digest_;
};

Result<> SyncFolder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    return WriteError(path, errno);
  }
  const int code = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (code != 0 && code != EINVAL) {  // some file systems can't sync folders
    return WriteError(path, code);
  }
  return {};
}

std::string Header(const std::vector<CheckpointTensor>& tensors) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  uint64_t offset = 0;
  for (const CheckpointTensor& tensor : tensors) {
    const uint64_t end = offset + tensor.values.size_bytes();
    header[tensor.name] = {
        {"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = DumpJson(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

Error Bad(const std::string& path, std::string_view what) {
  return MakeError(ErrorCode::kCorruptData, "[train.checkpoint] {}: {}", path, what);
}

Json ManifestJson(const CheckpointManifest& manifest) {
  Json json = {{"format", "penstock-checkpoint"}, {"version", kFormatVersion},
               {"step", manifest.step},           {"cursor", manifest.cursor},
               {"seed", manifest.seed},           {"instruction_set", manifest.instruction_set},
               {"identity", manifest.identity},   {"config", manifest.config},
               {"files", Json::array()}};
  for (const CheckpointFile& file : manifest.files) {
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  return json;
}

Result<CheckpointManifest> ReadManifest(const std::string& path) {
  auto text = ReadFile(path, size_t{64} << 20);
  if (!text.ok()) {
    return Bad(path, "missing or unreadable, so the checkpoint is not whole");
  }
  PENSTOCK_TRY_ASSIGN(Json json, ParseJson(text.value(), path));
  const JsonReader reader(json, path);
  PENSTOCK_TRY_ASSIGN(const std::string digest, reader.String("sha256"));
  json.erase("sha256");
  if (Sha256Hex(DumpJson(json)) != digest) {
    return Bad(path, "its checksum does not fit its content: damaged");
  }
  CheckpointManifest manifest;
  PENSTOCK_TRY_ASSIGN(const int64_t version, reader.Int("version", 0, 1 << 30));
  if (version != kFormatVersion) {
    return MakeError(ErrorCode::kUnsupported, "[train.checkpoint] {}: version {}, wanted {}", path,
                     version, kFormatVersion);
  }
  PENSTOCK_TRY_ASSIGN(manifest.step, reader.Int("step", 0, INT64_MAX));
  PENSTOCK_TRY_ASSIGN(manifest.cursor, reader.Int("cursor", 0, INT64_MAX));
  PENSTOCK_TRY_ASSIGN(const int64_t seed, reader.Int("seed", 0, INT64_MAX));
  manifest.seed = static_cast<uint64_t>(seed);
  PENSTOCK_TRY_ASSIGN(manifest.identity, reader.String("identity"));
  PENSTOCK_TRY_ASSIGN(manifest.instruction_set, reader.String("instruction_set"));
  PENSTOCK_TRY_ASSIGN(manifest.config, reader.StringOr("config", ""));
  const Json* files = reader.Find("files");
  if (files == nullptr || !files->is_array()) {
    return Bad(path, "no list of files");
  }
  for (const Json& item : *files) {
    const JsonReader entry(item, path + ": files");
    CheckpointFile& file = manifest.files.emplace_back();
    PENSTOCK_TRY_ASSIGN(file.name, entry.String("name"));
    PENSTOCK_TRY_ASSIGN(file.bytes, entry.Int("bytes", 0, INT64_MAX));
    PENSTOCK_TRY_ASSIGN(file.sha256, entry.String("sha256"));
    if (file.name.empty() || file.name.find('/') != std::string::npos || file.name[0] == '.') {
      return Bad(path, "a file's name that cannot be one");
    }
  }
  return manifest;
}

// "NAME.exp_avg[begin:end]" or "NAME.exp_avg": the name without the range, and its begin.
std::pair<std::string, int64_t> SplitRange(const std::string& name) {
  const size_t bracket = name.rfind('[');
  if (bracket == std::string::npos || name.back() != ']') {
    return {name, 0};
  }
  int64_t begin = 0;
  const char* first = name.data() + bracket + 1;
  const auto [end, code] = std::from_chars(first, name.data() + name.size(), begin);
  if (code != std::errc() || *end != ':' || begin < 0) {
    return {name, 0};
  }
  return {name.substr(0, bracket), begin};
}

}  // namespace

Result<CheckpointFile> WriteTensors(const std::string& folder, const std::string& name,
                                    const std::vector<CheckpointTensor>& tensors) {
  OutputFile file((fs::path(folder) / name).string());
  const std::string header = Header(tensors);
  const uint64_t length = header.size();
  file.Write(std::as_bytes(std::span(&length, 1)));
  file.Write(std::as_bytes(std::span(header.data(), header.size())));
  for (const CheckpointTensor& tensor : tensors) {
    file.Write(std::as_bytes(tensor.values));
  }
  return file.Close(name);
}

Result<CheckpointFile> WriteSmallFile(const std::string& folder, const std::string& name,
                                      std::string_view content) {
  OutputFile file((fs::path(folder) / name).string());
  file.Write(std::as_bytes(std::span(content.data(), content.size())));
  return file.Close(name);
}

std::string CheckpointName(int64_t step) {
  return fmt::format("step-{:08d}", step);
}

std::string PartialFolder(const std::string& folder, int64_t step) {
  return (fs::path(folder) / fmt::format(".partial-{:08d}", step)).string();
}

Result<> MakeFolder(const std::string& folder) {
  std::error_code code;
  fs::create_directories(folder, code);
  if (code || !fs::is_directory(folder)) {
    return WriteError(folder, code ? code.value() : ENOTDIR);
  }
  return {};
}

Result<> PrepareFolder(const std::string& folder) {
  PENSTOCK_TRY(MakeFolder(folder));
  std::error_code code;
  std::vector<fs::path> left;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(".partial-") || name.starts_with(".old-")) {
      left.push_back(it->path());
    }
  }
  for (const fs::path& path : left) {
    fs::remove_all(path, code);
  }
  return {};
}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

Result<FolderLock> FolderLock::Take(const std::string& folder) {
  FolderLock lock;
  lock.fd_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock.fd_ >= 0 && ::flock(lock.fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[train.checkpoint] {}: another run trains into this folder, wanted one that "
                     "is free (train.folder)",
                     folder);
  }
  return lock;
}

Result<> MakePartial(const std::string& folder, int64_t step) {
  std::error_code code;
  fs::create_directories(PartialFolder(folder, step), code);
  if (code) {
    return WriteError(PartialFolder(folder, step), code.value());
  }
  return {};
}

void RemovePartial(const std::string& folder, int64_t step) {
  std::error_code code;
  fs::remove_all(PartialFolder(folder, step), code);
}

std::vector<int64_t> CheckpointSteps(const std::string& folder) {
  std::vector<int64_t> steps;
  std::error_code code;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) {
    const std::string name = it->path().filename().string();
    int64_t step = 0;
    if (!name.starts_with("step-")) {
      continue;
    }
    const auto [last, error] = std::from_chars(name.data() + 5, name.data() + name.size(), step);
    if (error == std::errc() && last == name.data() + name.size() && name == CheckpointName(step)) {
      steps.push_back(step);
    }
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

Result<> CommitCheckpoint(const std::string& folder, const CheckpointManifest& manifest) {
  const std::string partial = PartialFolder(folder, manifest.step);
  Json json = ManifestJson(manifest);
  json["sha256"] = Sha256Hex(DumpJson(json));
  PENSTOCK_TRY(WriteSmallFile(partial, kManifest, DumpJson(json, 1)));
  PENSTOCK_TRY(SyncFolder(partial));
  const fs::path target = fs::path(folder) / CheckpointName(manifest.step);
  const fs::path old = fs::path(folder) / fmt::format(".old-{:08d}", manifest.step);
  std::error_code code;
  const bool replaces = fs::exists(target, code);
  if (replaces) {
    fs::remove_all(old, code);
    fs::rename(target, old, code);
  }
  if (::rename(partial.c_str(), target.c_str()) != 0) {
    return WriteError(target.string(), errno);
  }
  PENSTOCK_TRY(SyncFolder(folder));
  if (replaces) {
    fs::remove_all(old, code);
  }
  return {};
}

void RemoveCheckpoint(const std::string& folder, int64_t step) {
  // Under a name that nobody takes for a whole one first.
  const fs::path from = fs::path(folder) / CheckpointName(step);
  const fs::path old = fs::path(folder) / fmt::format(".old-{:08d}", step);
  std::error_code code;
  fs::remove_all(old, code);
  fs::rename(from, old, code);
  fs::remove_all(code ? from : old, code);
}

std::string SetCheckpointAside(const std::string& folder, int64_t step) {
  const fs::path from = fs::path(folder) / CheckpointName(step);
  const fs::path to = fs::path(folder) / fmt::format("not-finite-{:08d}", step);
  std::error_code code;
  if (!fs::exists(from, code)) {
    return "";
  }
  fs::remove_all(to, code);
  fs::rename(from, to, code);
  return code ? std::string() : to.string();
}

Result<> Checkpoint::AddFile(const std::string& name) {
  const std::string path = (fs::path(path_) / name).string();
  auto file = weights::FileBytes::Map(path);
  if (!file.ok()) {
    return Bad(path, "missing or empty, so the checkpoint is damaged");
  }
  PENSTOCK_TRY_ASSIGN(const weights::SafetensorsHeader header,
                      weights::ParseSafetensors(file.value()->bytes(), path));
  for (const weights::StoredTensor& tensor : header.tensors) {
    if (tensor.type != DType::kF32) {
      return Bad(path, fmt::format("{} is {}, wanted F32", tensor.name, tensor.type_name));
    }
    const auto* values =
        reinterpret_cast<const float*>(file.value()->bytes().data() + tensor.offset);
    const std::span<const float> view(values, static_cast<size_t>(tensor.elements));
    if (name.starts_with("optimizer-")) {
      const auto [moment, begin] = SplitRange(tensor.name);
      moments_[moment].push_back({begin, view});
    } else {
      weights_[tensor.name] = {tensor.shape, view};
    }
  }
  files_.push_back(std::move(file).value());
  return {};
}

Result<Checkpoint> Checkpoint::Open(const std::string& path, bool verify) {
  Checkpoint checkpoint;
  checkpoint.path_ = path;
  PENSTOCK_TRY_ASSIGN(checkpoint.manifest_, ReadManifest((fs::path(path) / kManifest).string()));
  for (const CheckpointFile& file : checkpoint.manifest_.files) {
    const std::string at = (fs::path(path) / file.name).string();
    std::error_code code;
    const auto size = fs::file_size(at, code);
    if (code || static_cast<int64_t>(size) != file.bytes) {
      return Bad(at, fmt::format("{} bytes, wanted {}: damaged",
                                 code ? std::string("missing") : std::to_string(size), file.bytes));
    }
    if (verify && file.bytes > 0) {
      PENSTOCK_TRY_ASSIGN(const MappedFile map, MappedFile::Open(at));
      if (Sha256Hex(map.bytes()) != file.sha256) {
        return Bad(at, "its checksum does not fit its content: damaged");
      }
    }
    if (file.name.ends_with(".safetensors")) {
      PENSTOCK_TRY(checkpoint.AddFile(file.name));
    }
  }
  for (auto& [name, pieces] : checkpoint.moments_) {
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  }
  return checkpoint;
}

std::vector<std::string> Checkpoint::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : weights_) {
    names.push_back(name);
  }
  return names;
}

const std::vector<int64_t>* Checkpoint::Shape(const std::string& name) const {
  const auto it = weights_.find(name);
  return it == weights_.end() ? nullptr : &it->second.first;
}

Result<std::span<const float>> Checkpoint::Weight(const std::string& name, int64_t elements) const {
  const auto it = weights_.find(name);
  if (it == weights_.end()) {
    return MakeError(ErrorCode::kNotFound,
                     "[train.checkpoint] {}: no tensor {}: a checkpoint of another model", path_,
                     name);
  }
  if (static_cast<int64_t>(it->second.second.size()) != elements) {
    return Bad(path_, fmt::format("{} has {} elements, wanted {}: a checkpoint of another model",
                                  name, it->second.second.size(), elements));
  }
  return it->second.second;
}

Result<> Checkpoint::Moment(const std::string& name, const std::string& kind, int64_t begin,
                            std::span<float> out) const {
  const auto it = moments_.find(name + "." + kind);
  const int64_t end = begin + static_cast<int64_t>(out.size());
  int64_t done = begin;
  if (it != moments_.end()) {
    for (const Piece& piece : it->second) {
      const int64_t piece_end = piece.begin + static_cast<int64_t>(piece.values.size());
      if (piece.begin <= done && done < std::min(piece_end, end)) {
        const int64_t until = std::min(piece_end, end);
        const auto from = piece.values.subspan(static_cast<size_t>(done - piece.begin),
                                               static_cast<size_t>(until - done));
        std::copy(from.begin(), from.end(), out.begin() + (done - begin));
        done = until;
      }
    }
  }
  if (done != end) {
    return Bad(path_, fmt::format("{} of {} covers elements up to {}, wanted {} to {}", kind, name,
                                  done, begin, end));
  }
  return {};
}

Result<FoundCheckpoint> FindCheckpoint(const std::string& folder) {
  FoundCheckpoint found;
  std::vector<int64_t> steps = CheckpointSteps(folder);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const auto opened = Checkpoint::Open((fs::path(folder) / CheckpointName(*step)).string(), true);
    if (opened.ok()) {
      found.step = *step;
      return found;
    }
    found.damaged.push_back(opened.error().message);
  }
  if (!found.damaged.empty()) {
    return MakeError(ErrorCode::kCorruptData,
                     "[train.checkpoint] {}: no checkpoint is whole, wanted one\n{}", folder,
                     fmt::join(found.damaged, "\n"));
  }
  return found;
}

}  // namespace penstock::train
