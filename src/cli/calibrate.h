// The measurements behind `penstock calibrate`: what this machine's kernels and channels take.
//
// Every figure is the lower quartile of repeated samples: what else ran on the machine makes some
// samples longer and none shorter.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "hw/engine.h"
#include "kernels/device.h"

namespace penstock::cli {

// Says what is being measured, and how far it is (0 to 1).
using MeasureProgress = std::function<void(const std::string& what, double part)>;

struct ProductShape {
  kernels::WeightType type = kernels::WeightType::kInt8;
  int64_t outputs = 0;
  int64_t inputs = 0;
};

struct AttentionShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
};

struct MeasureOptions {
  int threads = 1;         // of one device
  int devices = 1;         // that have cores of their own
  double sample_s = 0.04;  // spent per figure
  bool quick = false;      // fewer rows and samples
};

hw::Precision PrecisionOf(kernels::WeightType type);

// The lower quartile. REQUIRES: not empty.
double Quartile(std::vector<double> samples);

// Calls `body` until `seconds` have passed, at least three times; the lower quartile of a call.
double TimeOf(double seconds, const std::function<void()>& body);

// Products of packed weights that lie in memory, not in a cache.
Result<std::vector<hw::ProductTable>> MeasureProducts(const std::vector<ProductShape>& shapes,
                                                      const MeasureOptions& options,
                                                      const MeasureProgress& progress);

// Rows [threads, rows, times as fast as options.threads], for each number of threads up to `cores`.
Result<std::vector<std::vector<double>>> MeasureThreadScaling(const ProductShape& shape, int cores,
                                                              const MeasureOptions& options);

// How much longer work takes than its share of the cores says when twice as many devices run as
// have cores: caches are filled anew, threads are switched. 1 or more.
Result<double> MeasureSharing(const ProductShape& shape, const MeasureOptions& options);

Result<std::vector<hw::AttentionTable>> MeasureAttention(const std::vector<AttentionShape>& shapes,
                                                         const MeasureOptions& options);

// Seconds over bytes of a message between threads, from the sender's call until the receiver has
// copied it, while the receiver slept. `send_s` is what a small send takes of its sender.
Result<hw::Curve> MeasureThreadMessages(bool quick, double* send_s);

// What a hand-over costs where `ranks` threads with as many micro-batches in flight share `cores`:
// idle core time per piece of work, in seconds, 0 or more. Linux places a woken thread once and
// looks for idle cores rarely, so that one can be idle while a thread waits on another.
Result<double> MeasureHandOver(int ranks, int cores, bool quick);

// Messages between processes: starts mpirun with this program. Empty where there is no mpirun (or
// no MPI in this build); `why` says so then.
hw::Curve MeasureMpiMessages(bool quick, std::string* why);
// What the processes that it starts do: rank 0 prints the rows as JSON.
int RunMpiProbe(bool quick);

// Runs random models through the whole engine and puts down what products, attention and messages
// do not explain to operations, numbers and steps. REQUIRES: everything else of `engine` is
// measured.
Result<> MeasureRest(const MeasureOptions& options, hw::Engine& engine);

}  // namespace penstock::cli
