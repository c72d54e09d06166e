// Every verb, in the order of `penstock --help`. A new verb is one file, one declaration and one entry.

#pragma once

#include <array>

#include "cli/verb.h"

namespace penstock::cli {

void AddInspect(CLI::App& app, int& status);
void AddPlan(CLI::App& app, int& status);

// clang-format off
inline constexpr std::array<AddVerb, 2> kVerbs = {
    AddInspect,
    AddPlan,
};
// clang-format on

}  // namespace penstock::cli
