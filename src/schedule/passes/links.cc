#include "schedule/passes/links.h"

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
    std::vector<bool> holds(static_cast<size_t>(schedule_.num_ranks()), false);
    holds[static_cast<size_t>(RankOf(edge.from.value(), direction))] = true;
    int last = edge.from.value();
    for (const StageId reader : edge.to) {
      const auto rank = static_cast<size_t>(RankOf(reader.value(), direction));
      if (!holds[rank]) {
        Add({true, value, options_.route == LongRoute::kNearest ? last : edge.from.value(),
             reader.value(), direction});
        holds[rank] = true;
      }
      last = reader.value();
    }
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
