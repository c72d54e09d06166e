#include "runtime/step_plan.h"

#include "runtime/bytes.h"

namespace penstock::runtime {
namespace {

constexpr int64_t kMaxPosition = int64_t{1} << 40;

bool GetSlice(ByteReader& reader, const PlanLimits& limits, SequenceSlice& slice) {
  uint8_t long_rope = 0;
  uint8_t select = 0;
  uint32_t pools = 0;
  if (!reader.Get(slice.sequence) || !reader.Get(long_rope) || !reader.Get(select) ||
      !reader.Get(slice.first_position) ||
      !reader.GetAll(slice.tokens, static_cast<uint64_t>(limits.max_rows)) || !reader.Get(pools)) {
    return false;
  }
  if (select > static_cast<uint8_t>(Select::kAll) || pools != static_cast<uint32_t>(limits.pools) ||
      slice.tokens.empty() || slice.first_position < 0 || slice.first_position > kMaxPosition) {
    return false;
  }
  slice.long_rope = long_rope != 0;
  slice.select = static_cast<Select>(select);
  slice.blocks.resize(pools);
  for (std::vector<int32_t>& table : slice.blocks) {
    if (!reader.GetAll(table, static_cast<uint64_t>(limits.max_blocks_per_table))) {
      return false;
    }
  }
  return true;
}

bool GetPlan(ByteReader& reader, const PlanLimits& limits, StepPlan& plan) {
  uint8_t kind = 0;
  uint32_t slices = 0;
  if (!reader.Get(kind) || !reader.Get(plan.step) || !reader.Get(plan.micro_batch) ||
      !reader.Get(slices)) {
    return false;
  }
  if (kind > static_cast<uint8_t>(PlanKind::kStop) || plan.step < 0 || plan.micro_batch < 0 ||
      slices > static_cast<uint32_t>(limits.max_sequences)) {
    return false;
  }
  plan.kind = static_cast<PlanKind>(kind);
  for (uint32_t i = 0; i < slices; ++i) {
    if (!GetSlice(reader, limits, plan.slices.emplace_back())) {
      return false;
    }
  }
  return reader.GetAll(plan.note, static_cast<uint64_t>(limits.max_note_bytes)) && reader.done() &&
         plan.rows() <= limits.max_rows;
}

}  // namespace

int64_t StepPlan::rows() const {
  int64_t rows = 0;
  for (const SequenceSlice& slice : slices) {
    rows += slice.rows();
  }
  return rows;
}

int64_t StepPlan::selected() const {
  int64_t rows = 0;
  for (const SequenceSlice& slice : slices) {
    rows += slice.selected();
  }
  return rows;
}

int64_t MaxPlanBytes(const PlanLimits& limits) {
  constexpr int64_t kPlanFixed = 64;
  constexpr int64_t kSliceFixed = 64;
  return kPlanFixed + limits.max_note_bytes + limits.max_rows * 4 +
         int64_t{limits.max_sequences} *
             (kSliceFixed + limits.pools * (4 + limits.max_blocks_per_table * 4));
}

std::vector<std::byte> EncodePlan(const StepPlan& plan) {
  ByteWriter writer;
  writer.Put(static_cast<uint8_t>(plan.kind));
  writer.Put(plan.step);
  writer.Put(plan.micro_batch);
  writer.Put(static_cast<uint32_t>(plan.slices.size()));
  for (const SequenceSlice& slice : plan.slices) {
    writer.Put(slice.sequence);
    writer.Put(static_cast<uint8_t>(slice.long_rope));
    writer.Put(static_cast<uint8_t>(slice.select));
    writer.Put(slice.first_position);
    writer.PutAll(std::span<const int32_t>(slice.tokens));
    writer.Put(static_cast<uint32_t>(slice.blocks.size()));
    for (const std::vector<int32_t>& table : slice.blocks) {
      writer.PutAll(std::span<const int32_t>(table));
    }
  }
  writer.PutAll(std::span<const std::byte>(plan.note));
  return std::move(writer).Take();
}

Result<StepPlan> DecodePlan(std::span<const std::byte> bytes, const PlanLimits& limits) {
  StepPlan plan;
  ByteReader reader(bytes);
  if (!GetPlan(reader, limits, plan)) {
    return MakeError(
        ErrorCode::kCorruptData,
        "[runtime.plan] a step plan of {} bytes that contradicts itself or the run's limits",
        bytes.size());
  }
  return plan;
}

}  // namespace penstock::runtime
