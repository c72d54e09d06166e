#include "train/log.h"

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"

namespace penstock::train {
namespace {

Error CannotWrite(const std::string& path) {
  return MakeError(ErrorCode::kInvalidArgument, "[train.log] {}: cannot be written: {}", path,
                   std::strerror(errno));
}

// A pipe or a terminal has no earlier lines to keep.
bool IsDevice(const std::string& path) {
  std::error_code code;
  const auto status = std::filesystem::status(path, code);
  return !code && std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
         !std::filesystem::is_directory(status);
}

// The lines of steps up to `step`, as far as they can be read.
std::string Kept(const std::string& path, int64_t step) {
  std::string kept;
  const auto text = ReadFile(path);
  if (step == 0 || !text.ok()) {
    return kept;
  }
  for (size_t at = 0; at < text->size();) {
    const size_t end = text->find('\n', at);
    if (end == std::string::npos) {
      break;
    }
    const std::string_view line = std::string_view(text.value()).substr(at, end - at);
    const auto json = ParseJson(line, path);
    if (!json.ok() || !json->is_object() || !json->contains("step") ||
        !json.value()["step"].is_number_integer() || json.value()["step"].get<int64_t>() > step) {
      break;
    }
    kept.append(line).append("\n");
    at = end + 1;
  }
  return kept;
}

}  // namespace

TrainLog::~TrainLog() {
  if (file_ != nullptr) {
    std::fclose(file_);
  }
}

Result<> TrainLog::Open(const std::string& path, int64_t step) {
  path_ = path;
  std::error_code code;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) {
    std::filesystem::create_directories(parent, code);
  }
  if (!IsDevice(path)) {
    PENSTOCK_TRY(WriteFileAtomically(path, Kept(path, step)));
  }
  file_ = std::fopen(path.c_str(), "a");
  if (file_ == nullptr) {
    return CannotWrite(path);
  }
  return {};
}

Result<> TrainLog::Write(const Json& line) {
  if (file_ == nullptr) {
    return {};
  }
  const std::string text = DumpJson(line) + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0) {
    return CannotWrite(path_);
  }
  return {};
}

}  // namespace penstock::train
