// One way to spread a model over devices, and the plan that it gives.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cost/roofline.h"
#include "hw/precision.h"

namespace penstock::plan {

enum class Recompute : uint8_t { kNone, kSelective, kFull };

std::string_view RecomputeName(Recompute recompute);

// Devices are numbered so that tensor-parallel ranks are neighbours, then context ranks; in
// training then replicas, then pipeline ranks (Megatron's order); in inference pipeline ranks
// before replicas, since replicas never speak.
struct Layout {
  int64_t dp = 1;
  int64_t tp = 1;
  int64_t pp = 1;
  int64_t ep = 1;  // experts are dealt over this many of the dp x cp x tp devices of a stage
  int64_t cp = 1;
  int64_t chunks = 1;
  std::vector<int32_t> cut;  // units of each of the pp x chunks stages: embedding, layers, head
  int64_t micro_batch = 1;   // sequences
  int64_t micro_batches = 1;
  std::string schedule = "1f1b";
  Recompute recompute = Recompute::kNone;
  bool sequence_parallel = false;
  int zero = 0;
  hw::Precision precision = hw::Precision::kBf16;
  hw::Precision kv_precision = hw::Precision::kBf16;
  bool as_stored = false;            // inference: matrices in the types of the model's file
  int64_t prefill_chunk_tokens = 0;  // inference: rows of one prefill micro-batch
  bool replicas_outermost = false;   // inference

  cost::Formats formats() const {
    cost::Formats formats{precision, kv_precision};
    formats.as_stored = as_stored;
    return formats;
  }

  int64_t devices() const { return dp * tp * pp * cp; }

  int64_t stages() const { return pp * chunks; }

  int64_t hop_distance() const { return tp * cp * (replicas_outermost ? 1 : dp); }

  cost::Sharding sharding() const {
    return {tp, ep, cp, tp, replicas_outermost ? pp : 1, sequence_parallel};
  }
};

// The pipeline rank of a stage: chunks of the V schedules come back the way they went.
int64_t RankOfStage(const Layout& layout, int64_t stage);

// Decoder layers of each stage of a cut over `units` = layers + 2.
std::vector<int64_t> DecoderLayers(const std::vector<int32_t>& cut);

// "tp 8, pp 4, dp 2": what differs from 1.
std::string LayoutText(const Layout& layout);

// Of the fullest device, in bytes.
struct MemoryAccount {
  double weights = 0;
  double kv = 0;
  double activations = 0;
  double decoder_activations = 0;  // training: of which decoder layers keep
  double gradients = 0;
  double optimizer = 0;
  double workspace = 0;
  double messages = 0;  // of this project's engine; elsewhere part of the workspace
  double capacity = 0;  // nominal
  double reserve = 0;

  double peak() const {
    return weights + kv + activations + gradients + optimizer + workspace + messages;
  }

  bool fits() const { return peak() <= capacity - reserve; }
};

struct Plan {
  Layout layout;
  MemoryAccount memory;                 // of the fullest device
  std::vector<MemoryAccount> per_rank;  // of one device of each pipeline rank
  double step_s = 0;
  double compute_s = 0;
  double memory_s = 0;
  double operations_s = 0;  // of the busiest device: the larger of both, operation by operation
  double start_s = 0;       // of the busiest device: starting operations
  double exposed_s = 0;     // of the busiest device: collectives that nothing hides
  double communication_s = 0;
  double gradient_s = 0;   // training: exchange between replicas that nothing hides
  double optimizer_s = 0;  // training
  double bubble_s = 0;
  double bubble_ratio = 0;
  double mfu = 0;
  double ttft_s = 0;
  double tpot_s = 0;
  double prefill_tokens_per_s = 0;  // inference, together: prompts until the last first token
  double decode_tokens_per_s = 0;   // and generated tokens after
  bool shares_cores = false;        // more devices than the calibrated machine has cores for
  double tokens_per_s = 0;
  double tokens_per_s_per_device = 0;
  double cost_per_million_tokens = 0;
  double energy_j_per_token = 0;
  double concurrent_sequences = 0;  // inference: live at once
  double utilisation = 0;           // of the busiest stage while decoding
  std::string
      bound_by;  // "capacity", "memory time", "compute", "links", "bubbles", "latency target",
                 // "overhead": starting operations and the host's fixed time per step
  std::vector<double> stage_s;  // decode step or F + B of each stage
  double hop_s = 0;
  bool simulated = false;
  std::string refused;  // a reason beside memory and latency targets
  // What the arithmetic is made of, one line each, for whoever follows it with pencil and paper.
  std::vector<std::string> arithmetic;
};

// "busiest device per lap: operations 7.31 ms (the larger of arithmetic, in all 833 us, and memory,
// in all 7.27 ms, one by one) + starting them 3.08 ms + exposed links 5.98 ms": parts that add up.
std::string BusiestLine(std::string_view per, const Plan& plan);

struct Rejected {
  Plan plan;
  std::string why;
};

// What --fix names; the rest is searched.
struct Fixed {
  std::optional<int64_t> dp, tp, pp, ep, cp, chunks, micro_batch, zero, prefill_chunk_tokens;
  std::optional<std::string> schedule;
  std::optional<Recompute> recompute;
  std::optional<bool> sequence_parallel;
  std::optional<hw::Precision> precision;
  std::optional<hw::Precision> kv_precision;
  std::vector<hw::Precision> precisions;  // several: each is searched
  std::vector<int64_t> layers;            // decoder layers of each stage; empty: searched
};

// "tp=8,pp=4,layers=20/20/20/20". `decoder_layers` must be the sum of `layers`.
// Errors: kInvalidArgument (unknown keys with the nearest one, values that cannot be, sums).
Result<Fixed> ParseFixed(std::string_view text, int64_t decoder_layers);

}  // namespace penstock::plan
