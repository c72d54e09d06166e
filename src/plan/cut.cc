#include "plan/cut.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "model/cut_search.h"

namespace penstock::plan {
namespace {

class Cutter {
 public:
  explicit Cutter(const CutProblem& problem) : p_(problem) {
    const size_t n = p_.seconds.size();
    sums_.resize(n + 1);
    fixed_.resize(n + 1);
    live_.resize(n + 1);
    for (size_t i = 0; i < n; ++i) {
      sums_[i + 1] = sums_[i] + p_.seconds[i];
      fixed_[i + 1] = fixed_[i] + (p_.fixed_bytes.empty() ? 0 : p_.fixed_bytes[i]);
      live_[i + 1] = live_[i] + (p_.live_bytes.empty() ? 0 : p_.live_bytes[i]);
    }
  }

  int32_t units() const { return static_cast<int32_t>(p_.seconds.size()); }

  double Seconds(int32_t from, int32_t to) const {
    return sums_[static_cast<size_t>(to)] - sums_[static_cast<size_t>(from)];
  }

  bool Holds(int32_t stage, int32_t from, int32_t to) const {
    if (p_.capacity_bytes <= 0) {
      return true;
    }
    const double times = p_.live.empty() ? 1 : p_.live[static_cast<size_t>(stage)];
    const double came =
        p_.crossing_bytes.empty() || from == 0
            ? 0
            : p_.crossing_bytes[static_cast<size_t>(from)] * p_.live_per_crossing_byte;
    const double bytes =
        fixed_[static_cast<size_t>(to)] - fixed_[static_cast<size_t>(from)] +
        times * (came + live_[static_cast<size_t>(to)] - live_[static_cast<size_t>(from)]);
    return bytes <= p_.capacity_bytes;
  }

  // With what its boundaries take.
  double Load(int32_t from, int32_t to) const {
    double seconds = Seconds(from, to);
    for (const int32_t b : {from, to}) {
      if (!p_.crossing_bytes.empty() && b > 0 && b < units()) {
        seconds += p_.seconds_per_byte * p_.crossing_bytes[static_cast<size_t>(b)];
      }
    }
    return seconds;
  }

  bool Fits(int32_t stage, int32_t from, int32_t to, double bound) const {
    return Seconds(from, to) <= bound && Holds(stage, from, to);
  }

