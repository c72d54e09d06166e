// A few lines of timing for the tests of this folder only (the simulator lives in sim/ and may not
// be included here): runs a compute-only schedule by free data flow in program order.

#pragma once

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "schedule/schedule.h"

namespace penstock::schedule {

struct TestCosts {
  double forward = 1, input = 1, weight = 1;  // one rank's whole share
  double hop = 0;
};

struct TestTiming {
  double makespan = -1;      // -1: the schedule cannot run
  std::vector<double> peak;  // saved (stage, micro-batch) pairs in shares
  std::vector<double> busy;
};

// One isolated step, or `steps` one after the other without a barrier (makespan is then the end of
// the last).
inline TestTiming RunForTest(const Schedule& s, const TestCosts& costs = {}, int steps = 1) {
  const double v = s.chunks();
  const double share = 1.0 / (v * s.slices);
  std::map<std::tuple<int, int, int, int, int>, double>
      done;  // step, kind (0 F, 1 I, 2 W), stage, micro-batch, slice
  auto at = [&](int step, int kind, int stage, int mb, int slice) {
    const auto it = done.find({step, kind, stage, mb, slice});
    return it == done.end() ? -1.0 : it->second;
  };
  const auto p = static_cast<size_t>(s.num_ranks());
  std::vector<size_t> next(p, 0);
  std::vector<double> clock(p, 0);
  TestTiming out;
  out.peak.assign(p, 0);
  out.busy.assign(p, 0);
  std::vector<double> live(p, 0);
  bool progress = true;
  while (progress) {
    progress = false;
    for (size_t r = 0; r < p; ++r) {
      while (next[r] < s.ranks[r].size() * static_cast<size_t>(steps)) {
        const int step = static_cast<int>(next[r] / s.ranks[r].size());
        const Action& a = s.ranks[r][next[r] % s.ranks[r].size()];
        const int stage = a.stage.value();
        const int mb = a.micro_batch.value();
        double start = clock[r];
        bool ready = true;
        auto need = [&](int kind, int st, int slice) {
          const double t = at(step, kind, st, mb, slice);
          if (t < 0) {
            ready = false;
            return;
          }
          const bool far = s.RankOf(StageId(st), a.micro_batch) != RankId(static_cast<int>(r));
          start = std::max(start, t + (far ? costs.hop : 0));
        };
        double duration = 0;
        if (a.kind == OpKind::kForward) {
          if (stage > 0)
            need(0, stage - 1, a.slice);
          if (a.slice > 0)
            need(0, stage, a.slice - 1);
          duration = costs.forward;
        } else if (a.kind == OpKind::kBackward || a.kind == OpKind::kBackwardInput) {
          for (int k = 0; k < s.slices; ++k)
            need(0, stage, k);
          if (stage + 1 < s.num_stages())
            need(1, stage + 1, a.slice);
          duration = costs.input + (a.kind == OpKind::kBackward ? costs.weight : 0);
        } else if (a.kind == OpKind::kBackwardWeight) {
          need(1, stage, a.slice);
          duration = costs.weight;
        }
        if (!ready)
          break;
        duration *= share;
        clock[r] = start + duration;
        out.busy[r] += duration;
        if (a.kind == OpKind::kForward) {
          live[r] += share;
          out.peak[r] = std::max(out.peak[r], live[r]);
          done[{step, 0, stage, mb, a.slice}] = clock[r];
        } else {
          if (a.kind != OpKind::kBackwardWeight)
            done[{step, 1, stage, mb, a.slice}] = clock[r];
          if (a.kind != OpKind::kBackwardInput)
            live[r] -= share;
        }
        ++next[r];
        progress = true;
      }
    }
  }
  for (size_t r = 0; r < p; ++r) {
    if (next[r] < s.ranks[r].size() * static_cast<size_t>(steps))
      return out;
  }
  out.makespan = *std::max_element(clock.begin(), clock.end());
  return out;
}

}  // namespace penstock::schedule
