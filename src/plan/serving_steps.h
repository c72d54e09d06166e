// Which rows make up the next micro-batch: the one place where that is decided, by counts alone. No
// clock, no tokens, no pages, no tensors, so the engine (serve/decider.h, which adds tokens and KV
// pages) and the planner's simulation (plan/serving_sim.h) run the same rules.
//
// Groups circulate through the stages (decode ring): step n belongs to one group, and a sequence of
// group g is decoded in steps of group g. Step n uses results of steps up to n - G only, G being
// the number of groups, so what it says does not depend on timing. Sequences are dealt evenly over
// groups. Prefill is cut into chunks of equal cost (attention grows with the prefix, so later
// chunks are shorter), which follow each other through the stages without waiting for results;
// chunks of one step may belong to several sequences, beside the group's decode rows.

#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

namespace penstock::plan {

struct Request {
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
};

struct StepRules {
  int32_t groups = 1;
  int64_t max_rows = 0;       // rows of one step
  int64_t prefill_chunk = 0;  // tokens of a prompt's first chunk, at most max_rows
  // Cost of one row looking back one position, over the rest of the row's cost.
  double attention_share = 0;
  bool select_all = false;  // every row of a prompt yields logits (scores), not only the last one
};

struct StepSlice {
  int32_t sequence = 0;
  int64_t first = 0;  // position
  int64_t rows = 0;
  int64_t selected = 0;   // of its last rows, those that get logits
  bool complete = false;  // its last row is the last of the sequence that is known: a token follows
};

struct Step {
  int64_t number = 0;       // 0, 1, 2, ...
  int32_t micro_batch = 0;  // the group
  std::vector<StepSlice> slices;

  int64_t rows() const;
  int64_t selected() const;
};

// Not thread-safe.
class ServingSteps {
 public:
  // REQUIRES: at least one group, rows in a step and tokens in a chunk.
  explicit ServingSteps(const StepRules& rules);

  // A new sequence; gives its number (0, 1, ...). REQUIRES: it has a prompt. (Without an output its
  // rows are scored, and Finish ends it.)
  int32_t Add(const Request& request);
  // `tokens` more positions of a finished sequence, then up to `output_tokens` new ones.
  void Continue(int32_t sequence, int64_t tokens, int64_t output_tokens);

  enum class Next : uint8_t { kStep, kNeedResult, kDone };

  // kStep fills `step`; kNeedResult fills `awaited`: give the result of that step first.
  Next Advance(Step& step, int64_t& awaited);

  // The result of step `number` has come; call before OnToken of its rows.
  void OnResult(int64_t number);
  // A token follows the sequence's last row. With `last` it ends the sequence and is not fed back.
  // False: the sequence had ended while the row was under way; the token is dropped.
  bool OnToken(int32_t sequence, bool last);
  // Ends a sequence at once.
  void Finish(int32_t sequence);

  bool finished(int32_t sequence) const { return At(sequence).phase == Phase::kFinished; }

  int32_t group(int32_t sequence) const { return sequence % rules_.groups; }

 private:
  enum class Phase : uint8_t {
    kPrefill,   // positions wait to be computed
    kAwaiting,  // the last row is under way
    kReady,     // the token is known and not computed yet
    kFinished,
  };

  struct Sequence {
    Phase phase = Phase::kPrefill;
    int64_t length = 0;    // known positions
    int64_t computed = 0;  // positions whose rows stood in a step
    int64_t produced = 0;  // since Add or Continue
    int64_t wanted = 0;
  };

  const Sequence& At(int32_t sequence) const { return sequences_[static_cast<size_t>(sequence)]; }

  Sequence& At(int32_t sequence) { return sequences_[static_cast<size_t>(sequence)]; }

  void AddRows(Step& step, int32_t sequence, int64_t rows);
  void AddDecodeRows(Step& step);
  void AddPrefillRows(Step& step);

  StepRules rules_;
  std::vector<Sequence> sequences_;
  std::set<int32_t> active_;       // not finished
  std::set<int64_t> outstanding_;  // steps whose results are awaited
  int64_t next_step_ = 0;
  int32_t next_group_ = 0;
};

}  // namespace penstock::plan
