// Drawing a simulated schedule: what `schedule` and `sim` share.

#pragma once

#include <string>

#include "base/result.h"
#include "cli/verb.h"
#include "cost/cost_model.h"
#include "schedule/schedule.h"
#include "trace/timeline.h"

namespace penstock::cli {

struct PictureFlags {
  double from_s = 0;
  double to_s = -1;  // negative: the end
};

// --from, --to.
void AddPictureFlags(Verb& verb, PictureFlags& flags);

// The step as a text grid, in colour and as wide as the terminal where there is one.
// Errors: kInvalidArgument (an empty part).
Result<std::string> DrawGrid(const trace::Timeline& timeline, const schedule::Schedule& schedule,
                             const PictureFlags& flags);

Result<std::string> DrawSvg(const trace::Timeline& timeline, const schedule::Schedule& schedule,
                            const cost::CostModel& costs, const PictureFlags& flags);

// Activations over time, in bytes where the costs know them.
void AddCounters(trace::Timeline& timeline, const schedule::Schedule& schedule,
                 const cost::CostModel& costs);

// `penstock schedule --format svg|trace|grid`: the schedule under these costs (uniform ones of 1
// second each by default), as text. Errors: those of the simulation; kInvalidArgument (another
// format).
Result<std::string> RenderSchedule(const schedule::Schedule& schedule, std::string_view format,
                                   const cost::CostSource& costs = {},
                                   const PictureFlags& flags = {});

}  // namespace penstock::cli
