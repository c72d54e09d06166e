// What the decider tells the head's stage along with a plan, and what comes back.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "runtime/step_plan.h"
#include "serve/sampling.h"

namespace penstock::serve {

// A sequence that appears for the first time, or goes on with new tokens.
struct Admission {
  int32_t sequence = 0;
  SamplingParams params;
  std::vector<int32_t> history;  // tokens so far, for penalties; empty when none applies
};

struct HeadNote {
  std::vector<Admission> admissions;
  std::vector<int32_t>
      targets;  // scoring: the token that follows each selected row, -1 where none does
};

std::vector<std::byte> EncodeNote(const HeadNote& note);
Result<HeadNote> DecodeNote(std::span<const std::byte> bytes);

// What the head makes of the logits.
enum class HeadMode : uint8_t {
  kSample,  // one token per selected row
  kScore,   // log probability of the target of each selected row
  kLogits,  // the logits themselves
};

struct RowResult {
  int32_t sequence = 0;
  int64_t position = 0;  // of the row that gave it
  Sampled sampled;       // kSample; kScore: token is the target, logprob its log probability
  std::vector<float> logits;
};

std::vector<std::byte> EncodeResults(std::span<const RowResult> rows);
Result<std::vector<RowResult>> DecodeResults(std::span<const std::byte> bytes);

int64_t MaxNoteBytes(int64_t max_sequences, int64_t history_tokens, int64_t targets);
int64_t MaxResultBytes(HeadMode mode, int64_t selected, int64_t vocabulary, int32_t logprobs);

}  // namespace penstock::serve
