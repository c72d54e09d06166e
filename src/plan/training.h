// Training: the time of one optimizer step of a layout, and its memory.
//
// step = micro-batches on the busiest rank + what the schedule leaves idle + gradients that nothing
// hides + optimizer + fixed. Closed forms rank candidates (Narayanan et al. 2021, Qi et al. 2023);
// Simulate replaces the idle part by the event simulator's for the schedule itself.

#pragma once

#include <memory>
#include <string>

#include "plan/context.h"
#include "schedule/schedule.h"
#include "trace/timeline.h"

namespace penstock::plan {

// Times of one stage for one micro-batch.
struct StageStep {
  double f_s = 0;
  double i_s = 0;  // gradient of the input, with what is recomputed
  double w_s = 0;
};

// Simulated, a schedule is at most this much better than its closed form (as a factor of tokens/s
// that is under 1), as far as is known: what lies further below the best need not be simulated.
constexpr double kSimulationMargin = 0.95;

struct LeastPlan {
  double step_s = 0;
  double peak_bytes = 0;  // of the fullest device
};

class TrainingPricer {
 public:
  explicit TrainingPricer(const Context& context);
  ~TrainingPricer();

  // Completes layout.cut and micro_batches and fills the figures by closed forms. False where the
  // layout is rejected; Why says it in words.
  bool Price(Plan& plan);
  std::string Why(const Plan& plan) const;

  // A bound that no schedule, cut or ZeRO level of this layout's tp, cp, ep, pp, dp, micro_batch
  // and recomputation goes below: the work of all layers dealt out evenly.
  double LeastStepSeconds(const Layout& layout);

  // What Price finds for this layout cannot be less, however it is cut: the closed forms for stages
  // that are all alike, and what all ranks hold of the model dealt out evenly.
  LeastPlan Least(const Layout& layout);

  // Cuts a priced plan again with what crosses each boundary weighed as in model/cut_search.h, and
  // prices it; leaves it as it is where that does not fit, or all boundaries are alike.
  void WeighCrossing(Plan& plan);

  // Replaces step_s, bubble_s, activations and what follows from them by the simulated schedule's.
  // Returns "" or why the layout is rejected after all. Errors: a schedule that cannot be generated
  // for this layout.
  Result<std::string> Simulate(Plan& plan);

  // F, I and W of each stage. REQUIRES: layout.cut set.
  std::vector<StageStep> Stages(const Layout& layout);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What `devices` cost that make so many tokens per second together; 0 without a price.
double UsdPerMillionTokens(const hw::System& system, int64_t devices, double tokens_per_s);

// The schedule that a training plan would run, with its layers' costs. Errors as above.
Result<schedule::Schedule> ScheduleOf(const Layout& layout);

void ExplainTraining(const Context& context, Plan& plan);

}  // namespace penstock::plan
