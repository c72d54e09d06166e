// The question that a plan answers: this model, on this machine, for this work.

#pragma once

#include "cost/profile.h"
#include "hw/system.h"
#include "plan/layout.h"
#include "plan/workload.h"

namespace penstock::plan {

struct Context {
  const cost::ModelProfile* model = nullptr;
  const hw::System* system = nullptr;
  const Workload* workload = nullptr;

  const hw::Calibration& calibration() const {
    return workload->mode == Mode::kTraining ? system->training : system->inference;
  }

  cost::Machine machine() const { return {system, &calibration()}; }
};

// Why a layout cannot be, whatever it costs: "" where it can. Divisibility is not asked for where
// padding or uneven shares work; heads are.
std::string Impossible(const Context& context, const Layout& layout);

}  // namespace penstock::plan
