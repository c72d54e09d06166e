// Which rows the engine's decider puts into its micro-batches, by counts alone: what a plan needs
// to foretell a run. It follows the same rules as serve/decider.h (a test holds them together),
// without tokens, pages and ends of texts.

#pragma once

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
  int64_t max_rows = 0;
  int64_t prefill_chunk = 0;
  double attention_share = 0;
};

struct StepSlice {
  int32_t sequence = 0;
  int64_t first = 0;  // position
  int64_t rows = 0;
  bool selected = false;  // its last row gets logits
};

struct Step {
  int64_t number = 0;
  int32_t micro_batch = 0;
  std::vector<StepSlice> slices;

  int64_t rows() const;
  int64_t selected() const;
};

class ServingSteps {
 public:
  // REQUIRES: every request has a prompt and an output.
  ServingSteps(const StepRules& rules, const std::vector<Request>& requests);

  enum class Next : uint8_t { kStep, kNeedResult, kDone };

  // kStep fills `step`; kNeedResult fills `awaited`.
  Next Advance(Step& step, int64_t& awaited);

  // The result of step `number` has come: each of its selected rows is a token.
  void OnResult(const Step& step);

 private:
  enum class Phase : uint8_t { kPrefill, kAwaiting, kReady, kFinished };

  struct Sequence {
    Phase phase = Phase::kPrefill;
    int64_t length = 0;
    int64_t computed = 0;
    int64_t produced = 0;
    int64_t wanted = 0;
  };

  void AddRows(Step& step, int32_t sequence, int64_t rows);
  void AddDecodeRows(Step& step);
  void AddPrefillRows(Step& step);

  StepRules rules_;
  std::vector<Sequence> sequences_;
  std::set<int32_t> active_;
  std::set<int64_t> outstanding_;
  int64_t next_step_ = 0;
  int32_t next_group_ = 0;
};

}  // namespace penstock::plan
