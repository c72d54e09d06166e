#include "serve/decider.h"

#include <algorithm>

#include "base/units.h"

namespace penstock::serve {

using runtime::Select;
using runtime::SequenceSlice;
using runtime::StepPlan;

Decider::Decider(const DeciderConfig& config, BlockManager blocks)
    : config_(config), steps_(config.rules), blocks_(std::move(blocks)) {}

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
                     "[serve.decider] a prompt of {} and {} to generate need {} positions, but "
                     "the context has {}",
                     Counted(length, "token"), max_new, length + max_new, config_.context);
  }
  PENSTOCK_TRY(
      blocks_.Reserve(static_cast<int32_t>(sequences_.size()), std::max(tokens, length + max_new)));
  Sequence& added = sequences_.emplace_back();
  added.tokens.assign(prompt.begin(), prompt.end());
  added.long_rope =
      config_.long_rope_from > 0 && std::max(tokens, length + max_new) > config_.long_rope_from;
  return steps_.Add({length, max_new});
}

Result<> Decider::Continue(int32_t sequence, std::span<const int32_t> tokens, int64_t max_new) {
  Sequence& s = At(sequence);
  const int64_t length = static_cast<int64_t>(s.tokens.size() + tokens.size());
  if (length + max_new > config_.context) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[serve.decider] the conversation has {} and with {} to generate needs {} "
                     "positions, but the context has {}",
                     Counted(length, "token"), max_new, length + max_new, config_.context);
  }
  s.tokens.insert(s.tokens.end(), tokens.begin(), tokens.end());
  steps_.Continue(sequence, static_cast<int64_t>(tokens.size()), max_new);
  return {};
}

void Decider::AddSlice(StepPlan& plan, const plan::StepSlice& rows) {
  const Sequence& s = At(rows.sequence);
  blocks_.Extend(rows.sequence, rows.first, rows.rows);
  SequenceSlice& slice = plan.slices.emplace_back();
  slice.sequence = rows.sequence;
  slice.long_rope = s.long_rope;
  slice.first_position = rows.first;
  slice.tokens.assign(s.tokens.begin() + rows.first, s.tokens.begin() + rows.first + rows.rows);
  slice.blocks = blocks_.tables(rows.sequence);
  if (config_.rules.select_all) {
    slice.select = Select::kAll;
  } else {
    slice.select = rows.selected > 0 ? Select::kLast : Select::kNone;
  }
}

std::variant<StepPlan, NeedResult, AllDone> Decider::Next() {
  plan::Step step;
  int64_t awaited = 0;
  switch (steps_.Advance(step, awaited)) {
    case plan::ServingSteps::Next::kDone:
      return AllDone{};
    case plan::ServingSteps::Next::kNeedResult:
      return NeedResult{awaited};
    case plan::ServingSteps::Next::kStep:
      break;
  }
  StepPlan plan;
  plan.step = step.number;
  plan.micro_batch = step.micro_batch;
  for (const plan::StepSlice& rows : step.slices) {
    AddSlice(plan, rows);
  }
  return plan;
}

void Decider::OnResult(int64_t step) {
  steps_.OnResult(step);
}

void Decider::OnToken(int32_t sequence, int32_t token, bool stop) {
  if (steps_.OnToken(sequence, stop) && !stop) {
    At(sequence).tokens.push_back(token);
  }
}

void Decider::Finish(int32_t sequence) {
  steps_.Finish(sequence);
}

void Decider::Release(int32_t sequence) {
  blocks_.Release(sequence);
}

}  // namespace penstock::serve
