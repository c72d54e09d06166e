// A machine to plan for: one kind of device, how many reach each other over which links, what it
// costs. Read from a TOML file; every section says where its figures come from.
//
// The format stands in docs/planning.md. Times are seconds, sizes bytes, rates per second.

#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/toml.h"
#include "hw/curve.h"
#include "hw/engine.h"
#include "hw/precision.h"

namespace penstock::hw {

// What part of the data sheet's rates software reaches, for one kind of work. Fitted on measured
// rows that `fitted_on` names, or assumed (then `fitted_on` is empty).
struct Calibration {
  // Share of the peak rate that a matrix product reaches, over its floating-point operations (in
  // GFLOP). By precision where one was measured alone.
  Curve matrix_efficiency{0.75};
  std::map<Precision, Curve> matrix_efficiency_by_precision;
  double attention_efficiency = 0.5;   // of the peak rate: scores and weighted sums
  double memory_efficiency = 0.8;      // of the memory bandwidth
  double operation_overhead_s = 0;     // per operation that a step launches
  double layer_overhead_s = 0;         // per layer and step, beside its operations
  double fixed_per_step_s = 0;         // optimizer step, host, loader: once per step
  double exposed_data_parallel = 0.2;  // share of gradient communication that nothing hides
  double exposed_tensor_parallel = 1;  // share of tensor- and expert-parallel communication
  double exposed_hop = 1;              // share of pipeline hops
  bool skips_masked_attention = true;  // training: causal attention does half the work
  double attention_score_bytes = 0;    // moved through memory per score; 0: fused attention
  // Share of the rows between operations that passes memory: 0 where all of them stay on the chip.
  double activations_through_memory = 1;
  std::optional<double> memory_reserve_bytes;  // what this software keeps free; none: the device's
  std::vector<std::string> fitted_on;
  std::string source;

  // No score matrix is ever whole: nothing of it is kept for the backward pass, which makes the
  // scores again whatever the recompute mode. (Dao et al. 2022.)
  bool fused_attention() const { return attention_score_bytes == 0; }

  const Curve& MatrixEfficiency(Precision precision) const {
    const auto it = matrix_efficiency_by_precision.find(precision);
    return it == matrix_efficiency_by_precision.end() ? matrix_efficiency : it->second;
  }
};

struct Device {
  std::string name;
  double memory_bytes = 0;                 // nominal: what the device reports
  double memory_reserve_bytes = 0;         // kept free: contexts, fragmentation
  double memory_bandwidth = 0;             // bytes/s
  double power_w = 0;                      // board power; 0: not stated
  std::map<Precision, double> peak_flops;  // per second, dense
  std::string source;

  double usable_bytes() const { return memory_bytes - memory_reserve_bytes; }

  // Rate for products whose weights are stored as `stored`: its own where the device multiplies
  // such numbers, else that of the type they are widened to (fp4 -> fp8 -> bf16, int4 -> int8 ->
  // bf16, bf16 <-> fp16 -> fp32). Also gives that type.
  std::pair<Precision, double> Rate(Precision stored) const;
};

// One level of links. Level k joins `span` devices; each device sends `bandwidth` while it
// receives as much.
struct LinkLevel {
  std::string name;
  int64_t span = 0;                 // devices that reach each other over this level; 0: any number
  double latency_s = 0;             // one message
  double bandwidth = 0;             // bytes/s per device and direction
  double collective_latency_s = 0;  // of a collective over 2 devices, beside its bytes
  double collective_step_latency_s = 0;   // for each further doubling
  double collective_efficiency = 1;       // of the bandwidth, in collectives
  Curve message_s;                        // measured: seconds over bytes; may be empty
  std::map<int64_t, Curve> all_reduce_s;  // measured, by devices; seconds over bytes of one copy
  std::string source;
};

struct System {
  std::string name;
  std::string title;
  std::string path;
  Device device;
  std::vector<LinkLevel> links;  // innermost first; the last one has span 0
  double host_memory_bytes = 0;  // per device; 0: not stated
  std::string host_source;
  double price_usd_per_device_hour = 0;
  std::string price_source;
  Calibration inference;
  Calibration training;
  std::string provenance;  // of a calibrated file: machine, date, command
  // Set where the devices run this project's own engine, as it was measured: its tables are then
  // used instead of shares of the data sheet.
  std::optional<Engine> engine;

  // Devices that the fastest level beyond one device joins: the scale-up domain.
  int64_t domain() const { return links.front().span == 0 ? INT64_MAX : links.front().span; }

  // Lets the reserve of this kind of software stand in place of the device's, where it has one.
  void TakeReserve(const Calibration& calibration);

  // The innermost level that joins devices whose numbers differ by less than `extent`, counted from
  // a multiple of the level's span. REQUIRES: extent >= 1.
  const LinkLevel& LevelFor(int64_t extent) const;
};

// Errors: kNotFound (with near names), kCorruptData, kInvalidArgument naming file, line and key
// (unknown keys, values that cannot be: bandwidths over 1e15, levels whose span does not grow).
Result<System> ReadSystem(const std::string& name_or_path);
Result<System> ParseSystem(const TomlTable& file, const std::string& name);

}  // namespace penstock::hw
