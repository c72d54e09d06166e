#include "trace/bubble.h"

#include <cmath>

#include "base/json.h"

namespace penstock::trace {

RankAccount AccountOf(const RankTotals& totals, double begin_s, double end_s) {
  RankAccount account;
  const double span_s = std::max(0.0, end_s - begin_s);
  account.busy_s = std::min(totals.busy_s(), span_s);
  account.idle_s = span_s - account.busy_s;
  Bubble& bubble = account.bubble;
  if (totals.work_count() == 0) {
    bubble.fill_s = account.idle_s;
    return account;
  }
  bubble.fill_s = std::clamp(totals.first_start_s() - begin_s, 0.0, span_s);
  bubble.drain_s = std::clamp(end_s - totals.last_end_s(), 0.0, span_s);
  bubble.imbalance_s = totals.idle_s(WaitCause::kImbalance);
  bubble.communication_s = totals.idle_s(WaitCause::kCommunication);
  bubble.barrier_s = totals.idle_s(WaitCause::kBarrier);
  bubble.other_s = account.idle_s - bubble.Sum();
  // What rounding alone leaves is no cause of its own.
  if (std::abs(bubble.other_s) <= 1e-12 * span_s * static_cast<double>(totals.work_count() + 16)) {
    double* const parts[] = {&bubble.imbalance_s, &bubble.communication_s, &bubble.drain_s,
                             &bubble.fill_s};
    for (double* part : parts) {
      if (*part > std::abs(bubble.other_s)) {
        *part += bubble.other_s;
        bubble.other_s = 0;
        break;
      }
    }
  }
  return account;
}

Account AccountOf(const Timeline& timeline) {
  Account account;
  account.span_s = timeline.end_s - timeline.begin_s;
  double idle_s = 0;
  for (const RankTimeline& rank : timeline.ranks) {
    account.ranks.push_back(AccountOf(rank.totals, timeline.begin_s, timeline.end_s));
    idle_s += account.ranks.back().idle_s;
  }
  if (account.span_s > 0 && !timeline.ranks.empty())
    account.bubble_ratio = idle_s / (account.span_s * static_cast<double>(timeline.ranks.size()));
  return account;
}

Json BubbleJson(const Bubble& bubble) {
  return Json{{"fill_s", bubble.fill_s},           {"drain_s", bubble.drain_s},
              {"imbalance_s", bubble.imbalance_s}, {"communication_s", bubble.communication_s},
              {"barrier_s", bubble.barrier_s},     {"other_s", bubble.other_s}};
}

}  // namespace penstock::trace
