// Shape, range, placement, exactly-once.

#include <algorithm>

#include "schedule/proof/proof.h"

namespace penstock::schedule {
namespace {

bool HasStage(OpKind kind) {
  return kind != OpKind::kIdle && kind != OpKind::kBarrier;
}

// Kinds whose micro-batch is one of the micro-batches; for REDUCE_GRAD, OPT and BARRIER it is a
// step.
bool HasMicroBatch(OpKind kind) {
  return IsCompute(kind) || IsMessage(kind) || kind == OpKind::kWaitSendForward ||
         kind == OpKind::kWaitSendBackward || kind == OpKind::kRelease;
}

bool IsChainWait(OpKind kind) {
  return kind == OpKind::kWaitSendForward || kind == OpKind::kWaitSendBackward;
}

// The stage at the other end of a message or of the send that a WAIT waits for.
int OtherStage(const Action& action) {
  Action send = action;
  if (action.kind == OpKind::kWaitSendForward)
    send.kind = OpKind::kSendForward;
  if (action.kind == OpKind::kWaitSendBackward)
    send.kind = OpKind::kSendBackward;
  return PeerStage(send).value();
}

// An action that names an edge must be of the kind that the edge is for.
std::string EdgeUseFault(const Edge& edge, const Action& a) {
  const bool reduces = a.kind == OpKind::kReduceGrad || a.kind == OpKind::kWaitReduceGrad;
  if (reduces != (edge.kind == EdgeKind::kTied)) {
    return fmt::format("'{}' is {}, wanted {}", edge.name, reduces ? "a value" : "tied weights",
                       reduces ? "tied weights" : "a value");
  }
  const bool owner =
      a.stage == edge.from || std::find(edge.to.begin(), edge.to.end(), a.stage) != edge.to.end();
  if (reduces && !owner)
    return fmt::format("stage {} does not own '{}'", a.stage, edge.name);
  return "";
}

// "" when all numbers lie in the schedule; else what is wrong.
std::string RangeFault(const Schedule& s, const Action& a) {
  if (HasStage(a.kind) && (a.stage.value() < 0 || a.stage.value() >= s.num_stages())) {
    return fmt::format("stage {}, wanted 0 to {}", a.stage, s.num_stages() - 1);
  }
  const int end = HasMicroBatch(a.kind) ? s.total_micro_batches() : s.steps;
  if (HasMicroBatch(a.kind) ? a.micro_batch.value() < 0 || a.micro_batch.value() >= end
                            : a.micro_batch.value() >= end) {
    return fmt::format("{} {}, wanted 0 to {}", HasMicroBatch(a.kind) ? "micro-batch" : "step",
                       a.micro_batch, end - 1);
  }
  if (a.slice >= s.slices)
    return fmt::format("slice {}, wanted 0 to {}", a.slice, s.slices - 1);
  if (a.value > s.edges.size())
    return fmt::format("edge {}, wanted one of {}", a.value, s.edges.size());
  if (a.value != 0) {
    if (const std::string fault = EdgeUseFault(s.edges[a.value - 1U], a); !fault.empty())
      return fault;
  }
  if (!IsMessage(a.kind) && !IsChainWait(a.kind))
    return "";
  const int peer = OtherStage(a);
  if (peer < 0 || peer >= s.num_stages())
    return fmt::format("peer stage {}, wanted 0 to {}", peer, s.num_stages() - 1);
  const bool forward = a.kind == OpKind::kSendForward || a.kind == OpKind::kRecvForward ||
                       a.kind == OpKind::kWaitSendForward;
  const bool up = a.kind == OpKind::kSendForward || a.kind == OpKind::kWaitSendForward ||
                  a.kind == OpKind::kRecvBackward;
  const int wanted = a.stage.value() + (up ? 1 : -1);
  if ((a.value == 0 || !forward) && peer != wanted) {
    return fmt::format(
        "peer stage {}, wanted {}: the chain's values and gradients go to the neighbour", peer,
        wanted);
  }
  if (a.value != 0 && (up ? peer <= a.stage.value() : peer >= a.stage.value())) {
    return fmt::format("peer stage {}, wanted a {} one", peer, up ? "later" : "earlier");
  }
  return "";
}

bool OnItsRank(const Schedule& s, int rank, const Action& a) {
  if (!HasStage(a.kind))
    return true;
  if (HasMicroBatch(a.kind))
    return s.RankOf(a.stage, a.micro_batch) == RankId(rank);
  for (int d = 0; d < s.placement.num_directions(); ++d) {
    if (s.placement.RankOf(a.stage, d) == RankId(rank))
      return true;
  }
  return false;
}

// Sets `slot` to `index`; a second one is reported.
void Once(Proof& proof, int32_t& slot, int rank, int64_t index, const char* what) {
  if (slot == TripleTable::kAbsent) {
    slot = static_cast<int32_t>(index);
    return;
  }
  const int32_t first = slot;
  proof.problems.Add(ProblemKind::kDuplicate, rank, index, [&] {
    return first >= 0
               ? fmt::format(
                     "a second {} of this stage and micro-batch; the first is {} at cell {}", what,
                     proof.problems.TextAt(rank, first), proof.problems.CellOf(rank, first))
               : fmt::format("a second {} of this stage and micro-batch", what);
  });
}

void Record(Proof& proof, int rank, int64_t index, const Action& a) {
  TripleTable::Entry& entry = proof.triples[proof.triples.IndexOf(a)];
  switch (a.kind) {
    case OpKind::kForward:
      return Once(proof, entry.forward, rank, index, "forward");
    case OpKind::kBackward:
      if (entry.input == TripleTable::kAbsent && entry.weight == TripleTable::kAbsent) {
        entry.input = entry.weight = static_cast<int32_t>(index);
        return;
      }
      return Once(proof, entry.input != TripleTable::kAbsent ? entry.input : entry.weight, rank,
                  index, "backward");
    case OpKind::kBackwardInput:
      return Once(proof, entry.input, rank, index, "input gradient");
    case OpKind::kBackwardWeight:
      return Once(proof, entry.weight, rank, index, "weight gradient");
    default:
      return Once(proof, entry.recompute, rank, index, "recompute");
  }
}

// An action on a wrong rank is reported there; that its triple lacks it is not reported again.
void RecordElsewhere(Proof& proof, const Action& a) {
  TripleTable::Entry& entry = proof.triples[proof.triples.IndexOf(a)];
  auto mark = [](int32_t& slot) {
    if (slot == TripleTable::kAbsent)
      slot = TripleTable::kElsewhere;
  };
  if (a.kind == OpKind::kForward)
    mark(entry.forward);
  if (a.kind == OpKind::kBackward || a.kind == OpKind::kBackwardInput)
    mark(entry.input);
  if (a.kind == OpKind::kBackward || a.kind == OpKind::kBackwardWeight)
    mark(entry.weight);
  if (a.kind == OpKind::kRecompute)
    mark(entry.recompute);
}

void ReportMissing(Proof& proof) {
  const Schedule& s = proof.schedule;
  for (int stage = 0; stage < s.num_stages(); ++stage) {
    for (int j = 0; j < s.total_micro_batches(); ++j) {
      for (int k = 0; k < s.slices; ++k) {
        const TripleTable::Entry& entry = proof.triples[proof.triples.IndexOf(stage, j, k)];
        const int rank = s.RankOf(StageId(stage), MicroBatchId(j)).value();
        auto absent = [&](OpKind kind, const char* why) {
          proof.problems.AddAbsent(ProblemKind::kMissing, rank,
                                   MakeAction(kind, StageId(stage), MicroBatchId(j), k),
                                   [&] { return std::string(why); });
        };
        if (entry.forward == TripleTable::kAbsent)
          absent(OpKind::kForward, "no forward of this stage and micro-batch");
        if (!proof.has_backward)
          continue;
        if (entry.input == TripleTable::kAbsent && entry.weight == TripleTable::kAbsent) {
          absent(OpKind::kBackward,
                 "no backward of this stage and micro-batch: wanted B, or I and W");
        } else if (entry.input == TripleTable::kAbsent) {
          absent(OpKind::kBackwardInput,
                 "W without I: no input gradient of this stage and micro-batch");
        } else if (entry.weight == TripleTable::kAbsent) {
          absent(OpKind::kBackwardWeight,
                 "I without W: no weight gradient of this stage and micro-batch");
        }
      }
    }
  }
}

// The header claims far more than there are actions: names the first triple without F, without a
// table of all.
void ReportFarTooFew(Proof& proof, int64_t triples) {
  const Schedule& s = proof.schedule;
  std::vector<int64_t> seen;
  for (const auto& program : s.ranks) {
    for (const Action& a : program) {
      if (a.kind == OpKind::kForward && RangeFault(s, a).empty()) {
        seen.push_back(
            (int64_t{a.stage.value()} * s.total_micro_batches() + a.micro_batch.value()) *
                s.slices +
            a.slice);
      }
    }
  }
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  int64_t first = 0;
  while (first < static_cast<int64_t>(seen.size()) && seen[static_cast<size_t>(first)] == first)
    ++first;
  const auto per_stage = int64_t{s.total_micro_batches()} * s.slices;
  const Action action =
      MakeAction(OpKind::kForward, StageId(static_cast<int32_t>(first / per_stage)),
                 MicroBatchId(static_cast<int32_t>(first % per_stage / s.slices)),
                 static_cast<int>(first % s.slices));
  proof.problems.AddAbsent(ProblemKind::kMissing,
                           s.RankOf(action.stage, action.micro_batch).value(), action, [&] {
                             return fmt::format(
                                 "{} of {} forwards missing (stages {} x micro-batches {} x slices "
                                 "{}); this is the first",
                                 triples - static_cast<int64_t>(seen.size()), triples,
                                 s.num_stages(), s.total_micro_batches(), s.slices);
                           });
}

}  // namespace

void TripleTable::Resize(const Schedule& schedule) {
  micro_batches_ = static_cast<size_t>(schedule.total_micro_batches());
  slices_ = static_cast<size_t>(schedule.slices);
  entries_.assign(static_cast<size_t>(schedule.num_stages()) * micro_batches_ * slices_, Entry());
}

bool Proof::Usable(int rank, const Action& action) const {
  return action.kind != OpKind::kIdle && RangeFault(schedule, action).empty() &&
         OnItsRank(schedule, rank, action);
}

// "" when every edge names stages of the schedule in order and its name is its own.
static std::string EdgeFault(const Schedule& s) {
  std::vector<std::string_view> names;
  for (const Edge& edge : s.edges) {
    names.push_back(edge.name);
    int before = edge.from.value();
    bool ascending = before >= 0 && !edge.to.empty();
    for (const StageId stage : edge.to) {
      ascending = ascending && stage.value() > before && stage.value() < s.num_stages();
      before = stage.value();
    }
    if (!ascending)
      return fmt::format("edge '{}': wanted stages of 0 to {} in ascending order", edge.name,
                         s.num_stages() - 1);
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end())
    return fmt::format("two edges are called '{}'", *twice);
  return s.edges.size() > 65535 ? "more than 65535 edges" : "";
}

bool CheckShape(Proof& proof) {
  const Schedule& s = proof.schedule;
  auto wrong = [&proof](std::string message) {
    proof.problems.Add(ProblemKind::kShape, -1, -1, [&] { return message; });
    return false;
  };
  if (s.num_ranks() < 1 || s.placement.num_stages() < 1)
    return wrong("no ranks or no stages");
  if (s.ranks.size() != static_cast<size_t>(s.num_ranks())) {
    return wrong(
        fmt::format("{} lists of actions, wanted {}, one per rank", s.ranks.size(), s.num_ranks()));
  }
  if (s.micro_batches < 1 || s.steps < 1 || s.slices < 1 || s.slices > 65536) {
    return wrong(fmt::format("{} micro-batches, {} steps, {} slices, wanted at least 1 of each",
                             s.micro_batches, s.steps, s.slices));
  }
  if (int64_t{s.micro_batches} * s.steps > 0x7ffffffe)
    return wrong("micro-batches x steps, wanted less than 2^31");
  if (const std::string fault = EdgeFault(s); !fault.empty())
    return wrong(fault);
  for (size_t r = 0; r < s.ranks.size(); ++r) {
    if (s.ranks[r].size() > 0x7ffffff0)
      return wrong(fmt::format("rank {} has more than 2^31 actions", r));
  }
  return true;
}

bool IndexActions(Proof& proof) {
  const Schedule& s = proof.schedule;
  const int64_t actions = s.CountActions();
  const auto triples = static_cast<double>(s.num_stages()) * s.total_micro_batches() * s.slices;
  constexpr int64_t kSlack = 65536;
  if (triples > static_cast<double>(4 * actions + kSlack)) {
    if (triples > 4e18) {
      proof.problems.Add(ProblemKind::kShape, -1, -1, [] {
        return std::string("stages x micro-batches x slices is beyond 2^62");
      });
    } else {
      ReportFarTooFew(proof, int64_t{s.num_stages()} * s.total_micro_batches() * s.slices);
    }
    return false;
  }
  proof.triples.Resize(s);
  for (int r = 0; r < s.num_ranks(); ++r) {
    const auto& program = s.ranks[static_cast<size_t>(r)];
    for (size_t i = 0; i < program.size(); ++i) {
      const Action& a = program[i];
      if (a.kind == OpKind::kIdle)
        continue;
      if (const std::string fault = RangeFault(s, a); !fault.empty()) {
        proof.problems.Add(ProblemKind::kRange, r, static_cast<int64_t>(i), [&] { return fault; });
        continue;
      }
      proof.has_backward = proof.has_backward || IsBackward(a.kind);
      proof.has_messages = proof.has_messages || IsMessage(a.kind);
      if (OnItsRank(s, r, a)) {
        if (IsCompute(a.kind))
          Record(proof, r, static_cast<int64_t>(i), a);
        continue;
      }
      const int home = HasMicroBatch(a.kind) ? s.RankOf(a.stage, a.micro_batch).value()
                                             : s.placement.RankOf(a.stage).value();
      proof.problems.Add(ProblemKind::kPlacement, r, static_cast<int64_t>(i),
                         [&] { return fmt::format("stage {} is on rank {}", a.stage, home); });
      if (IsCompute(a.kind))
        RecordElsewhere(proof, a);
    }
  }
  proof.has_messages = proof.has_messages || s.lowered;
  ReportMissing(proof);
  return true;
}

}  // namespace penstock::schedule
