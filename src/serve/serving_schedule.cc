#include "serve/serving_schedule.h"

#include "runtime/rank_executor.h"
#include "schedule/passes.h"
#include "schedule/registry.h"
#include "schedule/validate.h"

namespace penstock::serve {

Result<schedule::Schedule> ServingSchedule(int32_t stages, int32_t groups) {
  schedule::GeneratorOptions generator;
  generator.ranks = stages;
  generator.micro_batches = groups;
  PENSTOCK_TRY_ASSIGN(const schedule::Schedule ring, schedule::Generate("decode-ring", generator));
  schedule::LowerOptions lower;
  lower.credits = runtime::kForwardCredits;
  PENSTOCK_TRY_ASSIGN(schedule::Schedule lowered, schedule::AddCommunication(ring, lower));
  schedule::ValidateOptions proof;
  proof.transport = {schedule::TransportKind::kCredits, runtime::kForwardCredits};
  PENSTOCK_TRY(schedule::Prove(lowered, proof));
  return lowered;
}

}  // namespace penstock::serve
