// Every verb, in the order of `penstock --help`. A new verb is one file, one declaration and one entry.

#pragma once

#include <array>

#include "cli/verb.h"

namespace penstock::cli {

// clang-format off
inline constexpr std::array<AddVerb, 0> kVerbs = {
};
// clang-format on

}  // namespace penstock::cli
