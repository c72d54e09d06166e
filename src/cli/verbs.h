// Every verb, in the order of `penstock --help`. A new verb is one file, one declaration and one entry.

#pragma once

#include "cli/verb.h"

namespace penstock::cli {

void AddCheck(CLI::App& app, int& status);
void AddInspect(CLI::App& app, int& status);
void AddOptimize(CLI::App& app, int& status);
void AddPlan(CLI::App& app, int& status);
void AddSchedule(CLI::App& app, int& status);
void AddSim(CLI::App& app, int& status);
void AddTrace(CLI::App& app, int& status);

inline constexpr AddVerb kVerbs[] = {
    AddInspect,
    AddSchedule,
    AddCheck,
    AddPlan,
    AddSim,
    AddOptimize,
    AddTrace,
};

}  // namespace penstock::cli
