#include "serve/decider.h"

#include <algorithm>

#include "plan/prefill_chunks.h"

namespace penstock::serve {

using runtime::Select;
using runtime::SequenceSlice;
using runtime::StepPlan;

Decider::Decider(const DeciderConfig& config, BlockManager blocks)
    : config_(config), blocks_(std::move(blocks)) {
  PENSTOCK_CHECK(config.groups >= 1 && config.max_rows >= 1 && config.prefill_chunk >= 1,
                 "a decider has groups and rows");
}

Result<int32_t> Decider::Admit(std::span<const int32_t> prompt, int64_t max_new) {
  return AdmitWithRoom(prompt, max_new, static_cast<int64_t>(prompt.size()) + max_new);
}

Result<int32_t> Decider::AdmitWithRoom(std::span<const int32_t> prompt, int64_t max_new,
                                       int64_t tokens) {
  const auto length = static_cast<int64_t>(prompt.size());
  if (length == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[serve.decider] the prompt has no tokens, wanted at least one");
  }
  if (length + max_new > config_.context) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[serve.decider] a prompt of {} tokens and {} new ones need {} positions, but "
                     "the context has {}",
                     length, max_new, length + max_new, config_.context);
  }
  const auto sequence = static_cast<int32_t>(sequences_.size());
  PENSTOCK_TRY(blocks_.Reserve(sequence, std::max(tokens, length + max_new)));
  Sequence& added = sequences_.emplace_back();
  added.tokens.assign(prompt.begin(), prompt.end());
  added.max_new = max_new;
  added.long_rope =
      config_.long_rope_from > 0 && std::max(tokens, length + max_new) > config_.long_rope_from;
  active_.insert(sequence);
  return sequence;
}

Result<> Decider::Continue(int32_t sequence, std::span<const int32_t> tokens, int64_t max_new) {
  Sequence& s = At(sequence);
  PENSTOCK_CHECK(s.phase == Phase::kFinished, "only a finished sequence goes on");
  const int64_t length = static_cast<int64_t>(s.tokens.size() + tokens.size());
  if (length + max_new > config_.context) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[serve.decider] the conversation has {} tokens and {} new ones need {} "
                     "positions, but the context has {}",
                     length, max_new, length + max_new, config_.context);
  }
  s.tokens.insert(s.tokens.end(), tokens.begin(), tokens.end());
  s.phase = Phase::kPrefill;
  s.produced = 0;
  s.max_new = max_new;
  active_.insert(sequence);
  return {};
}

void Decider::AddRows(StepPlan& plan, int32_t sequence, int64_t rows) {
  Sequence& s = At(sequence);
  blocks_.Extend(sequence, s.computed, rows);
  SequenceSlice& slice = plan.slices.emplace_back();
  slice.sequence = sequence;
  slice.long_rope = s.long_rope;
  slice.first_position = s.computed;
  slice.tokens.assign(s.tokens.begin() + s.computed, s.tokens.begin() + s.computed + rows);
  slice.blocks = blocks_.tables(sequence);
  s.computed += rows;
  const bool complete = s.computed == static_cast<int64_t>(s.tokens.size());
  if (config_.select_all) {
    slice.select = Select::kAll;
  } else {
    slice.select = complete ? Select::kLast : Select::kNone;
  }
  if (complete) {
    s.phase = Phase::kAwaiting;
  }
}

void Decider::AddDecodeRows(StepPlan& plan) {
  for (const int32_t sequence : active_) {
    if (plan.rows() >= config_.max_rows) {
      return;
    }
    if (group(sequence) == next_group_ && At(sequence).phase == Phase::kReady) {
      AddRows(plan, sequence, 1);
    }
  }
}

void Decider::AddPrefillRows(StepPlan& plan) {
  double budget = plan::ChunkCost(config_.attention_share, 0, config_.prefill_chunk) -
                  static_cast<double>(plan.rows());
  for (const int32_t sequence : active_) {
    const Sequence& s = At(sequence);
    if (s.phase != Phase::kPrefill) {
      continue;
    }
    const int64_t room = config_.max_rows - plan.rows();
    if (room <= 0 || budget < 1) {
      return;
    }
    const int64_t prefix = s.computed;
    const int64_t rows = std::min({room, plan::ChunkRows(config_.attention_share, prefix, budget),
                                   static_cast<int64_t>(s.tokens.size()) - prefix});
    budget -= plan::ChunkCost(config_.attention_share, prefix, rows);
    AddRows(plan, sequence, rows);
  }
}

std::variant<StepPlan, NeedResult, AllDone> Decider::Next() {
  if (active_.empty()) {
    return outstanding_.empty() ? std::variant<StepPlan, NeedResult, AllDone>(AllDone{})
                                : NeedResult{*outstanding_.begin()};
  }
  if (!outstanding_.empty() && *outstanding_.begin() <= next_step_ - config_.groups) {
    return NeedResult{*outstanding_.begin()};
  }
  StepPlan plan;
  for (int32_t tried = 0; tried < config_.groups && plan.slices.empty(); ++tried) {
    plan.micro_batch = next_group_;
    AddDecodeRows(plan);
    AddPrefillRows(plan);
    next_group_ = (next_group_ + 1) % config_.groups;
  }
  if (plan.slices.empty()) {
    PENSTOCK_CHECK(!outstanding_.empty(),
                   "an active sequence has rows to compute or a result to come");
    return NeedResult{*outstanding_.begin()};
  }
  plan.step = next_step_++;
  if (plan.selected() > 0) {
    outstanding_.insert(plan.step);
  }
  return plan;
}

void Decider::OnResult(int64_t step) {
  outstanding_.erase(step);
}

void Decider::OnToken(int32_t sequence, int32_t token, bool stop) {
  Sequence& s = At(sequence);
  if (s.phase != Phase::kAwaiting) {
    return;  // ended while the row was under way
  }
  ++s.produced;
  if (stop) {
    Finish(sequence);
    return;
  }
  s.tokens.push_back(token);
  s.phase = Phase::kReady;
  if (s.produced >= s.max_new) {
    Finish(sequence);
  }
}

void Decider::Finish(int32_t sequence) {
  At(sequence).phase = Phase::kFinished;
  active_.erase(sequence);
}

void Decider::Release(int32_t sequence) {
  blocks_.Release(sequence);
}

}  // namespace penstock::serve
