#include "plan/serving_steps.h"

#include <algorithm>

#include "base/check.h"
#include "plan/prefill_chunks.h"

namespace penstock::plan {

int64_t Step::rows() const {
  int64_t rows = 0;
  for (const StepSlice& slice : slices) {
    rows += slice.rows;
  }
  return rows;
}

int64_t Step::selected() const {
  int64_t selected = 0;
  for (const StepSlice& slice : slices) {
    selected += slice.selected;
  }
  return selected;
}

ServingSteps::ServingSteps(const StepRules& rules) : rules_(rules) {
  PENSTOCK_CHECK(rules.groups >= 1 && rules.max_rows >= 1 && rules.prefill_chunk >= 1,
                 "rules have groups and rows");
}

int32_t ServingSteps::Add(const Request& request) {
  PENSTOCK_CHECK(request.prompt_tokens >= 1, "a sequence has a prompt");
  const auto sequence = static_cast<int32_t>(sequences_.size());
  sequences_.push_back({Phase::kPrefill, request.prompt_tokens, 0, 0, request.output_tokens});
  active_.insert(sequence);
  return sequence;
}

void ServingSteps::Continue(int32_t sequence, int64_t tokens, int64_t output_tokens) {
  Sequence& s = At(sequence);
  PENSTOCK_CHECK(s.phase == Phase::kFinished, "only a finished sequence goes on");
  s.length += tokens;
  s.phase = Phase::kPrefill;
  s.produced = 0;
  s.wanted = output_tokens;
  active_.insert(sequence);
}

void ServingSteps::AddRows(Step& step, int32_t sequence, int64_t rows) {
  Sequence& s = At(sequence);
  StepSlice slice{sequence, s.computed, rows, 0, s.computed + rows == s.length};
  s.computed += rows;
  if (slice.complete) {
    s.phase = Phase::kAwaiting;
  }
  slice.selected = rules_.select_all ? rows : (slice.complete ? 1 : 0);
  step.slices.push_back(slice);
}

void ServingSteps::AddDecodeRows(Step& step) {
  for (const int32_t sequence : active_) {
    if (step.rows() >= rules_.max_rows) {
      return;
    }
    if (group(sequence) == next_group_ && At(sequence).phase == Phase::kReady) {
      AddRows(step, sequence, 1);
    }
  }
}

void ServingSteps::AddPrefillRows(Step& step) {
  double budget =
      ChunkCost(rules_.attention_share, 0, rules_.prefill_chunk) - static_cast<double>(step.rows());
  for (const int32_t sequence : active_) {
    const Sequence& s = At(sequence);
    if (s.phase != Phase::kPrefill) {
      continue;
    }
    const int64_t room = rules_.max_rows - step.rows();
    if (room <= 0 || budget < 1) {
      return;
    }
    const int64_t prefix = s.computed;
    const int64_t rows =
        std::min({room, ChunkRows(rules_.attention_share, prefix, budget), s.length - prefix});
    budget -= ChunkCost(rules_.attention_share, prefix, rows);
    AddRows(step, sequence, rows);
  }
}

ServingSteps::Next ServingSteps::Advance(Step& step, int64_t& awaited) {
  if (active_.empty() && outstanding_.empty()) {
    return Next::kDone;
  }
  const bool behind = !outstanding_.empty() && *outstanding_.begin() <= next_step_ - rules_.groups;
  if (active_.empty() || behind) {
    awaited = *outstanding_.begin();
    return Next::kNeedResult;
  }
  step.slices.clear();
  for (int32_t tried = 0; tried < rules_.groups && step.slices.empty(); ++tried) {
    step.micro_batch = next_group_;
    AddDecodeRows(step);
    AddPrefillRows(step);
    next_group_ = (next_group_ + 1) % rules_.groups;
  }
  if (step.slices.empty()) {
    PENSTOCK_CHECK(!outstanding_.empty(),
                   "an active sequence has rows to compute or a result to come");
    awaited = *outstanding_.begin();
    return Next::kNeedResult;
  }
  step.number = next_step_++;
  if (step.selected() > 0) {
    outstanding_.insert(step.number);
  }
  return Next::kStep;
}

void ServingSteps::OnResult(int64_t number) {
  outstanding_.erase(number);
}

bool ServingSteps::OnToken(int32_t sequence, bool last) {
  Sequence& s = At(sequence);
  if (s.phase != Phase::kAwaiting) {
    return false;
  }
  ++s.produced;
  if (last) {
    Finish(sequence);
    return true;
  }
  ++s.length;
  s.phase = Phase::kReady;
  if (s.produced >= s.wanted) {
    Finish(sequence);
  }
  return true;
}

void ServingSteps::Finish(int32_t sequence) {
  At(sequence).phase = Phase::kFinished;
  active_.erase(sequence);
}

}  // namespace penstock::plan
