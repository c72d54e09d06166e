#include "base/config_path.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "base/units.h"

namespace penstock {

std::string ConfigFolder() {
  if (const char* set = std::getenv("PENSTOCK_CONFIGS"); set != nullptr && IsFolder(set)) {
    return set;
  }
  std::error_code code;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", code);
  if (!code) {
    const std::string installed =
        (program.parent_path().parent_path() / "share" / "penstock").string();
    if (IsFolder(installed + "/systems")) {
      return installed;
    }
  }
  const std::string built = PENSTOCK_CONFIG_FOLDER;
  return IsFolder(built) ? built : "";
}

std::vector<std::string> ConfigNames(std::string_view kind, std::string_view extension) {
  std::vector<std::string> names;
  const std::string folder = ConfigFolder();
  if (folder.empty()) {
    return names;
  }
  std::error_code code;
  for (std::filesystem::directory_iterator it(std::filesystem::path(folder) / kind, code), end;
       !code && it != end; it.increment(code)) {
    if (it->path().extension() == fmt::format(".{}", extension)) {
      names.push_back(it->path().stem().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::string> FindConfig(std::string_view kind, std::string_view extension,
                               const std::string& name_or_path) {
  if (FileExists(name_or_path) || IsFolder(name_or_path)) {
    return name_or_path;
  }
  const std::string path =
      fmt::format("{}/{}/{}.{}", ConfigFolder(), kind, name_or_path, extension);
  if (name_or_path.find('/') == std::string::npos && FileExists(path)) {
    return path;
  }
  const std::vector<std::string> names = ConfigNames(kind, extension);
  std::vector<std::pair<size_t, std::string>> near;
  for (const std::string& name : names) {
    size_t distance = EditDistance(name_or_path, name);
    if (name.find(name_or_path) != std::string::npos ||
        name_or_path.find(name) != std::string::npos) {
      distance = 0;
    }
    if (distance <= std::max<size_t>(3, name.size() / 2)) {
      near.emplace_back(distance, name);
    }
  }
  std::sort(near.begin(), near.end());
  std::string hint;
  for (size_t i = 0; i < near.size() && i < 4; ++i) {
    hint += (i > 0 ? ", " : "") + near[i].second;
  }
  return MakeError(
      ErrorCode::kNotFound,
      "[base.config] '{}': no such file, and no {} of that name, wanted {}\n  known: {}",
      name_or_path, kind, hint.empty() ? "a file or one of those below" : "a file or " + hint + "?",
      fmt::join(names, ", "));
}

}  // namespace penstock
