// Every verb, in the order of `penstock --help`. A new verb is one file, one declaration and one
// entry.

#pragma once

#include "cli/verb.h"

namespace penstock::cli {

void AddBench(CLI::App& app, int& status);
void AddChat(CLI::App& app, int& status);
void AddCheck(CLI::App& app, int& status);
void AddInspect(CLI::App& app, int& status);
void AddLogits(CLI::App& app, int& status);
void AddOptimize(CLI::App& app, int& status);
void AddPerplexity(CLI::App& app, int& status);
void AddPlan(CLI::App& app, int& status);
void AddRun(CLI::App& app, int& status);
void AddSchedule(CLI::App& app, int& status);
void AddSim(CLI::App& app, int& status);
void AddTokenize(CLI::App& app, int& status);
void AddTrace(CLI::App& app, int& status);

// clang-format off
inline constexpr AddVerb kVerbs[] = {
    AddRun,
    AddChat,
    AddBench,
    AddPlan,
    AddSchedule,
    AddCheck,
    AddSim,
    AddOptimize,
    AddTrace,
    AddInspect,
    AddTokenize,
    AddLogits,
    AddPerplexity,
};
// clang-format on

}  // namespace penstock::cli