  // Furthest end of a stage that starts at `from`, by bisection: both limits grow with the end.
  int32_t Reach(int32_t stage, int32_t from, double bound) const {
    int32_t low = from;
    int32_t high = units();
    while (low < high) {
      const int32_t middle = low + (high - low + 1) / 2;
      if (Fits(stage, from, middle, bound)) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

  // Stages after `stage` that want one unit each, while there are enough.
  int32_t LastEnd(int32_t stage) const {
    const int32_t after = p_.stages - 1 - stage;
    return std::max(units() - after, 0);
  }

  bool Covers(double bound, double* slowest) const {
    int32_t at = 0;
    double worst = 0;
    for (int32_t s = 0; s < p_.stages; ++s) {
      int32_t end = Reach(s, at, bound);
      if (units() >= p_.stages) {
        end = std::min(end, std::max(LastEnd(s), at));
      }
      worst = std::max(worst, Seconds(at, end));
      at = end;
    }
    *slowest = worst;
    return at == units();
  }

  // Among the cuts under `bound` one that spreads evenly: each end as near to its share as the
  // stages on its left and right allow.
  std::vector<int32_t> Spread(double bound) const {
    const auto stages = static_cast<size_t>(p_.stages);
    std::vector<int32_t> earliest(stages + 1, units());
    for (int32_t s = p_.stages - 1; s >= 0; --s) {
      int32_t from = earliest[static_cast<size_t>(s) + 1];
      while (from > 0 && Fits(s, from - 1, earliest[static_cast<size_t>(s) + 1], bound)) {
        --from;
      }
      earliest[static_cast<size_t>(s)] = from;
    }
    std::vector<int32_t> sizes(stages);
    int32_t at = 0;
    for (int32_t s = 0; s < p_.stages; ++s) {
      int32_t low = std::max(at, earliest[static_cast<size_t>(s) + 1]);
      int32_t high = Reach(s, at, bound);
      if (units() >= p_.stages) {
        low = std::max(low, at + 1);
        high = std::min(high, std::max(LastEnd(s), at));
      }
      const double share = Seconds(at, units()) / static_cast<double>(p_.stages - s);
      int32_t end = at;
      while (end < units() &&
             Seconds(at, end) + 0.5 * p_.seconds[static_cast<size_t>(end)] <= share) {
        ++end;
      }
      end = std::clamp(end, std::min(low, high), high);
      if (s == p_.stages - 1) {
        end = units();
      }
      sizes[static_cast<size_t>(s)] = end - at;
      at = end;
    }
    return sizes;
  }

 private:
  const CutProblem& p_;
  std::vector<double> sums_, fixed_, live_;
};

// Where boundaries differ in what crosses.
std::optional<CutResult> FindCutByCrossing(const CutProblem& problem, const Cutter& cutter) {
  const model::CutWeights weights{{problem.seconds.begin(), problem.seconds.end()},
                                  {problem.crossing_bytes.begin(), problem.crossing_bytes.end()},
                                  problem.seconds_per_byte};
  model::StageFits fits;
  if (problem.capacity_bytes > 0) {
    fits = [&](int32_t stage, int32_t from, int32_t to) { return cutter.Holds(stage, from, to); };
  }
  auto starts = model::FindBalancedCut(weights, problem.stages, fits);
  if (!starts) {
    return std::nullopt;
  }
  starts->push_back(cutter.units());
  CutResult result;
  for (size_t s = 0; s + 1 < starts->size(); ++s) {
    const int32_t from = (*starts)[s];
    const int32_t to = (*starts)[s + 1];
    result.units.push_back(to - from);
    result.bottleneck_s = std::max(result.bottleneck_s, cutter.Load(from, to));
  }
  return result;
}

}  // namespace

std::optional<CutResult> FindCut(const CutProblem& problem) {
  PENSTOCK_DCHECK(problem.stages >= 1 && !problem.seconds.empty(), "stages and units");
  const Cutter cutter(problem);
  if (!problem.crossing_bytes.empty() && cutter.units() >= problem.stages) {
    return FindCutByCrossing(problem, cutter);
  }
  const double total = cutter.Seconds(0, cutter.units());
  double high = 0;
  if (!cutter.Covers(total * (1 + 1e-12), &high)) {
    return std::nullopt;
  }
  double low = std::max(*std::max_element(problem.seconds.begin(), problem.seconds.end()),
                        total / static_cast<double>(problem.stages)) *
               (1 - 1e-12);
  double slowest = 0;
  if (cutter.Covers(low * (1 + 2e-12), &slowest)) {
    high = slowest;
  } else {
    while (high - low > 1e-8 * high) {
      const double middle = 0.5 * (low + high);
      if (cutter.Covers(middle, &slowest)) {
        high = std::min(slowest, middle);
      } else {
        low = middle;
      }
    }
  }
  CutResult result;
  result.units = cutter.Spread(high * (1 + 1e-12));
  int32_t at = 0;
  for (const int32_t size : result.units) {
    result.bottleneck_s = std::max(result.bottleneck_s, cutter.Seconds(at, at + size));
    at += size;
  }
  return result;
}

std::optional<CutResult> FindCutExhaustively(const CutProblem& problem) {
  const Cutter cutter(problem);
  std::optional<CutResult> best;
  std::vector<int32_t> ends(static_cast<size_t>(problem.stages), 0);
  // Counts through all non-decreasing ends; the last one is fixed.
  ends.back() = cutter.units();
  while (true) {
    double worst = 0;
    bool good = true;
    int32_t at = 0;
    for (int32_t s = 0; s < problem.stages && good; ++s) {
      const int32_t end = ends[static_cast<size_t>(s)];
      good = end >= at && cutter.Holds(s, at, end) && (cutter.units() < problem.stages || end > at);
      worst = std::max(worst, good ? cutter.Load(at, end) : 0);
      at = end;
    }
    if (good && (!best || worst < best->bottleneck_s)) {
      best = CutResult{};
      best->bottleneck_s = worst;
      for (size_t s = 0; s < ends.size(); ++s) {
        best->units.push_back(ends[s] - (s == 0 ? 0 : ends[s - 1]));
      }
    }
    size_t digit = 0;
    while (digit + 1 < ends.size() && ++ends[digit] > cutter.units()) {
      ends[digit++] = 0;
    }
    if (digit + 1 >= ends.size()) {
      return best;
    }
  }
}

}  // namespace penstock::plan
