// The question that a plan answers: this model, on this machine, for this work.

#pragma once

#include <functional>
#include <vector>

#include "base/result.h"
#include "cost/profile.h"
#include "hw/system.h"
#include "plan/layout.h"
#include "plan/workload.h"

namespace penstock::plan {

// What the engine's own arenas would hold, per stage: from the headers of a model's file, so that a
// plan for this machine and a run on it can't differ. Null where only a configuration is known.
using EngineMemory =
    std::function<Result<std::vector<MemoryAccount>>(const Layout& layout, int64_t sequences)>;

struct Context {
  const cost::ModelProfile* model = nullptr;
  const hw::System* system = nullptr;
  const Workload* workload = nullptr;
  EngineMemory engine_memory = nullptr;  // used where the system has an engine
  bool across_processes = false;         // stages are processes

  const hw::Calibration& calibration() const {
    return workload->mode == Mode::kTraining ? system->training : system->inference;
  }

  cost::Machine machine() const { return {system, &calibration()}; }
};

// Why a layout cannot be, whatever it costs: "" where it can. Divisibility is not asked for where
// padding or uneven shares work; heads are.
std::string Impossible(const Context& context, const Layout& layout);

}  // namespace penstock::plan
