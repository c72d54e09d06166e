#include "trace/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>

#include "base/json.h"
#include "base/statistics.h"
#include "base/units.h"
#include "schedule/schedule.h"
#include "trace/steps.h"

namespace penstock::trace {
namespace {

using schedule::OpKind;

constexpr size_t kMostListed = 1000;  // actions that only one timeline has

struct Group {
  std::vector<double> durations_s;
  size_t order = 0;  // of first appearance
};

using Groups = std::unordered_map<std::string, Group>;  // "rank text"

std::string KeyOf(size_t rank, const std::string& text) {
  return fmt::format("rank {}: {}", rank, text);
}

Groups GroupSlices(const Timeline& timeline, int& steps) {
  std::vector<schedule::Edge> edges;
  for (const std::string& name : timeline.values)
    edges.push_back({name, schedule::EdgeKind::kValue, StageId(0), {}, 0});
  Groups groups;
  size_t most = 1;
  for (size_t r = 0; r < timeline.ranks.size(); ++r) {
    for (const Slice& slice : timeline.ranks[r].slices) {
      Group& group = groups[KeyOf(r, schedule::ActionText(slice.action, edges))];
      if (group.durations_s.empty())
        group.order = groups.size();
      group.durations_s.push_back(slice.end_s - slice.start_s);
      if (IsWork(slice.action.kind))
        most = std::max(most, group.durations_s.size());
    }
  }
  steps = static_cast<int>(most);
  return groups;
}

void SumKinds(const Timeline& timeline, bool measured, int steps,
              std::map<std::pair<int, int>, KindDifference>& sums) {
  for (size_t r = 0; r < timeline.ranks.size(); ++r) {
    std::map<int, std::pair<int64_t, double>> counts;
    for (const Slice& slice : timeline.ranks[r].slices) {
      auto& [count, seconds] = counts[static_cast<int>(slice.action.kind)];
      ++count;
      seconds += slice.end_s - slice.start_s;
    }
    for (const auto& [kind, sum] : counts) {
      KindDifference& row = sums[{static_cast<int>(r), kind}];
      row.rank = static_cast<int>(r);
      row.kind = static_cast<OpKind>(kind);
      const auto per_step =
          static_cast<int64_t>(std::llround(static_cast<double>(sum.first) / steps));
      (measured ? row.measured_count : row.planned_count) = per_step;
      (measured ? row.measured_s : row.planned_s) = sum.second / steps;
    }
  }
}

std::string Percent(double planned, double measured) {
  if (planned <= 0)
    return "";
  return fmt::format("{:+.1f} %", 100 * (measured / planned - 1));
}

// What one step of a timeline is: of several training steps the median one, else all of them
// together, to be divided by their number.
struct PerStep {
  PerStep(const Timeline& timeline, int& steps, int& number) : steps_(StepsOf(timeline)) {
    one_ = &timeline;
    parts_ = steps;
    if (steps_.size() > 1) {
      one_ = &MedianStep(steps_);
      parts_ = 1;
      steps = static_cast<int>(steps_.size());
      number = StepNumber(*one_);
    }
  }

  const Timeline& timeline() const { return *one_; }

  int parts() const { return parts_; }

  double seconds() const { return (one_->end_s - one_->begin_s) / parts_; }

  Account account() const {
    Account account = AccountOf(*one_);
    account.span_s /= parts_;
    for (RankAccount& rank : account.ranks) {
      Bubble& bubble = rank.bubble;
      for (double* part :
           {&rank.busy_s, &rank.idle_s, &bubble.fill_s, &bubble.drain_s, &bubble.imbalance_s,
            &bubble.communication_s, &bubble.barrier_s, &bubble.other_s}) {
        *part /= parts_;
      }
    }
    return account;
  }

