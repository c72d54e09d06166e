#include "plan/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <set>

#include "base/units.h"
#include "plan/inference.h"
#include "plan/training.h"

namespace penstock::plan {
namespace {

struct Knob {
  std::string name;
  std::string unit;
  double value = 0;
  std::function<void(hw::System&, Workload&, double)> set;
  std::function<double(double)> take;  // the value that is taken for a wanted one; none: itself

  double At(double factor) const { return take ? take(value * factor) : value * factor; }
};

// The work first.
std::vector<Knob> Knobs(const Context& context) {
  const hw::System& s = *context.system;
  std::vector<Knob> knobs;
  const InferenceWorkload& w = context.workload->inference;
  if (context.workload->mode == Mode::kTraining) {
    const auto batch = static_cast<double>(context.workload->training.global_batch);
    // In powers of two of today's, so that it still divides over replicas.
    const auto take = [batch](double v) {
      return std::max(1.0, std::floor(batch * std::exp2(std::round(std::log2(v / batch)))));
    };
    knobs.push_back({"global batch", "sequences", batch,
                     [](hw::System&, Workload& work, double v) {
                       work.training.global_batch = static_cast<int64_t>(v);
                     },
                     take});
  } else if (w.arrivals()) {
    knobs.push_back(
        {"arrivals",
         "requests/s",
         w.requests_per_s,
         [](hw::System&, Workload& work, double v) { work.inference.requests_per_s = v; },
         {}});
  } else {
    knobs.push_back({"sequences", "", w.sequences,
                     [](hw::System&, Workload& work, double v) { work.inference.sequences = v; },
                     [](double v) { return std::max(1.0, std::round(v)); }});
  }
  knobs.push_back({"memory per device",
                   "bytes",
                   s.device.memory_bytes,
                   [](hw::System& system, Workload&, double v) {
                     const double kept =
                         system.device.memory_reserve_bytes / system.device.memory_bytes;
                     system.device.memory_bytes = v;
                     system.device.memory_reserve_bytes = v * kept;
                   },
                   {}});
  if (!s.engine) {  // whose measured times hold their memory's rate
    knobs.push_back(
        {"memory bandwidth",
         "bytes/s",
         s.device.memory_bandwidth,
         [](hw::System& system, Workload&, double v) { system.device.memory_bandwidth = v; },
         {}});
  }
  for (size_t l = 0; l < s.links.size(); ++l) {
    knobs.push_back({"bandwidth of " + s.links[l].name,
                     "bytes/s",
                     s.links[l].bandwidth,
                     [l](hw::System& system, Workload&, double v) {
                       system.links[l].bandwidth = v;
                       system.links[l].message_s = {};
                       system.links[l].all_reduce_s.clear();
                     },
                     {}});
    if (context.workload->mode == Mode::kInference) {
      knobs.push_back({"latency of collectives over " + s.links[l].name,
                       "s",
                       s.links[l].collective_latency_s,
                       [l](hw::System& system, Workload&, double v) {
                         const double old = system.links[l].collective_latency_s;
                         system.links[l].collective_latency_s = v;
                         if (old > 0) {
                           system.links[l].collective_step_latency_s *= v / old;
                         }
                         system.links[l].all_reduce_s.clear();
                       },
                       {}});
    }
  }
  return knobs;
}

std::string Kind(const Plan& plan) {
  return fmt::format("{} ({})", plan.layout.pp > 1 ? "pipelining" : "no pipelining",
                     LayoutText(plan.layout));
}

class Finder {
 public:
  Finder(const Context& context, const SearchOptions& options, const SearchResult& result)
      : context_(context),
        options_(options),
        training_(context.workload->mode == Mode::kTraining),
        staged_(result.plans.front().layout.pp > 1) {
    options_.only_best = true;
    left_ = training_ ? 60000 : (context.system->engine ? 100 : 20000);
    // The best with and without stages, and those that only just did not fit.
    int count[2][2] = {{0, 0}, {0, 0}};
    for (const Plan& plan : result.plans) {
      if (count[0][plan.layout.pp > 1]++ < 6) {
        Add(plan.layout);
      }
    }
    for (const Rejected& rejected : result.rejected) {
      if (rejected.plan.memory.peak() > 0 && count[1][rejected.plan.layout.pp > 1]++ < 10) {
        Add(rejected.plan.layout);
      }
    }
  }

  std::optional<Sensitivity> Find(const Knob& knob);

 private:
  // Where the verdict turns: from `inside` to `outside`, as factors of the constant.
  struct Turn {
    double inside = 1;
    double outside = 1;
    Plan then;
  };

