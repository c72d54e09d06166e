// The decider: numbered step plans. Which rows make up the next micro-batch is decided in
// plan/serving_steps.h, by counts, so that the planner's simulation runs the same rules; here are
// the tokens of the rows and the KV pages of their sequences. Pure: no clock, no tensors, no
// transport.

#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "base/result.h"
#include "plan/serving_steps.h"
#include "runtime/step_plan.h"
#include "serve/block_manager.h"

namespace penstock::serve {

struct DeciderConfig {
  plan::StepRules rules;
  int64_t context = 0;  // most positions of a sequence
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

  bool finished(int32_t sequence) const { return steps_.finished(sequence); }

  int32_t group(int32_t sequence) const { return steps_.group(sequence); }

  int64_t length(int32_t sequence) const {
    return static_cast<int64_t>(At(sequence).tokens.size());
  }

  std::span<const int32_t> tokens(int32_t sequence) const { return At(sequence).tokens; }

 private:
  struct Sequence {
    std::vector<int32_t> tokens;  // prompt and generated
    bool long_rope = false;
  };

  const Sequence& At(int32_t sequence) const { return sequences_[static_cast<size_t>(sequence)]; }

  Sequence& At(int32_t sequence) { return sequences_[static_cast<size_t>(sequence)]; }

  void AddSlice(runtime::StepPlan& plan, const plan::StepSlice& rows);

  DeciderConfig config_;
  plan::ServingSteps steps_;
  BlockManager blocks_;
  std::vector<Sequence> sequences_;
};

}  // namespace penstock::serve
