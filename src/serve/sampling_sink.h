// The head's end of sampling: keeps each sequence's parameters and history, turns logits into
// tokens, scores or rows.

#pragma once

#include <unordered_map>

#include "runtime/head_sink.h"
#include "serve/head_note.h"

namespace penstock::serve {

class SamplingSink final : public runtime::HeadSink {
 public:
  // `logprobs`: most alternatives that any sequence asks for.
  SamplingSink(HeadMode mode, int64_t vocabulary, int32_t logprobs)
      : mode_(mode), vocabulary_(vocabulary), logprobs_(logprobs) {}

  Result<std::vector<std::byte>> Consume(const runtime::StepPlan& plan, Tensor logits) override;

  int64_t MaxResultBytes(int64_t selected) const override {
    return serve::MaxResultBytes(mode_, selected, vocabulary_, logprobs_);
  }

 private:
  struct Sequence {
    SamplingParams params;
    std::vector<int32_t> history;
  };

  RowResult MakeRow(const runtime::SequenceSlice& slice, int64_t position,
                    std::span<const float> logits, int32_t target);

  HeadMode mode_;
  int64_t vocabulary_;
  int32_t logprobs_;
  std::unordered_map<int32_t, Sequence> sequences_;
};

}  // namespace penstock::serve
