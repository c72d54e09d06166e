// Where the files that come with Penstock lie: configs/models, configs/systems, configs/workloads.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock {

// The folder that holds models/, systems/ and workloads/: $PENSTOCK_CONFIGS, else ../share/penstock
// beside the program, else configs/ of the source tree it was built from. "" where none exists.
std::string ConfigFolder();

// Names (without extension) of the files of one kind ("models", "systems", "workloads"), sorted.
std::vector<std::string> ConfigNames(std::string_view kind, std::string_view extension);

// The path of `name_or_path`: an existing path is returned as it is, else
// configs/KIND/NAME.EXTENSION. Errors: kNotFound, with the nearest names.
Result<std::string> FindConfig(std::string_view kind, std::string_view extension,
                               const std::string& name_or_path);

}  // namespace penstock
