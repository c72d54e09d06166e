// The order of merges in a long piece: lowest rank first, leftmost first within a rank.
//
// A binary heap of all candidates spends its time on cache misses when a piece has a million of
// them. Here each rank has a list that is sorted once and then read in order; only what comes late
// to a list goes through a heap. O(n log n) for n candidates.

#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace penstock::text {

struct MergeCandidate {
  int32_t at = -1;      // index of the left symbol
  int32_t id = -1;      // token that the merge gives
  uint32_t length = 0;  // for the caller
};

// Not thread-safe. Keeps its memory over Clear().
class MergeQueue {
 public:
  void Clear() {
    for (const auto& [rank, index] : index_) {
      Bucket& bucket = buckets_[index];
      bucket.sorted.clear();
      bucket.late.clear();
      bucket.cursor = 0;
      bucket.started = bucket.queued = false;
    }
    index_.clear();
    ranks_.clear();
    used_ = 0;
  }

  void Push(uint32_t rank, const MergeCandidate& candidate) {
    Bucket& bucket = BucketOf(rank);
    if (!bucket.queued) {
      bucket.queued = true;
      ranks_.emplace_back(rank, index_.at(rank));
      std::push_heap(ranks_.begin(), ranks_.end(), std::greater<>());
    }
    const bool in_order =
        bucket.late.empty() && (bucket.sorted.empty() || bucket.sorted.back().at <= candidate.at);
    if (!bucket.started || in_order) {
      bucket.sorted.push_back(candidate);
    } else {
      bucket.late.push_back(candidate);
      std::push_heap(bucket.late.begin(), bucket.late.end(), Righter);
    }
  }

  // The next candidate; false when there is none.
  bool Pop(MergeCandidate& candidate) {
    while (!ranks_.empty()) {
      Bucket& bucket = buckets_[ranks_.front().second];
      if (!bucket.started) {
        if (!std::is_sorted(bucket.sorted.begin(), bucket.sorted.end(), Lefter)) {
          std::sort(bucket.sorted.begin(), bucket.sorted.end(), Lefter);
        }
        bucket.started = true;
      }
      const bool has_sorted = bucket.cursor < bucket.sorted.size();
      if (!bucket.late.empty() &&
          (!has_sorted || Lefter(bucket.late.front(), bucket.sorted[bucket.cursor]))) {
        std::pop_heap(bucket.late.begin(), bucket.late.end(), Righter);
        candidate = bucket.late.back();
        bucket.late.pop_back();
        return true;
      }
      if (has_sorted) {
        candidate = bucket.sorted[bucket.cursor++];
        return true;
      }
      bucket.sorted.clear();
      bucket.cursor = 0;
      bucket.started = bucket.queued = false;
      std::pop_heap(ranks_.begin(), ranks_.end(), std::greater<>());
      ranks_.pop_back();
    }
    return false;
  }

 private:
  struct Bucket {
    std::vector<MergeCandidate> sorted;
    std::vector<MergeCandidate> late;  // a heap, leftmost on top
    size_t cursor = 0;                 // of `sorted`
    bool started = false;              // `sorted` is sorted from the cursor on
    bool queued = false;               // its rank is in ranks_
  };

  static bool Lefter(const MergeCandidate& a, const MergeCandidate& b) { return a.at < b.at; }

  static bool Righter(const MergeCandidate& a, const MergeCandidate& b) { return a.at > b.at; }

  Bucket& BucketOf(uint32_t rank) {
    const auto [place, added] = index_.try_emplace(rank, used_);
    if (added && ++used_ > buckets_.size()) {
      buckets_.emplace_back();
    }
    return buckets_[place->second];
  }

  std::vector<Bucket> buckets_;
  uint32_t used_ = 0;
  std::unordered_map<uint32_t, uint32_t> index_;      // rank -> bucket
  std::vector<std::pair<uint32_t, uint32_t>> ranks_;  // a heap of (rank, bucket), lowest on top
};

}  // namespace penstock::text
