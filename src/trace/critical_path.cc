#include "trace/critical_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/json.h"
#include "base/units.h"
#include "schedule/schedule.h"

namespace penstock::trace {
namespace {

using schedule::OpKind;

class PathFinder {
 public:
  explicit PathFinder(const Timeline& timeline)
      : timeline_(timeline),
        tolerance_s_(1e-9 * std::max(1e-9, timeline.end_s - timeline.begin_s)) {}

  std::vector<PathStep> Find() {
    int rank = -1;
    double end_s = 0;
    for (size_t r = 0; r < timeline_.ranks.size(); ++r) {
      const auto& slices = timeline_.ranks[r].slices;
      if (!slices.empty() && (rank < 0 || slices.back().end_s > end_s)) {
        rank = static_cast<int>(r);
        end_s = slices.back().end_s;
      }
    }
    if (rank < 0)
      return {};
    int64_t index =
        static_cast<int64_t>(timeline_.ranks[static_cast<size_t>(rank)].slices.size()) - 1;
    std::vector<PathStep> path;
    const int64_t most = timeline_.CountSlices() + 1;
    while (rank >= 0 && index >= 0 && static_cast<int64_t>(path.size()) < most) {
      const Slice& slice = SliceAt(rank, index);
      PathStep step;
      step.rank = RankId(rank);
      step.slice = slice;
      const int before_rank = rank;
      const double start_s = slice.start_s;
      Before(rank, index);
      if (rank >= 0 && index >= 0) {
        step.lead_s = std::max(0.0, start_s - SliceAt(rank, index).end_s);
        step.hop = rank != before_rank;
      }
      path.push_back(step);
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

 private:
  const Slice& SliceAt(int rank, int64_t index) const {
    return timeline_.ranks[static_cast<size_t>(rank)].slices[static_cast<size_t>(index)];
  }

  // Moves to the slice that the one at (rank, index) followed; rank -1: none.
  void Before(int& rank, int64_t& index) const {
    const double start_s = SliceAt(rank, index).start_s;
    if (index > 0 && SliceAt(rank, index - 1).end_s >= start_s - tolerance_s_) {
      --index;
      return;
    }
    int from = -1;
    double at_s = start_s;
    if (!Awaited(rank, start_s, from, at_s)) {
      --index;  // no wait on record
      return;
    }
    // The last slice of that rank to end by then.
    const auto& slices = timeline_.ranks[static_cast<size_t>(from)].slices;
    auto it = std::upper_bound(slices.begin(), slices.end(), at_s + tolerance_s_,
                               [](double time, const Slice& slice) { return time < slice.end_s; });
    if (it == slices.begin() || (from == rank && it - slices.begin() > index)) {
      --index;
      return;
    }
    rank = from;
    index = it - slices.begin() - 1;
  }

  // The wait that ended at `start_s`: the rank that it was for, and when that rank handed over.
  bool Awaited(int rank, double start_s, int& from, double& at_s) const {
    const auto& waits = timeline_.ranks[static_cast<size_t>(rank)].waits;
    auto it = std::upper_bound(waits.begin(), waits.end(), start_s + tolerance_s_,
                               [](double time, const Wait& wait) { return time < wait.end_s; });
    if (it == waits.begin() || (--it)->end_s < start_s - tolerance_s_ ||
        !it->awaited_rank.valid() ||
        static_cast<size_t>(it->awaited_rank.value()) >= timeline_.ranks.size()) {
      return false;
    }
    from = it->awaited_rank.value();
    at_s = it->end_s;
    if (it->cause == WaitCause::kCommunication)
      at_s = SentAt(rank, from, *it);
    return true;
  }

  double SentAt(int rank, int from, const Wait& wait) const {
    const auto& received = timeline_.ranks[static_cast<size_t>(rank)].received;
    auto it = std::lower_bound(received.begin(), received.end(), wait.end_s - tolerance_s_,
                               [](const Message& m, double time) { return m.arrived_s < time; });
    for (; it != received.end() && it->arrived_s <= wait.end_s + tolerance_s_; ++it) {
      if (it->from.value() == from && it->action.micro_batch == wait.awaited.micro_batch)
        return it->sent_s;
    }
    return wait.start_s;
  }

  const Timeline& timeline_;
  double tolerance_s_;
};

}  // namespace

std::vector<PathStep> CriticalPath(const Timeline& timeline) {
  return PathFinder(timeline).Find();
}

namespace {

std::vector<schedule::Edge> EdgesOf(const Timeline& timeline) {
  std::vector<schedule::Edge> edges;
  for (const std::string& name : timeline.values)
    edges.push_back({name, schedule::EdgeKind::kValue, StageId(0), {}, 0});
  return edges;
}

}  // namespace

std::string CriticalPathChain(const Timeline& timeline, const std::vector<PathStep>& path,
                              size_t width, size_t most) {
  const std::vector<schedule::Edge> edges = EdgesOf(timeline);
  std::string out;
  std::string line;
  auto word = [&](std::string_view text) {
    if (!line.empty() && line.size() + 1 + text.size() > width) {
      out += line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + std::string(text);
  };
  const size_t skip_from = path.size() > most ? most / 2 : path.size();
  const size_t skip_to = path.size() > most ? path.size() - (most - most / 2) : path.size();
  for (size_t i = 0; i < path.size(); ++i) {
    if (i == skip_from) {
      word(fmt::format("... {} more ...", skip_to - skip_from));
      i = skip_to;
    }
    std::string text;
    if (i == 0 || i == skip_to || path[i].rank != path[i - 1].rank)
      text = fmt::format("{}rank {}: ", i == 0 ? "" : "> ", path[i].rank);
    word(text + schedule::ActionText(path[i].slice.action, edges));
  }
  return line.empty() ? out : out + line + "\n";
}

Json CriticalPathJson(const Timeline& timeline, const std::vector<PathStep>& path) {
  const std::vector<schedule::Edge> edges = EdgesOf(timeline);
  Json list = Json::array();
  for (const PathStep& step : path) {
    list.push_back(Json{{"rank", step.rank.value()},
                        {"action", schedule::ActionText(step.slice.action, edges)},
                        {"start_s", step.slice.start_s},
                        {"end_s", step.slice.end_s},
                        {"lead_s", step.lead_s}});
  }
  return list;
}

std::string CriticalPathSummary(const std::vector<PathStep>& path) {
  std::array<int64_t, schedule::kOpKindCount> count{};
  std::array<double, schedule::kOpKindCount> seconds{};
  int64_t hops = 0;
  double lead_s = 0;
  for (const PathStep& step : path) {
    ++count[static_cast<size_t>(step.slice.action.kind)];
    seconds[static_cast<size_t>(step.slice.action.kind)] += step.slice.end_s - step.slice.start_s;
    hops += step.hop ? 1 : 0;
    lead_s += step.lead_s;
  }
  std::string out;
  for (size_t k = 0; k < count.size(); ++k) {
    if (count[k] > 0) {
      out += fmt::format("{}{} {} {}", out.empty() ? "" : ", ", count[k],
                         schedule::OpKindText(static_cast<OpKind>(k)), FormatSeconds(seconds[k]));
    }
  }
  if (hops > 0)
    out += fmt::format(", {} hops {}", hops, FormatSeconds(lead_s));
  return out;
}

}  // namespace penstock::trace
