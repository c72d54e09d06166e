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
    int32_t peak_at = -1;
    for (size_t i = 0; i < program_.size();) {
      const size_t end = CellEnd(i);
      for (size_t k = i; k < end; ++k) {  // F counts before B releases
        if (!Saves(k))
          continue;
        ++pairs;
        bytes += BytesOf(k);
        const double now = in_bytes ? bytes : static_cast<double>(pairs) * share;
        if (in_bytes ? bytes > peak_bytes : pairs > peak_pairs)
          peak_at = static_cast<int32_t>(k);
        peak_pairs = std::max(peak_pairs, pairs);
        peak_bytes = std::max(peak_bytes, bytes);
        if (limited && first_over < 0 && now > limit * (1 + 1e-12) + 1e-12)
          first_over = static_cast<int32_t>(k);
      }
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
      ReportOver(first_over, peak_at, limit,
                 in_bytes ? peak_bytes : static_cast<double>(peak_pairs) * share, in_bytes);
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

  // ", in slot 7", or nothing for an action that never runs.
  std::string SlotText(int32_t at) const {
    const auto& slots = proof_.start_slot[static_cast<size_t>(rank_)];
    const auto i = static_cast<size_t>(at);
    return i < slots.size() && slots[i] >= 0 ? fmt::format(", in slot {}", slots[i])
                                             : std::string();
  }

  // The actions whose activations are held when the one at `at` has begun, that one among them.
  std::string OwnersAt(int32_t at) const {
    constexpr size_t kListed = 12;
    const auto last = static_cast<size_t>(at);
    std::vector<bool> live(last + 1, false);
    for (size_t i = 0; i < last + 1;) {
      const size_t end = CellEnd(i);
      for (size_t k = i; k < std::min(end, last + 1); ++k)
        live[k] = Saves(k);
      for (size_t k = i; k < end && end <= last; ++k) {
        if (!Releases(k))
          continue;
        const TripleTable::Entry& entry = EntryOf(k);
        live[static_cast<size_t>(entry.recompute >= 0 ? entry.recompute : entry.forward)] = false;
      }
      i = end;
    }
    std::string owners;
    size_t count = 0;
    for (size_t i = 0; i < live.size(); ++i) {
      if (live[i] && ++count <= kListed)
        owners += " " + proof_.problems.TextAt(rank_, static_cast<int64_t>(i));
    }
    if (count > kListed)
      owners += fmt::format(" and {} more", count - kListed);
    return owners;
  }

  void ReportOver(int32_t over, int32_t peak_at, double limit, double peak, bool in_bytes) {
    proof_.problems.Add(ProblemKind::kMemory, rank_, over, [&] {
      return fmt::format(
          "more saved activations than the limit of {:g} {}{}; the peak of this rank is {:g}, at "
          "cell {}{}, and belongs to{}",
          limit, in_bytes ? "bytes" : "shares", SlotText(over), peak,
          proof_.problems.CellOf(rank_, peak_at), SlotText(peak_at), OwnersAt(peak_at));
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
