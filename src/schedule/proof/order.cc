// Order on each rank, by the position of what an action needs.

#include <algorithm>
#include <map>
#include <tuple>

#include "schedule/proof/proof.h"

namespace penstock::schedule {
namespace {

class RankOrder {
 public:
  RankOrder(Proof& proof, int rank)
      : proof_(proof),
        schedule_(proof.schedule),
        rank_(rank),
        program_(proof.schedule.ranks[static_cast<size_t>(rank)]) {}

  void Run() {
    FindStages();
    for (size_t i = 0; i < program_.size(); ++i) {
      const Action& a = program_[i];
      if (a.joined)
        CheckJoined(static_cast<int64_t>(i));
      if (!proof_.Usable(rank_, a))
        continue;
      index_ = static_cast<int32_t>(i);
      if (IsCompute(a.kind)) {
        CheckCompute(a);
      } else {
        CheckOther(a);
      }
    }
    for (auto& [key, state] : stages_) {
      proof_.result.held_gradients[static_cast<size_t>(rank_)] += state.most_held;
    }
  }

 private:
  // What a stage on this rank went through so far. Keyed by stage and copy of the weights.
  struct StageState {
    bool gathers = false;  // has UNSHARD or RESHARD
    bool gathered = false;
    bool has_optimizer = false;
    int optimizer_steps = 0;
    int reductions = 0;
    int all_reductions = 0;  // that this rank has, also later ones
    int32_t last_reduction = -1;
    int next_weight =
        0;  // micro-batch (of the copy, in program order of steps) whose gradient is added next
    int held = 0;
    int most_held = 0;
    std::vector<bool> early;  // contributions that are held, by micro-batch
  };

  StageState& State(StageId stage, int direction) { return stages_[{stage.value(), direction}]; }

  template <class Apply>
  void ForCopies(StageId stage, const Apply& apply) {
    for (int d = 0; d < schedule_.placement.num_directions(); ++d) {
      if (schedule_.placement.RankOf(stage, d) == RankId(rank_))
        apply(State(stage, d));
    }
  }

  void FindStages() {
    for (size_t e = 0; e < schedule_.edges.size(); ++e) {
      const Edge& edge = schedule_.edges[e];
      if (edge.kind != EdgeKind::kTied)
        continue;
      tied_of_.resize(static_cast<size_t>(schedule_.num_stages()));
      tied_of_[static_cast<size_t>(edge.from.value())].push_back(static_cast<uint16_t>(e + 1));
      for (const StageId stage : edge.to)
        tied_of_[static_cast<size_t>(stage.value())].push_back(static_cast<uint16_t>(e + 1));
    }
    for (const Action& a : program_) {
      if (!proof_.Usable(rank_, a))
        continue;
      if (a.kind == OpKind::kUnshard || a.kind == OpKind::kReshard) {
        ForCopies(a.stage, [](StageState& state) { state.gathers = true; });
      } else if (a.kind == OpKind::kOptimizer) {
        ForCopies(a.stage, [](StageState& state) { state.has_optimizer = true; });
      } else if (a.kind == OpKind::kReduceGrad && a.value == 0) {
        ForCopies(a.stage, [](StageState& state) { ++state.all_reductions; });
      }
    }
  }

  // A joined cell is a pair of computations.
  void CheckJoined(int64_t index) {
    const auto i = static_cast<size_t>(index);
    const bool pair = i > 0 && !program_[i - 1].joined && IsCompute(program_[i].kind) &&
                      IsCompute(program_[i - 1].kind);
    if (!pair) {
      proof_.problems.Add(ProblemKind::kShape, rank_, index, [] {
        return std::string(
            "an overlapped cell holds two computations, wanted F, B, I, W or R in it");
      });
    }
  }

  // The action at `needed` must stand before the current one.
  void Need(int32_t needed, const char* why) {
    if (needed <= index_)
      return;
    proof_.problems.Add(ProblemKind::kOrder, rank_, index_, [&] {
      return fmt::format("before {} at cell {}{}", proof_.problems.TextAt(rank_, needed),
                         proof_.problems.CellOf(rank_, needed), why);
    });
  }

