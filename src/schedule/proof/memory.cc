// Saved activations of each rank, from the order of its actions alone.

#include <algorithm>

#include "schedule/proof/proof.h"

namespace penstock::schedule {
namespace {

class RankMemory {
 public:
  RankMemory(Proof& proof, int rank)
      : proof_(proof),
        schedule_(proof.schedule),
        rank_(rank),
        program_(proof.schedule.ranks[static_cast<size_t>(rank)]) {}

  // Counts in the unit of the limit: shares or bytes.
  void Run(double limit, bool limited) {
    const double share = 1.0 / (static_cast<double>(schedule_.chunks()) * schedule_.slices);
    int64_t pairs = 0;
    int64_t peak_pairs = 0;
    double bytes = 0;
    double peak_bytes = 0;
    const bool in_bytes = !proof_.options.activation_bytes.empty();
    int32_t first_over = -1;
    for (size_t i = 0; i < program_.size();) {
      const size_t end = CellEnd(i);
      for (size_t k = i; k < end; ++k) {  // F counts before B releases
        if (!Saves(k))
          continue;
        ++pairs;
        bytes += BytesOf(k);
        const double now = in_bytes ? bytes : static_cast<double>(pairs) * share;
        if (limited && first_over < 0 && now > limit * (1 + 1e-12) + 1e-12)
          first_over = static_cast<int32_t>(k);
      }
      peak_pairs = std::max(peak_pairs, pairs);
      peak_bytes = std::max(peak_bytes, bytes);
      for (size_t k = i; k < end; ++k) {
        if (!Releases(k))
          continue;
        --pairs;
        bytes -= BytesOf(k);
      }
      i = end;
    }
    proof_.result.peak_activations[static_cast<size_t>(rank_)] =
        static_cast<double>(peak_pairs) * share;
    if (in_bytes)
      proof_.result.peak_bytes[static_cast<size_t>(rank_)] = peak_bytes;
    if (first_over >= 0)
      ReportOver(first_over, limit, in_bytes ? peak_bytes : static_cast<double>(peak_pairs) * share,
                 in_bytes);
  }

 private:
  size_t CellEnd(size_t i) const {
    ++i;
    while (i < program_.size() && program_[i].joined)
      ++i;
    return i;
  }

  const TripleTable::Entry& EntryOf(size_t i) const {
    return proof_.triples[proof_.triples.IndexOf(program_[i])];
  }

  double BytesOf(size_t i) const {
    const auto& per_stage = proof_.options.activation_bytes;
    return per_stage.empty()
               ? 0
               : per_stage[static_cast<size_t>(program_[i].stage.value())] / schedule_.slices;
  }

  // The action at `i` starts the life of its triple's activations: F, or R where the triple is
  // recomputed.
  bool Saves(size_t i) const {
    const Action& a = program_[i];
    if ((a.kind != OpKind::kForward && a.kind != OpKind::kRecompute) || !proof_.Usable(rank_, a))
      return false;
    const TripleTable::Entry& entry = EntryOf(i);
    const auto index = static_cast<int32_t>(i);
    return entry.recompute >= 0 ? entry.recompute == index : entry.forward == index;
  }

  // It ends it: B or W (F itself where nothing runs backward), if the triple was saved before.
  bool Releases(size_t i) const {
    const Action& a = program_[i];
    if (!IsCompute(a.kind) || !proof_.Usable(rank_, a))
      return false;
    const TripleTable::Entry& entry = EntryOf(i);
    const auto index = static_cast<int32_t>(i);
    if (!proof_.has_backward)
      return entry.forward == index;
    const int32_t start = entry.recompute >= 0 ? entry.recompute : entry.forward;
    return entry.weight == index && start >= 0 && start < index;
  }

  void ReportOver(int32_t at, double limit, double peak, bool in_bytes) {
    proof_.problems.Add(ProblemKind::kMemory, rank_, at, [&] {
      constexpr size_t kListed = 12;
      std::vector<bool> live(static_cast<size_t>(at) + 1, false);
      for (size_t i = 0; i <= static_cast<size_t>(at); ++i) {
        if (Saves(i))
          live[i] = true;
        if (i < static_cast<size_t>(at) && Releases(i)) {
          const TripleTable::Entry& entry = EntryOf(i);
          live[static_cast<size_t>(entry.recompute >= 0 ? entry.recompute : entry.forward)] = false;
        }
      }
      std::string owners;
      size_t count = 0;
      for (size_t i = 0; i < live.size(); ++i) {
        if (!live[i] || ++count > kListed)
          continue;
        owners +=
            (owners.empty() ? "" : " ") + proof_.problems.TextAt(rank_, static_cast<int64_t>(i));
      }
      if (count > kListed)
        owners += fmt::format(" and {} more", count - kListed);
      return fmt::format(
          "more saved activations than the limit of {:g} {} (peak of this rank {:g}); kept here by "
          "{}",
          limit, in_bytes ? "bytes" : "shares", peak, owners);
    });
  }

  Proof& proof_;
  const Schedule& schedule_;
  int rank_;
  const std::vector<Action>& program_;
};

}  // namespace

void CheckMemory(Proof& proof) {
  const auto ranks = proof.schedule.ranks.size();
  proof.result.peak_activations.assign(ranks, 0);
  if (!proof.options.activation_bytes.empty())
    proof.result.peak_bytes.assign(ranks, 0);
  const auto& limits = proof.options.activation_limit;
  for (size_t r = 0; r < ranks; ++r) {
    const double limit = limits.empty() ? 0 : limits.size() == 1 ? limits[0] : limits[r];
    RankMemory(proof, static_cast<int>(r)).Run(limit, !limits.empty());
  }
}

}  // namespace penstock::schedule
