// What this project's own engine takes on one machine, as `calibrate` measured it: seconds of
// matrix products by weight type, shape and rows, of attention, of everything between them, and of
// messages. Part of a system file: the sections [engine], [[engine.product]] and
// [[engine.attention]].
//
// Two figures stand for each operation: while the other devices of the machine are idle (`alone`),
// and while all of them do the same (`together`): they share memory.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/toml.h"
#include "hw/curve.h"
#include "hw/precision.h"

namespace penstock::hw {

// Seconds while the other devices are idle, and while all are busy.
struct Shared {
  double alone_s = 0;
  double together_s = 0;

  // Of `busy` devices at work among `all`: straight between the two.
  double At(double busy, double all) const {
    return all <= 1 ? alone_s : alone_s + (together_s - alone_s) * (busy - 1) / (all - 1);
  }

  Shared& operator+=(const Shared& o) {
    alone_s += o.alone_s;
    together_s += o.together_s;
    return *this;
  }

  friend Shared operator*(double f, const Shared& s) { return {f * s.alone_s, f * s.together_s}; }
};

// [rows, inputs] times packed weights [outputs, inputs]: seconds over rows. Straight between
// measured rows; beyond the last one the last piece goes on.
struct ProductTable {
  Precision weights = Precision::kBf16;
  double outputs = 0;
  double inputs = 0;
  Curve alone_s;
  Curve together_s;

  Shared At(double rows) const { return {alone_s.At(rows), together_s.At(rows)}; }
};

// Attention of query heads that share keys in groups of `group`: seconds per (query, key) pair,
// head and number of a head (scores and weighted sums together), over the rows of one sequence's
// slice.
struct AttentionTable {
  double group = 1;
  double numbers = 128;  // of a head: score and value width together
  Shared slice;          // of one slice of one layer, beside its pairs
  Curve pair_alone_s;
  Curve pair_together_s;
};

struct Engine {
  std::string instruction_set;
  std::string version;
  int64_t threads = 1;  // of one device
  int64_t cores = 1;    // that the devices of one machine share
  std::vector<ProductTable> products;
  std::vector<AttentionTable> attention;
  // Everything else: per operation, per number that it reads or writes, and per logit that is
  // sampled from.
  Shared operation;
  Shared element;
  Shared logit;
  // Times as long as their share of the cores says, where devices share cores.
  double sharing = 1;
  // Idle core time of each micro-batch that a stage starts while all cores are busy: seconds over
  // the number of stages that share them. Empty: not measured, none.
  Curve hand_over_s;
  double step_s = 0;      // of one step plan, on the first device: deciding, results
  double announce_s = 0;  // of one step plan, on the first device, for each further device
  Curve message_s;        // between threads of one process: seconds over bytes
  Curve mpi_message_s;    // between processes of one machine; empty: not measured
  // What `threads` other than the calibrated number change: rows [threads, rows, times as fast].
  std::vector<std::vector<double>> thread_speedup;
  std::string source;

  // Devices of one machine that have cores of their own.
  int64_t devices() const { return cores / threads > 1 ? cores / threads : 1; }

  // Seconds of one product of any shape: per weight as the measured shapes nearest to it take.
  // Weight types that were not measured are priced as the nearest that was (fp8 as int8).
  Shared ProductSeconds(Precision weights, double outputs, double inputs, double rows) const;

  // Of one slice of `rows` rows with `pairs` visible (query, key) pairs, `heads` query heads of
  // `numbers` (score and value width together).
  Shared AttentionSeconds(double heads, double kv_heads, double numbers, double rows,
                          double pairs) const;

  // What a stage loses at each start where `stages` share the cores; 0 where it was not measured.
  double HandOver(double stages) const { return hand_over_s.empty() ? 0 : hand_over_s.At(stages); }

  // How much faster than the calibrated number of threads a device of `threads` does a product of
  // `rows`; 1 where it was not measured.
  double Speedup(int64_t threads, double rows) const;
};

// The section [engine] of a system file. Errors: kInvalidArgument naming file, line and key.
Result<Engine> ReadEngine(const TomlTable& table);

// The text that reads back as `engine`.
std::string FormatEngine(const Engine& engine);

}  // namespace penstock::hw
