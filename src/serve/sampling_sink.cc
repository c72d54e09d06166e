#include "serve/sampling_sink.h"

namespace penstock::serve {

RowResult SamplingSink::MakeRow(const runtime::SequenceSlice& slice, int64_t position,
                                std::span<const float> logits, int32_t target) {
  RowResult row;
  row.sequence = slice.sequence;
  row.position = position;
  switch (mode_) {
    case HeadMode::kLogits:
      row.logits.assign(logits.begin(), logits.end());
      break;
    case HeadMode::kScore:
      row.sampled.token = target;
      row.sampled.logprob = target < 0 ? 0.0F : static_cast<float>(LogProbability(logits, target));
      break;
    case HeadMode::kSample: {
      Sequence& sequence = sequences_[slice.sequence];
      row.sampled = Sample(logits, sequence.params, sequence.history, slice.sequence, position + 1);
      if (sequence.params.penalizes()) {
        sequence.history.push_back(row.sampled.token);
      }
      break;
    }
  }
  return row;
}

Result<std::vector<std::byte>> SamplingSink::Consume(const runtime::StepPlan& plan, Tensor logits) {
  PENSTOCK_TRY_ASSIGN(HeadNote note, DecodeNote(plan.note));
  for (Admission& admission : note.admissions) {
    sequences_[admission.sequence] = {admission.params, std::move(admission.history)};
  }
  std::vector<RowResult> rows;
  int64_t index = 0;
  for (const runtime::SequenceSlice& slice : plan.slices) {
    for (int64_t i = slice.rows() - slice.selected(); i < slice.rows(); ++i, ++index) {
      const auto place = static_cast<size_t>(index);
      const int32_t target = place < note.targets.size() ? note.targets[place] : -1;
      if (target >= vocabulary_) {
        return MakeError(ErrorCode::kInvalidArgument,
                         "[serve.score] token {} is not in the vocabulary of {}", target,
                         vocabulary_);
      }
      rows.push_back(MakeRow(slice, slice.first_position + i, logits.Row<float>(index), target));
    }
  }
  return EncodeResults(rows);
}

}  // namespace penstock::serve
