#include "schedule/passes/links.h"

#include <algorithm>
#include <limits>

namespace penstock::schedule {
namespace {

class LinkFinder {
 public:
  LinkFinder(const Schedule& schedule, const LowerOptions& options)
      : schedule_(schedule), options_(options) {
    for (int d = 0; d < 2; ++d) {
      for (auto* lists : {&table_.before_forward[d], &table_.after_forward[d],
                          &table_.before_backward[d], &table_.after_backward[d]}) {
        lists->resize(static_cast<size_t>(schedule.num_stages()));
      }
    }
  }

  LinkTable Run() {
    for (int d = 0; d < schedule_.placement.num_directions(); ++d) {
      for (int s = 0; s + 1 < schedule_.num_stages(); ++s) {
        if (RankOf(s, d) == RankOf(s + 1, d))
          continue;
        Add({true, 0, s, s + 1, d});
        if (!schedule_.forward_only)
          Add({false, 0, s + 1, s, d});
      }
      for (size_t e = 0; e < schedule_.edges.size(); ++e) {
        if (schedule_.edges[e].kind == EdgeKind::kValue)
          AddLong(static_cast<uint16_t>(e + 1), schedule_.edges[e], d);
      }
    }
    return std::move(table_);
  }

 private:
  int RankOf(int stage, int direction) const {
    return schedule_.placement.RankOf(StageId(stage), direction).value();
  }

  void Add(const Link& link) {
    const auto id = static_cast<int>(table_.links.size());
    table_.links.push_back(link);
    auto& after = link.forward ? table_.after_forward : table_.after_backward;
    auto& before = link.forward ? table_.before_forward : table_.before_backward;
    after[link.direction][static_cast<size_t>(link.from)].push_back(id);
    before[link.direction][static_cast<size_t>(link.to)].push_back(id);
  }

  void AddLong(uint16_t value, const Edge& edge, int direction) {
    if (options_.naive) {
      for (int s = edge.from.value(); s < edge.to.back().value(); ++s) {
        if (RankOf(s, direction) != RankOf(s + 1, direction))
          Add({true, value, s, s + 1, direction});
      }
      return;
    }
    if (options_.route == LongRoute::kCheapest && options_.link_seconds) {
      AddCheapest(value, edge, direction);
      return;
    }
    std::vector<bool> holds(static_cast<size_t>(schedule_.num_ranks()), false);
    holds[static_cast<size_t>(RankOf(edge.from.value(), direction))] = true;
    int last = edge.from.value();
    for (const StageId reader : edge.to) {
      const auto rank = static_cast<size_t>(RankOf(reader.value(), direction));
      if (!holds[rank]) {
        Add({true, value, options_.route == LongRoute::kDirect ? edge.from.value() : last,
             reader.value(), direction});
        holds[rank] = true;
      }
      last = reader.value();
    }
  }

  // A way to a stage from those that have the value.
  struct Way {
    double seconds = std::numeric_limits<double>::infinity();
    int messages = 0;
    int through = -1;  // the stage before; -1: has the value
  };

  // For each reader the fastest way forward from the stages that have the value by then.
  void AddCheapest(uint16_t value, const Edge& edge, int direction) {
    const int from = edge.from.value();
    std::vector<int> having = {from};  // stages, ascending
    const auto holds = [&](int stage) {
      return std::any_of(having.begin(), having.end(),
                         [&](int s) { return RankOf(s, direction) == RankOf(stage, direction); });
    };
    for (const StageId reader : edge.to) {
      const int to = reader.value();
      if (!holds(to)) {
        const std::vector<Way> ways = Ways(having, to, edge.bytes, direction, holds);
        std::vector<int> path;
        for (int s = to; s >= 0; s = ways[static_cast<size_t>(s - from)].through) {
          path.push_back(s);
        }
        for (size_t i = path.size() - 1; i > 0; --i) {
          Add({true, value, path[i], path[i - 1], direction});
          having.push_back(path[i - 1]);
        }
      }
      having.push_back(to);
      std::sort(having.begin(), having.end());
      having.erase(std::unique(having.begin(), having.end()), having.end());
    }
  }

  // To each stage from the maker's (the first of `having`) up to `to`.
  template <class Holds>
  std::vector<Way> Ways(const std::vector<int>& having, int to, int64_t bytes, int direction,
                        const Holds& holds) const {
    const int first = having.front();
    std::vector<Way> ways(static_cast<size_t>(to - first) + 1);
    for (const int s : having) {
      ways[static_cast<size_t>(s - first)] = {0, 0, -1};
    }
    for (int s = first + 1; s <= to; ++s) {
      Way& way = ways[static_cast<size_t>(s - first)];
      // A rank on the way gets it once, too.
      if (way.seconds == 0 ||
          (s != to && (holds(s) || RankOf(s, direction) == RankOf(to, direction)))) {
        continue;
      }
      for (int before = s - 1; before >= first; --before) {
        const Way& to_there = ways[static_cast<size_t>(before - first)];
        const RankId a(RankOf(before, direction));
        const RankId b(RankOf(s, direction));
        if (a == b || to_there.seconds == std::numeric_limits<double>::infinity()) {
          continue;
        }
        const double seconds = to_there.seconds + options_.link_seconds(a, b, bytes);
        if (seconds < way.seconds ||
            (seconds == way.seconds && to_there.messages + 1 < way.messages)) {
          way = {seconds, to_there.messages + 1, before};
        }
      }
    }
    return ways;
  }

  const Schedule& schedule_;
  const LowerOptions& options_;
  LinkTable table_;
};

}  // namespace

LinkTable FindLinks(const Schedule& schedule, const LowerOptions& options) {
  return LinkFinder(schedule, options).Run();
}

}  // namespace penstock::schedule
