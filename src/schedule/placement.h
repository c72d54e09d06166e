// Which rank runs which stage. Placement is data of the schedule; nothing infers it from a
// schedule's name.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace penstock::schedule {

enum class PlacementKind : uint8_t {
  kLoop,      // stage s on rank s mod p
  kV,         // two per rank: stages s and 2p-1-s on rank s
  kWave,      // the V repeated: down, up, down, ... (Hanayo)
  kMirrored,  // two copies of the weights: stage s on rank s for one half of the micro-batches, on
              // rank p-1-s for the other
  kCustom,    // anything else
};

// "loop", "v", "wave", "mirrored", "custom".
std::string_view PlacementKindText(PlacementKind kind);

// Stage -> rank, for each direction (copy of the weights): one, or two with mirrored placements.
class Placement {
 public:
  Placement() = default;

  // REQUIRES (all): ranks >= 1, chunks >= 1, ranks * chunks <= kMaxStages.
  static Placement Loop(int ranks, int chunks);
  static Placement V(int ranks);
  static Placement Wave(int ranks, int chunks);
  static Placement Mirrored(int ranks);

  // `rank_of[s]` for the first direction, `second` for the other (empty: there is one). The kind is
  // recognised: a map that equals one of the above gets its kind. Errors: kInvalidArgument (a rank
  // outside 0..ranks-1, no stage, too many stages).
  static Result<Placement> FromMap(int ranks, std::vector<RankId> rank_of,
                                   std::vector<RankId> second = {});

  PlacementKind kind() const { return kind_; }

  int num_ranks() const { return num_ranks_; }

  int num_stages() const { return static_cast<int>(rank_of_[0].size()); }

  // 1, or 2 with two copies of the weights.
  int num_directions() const { return rank_of_[1].empty() ? 1 : 2; }

  // REQUIRES: stage in range, direction < num_directions().
  RankId RankOf(StageId stage, int direction = 0) const {
    return rank_of_[direction][stage.value()];
  }

  // Ordinal of a stage among its rank's stages of that direction, ascending by stage: 0..v-1. O(1).
  int ChunkOf(StageId stage, int direction = 0) const {
    return chunk_of_[direction][stage.value()];
  }

  // Ascending. O(S).
  std::vector<StageId> StagesOf(RankId rank, int direction = 0) const;

  // v: the most stages that one rank has of one copy of the weights.
  int chunks() const { return chunks_; }

  friend bool operator==(const Placement& a, const Placement& b) {
    return a.num_ranks_ == b.num_ranks_ && a.rank_of_[0] == b.rank_of_[0] &&
           a.rank_of_[1] == b.rank_of_[1];
  }

 private:
  Placement(PlacementKind kind, int ranks, std::vector<RankId> first, std::vector<RankId> second);

  PlacementKind kind_ = PlacementKind::kCustom;
  int num_ranks_ = 0;
  int chunks_ = 0;
  std::vector<RankId> rank_of_[2];
  std::vector<int32_t> chunk_of_[2];
};

// Limit of stages: the peer of an action is 16 bits wide.
inline constexpr int kMaxStages = 32767;

}  // namespace penstock::schedule
