// Every verb, in the order of `penstock --help`. A new verb is one file, one declaration and one
// entry.

#pragma once

#include "cli/verb.h"

namespace penstock::cli {

void AddBench(Verb& app, int& status);
void AddCalibrate(Verb& app, int& status);
void AddChat(Verb& app, int& status);
void AddCheck(Verb& app, int& status);
void AddEval(Verb& app, int& status);
void AddExport(Verb& app, int& status);
void AddGradients(Verb& app, int& status);
void AddInspect(Verb& app, int& status);
void AddLogits(Verb& app, int& status);
void AddOptimize(Verb& app, int& status);
void AddPerplexity(Verb& app, int& status);
void AddPlan(Verb& app, int& status);
void AddRun(Verb& app, int& status);
void AddSchedule(Verb& app, int& status);
void AddSim(Verb& app, int& status);
void AddTokenize(Verb& app, int& status);
void AddTrace(Verb& app, int& status);
void AddTrain(Verb& app, int& status);

// clang-format off
inline constexpr AddVerb kVerbs[] = {
    AddRun,
    AddChat,
    AddBench,
    AddTrain,
    AddEval,
    AddExport,
    AddPlan,
    AddCalibrate,
    AddSchedule,
    AddCheck,
    AddSim,
    AddOptimize,
    AddTrace,
    AddInspect,
    AddTokenize,
    AddLogits,
    AddPerplexity,
    AddGradients,
};
// clang-format on

}  // namespace penstock::cli
