// A limit of saved activations per rank, in shares (micro-batches of one rank's whole part) or in
// bytes.

#pragma once

#include <vector>

#include "base/result.h"
#include "cost/cost_model.h"
#include "schedule/schedule.h"
#include "sim/peaks.h"
#include "sim/simulate.h"

namespace penstock::sim {

class ActivationLimit {
 public:
  // No limit.
  ActivationLimit() = default;

  // `amount`: none, one for all ranks, or one per rank. Errors: kInvalidArgument (another number of
  // them, one that is not above 0).
  static Result<ActivationLimit> Make(std::vector<double> amount, int ranks, bool in_bytes = false);

  bool none() const { return amount_.empty(); }

  bool in_bytes() const { return in_bytes_; }

  // One per rank, or empty: no limit.
  const std::vector<double>& amounts() const { return amount_; }

  bool Allows(const std::vector<Peak>& peaks) const;
  bool Allows(const SimResult& result) const;

  // Shares per rank; empty without a limit and for one in bytes. For bounds.
  std::vector<double> ExactShares() const;

  // Shares per rank that keep to the limit whichever stages they are of: a limit in bytes is
  // divided by the rank's largest stage. Empty without a limit.
  std::vector<double> SafeShares(const schedule::Schedule& schedule,
                                 const cost::CostModel& costs) const;

 private:
  std::vector<double> amount_;  // one per rank, or empty
  bool in_bytes_ = false;
};

}  // namespace penstock::sim
