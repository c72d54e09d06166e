// What the verbs that take a schedule share: a file or a generator's name, its numbers, costs and
// limits.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/verb.h"
#include "cost/cost_model.h"
#include "schedule/schedule.h"
#include "schedule/transport.h"
#include "sim/limit.h"
#include "sim/simulate.h"

namespace penstock::cli {

struct ScheduleFlags {
  std::string target;  // FILE or NAME
  std::optional<int> ranks;
  std::optional<int> micro_batches;
  std::optional<int> chunks;
  std::optional<int> slices;
};

// FILE | NAME as a positional, -p, -m, -v, --slices.
void AddScheduleFlags(Verb& verb, ScheduleFlags& flags, bool target_required);

// -p and -m, both given. Errors: kInvalidArgument naming the one that is missing or below 1.
Result<> NeedRanksAndMicroBatches(const ScheduleFlags& flags);

// Generates NAME or reads FILE, and proves it under `transport`. Errors: kNotFound (neither; with
// the nearest name), kCorruptData, kInvalidSchedule, kInvalidArgument (-p, -m, -v that contradict
// the file).
Result<schedule::Schedule> LoadSchedule(const ScheduleFlags& flags,
                                        const schedule::Transport& transport);

struct CostFlags {
  std::string cost;   // F=1,I=1,W=1,C=0
  std::string costs;  // TOML file
};

void AddCostFlags(Verb& verb, CostFlags& flags);
Result<cost::CostSource> LoadCosts(const CostFlags& flags);

struct TransportFlags {
  std::string kind = "credits";
  int credits = 1;
};

void AddTransportFlags(Verb& verb, TransportFlags& flags);

// --activation-limit: "8" or "8,7.5,6,5", in micro-batches of one rank's share; in bytes where a
// costs file gives activation_bytes. Without the flag the costs file's memory_bytes. Errors:
// kInvalidArgument.
Result<sim::ActivationLimit> LoadLimit(const std::string& text, const cost::CostSource& costs,
                                       int ranks);

// The JSON object of `penstock sim`, without the parts that a verb adds.
Json SimJson(const schedule::Schedule& schedule, const sim::SimResult& result);

// Summary and a line per rank for people.
std::string SimText(const schedule::Schedule& schedule, const sim::SimResult& result);

}  // namespace penstock::cli
