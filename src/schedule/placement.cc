#include "schedule/placement.h"

#include <algorithm>
#include <utility>

namespace penstock::schedule {
namespace {

std::vector<RankId> LoopMap(int ranks, int stages) {
  std::vector<RankId> map;
  map.reserve(static_cast<size_t>(stages));
  for (int s = 0; s < stages; ++s)
    map.emplace_back(s % ranks);
  return map;
}

std::vector<RankId> WaveMap(int ranks, int stages) {
  std::vector<RankId> map;
  map.reserve(static_cast<size_t>(stages));
  for (int s = 0; s < stages; ++s) {
    const int at = s % ranks;
    map.emplace_back((s / ranks) % 2 == 0 ? at : ranks - 1 - at);
  }
  return map;
}

std::vector<RankId> Reversed(std::vector<RankId> map) {
  std::reverse(map.begin(), map.end());
  return map;
}

}  // namespace

std::string_view PlacementKindText(PlacementKind kind) {
  switch (kind) {
    case PlacementKind::kLoop:
      return "loop";
    case PlacementKind::kV:
      return "v";
    case PlacementKind::kWave:
      return "wave";
    case PlacementKind::kMirrored:
      return "mirrored";
    case PlacementKind::kCustom:
      break;
  }
  return "custom";
}

Placement::Placement(PlacementKind kind, int ranks, std::vector<RankId> first,
                     std::vector<RankId> second)
    : kind_(kind), num_ranks_(ranks), rank_of_{std::move(first), std::move(second)} {
  for (int d = 0; d < 2; ++d) {
    std::vector<int32_t> held(static_cast<size_t>(ranks), 0);
    for (const RankId rank : rank_of_[d]) {
      int32_t& count = held[static_cast<size_t>(rank.value())];
      chunk_of_[d].push_back(count++);
      chunks_ = std::max(chunks_, static_cast<int>(count));
    }
  }
}

Placement Placement::Loop(int ranks, int chunks) {
  return Placement(PlacementKind::kLoop, ranks, LoopMap(ranks, ranks * chunks), {});
}

Placement Placement::V(int ranks) {
  return Placement(PlacementKind::kV, ranks, WaveMap(ranks, 2 * ranks), {});
}

Placement Placement::Wave(int ranks, int chunks) {
  return Placement(PlacementKind::kWave, ranks, WaveMap(ranks, ranks * chunks), {});
}

Placement Placement::Mirrored(int ranks) {
  std::vector<RankId> map = LoopMap(ranks, ranks);
  std::vector<RankId> second = Reversed(map);
  return Placement(PlacementKind::kMirrored, ranks, std::move(map), std::move(second));
}

Result<Placement> Placement::FromMap(int ranks, std::vector<RankId> rank_of,
                                     std::vector<RankId> second) {
  const auto stages = rank_of.size();
  if (ranks < 1 || stages < 1 || stages > static_cast<size_t>(kMaxStages)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[schedule.placement] {} ranks with {} stages, wanted 1 to {} stages", ranks,
                     stages, kMaxStages);
  }
  if (!second.empty() && second.size() != stages) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[schedule.placement] {} stages in the second copy, wanted {}", second.size(),
                     stages);
  }
  for (const auto* map : {&rank_of, &second}) {
    for (size_t s = 0; s < map->size(); ++s) {
      const int rank = (*map)[s].value();
      if (rank < 0 || rank >= ranks) {
        return MakeError(ErrorCode::kInvalidArgument,
                         "[schedule.placement] stage {} on rank {}, wanted 0 to {}", s, rank,
                         ranks - 1);
      }
    }
  }
  const int count = static_cast<int>(stages);
  PlacementKind kind = PlacementKind::kCustom;
  if (second.empty()) {
    if (count % ranks == 0 && rank_of == LoopMap(ranks, count)) {
      kind = PlacementKind::kLoop;
    } else if (count % ranks == 0 && rank_of == WaveMap(ranks, count)) {
      kind = count == 2 * ranks ? PlacementKind::kV : PlacementKind::kWave;
    }
  } else if (count == ranks && rank_of == LoopMap(ranks, count) && second == Reversed(rank_of)) {
    kind = PlacementKind::kMirrored;
  }
  return Placement(kind, ranks, std::move(rank_of), std::move(second));
}

std::vector<StageId> Placement::StagesOf(RankId rank, int direction) const {
  std::vector<StageId> stages;
  for (size_t s = 0; s < rank_of_[direction].size(); ++s) {
    if (rank_of_[direction][s] == rank)
      stages.emplace_back(static_cast<int32_t>(s));
  }
  return stages;
}

}  // namespace penstock::schedule