 private:
  std::vector<Timeline> steps_;
  const Timeline* one_;
  int parts_;
};

std::string StepsText(int steps, int median_step) {
  std::string text = fmt::format("{} step{}", steps, steps == 1 ? "" : "s");
  if (median_step >= 0) {
    text += fmt::format(", the median one is step {}", median_step);
  }
  return text;
}

}  // namespace

Comparison Compare(const Timeline& planned, const Timeline& measured) {
  Comparison out;
  out.planned_name = planned.name;
  out.measured_name = measured.name;
  const Groups plan = GroupSlices(planned, out.planned_steps);
  const Groups run = GroupSlices(measured, out.measured_steps);
  const PerStep plan_step(planned, out.planned_steps, out.planned_median_step);
  const PerStep run_step(measured, out.measured_steps, out.measured_median_step);
  out.planned_step_s = plan_step.seconds();
  out.measured_step_s = run_step.seconds();
  std::vector<std::pair<size_t, const std::string*>> order;
  for (const auto& [key, group] : plan)
    order.emplace_back(group.order, &key);
  std::sort(order.begin(), order.end());
  for (const auto& [position, key] : order) {
    const auto it = run.find(*key);
    if (it == run.end()) {
      if (out.only_planned.size() < kMostListed)
        out.only_planned.push_back(*key);
      continue;
    }
    ActionDifference row;
    row.rank = std::atoi(key->c_str() + 5);
    row.action = key->substr(key->find(": ") + 2);
    row.planned_s = Median(plan.at(*key).durations_s);
    row.measured_s = Median(it->second.durations_s);
    row.count = static_cast<int64_t>(it->second.durations_s.size());
    out.actions.push_back(std::move(row));
  }
  for (const auto& [key, group] : run) {
    if (!plan.contains(key) && out.only_measured.size() < kMostListed)
      out.only_measured.push_back(key);
  }
  std::sort(out.only_measured.begin(), out.only_measured.end());
  std::map<std::pair<int, int>, KindDifference> sums;
  SumKinds(plan_step.timeline(), false, plan_step.parts(), sums);
  SumKinds(run_step.timeline(), true, run_step.parts(), sums);
  for (const auto& [key, row] : sums)
    out.kinds.push_back(row);
  out.planned_account = plan_step.account();
  out.measured_account = run_step.account();
  return out;
}

Json ComparisonJson(const Comparison& comparison) {
  auto ratio = [](double planned, double measured) {
    return planned > 0 ? Json(measured / planned) : Json(nullptr);
  };
  Json kinds = Json::array();
  for (const KindDifference& row : comparison.kinds) {
    kinds.push_back(Json{{"rank", row.rank},
                         {"kind", schedule::OpKindText(row.kind)},
                         {"planned_count", row.planned_count},
                         {"measured_count", row.measured_count},
                         {"planned_s", row.planned_s},
                         {"measured_s", row.measured_s},
                         {"ratio", ratio(row.planned_s, row.measured_s)}});
  }
  Json actions = Json::array();
  for (const ActionDifference& row : comparison.actions) {
    actions.push_back(Json{{"rank", row.rank},
                           {"action", row.action},
                           {"planned_s", row.planned_s},
                           {"measured_s", row.measured_s},
                           {"ratio", ratio(row.planned_s, row.measured_s)},
                           {"count", row.count}});
  }
  auto side = [](const std::string& name, int steps, int median_step, double step_s,
                 const Account& account) {
    Json ranks = Json::array();
    for (const RankAccount& rank : account.ranks) {
      ranks.push_back(Json{
          {"busy_s", rank.busy_s}, {"idle_s", rank.idle_s}, {"bubble", BubbleJson(rank.bubble)}});
    }
    return Json{{"name", name},
                {"steps", steps},
                {"median_step", median_step < 0 ? Json(nullptr) : Json(median_step)},
                {"step_s", step_s},
                {"bubble_ratio", account.bubble_ratio},
                {"ranks", std::move(ranks)}};
  };
  return Json{{"planned", side(comparison.planned_name, comparison.planned_steps,
                               comparison.planned_median_step, comparison.planned_step_s,
                               comparison.planned_account)},
              {"measured", side(comparison.measured_name, comparison.measured_steps,
                                comparison.measured_median_step, comparison.measured_step_s,
                                comparison.measured_account)},
              {"step_ratio", ratio(comparison.planned_step_s, comparison.measured_step_s)},
              {"kinds", std::move(kinds)},
              {"actions", std::move(actions)},
              {"only_planned", comparison.only_planned},
              {"only_measured", comparison.only_measured}};
}

namespace {

void AppendIdle(std::string& out, const Comparison& comparison) {
  out += fmt::format("\n{:<8}{:<10}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}\n", "rank", "",
                     "busy", "fill", "drain", "imbalance", "messages", "barrier", "other");
  auto line = [&](const std::string& rank, const char* word, const Account& account, size_t r) {
    if (r >= account.ranks.size())
      return;
    const RankAccount& a = account.ranks[r];
    out += fmt::format("{:<8}{:<10}", rank, word);
    for (const double seconds : {a.busy_s, a.bubble.fill_s, a.bubble.drain_s, a.bubble.imbalance_s,
                                 a.bubble.communication_s, a.bubble.barrier_s, a.bubble.other_s}) {
      out += fmt::format("{:>12}", FormatSeconds(seconds));
    }
    out += "\n";
  };
  const size_t ranks =
      std::max(comparison.planned_account.ranks.size(), comparison.measured_account.ranks.size());
  for (size_t r = 0; r < ranks; ++r) {
    line(fmt::format("{}", r), "planned", comparison.planned_account, r);
    line("", "measured", comparison.measured_account, r);
  }
}

}  // namespace

std::string ComparisonText(const Comparison& comparison, int most_actions) {
  std::string out =
      fmt::format("step      planned {:>10} ({}, {})\n          measured {:>9} ({}, {})  {}\n\n",
                  FormatSeconds(comparison.planned_step_s), comparison.planned_name,
                  StepsText(comparison.planned_steps, comparison.planned_median_step),
                  FormatSeconds(comparison.measured_step_s), comparison.measured_name,
                  StepsText(comparison.measured_steps, comparison.measured_median_step),
                  Percent(comparison.planned_step_s, comparison.measured_step_s));
  out += fmt::format("{:<8}{:<14}{:>8}{:>14}{:>14}{:>12}\n", "rank", "kind", "count", "planned",
                     "measured", "");
  for (const KindDifference& row : comparison.kinds) {
    const std::string count = row.planned_count == row.measured_count
                                  ? fmt::format("{}", row.planned_count)
                                  : fmt::format("{}|{}", row.planned_count, row.measured_count);
    out += fmt::format("{:<8}{:<14}{:>8}{:>14}{:>14}{:>12}\n", row.rank,
                       schedule::OpKindText(row.kind), count, FormatSeconds(row.planned_s),
                       FormatSeconds(row.measured_s), Percent(row.planned_s, row.measured_s));
  }
  AppendIdle(out, comparison);
  std::vector<const ActionDifference*> worst;
  for (const ActionDifference& row : comparison.actions)
    worst.push_back(&row);
  std::stable_sort(worst.begin(), worst.end(),
                   [](const ActionDifference* a, const ActionDifference* b) {
                     return std::abs(a->difference_s()) > std::abs(b->difference_s());
                   });
  if (worst.size() > static_cast<size_t>(std::max(0, most_actions)))
    worst.resize(static_cast<size_t>(std::max(0, most_actions)));
  if (!worst.empty())
    out += fmt::format("\nactions that differ most (of {})\n", comparison.actions.size());
  for (const ActionDifference* row : worst) {
    out += fmt::format("{:<8}{:<14}{:>8}{:>14}{:>14}{:>12}\n", row->rank, row->action, row->count,
                       FormatSeconds(row->planned_s), FormatSeconds(row->measured_s),
                       Percent(row->planned_s, row->measured_s));
  }
  if (!comparison.only_planned.empty() || !comparison.only_measured.empty()) {
    out += fmt::format("\nonly planned: {}; only measured: {}\n",
                       Counted(comparison.only_planned.size(), "action"),
                       Counted(comparison.only_measured.size(), "action"));
  }
  return out;
}

}  // namespace penstock::trace
