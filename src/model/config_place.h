// Lines for what is wrong in a config.json: errors about its values name the key alone, since a
// parsed value no longer knows where it stood.

#pragma once

#include <string>

#include "base/result.h"

namespace penstock::model {

// The error with ":LINE" after `path` where its message names a key that stands in that file; where
// the key is missing, with the line of the nearest one. Unchanged where `path` is no .json file.
// Cost: the file is read once more.
Error PlaceInFile(Error error, const std::string& path);

}  // namespace penstock::model
