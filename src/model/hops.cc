#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "model/cut.h"

namespace penstock::model {
namespace {

// Stages that read each value, ascending, each once.
std::vector<std::vector<int32_t>> ReadingStages(const Graph& graph, const Partition& partition) {
  std::vector<std::vector<int32_t>> readers(graph.values.size());
  for (const Op& op : graph.ops) {
    const int32_t stage = partition.StageOf(op.layer).value();
    for (const ValueId id : op.inputs) {
      std::vector<int32_t>& list = readers[static_cast<size_t>(id.value())];
      if (list.empty() || list.back() != stage) {
        list.push_back(stage);
      }
    }
  }
  return readers;
}

class HopPlanner {
 public:
  HopPlanner(const Graph& graph, const CutSets& cuts, const Partition& partition,
             std::span<const RankId> rank_of, int64_t element_bytes)
      : graph_(graph),
        partition_(partition),
        rank_of_(rank_of),
        element_bytes_(element_bytes),
        in_(rank_of.size()),
        out_(rank_of.size()),
        kept_(rank_of.size()) {
    for (int32_t s = 1; s < partition.num_stages(); ++s) {
      if (Rank(s - 1) != Rank(s)) {
        Hop& hop = HopBetween(s - 1, s);
        for (const ValueId id : cuts.Crossing(partition.first_layer(StageId(s)))) {
          if (graph.value(id).type == ValueType::kActivation) {
            hop.naive.push_back(id);
          }
        }
      }
    }
  }

  HopPlan Run(int32_t ranks) {
    const auto readers = ReadingStages(graph_, partition_);
    for (size_t v = 0; v < readers.size(); ++v) {
      if (graph_.values[v].type == ValueType::kActivation && !readers[v].empty()) {
        Send(ValueId(static_cast<int32_t>(v)), readers[v]);
      }
    }
    HopPlan plan;
    for (auto& [pair, hop] : hops_) {
      plan.hops.push_back(std::move(hop));
    }
    plan.held.resize(static_cast<size_t>(ranks));
    std::vector<int64_t> most(plan.held.size(), 0);
    std::vector<int32_t> before(plan.held.size(), -1);  // the rank's stage before
    for (int32_t s = 0; s < partition_.num_stages(); ++s) {
      const auto r = static_cast<size_t>(Rank(s).value());
      if (before[r] >= 0) {
        plan.kept.push_back({StageId(before[r]), StageId(s), kept_[static_cast<size_t>(s)]});
      }
      before[r] = s;
      for (const bool behind : {false, true}) {
        Moment& moment = (behind ? out_ : in_)[static_cast<size_t>(s)];
        if (moment.bytes > most[r]) {
          most[r] = moment.bytes;
          plan.held[r] = {StageId(s), behind, std::move(moment.values)};
        }
      }
    }
    std::ranges::sort(plan.kept, {}, &Kept::from_stage);
    return plan;
  }

 private:
  // On one rank: first stage that has the value (made or received), last that reads it, last that
  // sends it.
  struct Stay {
    int32_t first = 0;
    bool made = false;
    int32_t last_read = -1;
    int32_t last_sent = -1;
  };

  RankId Rank(int32_t stage) const { return rank_of_[static_cast<size_t>(stage)]; }

  Hop& HopBetween(int32_t from, int32_t to) {
    const auto [at, fresh] = hops_.try_emplace({from, to});
    if (fresh) {
      at->second = {StageId(from), StageId(to), Rank(from), Rank(to), {}, {}};
    }
    return at->second;
  }

  void Send(ValueId id, const std::vector<int32_t>& readers) {
    const int32_t maker = partition_.StageOf(graph_.value(id).producer).value();
    std::map<RankId, Stay> stays = {{Rank(maker), {maker, true, -1, -1}}};
    int32_t last = maker;
    for (const int32_t reader : readers) {
      const auto [at, lacks] = stays.try_emplace(Rank(reader), Stay{reader, false, -1, -1});
      if (lacks) {
        HopBetween(last, reader).values.push_back(id);
        stays.at(Rank(last)).last_sent = last;
      }
      at->second.last_read = reader;
      last = reader;
    }
    if (last == maker) {
      return;  // crosses nothing
    }
    const int64_t bytes = BytesPerToken(graph_.value(id), element_bytes_);
    for (const auto& [rank, stay] : stays) {
      for (int32_t s = stay.first; s <= std::max(stay.last_read, stay.last_sent); ++s) {
        if (Rank(s) != rank) {
          continue;
        }
        const auto i = static_cast<size_t>(s);
        if (s > stay.first) {
          kept_[i].push_back(id);
        }
        if (s > stay.first || !stay.made) {
          in_[i].bytes += bytes;
          in_[i].values.push_back(id);
        }
        if (s < stay.last_read || s <= stay.last_sent) {
          out_[i].bytes += bytes;
          out_[i].values.push_back(id);
        }
      }
    }
  }

  const Graph& graph_;
  const Partition& partition_;
  std::span<const RankId> rank_of_;
  int64_t element_bytes_;
  std::map<std::pair<int32_t, int32_t>, Hop> hops_;

  struct Moment {
    int64_t bytes = 0;
    std::vector<ValueId> values;
  };

  std::vector<Moment> in_, out_;            // by stage: when it begins, and when it has ended
  std::vector<std::vector<ValueId>> kept_;  // by stage: from earlier stages of its rank
};

}  // namespace

HopPlan PlanHops(const Graph& graph, const CutSets& cuts, const Partition& partition,
                 std::span<const RankId> rank_of, int32_t ranks, int64_t element_bytes) {
  PENSTOCK_CHECK(static_cast<int32_t>(rank_of.size()) == partition.num_stages(),
                 "one rank per stage");
  return HopPlanner(graph, cuts, partition, rank_of, element_bytes).Run(ranks);
}

}  // namespace penstock::model
