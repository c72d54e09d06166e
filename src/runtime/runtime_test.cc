#include <gtest/gtest.h>

#include <cmath>

#include "runtime/fault.h"
#include "runtime/quantize.h"
#include "runtime/state_pools.h"
#include "runtime/step_plan.h"

namespace penstock::runtime {
namespace {

StepPlan SamplePlan() {
  StepPlan plan;
  plan.step = 12;
  plan.micro_batch = 1;
  SequenceSlice slice;
  slice.sequence = 3;
  slice.select = Select::kLast;
  slice.first_position = 40;
  slice.tokens = {5, 6, 7};
  slice.blocks = {{0, 2}, {-1, 4}};
  plan.slices = {slice, slice};
  plan.note = {std::byte{1}, std::byte{2}};
  return plan;
}

constexpr PlanLimits kLimits{8, 2, 2, 4, 16};

TEST(StepPlan, SurvivesTheRoundTripWithinItsBound) {
  const auto bytes = EncodePlan(SamplePlan());
  EXPECT_LE(static_cast<int64_t>(bytes.size()), MaxPlanBytes(kLimits));
  const auto plan = DecodePlan(bytes, kLimits);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->step, 12);
  EXPECT_EQ(plan->rows(), 6);
  EXPECT_EQ(plan->selected(), 2);
  EXPECT_EQ(plan->slices[1].blocks[1], (std::vector<int32_t>{-1, 4}));
}

TEST(StepPlan, RefusesTruncationDamageAndWhatExceedsTheLimits) {
  const auto bytes = EncodePlan(SamplePlan());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodePlan(std::span(bytes).first(size), kLimits).ok());
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(DecodePlan(longer, kLimits).ok());
  EXPECT_FALSE(DecodePlan(bytes, {5, 2, 2, 4, 16}).ok());
  EXPECT_FALSE(DecodePlan(bytes, {8, 1, 2, 4, 16}).ok());
  EXPECT_FALSE(DecodePlan(bytes, {8, 2, 2, 1, 16}).ok());
  EXPECT_FALSE(DecodePlan(bytes, {8, 2, 1, 4, 16}).ok());
}

TEST(Fault, ParsesItsGrammarAndNothingElse) {
  const auto fault = ParseFault("1:SEND_F12:stall");
  ASSERT_TRUE(fault.ok());
  EXPECT_EQ(fault->stage, 1);
  EXPECT_EQ(fault->action, schedule::OpKind::kSendForward);
  EXPECT_EQ(fault->step, 12);
  for (const char* text :
       {"", "1:F:stall", "1:F2:explode", "x:F2:die", "1:G2:die", "1F2die", "1:F-2:die"}) {
    EXPECT_FALSE(ParseFault(text).ok()) << text;
  }
}

TEST(StatePools, GroupsStatesByWindowAndBoundsTheirPages) {
  model::Graph graph;
  for (const int64_t window : {512, 0, 512}) {
    model::LayerState state;
    state.window = window;
    graph.states.push_back(state);
  }
  const StatePools pools = PoolsOf(graph);
  EXPECT_EQ(pools.windows, (std::vector<int64_t>{512, 0}));
  EXPECT_EQ(pools.pool_of, (std::vector<int32_t>{0, 1, 0}));
  EXPECT_EQ(BlocksPerSequence(0, 100, 32), 4);
  EXPECT_EQ(BlocksPerSequence(512, 100, 32), 4);
  EXPECT_EQ(BlocksPerSequence(512, 100000, 32), 18);
}

TEST(SlotPositions, AStateGoesOnOrBeginsAnewAndIsNotTakenBack) {
  SlotPositions slots(2);
  EXPECT_TRUE(slots.Advance(7, 1, 0, 5).ok());
  EXPECT_TRUE(slots.Advance(7, 1, 5, 1).ok());
  const auto back = slots.Advance(7, 1, 3, 1);
  ASSERT_FALSE(back.ok());
  EXPECT_NE(back.error().message.find("sequence 7"), std::string::npos) << back.error().message;
  EXPECT_NE(back.error().message.find("position 3"), std::string::npos) << back.error().message;
  EXPECT_FALSE(slots.Advance(8, 0, 2, 1).ok());  // begins in the middle
  EXPECT_FALSE(slots.Advance(8, 2, 0, 1).ok());  // no such slot
  EXPECT_TRUE(slots.Advance(7, 1, 6, 2).ok());
  EXPECT_TRUE(slots.Advance(9, 1, 0, 1).ok());
}

// A matrix in memory.
class Numbers final : public MatrixSource {
 public:
  explicit Numbers(std::vector<float> values) : values_(std::move(values)) {}

  const std::string& name() const override { return name_; }

  int64_t rows() const override { return 1; }

  int64_t columns() const override { return static_cast<int64_t>(values_.size()); }

  DType type() const override { return DType::kF32; }

  Result<> ReadRows(int64_t, int64_t, std::span<float> out) const override {
    std::copy(values_.begin(), values_.end(), out.begin());
    return {};
  }

  std::span<const std::byte> RawRow(int64_t) const override {
    return std::as_bytes(std::span(values_));
  }

  void DropPages() const override {}

 private:
  std::string name_ = "numbers";
  std::vector<float> values_;
};

TEST(StatePools, StatesOfFixedSizeShareOneSlotPerSequence) {
  model::Graph graph;
  for (const auto kind : {model::LayerState::Kind::kLatent, model::LayerState::Kind::kRecurrent,
                          model::LayerState::Kind::kRecurrent}) {
    model::LayerState state;
    state.kind = kind;
    graph.states.push_back(state);
  }
  const StatePools pools = PoolsOf(graph);
  EXPECT_EQ(pools.windows, (std::vector<int64_t>{0, kSlotPool}));
  EXPECT_EQ(pools.pool_of, (std::vector<int32_t>{0, 1, 1}));
  EXPECT_EQ(BlocksPerSequence(kSlotPool, 100000, 512), 1);
  EXPECT_EQ(BlocksPerSequence(0, 65, 512), 3);
}

TEST(Q41Source, KeepsEveryValueWithinHalfAStep) {
  std::vector<float> values(64);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(static_cast<float>(i) * 1.7F) * (i < 32 ? 1.0F : 1e-3F);
  }
  const Q41Source source(std::make_unique<Numbers>(values));
  std::vector<float> out(64);
  ASSERT_TRUE(source.ReadRows(0, 1, out).ok());
  for (size_t i = 0; i < values.size(); ++i) {
    const float step = (i < 32 ? 2.0F : 2e-3F) / 15;
    EXPECT_NEAR(out[i], values[i], step * 0.55F) << i;
  }
  EXPECT_EQ(source.RawRow(0).size(), 40U);
}

}  // namespace
}  // namespace penstock::runtime