  bool Add(Layout layout);

  bool Differs(const Plan& plan) const { return (plan.layout.pp > 1) != staged_; }

  std::optional<Plan> Priced(const Knob& knob, double factor);
  std::optional<Plan> Searched(const Knob& knob, double factor, bool* joined);
  std::optional<Turn> Towards(const Knob& knob, bool up);
  std::optional<Turn> Nearest(const Knob& knob);
  template <class F>
  auto With(const Knob& knob, double factor, const F& f);

  const Context& context_;
  SearchOptions options_;
  bool training_;
  bool staged_;
  std::vector<Layout> layouts_;
  std::set<std::string> known_;
  int64_t left_ = 0;  // layouts that searches may still look at
};

bool Finder::Add(Layout layout) {
  layout.cut.clear();
  if (!training_) {
    layout.micro_batch = 0;
    layout.prefill_chunk_tokens = options_.fixed.prefill_chunk_tokens.value_or(0);
  }
  const std::string name = fmt::format(
      "{} {} {} {} {} {} {} {} {} {} {} {}", layout.dp, layout.tp, layout.pp, layout.ep, layout.cp,
      layout.chunks, layout.micro_batch, training_ ? 0 : layout.micro_batches, layout.schedule,
      RecomputeName(layout.recompute), layout.zero, hw::PrecisionName(layout.precision));
  if (!known_.insert(name).second) {
    return false;
  }
  layouts_.push_back(std::move(layout));
  return true;
}

template <class F>
auto Finder::With(const Knob& knob, double factor, const F& f) {
  hw::System system = *context_.system;
  Workload workload = *context_.workload;
  knob.set(system, workload, knob.At(factor));
  Context changed = context_;
  changed.system = &system;
  changed.workload = &workload;
  return f(changed);
}

// The best of the layouts at hand under the changed constant.
std::optional<Plan> Finder::Priced(const Knob& knob, double factor) {
  return With(knob, factor, [&](const Context& changed) -> std::optional<Plan> {
    std::vector<Plan> plans;
    InferencePricer inference(changed);
    TrainingPricer training(changed);
    for (const Layout& layout : layouts_) {
      Plan plan;
      plan.layout = layout;
      const bool good = training_ ? Impossible(changed, layout).empty() && training.Price(plan)
                                  : inference.Price(plan);
      if (good) {
        plans.push_back(std::move(plan));
      }
    }
    SortPlans(plans);
    int simulated = 0;
    const double least = plans.empty() ? 0 : kSimulationMargin * plans.front().tokens_per_s;
    for (size_t i = 0; training_ && i < plans.size() && simulated < 3; ++i) {
      if (plans[i].layout.pp > 1 && plans[i].tokens_per_s >= least &&
          plans[i].layout.stages() * plans[i].layout.micro_batches <= 20000) {
        ++simulated;
        const Result<std::string> why = training.Simulate(plans[i]);
        if (why.ok() && !why.value().empty()) {
          plans.erase(plans.begin() + static_cast<std::ptrdiff_t>(i--));
        }
      }
    }
    SortPlans(plans);
    return plans.empty() ? std::nullopt : std::optional<Plan>(plans.front());
  });
}

// The best of all layouts there; it and the best of the other kind join the layouts at hand.
std::optional<Plan> Finder::Searched(const Knob& knob, double factor, bool* joined) {
  return With(knob, factor, [&](const Context& changed) -> std::optional<Plan> {
    const Result<SearchResult> found = Search(changed, options_);
    if (!found.ok()) {
      return std::nullopt;
    }
    left_ -= found.value().evaluated;
    if (found.value().plans.empty()) {
      return std::nullopt;
    }
    const std::vector<Plan>& plans = found.value().plans;
    int count[2] = {0, 0};
    for (const Plan& plan : plans) {
      if (count[plan.layout.pp > 1]++ < 2 && Add(plan.layout)) {
        *joined = true;
      }
    }
    return plans.front();
  });
}

std::optional<Finder::Turn> Finder::Towards(const Knob& knob, bool up) {
  Turn turn;
  for (const double step : {1.25, 1.6, 2.0, 3.0, 4.0, 8.0, 16.0}) {
    turn.outside = up ? step : 1 / step;
    const std::optional<Plan> there = Priced(knob, turn.outside);
    if (!there) {
      return std::nullopt;  // nothing fits there: the verdict does not turn, it ends
    }
    if (!Differs(*there)) {
      turn.inside = turn.outside;
      continue;
    }
    turn.then = *there;
    for (int i = 0; i < 10 && knob.At(turn.inside) != knob.At(turn.outside); ++i) {
      const double middle = std::sqrt(turn.inside * turn.outside);
      const std::optional<Plan> m = Priced(knob, middle);
      if (m && !Differs(*m)) {
        turn.inside = middle;
      } else {
        turn.outside = middle;
        turn.then = m ? *m : turn.then;
      }
    }
    return turn;
  }
  return std::nullopt;
}

std::optional<Finder::Turn> Finder::Nearest(const Knob& knob) {
  const std::optional<Turn> up = Towards(knob, true);
  const std::optional<Turn> down = Towards(knob, false);
  if (up && down) {
    return std::log(up->outside) < -std::log(down->outside) ? up : down;
  }
  return up ? up : down;
}

std::optional<Sensitivity> Finder::Find(const Knob& knob) {
  if (!(knob.value > 0)) {
    return std::nullopt;
  }
  const auto answer = [&](const Turn& turn) {
    return Sensitivity{knob.name, knob.unit, knob.value, knob.At(turn.outside), Kind(turn.then)};
  };
  bool joined = false;
  for (const double factor : {1.0 / 16, 16.0}) {  // layouts of far away
    if (left_ > 0 && !context_.system->engine) {
      Searched(knob, factor, &joined);
    }
  }
  std::optional<Turn> turn;
  for (int round = 0; round < 6; ++round) {
    turn = Nearest(knob);
    if (!turn) {
      return std::nullopt;
    }
    if (left_ <= 0) {
      return std::nullopt;  // a value that no search confirms is not said
    }
    // A step of a hundredth away from the value on both sides; a whole one for counts.
    const bool up = turn->outside > 1;
    const double aside = up ? 1.01 : 1 / 1.01;
    joined = false;
    const std::optional<Plan> behind = Searched(knob, turn->outside * aside, &joined);
    const bool turned = behind && Differs(*behind);
    if (turned && knob.At(turn->inside) == knob.value) {
      return answer(*turn);
    }
    if (turned) {
      const std::optional<Plan> before = Searched(knob, turn->inside / aside, &joined);
      if (before && !Differs(*before)) {
        return answer(*turn);
      }
    }
    if (!joined) {
      break;  // the same layouts, another answer: only the search knows
    }
  }
  // By searches alone, as long as they may go on.
  const bool up = turn->outside > 1;
  Turn exact;
  bool found = false;
  for (const double step : {1.1, 1.25, 1.6, 2.0, 3.0, 4.0, 8.0, 16.0}) {
    const double factor = up ? step : 1 / step;
    if (left_ <= 0) {
      return std::nullopt;
    }
    const std::optional<Plan> there = Searched(knob, factor, &joined);
    if (!there) {
      return std::nullopt;
    }
    if (Differs(*there)) {
      exact.outside = factor;
      exact.then = *there;
      found = true;
      break;
    }
    exact.inside = factor;
  }
  for (int i = 0; found && i < 6 && left_ > 0; ++i) {
    const double middle = std::sqrt(exact.inside * exact.outside);
    const std::optional<Plan> m = Searched(knob, middle, &joined);
    if (m && !Differs(*m)) {
      exact.inside = middle;
    } else {
      exact.outside = middle;
      exact.then = m ? *m : exact.then;
    }
  }
  return found ? std::optional<Sensitivity>(answer(exact)) : std::nullopt;
}

}  // namespace

std::vector<Sensitivity> FindSensitivity(const Context& context, const SearchOptions& options,
                                         const SearchResult& result) {
  std::vector<Sensitivity> out;
  Finder finder(context, options, result);
  for (const Knob& knob : Knobs(context)) {
    if (const std::optional<Sensitivity> found = finder.Find(knob)) {
      out.push_back(*found);
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const Sensitivity& a, const Sensitivity& b) {
    return std::abs(std::log(a.flips_at / a.value)) < std::abs(std::log(b.flips_at / b.value));
  });
  return out;
}

std::string SensitivityText(const Sensitivity& s) {
  const auto show = [&](double v) {
    if (s.unit == "bytes") {
      return FormatBytes(v);
    }
    if (s.unit == "bytes/s") {
      return FormatBytes(v) + "/s";
    }
    if (s.unit == "s") {
      return FormatSeconds(v);
    }
    return fmt::format("{:.4g}{}{}", v, s.unit.empty() ? "" : " ", s.unit);
  };
  return fmt::format("{}: {} now; at {} {}", s.constant, show(s.value), show(s.flips_at), s.then);
}

}  // namespace penstock::plan
