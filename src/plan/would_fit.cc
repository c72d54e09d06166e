#include "plan/would_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/units.h"

namespace penstock::plan {
namespace {

constexpr int64_t kMostDevices = 1 << 20;
constexpr int64_t kBudget = 100000;  // layouts: about a second

// Counts the layouts that it looks at.
class Searcher {
 public:
  Searcher(const Context& context, SearchOptions options)
      : context_(context), options_(std::move(options)) {
    options_.simulate = false;
  }

  std::optional<Plan> Fits(int64_t devices) {
    options_.devices = devices;
    const Result<SearchResult> found = Search(context_, options_);
    if (!found.ok()) {
      return std::nullopt;
    }
    looked_ += found.value().evaluated;
    if (found.value().plans.empty()) {
      return std::nullopt;
    }
    return found.value().plans.front();
  }

  bool tired() const { return looked_ > kBudget; }

 private:
  const Context& context_;
  SearchOptions options_;
  int64_t looked_ = 0;
};

std::string Where(const Plan& plan) {
  return fmt::format("{} ({}, {} of {} on the fullest)", LayoutText(plan.layout),
                     Counted(plan.layout.devices(), "device"), FormatBytes(plan.memory.peak()),
                     FormatBytes(plan.memory.capacity - plan.memory.reserve));
}

// The widest of the narrower types that fits.
std::optional<std::string> NarrowerWeights(const Context& context, const SearchOptions& options) {
  const InferenceWorkload& asked = context.workload->inference;
  if (context.workload->mode != Mode::kInference || options.fixed.precision ||
      !options.fixed.precisions.empty()) {
    return std::nullopt;
  }
  for (const hw::Precision precision :
       {hw::Precision::kBf16, hw::Precision::kFp8, hw::Precision::kInt4}) {
    if (hw::PrecisionBytes(precision) >= hw::PrecisionBytes(asked.precision)) {
      continue;
    }
    Workload narrower = *context.workload;
    narrower.inference.precision = precision;
    narrower.inference.as_stored = false;
    Context changed = context;
    changed.workload = &narrower;
    if (const std::optional<Plan> plan = Searcher(changed, options).Fits(options.devices)) {
      return fmt::format("With {} weights (-W precision={}) it fits: {}.",
                         hw::PrecisionName(precision), hw::PrecisionName(precision), Where(*plan));
    }
  }
  return std::nullopt;
}

// Devices at which the nearest layout's bytes would be dealt out evenly.
int64_t Guess(const SearchOptions& options, const Rejected& nearest) {
  const MemoryAccount& m = nearest.plan.memory;
  const double times = m.peak() / std::max(1.0, m.capacity - m.reserve);
  const double guess = std::ceil(times * static_cast<double>(nearest.plan.layout.devices()));
  return std::clamp(static_cast<int64_t>(guess), options.devices + 1, kMostDevices);
}

// The fewest devices: from a guess outwards, then by bisection between the last number that did
// not fit and the first that did.
std::optional<std::string> MoreDevices(const Context& context, const SearchOptions& options,
                                       const Rejected& nearest) {
  if (options.devices >= kMostDevices) {
    return std::nullopt;
  }
  Searcher searcher(context, options);
  int64_t without = options.devices;
  int64_t with = Guess(options, nearest);
  std::optional<Plan> plan = searcher.Fits(with);
  for (int step = 0; step < 6 && !plan && with < kMostDevices; ++step) {
    without = with;
    with = std::min(kMostDevices, with + std::max<int64_t>(1, with / 2));
    plan = searcher.Fits(with);
  }
  if (!plan) {
    return std::nullopt;
  }
  with = plan->layout.devices();
  while (with - without > 1 && !searcher.tired()) {
    const int64_t middle = without + (with - without) / 2;
    if (const std::optional<Plan> there = searcher.Fits(middle)) {
      with = there->layout.devices();
      plan = there;
    } else {
      without = middle;
    }
  }
  return fmt::format("With {} of this kind{} it fits: {}.", Counted(with, "device"),
                     with - without > 1 ? " (perhaps with fewer)" : "", Where(*plan));
}

}  // namespace

std::vector<std::string> WouldFit(const Context& context, const SearchOptions& options,
                                  const Rejected& nearest) {
  std::vector<std::string> lines;
  for (const auto& line :
       {NarrowerWeights(context, options), MoreDevices(context, options, nearest)}) {
    if (line) {
      lines.push_back(*line);
    }
  }
  return lines;
}

}  // namespace penstock::plan