  bool Here(int stage, MicroBatchId micro_batch) const {
    return schedule_.RankOf(StageId(stage), micro_batch) == RankId(rank_);
  }

  const TripleTable::Entry& Entry(int stage, int micro_batch, int slice) const {
    return proof_.triples[proof_.triples.IndexOf(stage, micro_batch, slice)];
  }

  void CheckCompute(const Action& a) {
    const int s = a.stage.value();
    const int j = a.micro_batch.value();
    const int k = a.slice;
    StageState& state = State(a.stage, schedule_.DirectionOf(a.micro_batch));
    if (state.gathers && !state.gathered) {
      proof_.problems.Add(ProblemKind::kOrder, rank_, index_, [&] {
        return fmt::format("the weights of stage {} are not gathered here, wanted UNSHARD before",
                           s);
      });
    }
    const TripleTable::Entry& own = Entry(s, j, k);
    switch (a.kind) {
      case OpKind::kForward:
        if (s > 0 && Here(s - 1, a.micro_batch))
          Need(Entry(s - 1, j, k).forward, ", whose output it takes");
        if (k > 0)
          Need(Entry(s, j, k - 1).forward, ", the slice before it");
        if (s == 0 && schedule_.ring && j >= schedule_.micro_batches &&
            Here(schedule_.num_stages() - 1, a.micro_batch)) {
          Need(Entry(schedule_.num_stages() - 1, j - schedule_.micro_batches, k).forward,
               ", the lap before it");
        }
        if (state.has_optimizer && proof_.StepOf(a.micro_batch) > state.optimizer_steps) {
          proof_.problems.Add(ProblemKind::kOrder, rank_, index_, [&] {
            return fmt::format("step {} starts before {}OPT{}", proof_.StepOf(a.micro_batch), s,
                               state.optimizer_steps);
          });
        }
        return;
      case OpKind::kRecompute:
        return Need(own.forward, ", which it repeats");
      case OpKind::kBackwardWeight:
        Need(own.input, ", its input gradient");
        return CheckWeight(a, state);
      default:
        Need(own.forward, ", its forward");
        if (k != schedule_.slices - 1)
          Need(Entry(s, j, schedule_.slices - 1).forward, ", the last slice's forward");
        if (k + 1 < schedule_.slices)
          Need(Entry(s, j, k + 1).input, ", the slice after it");
        if (s + 1 < schedule_.num_stages() && Here(s + 1, a.micro_batch))
          Need(Entry(s + 1, j, k).input, ", whose gradient it takes");
        Need(own.recompute, ", which makes its activations");
        if (a.kind == OpKind::kBackward)
          CheckWeight(a, state);
    }
  }

  void CheckWeight(const Action& a, StageState& state) {
    const int step = proof_.StepOf(a.micro_batch);
    if (state.has_optimizer && state.optimizer_steps > step) {
      proof_.problems.Add(ProblemKind::kOrder, rank_, index_, [&] {
        return fmt::format("after {}OPT{}, which needs this gradient", a.stage, step);
      });
    }
    if (state.reductions > step) {
      proof_.problems.Add(ProblemKind::kOrder, rank_, state.last_reduction, [&] {
        return fmt::format(
            "before {} at cell {}: a reduction comes after the last B or W of its stage",
            proof_.problems.Text(a), proof_.problems.CellOf(rank_, index_));
      });
      --state.reductions;
    }
    ForTied(a.stage, [&](uint16_t edge) {
      const auto found = tied_.find({edge, a.stage.value()});
      if (found == tied_.end() || found->second.count <= step)
        return;
      proof_.problems.Add(ProblemKind::kOrder, rank_, found->second.last, [&] {
        return fmt::format(
            "before {} at cell {}: a reduction comes after the last B or W of its stage",
            proof_.problems.Text(a), proof_.problems.CellOf(rank_, index_));
      });
      --found->second.count;
    });
    if (a.slice == 0)
      CountHeld(a.micro_batch.value(), state);
  }

