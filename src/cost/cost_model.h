// What one action of a schedule costs: seconds on its rank, and bytes on links and in memory.
//
// Plain data, so that a planner, a benchmark, a calibration or a file can fill it. Durations are
// per stage and kind of action; a table may scale them per micro-batch (ragged lengths) or per
// sequence slice (causal attention). The simulator multiplies nothing else.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "schedule/action.h"
#include "schedule/schedule.h"

namespace penstock::cost {

// Of one stage and one whole micro-batch.
struct StageCost {
  double f_s = 0;
  double i_s = 0;
  double w_s = 0;                // B takes i_s + w_s
  double r_s = 0;                // recompute
  double optimizer_s = 0;        // of one step
  int64_t activation_bytes = 0;  // saved from F to the end of B or W; 0: not known
  int64_t output_bytes = 0;      // sent to the next stage forward; 0: not known
  int64_t gradient_bytes = 0;    // sent to the previous stage backward; 0: not known

  friend bool operator==(const StageCost&, const StageCost&) = default;
};

// From one rank to another. A message of b bytes that is handed over at t arrives at
// t + latency_s + b / bytes_per_s; with `occupied` it first waits until the message before has left
// the link (which takes b / bytes_per_s).
struct LinkCost {
  double latency_s = 0;
  double bytes_per_s = 0;  // 0: bytes take no time
  bool occupied = false;

  // b / bytes_per_s, 0 where either is not known.
  double TransferSeconds(int64_t bytes) const {
    return bytes_per_s > 0 ? static_cast<double>(bytes) / bytes_per_s : 0.0;
  }

  friend bool operator==(const LinkCost&, const LinkCost&) = default;
};

struct CostModel {
  std::vector<StageCost> stages;                  // one per stage of the schedule
  LinkCost link;                                  // between any two different ranks
  std::map<std::pair<int, int>, LinkCost> links;  // (from, to): exceptions
  std::vector<double> micro_batch_scale;          // per micro-batch of a step; empty: 1
  std::vector<double> slice_scale;                // per slice, summing to 1; empty: 1 / slices
  std::vector<int64_t> memory_bytes;              // for activations, per rank; empty: no limit

  const LinkCost& Link(RankId from, RankId to) const {
    if (!links.empty()) {
      const auto it = links.find({from.value(), to.value()});
      if (it != links.end())
        return it->second;
    }
    return link;
  }

  // Seconds of one action of this kind on a whole micro-batch, before scales; 0 for kinds that take
  // no time.
  double StageSeconds(schedule::OpKind kind, StageId stage) const;
};

// Times of one RANK's whole share of the layers for one micro-batch, and of one hop: what
// `--cost F=1,I=1,W=1,C=0` says. A chunk takes 1 / v of it.
struct UniformCost {
  double f_s = 1;
  double i_s = 1;
  double w_s = 1;
  double r_s = -1;  // recompute; negative: as f_s
  double c_s = 0;   // latency of a hop between different ranks; occupies neither rank nor link
};

// "F=1,I=1,W=1,C=0": any order, missing letters keep their defaults (1, 1, 1, 0); R for recompute,
// B=2 sets I and W to half each. Errors: kInvalidArgument (unknown letter, a number that is
// negative or not finite, twice the same).
Result<UniformCost> ParseUniformCost(std::string_view text);

// The same for every rank. REQUIRES: chunks >= 1.
CostModel MakeUniformCost(const UniformCost& cost, int stages, int chunks);

// A costs file as read: its entries are consecutive parts of the model, not yet the stages of one
// schedule.
struct CostFile {
  std::string source;
  CostModel model;  // `stages` holds the parts in forward order
};

// Errors: kNotFound, kCorruptData (not TOML), kInvalidArgument (a key or value that can't be
// right), each naming the file and the key. Grammar in docs/formats.md.
Result<CostFile> ReadCostFile(const std::string& path);
Result<CostFile> ParseCostFile(std::string_view text, const std::string& source);

// The text of a costs file that reads back as `model`. `comment` goes to the first lines.
std::string FormatCostFile(const CostModel& model, std::string_view comment = {});

// The costs of a schedule's stages. With as many parts as stages they are taken as they are; a
// multiple of the stages: consecutive parts are added; a divisor: each part is split evenly over
// consecutive stages. Errors: kInvalidArgument (no such relation; memory limits or links for ranks
// that the schedule does not have).
Result<CostModel> FitCosts(const CostFile& file, const schedule::Schedule& schedule);

// What a user gave: uniform costs or a file; made to fit any schedule.
struct CostSource {
  UniformCost uniform;
  std::optional<CostFile> file;  // wins over `uniform`

  Result<CostModel> For(const schedule::Schedule& schedule) const;
};

// One entry per stage, no negative or non-finite number, scales of the right length. Errors:
// kInvalidArgument.
Result<> CheckCosts(const CostModel& model, const schedule::Schedule& schedule);

}  // namespace penstock::cost
