// The decider: which rows make up the next micro-batch. Pure: no clock, no tensors, no transport,
// so that a simulator can run it too.
//
// Groups circulate through the stages (decode ring): step plan n belongs to one group, and a
// sequence of group g is decoded in plans of group g. Plan n uses results of plans up to n - G
// only, G being the number of groups, so what it says does not depend on timing. Sequences are
// dealt evenly over groups. Prefill is cut into chunks of equal cost (attention grows with the
// prefix, so later chunks are shorter), which follow each other through the stages without waiting
// for results; chunks of one plan may belong to several sequences, beside the group's decode rows.

#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <span>
#include <variant>
#include <vector>

#include "base/result.h"
#include "runtime/step_plan.h"
#include "serve/block_manager.h"

namespace penstock::serve {

struct DeciderConfig {
  int32_t groups = 1;
  int64_t max_rows = 0;       // rows of one plan
  int64_t prefill_chunk = 0;  // tokens of a prompt's first chunk, at most max_rows
  double attention_share =
      0;  // cost of one row looking back one position, over the rest of the row's cost
  bool select_all = false;  // every row of a prompt yields logits (scores), not only the last one
  int64_t context = 0;      // most positions of a sequence
  int64_t long_rope_from =
      0;  // sequences whose full length exceeds this use LongRoPE's long factors; 0: no such model
};

struct NeedResult {
  int64_t step = 0;  // give the result of this plan first
};

struct AllDone {};

class Decider {
 public:
  Decider(const DeciderConfig& config, BlockManager blocks);

  // A new sequence with its prompt, which will produce at most `max_new` tokens. Gives its number
  // (0, 1, ...). Errors: kInvalidArgument (empty prompt, prompt + max_new beyond the context, with
  // both numbers), kOutOfMemory (no KV blocks).
  Result<int32_t> Admit(std::span<const int32_t> prompt, int64_t max_new);

  // More tokens for a finished sequence that keeps its state (a conversation). Its reservation was
  // made by ReserveFor.
  Result<> Continue(int32_t sequence, std::span<const int32_t> tokens, int64_t max_new);

  // Admit, but with pages for `tokens` positions from the start, so that Continue can go on up to
  // there.
  Result<int32_t> AdmitWithRoom(std::span<const int32_t> prompt, int64_t max_new, int64_t tokens);

  std::variant<runtime::StepPlan, NeedResult, AllDone> Next();

  // The result of plan `step` has come; call before OnToken of its rows.
  void OnResult(int64_t step);
  // A row of `sequence` was sampled. With `stop` the sequence is finished and `token` is not fed
  // back.
  void OnToken(int32_t sequence, int32_t token, bool stop);
  // Ends a sequence at once. A plan of it that is under way still runs; its token is dropped by the
  // caller.
  void Finish(int32_t sequence);
  // Gives back the pages of a finished sequence.
  void Release(int32_t sequence);

  bool finished(int32_t sequence) const { return At(sequence).phase == Phase::kFinished; }

  int32_t group(int32_t sequence) const { return sequence % config_.groups; }

  int64_t length(int32_t sequence) const {
    return static_cast<int64_t>(At(sequence).tokens.size());
  }

  std::span<const int32_t> tokens(int32_t sequence) const { return At(sequence).tokens; }

 private:
  enum class Phase : uint8_t {
    kPrefill,   // tokens wait to be computed
    kAwaiting,  // the last row is under way
    kReady,     // the sampled token is known and not computed yet
    kFinished,
  };

  struct Sequence {
    Phase phase = Phase::kPrefill;
    std::vector<int32_t> tokens;  // prompt and generated
    int64_t computed = 0;         // positions whose rows were planned
    int64_t produced = 0;         // since the last Admit or Continue
    int64_t max_new = 0;
    bool long_rope = false;
  };

  const Sequence& At(int32_t sequence) const { return sequences_[static_cast<size_t>(sequence)]; }

  Sequence& At(int32_t sequence) { return sequences_[static_cast<size_t>(sequence)]; }

  void AddRows(runtime::StepPlan& plan, int32_t sequence, int64_t rows);
  void AddDecodeRows(runtime::StepPlan& plan);
  void AddPrefillRows(runtime::StepPlan& plan);
  // Rows that cost as much as a first chunk, for a sequence whose prefix is this long.

  DeciderConfig config_;
  BlockManager blocks_;
  std::vector<Sequence> sequences_;
  std::set<int32_t> active_;       // not finished
  std::set<int64_t> outstanding_;  // plans whose results are awaited
  int64_t next_step_ = 0;
  int32_t next_group_ = 0;
};

}  // namespace penstock::serve