  // Contributions enter in ascending order of the micro-batches; what comes early is held.
  void CountHeld(int micro_batch, StageState& state) {
    if (state.early.empty())
      state.early.assign(static_cast<size_t>(schedule_.total_micro_batches()), false);
    const int direction = schedule_.DirectionOf(MicroBatchId(micro_batch));
    auto skip_other_copy = [&] {
      while (state.next_weight < schedule_.total_micro_batches() &&
             schedule_.DirectionOf(MicroBatchId(state.next_weight)) != direction) {
        ++state.next_weight;
      }
    };
    skip_other_copy();
    if (micro_batch != state.next_weight) {
      if (!state.early[static_cast<size_t>(micro_batch)])
        state.most_held = std::max(state.most_held, ++state.held);
      state.early[static_cast<size_t>(micro_batch)] = true;
      return;
    }
    ++state.next_weight;
    skip_other_copy();
    while (state.next_weight < schedule_.total_micro_batches() &&
           state.early[static_cast<size_t>(state.next_weight)]) {
      ++state.next_weight;
      --state.held;
      skip_other_copy();
    }
  }

  void CheckOther(const Action& a) {
    switch (a.kind) {
      case OpKind::kUnshard:
      case OpKind::kReshard:
        return CheckGather(a);
      case OpKind::kReduceGrad:
        return CheckReduce(a);
      case OpKind::kOptimizer:
        return CheckOptimizer(a);
      case OpKind::kWaitSendForward:
      case OpKind::kWaitSendBackward:
      case OpKind::kWaitReduceGrad:
        return CheckWait(a);
      default:
        return;
    }
  }

  void CheckGather(const Action& a) {
    const bool gather = a.kind == OpKind::kUnshard;
    bool wrong = false;
    ForCopies(a.stage, [&](StageState& state) {
      wrong = wrong || state.gathered == gather;
      state.gathered = gather;
    });
    if (wrong) {
      proof_.problems.Add(ProblemKind::kOrder, rank_, index_, [&] {
        return fmt::format("the weights of stage {} are {} here", a.stage,
                           gather ? "gathered already" : "not gathered");
      });
    }
  }

  void CheckReduce(const Action& a) {
    if (a.value != 0)
      return CheckReduceTied(a);
    bool twice = false;
    ForCopies(a.stage, [&](StageState& state) {
      ++state.reductions;
      state.last_reduction = index_;
      twice = twice || state.reductions > schedule_.steps;
    });
    if (twice) {
      proof_.problems.Add(ProblemKind::kDuplicate, rank_, index_, [&] {
        return fmt::format("a reduction more than there are steps ({})", schedule_.steps);
      });
    }
  }

  // Of tied weights every use has its own accumulator; the run checks that all owners come. What a
  // use adds is its stage's sum over lanes and replicas.
  void CheckReduceTied(const Action& a) {
    Tied& tied = tied_[{a.value, a.stage.value()}];
    bool early = false;
    ForCopies(a.stage, [&](StageState& state) {
      early = early || (state.reductions <= tied.count && state.reductions < state.all_reductions);
    });
    ++tied.count;
    tied.last = index_;
    if (early) {
      proof_.problems.Add(ProblemKind::kOrder, rank_, index_, [&] {
        return fmt::format("before the REDUCE_GRAD of stage {}, whose sum it takes", a.stage);
      });
    }
  }

  // Owners of tied weights each have an optimizer: all of them must have the whole sum.
  void CheckTiedBeforeOptimizer(const Action& a, int step) {
    ForTied(a.stage, [&](uint16_t edge) {
      const Edge& weights = schedule_.edges[edge - 1U];
      std::vector<StageId> owners = weights.to;
      owners.insert(owners.begin(), weights.from);
      const StageId* lacks = nullptr;
      for (const StageId& owner : owners) {
        const auto found = tied_.find({edge, owner.value()});
        if (lacks == nullptr && HasStage(owner) &&
            (found == tied_.end() || found->second.count <= step)) {
          lacks = &owner;
        }
      }
      if (lacks == nullptr)
        return;
      proof_.problems.Add(ProblemKind::kOrder, rank_, index_, [&] {
        std::string others;
        for (const StageId owner : owners) {
          if (owner != a.stage)
            others += fmt::format("{}{}", others.empty() ? "" : ", ", owner);
        }
        return fmt::format(
            "updates '{}', which stage {} shares with {}, each with an optimizer of its own: "
            "wanted {}REDUCE_GRAD{}:{} before it",
            weights.name, a.stage, others, *lacks, step, weights.name);
      });
    });
  }

