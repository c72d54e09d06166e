#include "sim/limit.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace penstock::sim {
namespace {

constexpr double kRounding = 1e-9;

}  // namespace

Result<ActivationLimit> ActivationLimit::Make(std::vector<double> amount, int ranks,
                                              bool in_bytes) {
  for (const double one : amount) {
    if (!(one > 0) || !std::isfinite(one)) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[sim.limit] activation limit {}, wanted numbers above 0", one);
    }
  }
  if (amount.size() == 1)
    amount.resize(static_cast<size_t>(ranks), amount[0]);
  if (!amount.empty() && amount.size() != static_cast<size_t>(ranks)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[sim.limit] {} activation limits, wanted one or one per rank ({})",
                     amount.size(), ranks);
  }
  ActivationLimit limit;
  limit.amount_ = std::move(amount);
  limit.in_bytes_ = in_bytes;
  return limit;
}

bool ActivationLimit::Allows(const std::vector<Peak>& peaks) const {
  for (size_t r = 0; r < std::min(amount_.size(), peaks.size()); ++r) {
    const double held = in_bytes_ ? static_cast<double>(peaks[r].bytes) : peaks[r].shares;
    if (held > amount_[r] * (1 + kRounding))
      return false;
  }
  return true;
}

bool ActivationLimit::Allows(const SimResult& result) const {
  for (size_t r = 0; r < std::min(amount_.size(), result.ranks.size()); ++r) {
    const RankResult& rank = result.ranks[r];
    const double held =
        in_bytes_ ? static_cast<double>(rank.peak_activation_bytes) : rank.peak_activations;
    if (held > amount_[r] * (1 + kRounding))
      return false;
  }
  return true;
}

std::vector<double> ActivationLimit::ExactShares() const {
  return in_bytes_ ? std::vector<double>() : amount_;
}

std::vector<double> ActivationLimit::SafeShares(const schedule::Schedule& schedule,
                                                const cost::CostModel& costs) const {
  if (!in_bytes_)
    return amount_;
  std::vector<double> shares;
  for (size_t r = 0; r < amount_.size(); ++r) {
    int64_t largest = 0;
    for (int d = 0; d < schedule.placement.num_directions(); ++d) {
      for (const StageId s : schedule.placement.StagesOf(RankId(static_cast<int32_t>(r)), d)) {
        largest = std::max(largest, costs.stages[static_cast<size_t>(s.value())].activation_bytes);
      }
    }
    const double all = schedule.total_micro_batches();
    const double fit =
        largest > 0 ? std::floor(amount_[r] / static_cast<double>(largest)) / schedule.chunks()
                    : all;
    shares.push_back(std::min(fit, all));
  }
  return shares;
}

}  // namespace penstock::sim
