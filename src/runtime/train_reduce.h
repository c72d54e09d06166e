// Sums of gradients over the holders of the same weights, in one fixed order: a running sum goes
// from holder to holder, each adds its terms, and the total goes back to all. Pieces of it are on
// the way at the same time. Two holders of which the second brings one term share the work: each
// hands the other every second piece, adds its own to the ones it gets (a sum of two is the same
// bits either way) and hands the totals back.

#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "comm/channel.h"
#include "kernels/training.h"
#include "tensor/memory.h"
#include "tensor/tensor.h"

namespace penstock::runtime {

// One sum: who adds in which order. The same on all holders.
struct Reduction {
  std::vector<int32_t> ranks;  // channel rank of each place, neighbours differ
  std::vector<int32_t> terms;  // that each place adds
  int32_t first_edge = 0;      // lanes' numbers: EdgesOf(ranks.size()) from here on

  static int32_t EdgesOf(size_t places) { return static_cast<int32_t>(places); }

  bool Holds(int32_t rank) const;

  bool Shared() const { return ranks.size() == 2 && terms[1] == 1; }
};

// Adds a place with so many terms in the order; merges with the one before when it is of the same
// rank. Gives the place's index.
size_t AddPlace(Reduction& reduction, int32_t rank, int32_t terms);

// Bytes of message buffers and of scratch of one rank.
int64_t ReductionBufferBytes(const Reduction& reduction, int32_t rank, bool across_processes);
inline constexpr int64_t kReducePieceBytes = int64_t{1} << 18;

Result<> OpenReduction(const Reduction& reduction, comm::Channel& channel, MemoryAccount& account);

// What a rank brings: items of contiguous float32. All holders have the same items.
struct ReductionTerms {
  int64_t items = 0;
  // The terms of one of this rank's places, in order; at least one.
  std::function<std::vector<Tensor>(size_t place, int64_t item)> terms;
  // Where the total goes; may be a term of the first of this rank's places.
  std::function<Tensor(int64_t item)> total;
};

// Blocks until the total is there. `scratch`: kReducePieceBytes. `waited_s` grows by the seconds
// until the first of the others has come. Errors: those of the channel.
Result<> RunReduction(const Reduction& reduction, const ReductionTerms& terms, int64_t step,
                      comm::Channel& channel, kernels::TrainingDevice& device, Tensor scratch,
                      double deadline_s, double& waited_s);

}  // namespace penstock::runtime