  bool HasStage(StageId stage) const {
    for (int d = 0; d < schedule_.placement.num_directions(); ++d) {
      if (schedule_.placement.RankOf(stage, d) == RankId(rank_))
        return true;
    }
    return false;
  }

  // Numbers (from 1) of the edges of tied weights that the stage owns.
  template <class Apply>
  void ForTied(StageId stage, const Apply& apply) const {
    if (tied_of_.empty())
      return;
    for (const uint16_t edge : tied_of_[static_cast<size_t>(stage.value())])
      apply(edge);
  }

  void CheckOptimizer(const Action& a) {
    const int step = std::max(0, a.micro_batch.value());
    CheckTiedBeforeOptimizer(a, step);
    bool wrong = false;
    int wanted = 0;
    ForCopies(a.stage, [&](StageState& state) {
      wrong = wrong || state.optimizer_steps != step;
      wanted = state.optimizer_steps;
      ++state.optimizer_steps;
    });
    if (wrong) {
      proof_.problems.Add(
          step < wanted ? ProblemKind::kDuplicate : ProblemKind::kOrder, rank_, index_, [&] {
            return step < wanted ? fmt::format("stage {} has had its optimizer step {} already",
                                               a.stage, step)
                                 : fmt::format("optimizer step {} of stage {} before its step {}",
                                               step, a.stage, wanted);
          });
    }
  }

  // A WAIT needs its SEND (or REDUCE_GRAD) before it on this rank.
  void CheckWait(const Action& a) {
    Action awaited = a;
    awaited.kind = a.kind == OpKind::kWaitSendForward    ? OpKind::kSendForward
                   : a.kind == OpKind::kWaitSendBackward ? OpKind::kSendBackward
                                                         : OpKind::kReduceGrad;
    if (sends_.empty())
      IndexAwaited();
    const auto found = sends_.find(Key(awaited));
    if (found == sends_.end()) {
      proof_.problems.Add(ProblemKind::kUnmatched, rank_, index_, [&] {
        return fmt::format("this rank has no {}", proof_.problems.Text(awaited));
      });
    } else {
      Need(found->second, ", which it waits for");
    }
  }

  using AwaitedKey = std::tuple<OpKind, int, int, int, int, int>;

  static AwaitedKey Key(const Action& a) {
    return {a.kind,  a.stage.value(), a.micro_batch.value(),
            a.slice, a.value,         IsMessage(a.kind) ? PeerStage(a).value() : -1};
  }

  void IndexAwaited() {
    for (size_t i = 0; i < program_.size(); ++i) {
      const Action& a = program_[i];
      if ((IsSend(a.kind) || a.kind == OpKind::kReduceGrad) && proof_.Usable(rank_, a)) {
        sends_.try_emplace(Key(a), static_cast<int32_t>(i));
      }
    }
  }

  Proof& proof_;
  const Schedule& schedule_;
  int rank_;
  const std::vector<Action>& program_;
  int32_t index_ = 0;
  std::map<std::pair<int, int>, StageState> stages_;

  struct Tied {
    int count = 0;  // reductions so far
    int32_t last = -1;
  };

  std::map<std::pair<uint16_t, int>, Tied> tied_;  // by edge and owner
  std::vector<std::vector<uint16_t>> tied_of_;     // by stage; empty where nothing is tied
  std::map<AwaitedKey, int32_t> sends_;
};

}  // namespace

void CheckOrder(Proof& proof) {
  proof.result.held_gradients.assign(proof.schedule.ranks.size(), 0);
  for (int r = 0; r < proof.schedule.num_ranks(); ++r)
    RankOrder(proof, r).Run();
}

}  // namespace penstock::schedule
