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
  return std::count_if(slices.begin(), slices.end(),
                       [](const StepSlice& slice) { return slice.selected; });
}

ServingSteps::ServingSteps(const StepRules& rules, const std::vector<Request>& requests)
    : rules_(rules) {
  PENSTOCK_CHECK(rules.groups >= 1 && rules.max_rows >= 1 && rules.prefill_chunk >= 1,
                 "rules have groups and rows");
  for (const Request& request : requests) {
    active_.insert(static_cast<int32_t>(sequences_.size()));
    sequences_.push_back({Phase::kPrefill, std::max<int64_t>(1, request.prompt_tokens), 0, 0,
                          std::max<int64_t>(1, request.output_tokens)});
  }
}

void ServingSteps::AddRows(Step& step, int32_t sequence, int64_t rows) {
  Sequence& s = sequences_[static_cast<size_t>(sequence)];
  const int64_t first = s.computed;
  s.computed += rows;
  const bool complete = s.computed == s.length;
  if (complete) {
    s.phase = Phase::kAwaiting;
  }
  step.slices.push_back({sequence, first, rows, complete});
}

void ServingSteps::AddDecodeRows(Step& step) {
  for (const int32_t sequence : active_) {
    if (step.rows() >= rules_.max_rows) {
      return;
    }
    if (sequence % rules_.groups == next_group_ &&
        sequences_[static_cast<size_t>(sequence)].phase == Phase::kReady) {
      AddRows(step, sequence, 1);
    }
  }
}

void ServingSteps::AddPrefillRows(Step& step) {
  double budget =
      ChunkCost(rules_.attention_share, 0, rules_.prefill_chunk) - static_cast<double>(step.rows());
  for (const int32_t sequence : active_) {
    const Sequence& s = sequences_[static_cast<size_t>(sequence)];
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
  if (active_.empty()) {
    if (outstanding_.empty()) {
      return Next::kDone;
    }
    awaited = *outstanding_.begin();
    return Next::kNeedResult;
  }
  if (!outstanding_.empty() && *outstanding_.begin() <= next_step_ - rules_.groups) {
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
    PENSTOCK_CHECK(!outstanding_.empty(), "an active sequence has rows or a result to come");
    awaited = *outstanding_.begin();
    return Next::kNeedResult;
  }
  step.number = next_step_++;
  if (step.selected() > 0) {
    outstanding_.insert(step.number);
  }
  return Next::kStep;
}

void ServingSteps::OnResult(const Step& step) {
  outstanding_.erase(step.number);
  for (const StepSlice& slice : step.slices) {
    if (!slice.selected) {
      continue;
    }
    Sequence& s = sequences_[static_cast<size_t>(slice.sequence)];
    ++s.produced;
    ++s.length;
    s.phase = Phase::kReady;
    if (s.produced >= s.wanted) {
      s.phase = Phase::kFinished;
      active_.erase(slice.sequence);
    }
  }
}

}  // namespace penstock::plan
