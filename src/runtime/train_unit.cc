#include "runtime/train_unit.h"

#include <algorithm>

namespace penstock::runtime {

TrainUnit::TrainUnit(const DirectionPlan& plan, int32_t index, const Sizes& sizes,
                     std::vector<bool> recomputes, std::shared_ptr<MicroBatchExtras> shared)
    : plan_(plan),
      index_(index),
      sizes_(sizes),
      recomputes_(std::move(recomputes)),
      shared_(std::move(shared)),
      values_(plan.num_values()),
      readings_(plan.num_values(), 0),
      gradients_(plan.num_values()),
      present_(plan.num_values(), 0),
      known_(plan.num_values(), 0) {}

Result<> TrainUnit::Define(BlockPool& pool, ValueId id, int32_t readings) {
  const size_t root = Root(id);
  known_[root] = 1;
  if (readings_[root] > 0) {
    readings_[root] += readings;  // still there
    return {};
  }
  if (readings == 0) {
    return {};
  }
  PENSTOCK_TRY_ASSIGN(values_[root],
                      pool.Take(RowsOf(id) * plan_.value_width(static_cast<int32_t>(root)) * 4));
  readings_[root] = readings;
  return {};
}

Result<> TrainUnit::DefineReceived(BlockPool& pool, ValueId id) {
  return known_[Root(id)] != 0 ? Result<>() : Define(pool, id, ReadingsOfAll(id));
}

bool TrainUnit::Has(ValueId id) const {
  return readings_[Root(id)] > 0;
}

Tensor TrainUnit::Value(ValueId id) {
  const ValuePlace place = plan_.value(id);
  if (place.root < 0) {
    return {};
  }
  const auto root = static_cast<size_t>(place.root);
  PENSTOCK_DCHECK(readings_[root] > 0, "the value is there");
  const int64_t width = plan_.value_width(place.root);
  const Tensor whole(values_[root].data(), DType::kF32, RowsOf(id), width);
  return whole.Columns(place.column, plan_.width(id));
}

void TrainUnit::Read(ValueId id, int32_t times) {
  if (plan_.value(id).root < 0) {
    return;
  }
  int32_t& left = readings_[Root(id)];
  PENSTOCK_CHECK(left >= times, "a value is not read more often than planned");
  left -= times;
  if (left == 0) {
    values_[Root(id)].Release();
  }
}

int32_t TrainUnit::ReadingsOfAll(ValueId id) const {
  const int32_t root = plan_.value(id).root;
  const auto sends = sends_.find(root);
  int32_t sum = sends == sends_.end() ? 0 : sends->second;
  for (size_t at = 0; at < plan_.stages().size(); ++at) {
    sum += plan_.Readings(at, root, recomputes_[at], false);
  }
  return sum;
}

Result<Tensor> TrainUnit::MakeGradient(BlockPool& pool, ValueId id) {
  Block& block = gradients_[GradientRoot(id)];
  if (!block.held()) {
    PENSTOCK_TRY_ASSIGN(block,
                        pool.Take(RowsOf(id) * plan_.gradient_width(plan_.gradient(id).root) * 4));
  }
  present_[Index(id)] = 1;
  return Gradient(id);
}

Tensor TrainUnit::Gradient(ValueId id) {
  const ValuePlace place = plan_.gradient(id);
  if (place.root < 0) {
    return {};
  }
  const Tensor whole(gradients_[static_cast<size_t>(place.root)].data(), DType::kF32, RowsOf(id),
                     plan_.gradient_width(place.root));
  return whole.Columns(place.column, plan_.width(id));
}

void TrainUnit::DropGradient(ValueId id) {
  gradients_[GradientRoot(id)].Release();
  present_[Index(id)] = 0;
}

bool TrainUnit::CanMoveGradient(ValueId from, ValueId to) const {
  const auto alone = [&](ValueId id) {
    return plan_.gradient_width(plan_.gradient(id).root) == plan_.width(id);
  };
  return present_[Index(to)] == 0 && !gradients_[GradientRoot(to)].held() && alone(from) &&
         alone(to) && RowsOf(from) == RowsOf(to);
}

void TrainUnit::MoveGradient(ValueId from, ValueId to) {
  gradients_[GradientRoot(to)] = std::move(gradients_[GradientRoot(from)]);
  present_[Index(from)] = 0;
  present_[Index(to)] = 1;
}

bool TrainUnit::ValueBecomesGradient(ValueId id) {
  const size_t root = Root(id);
  const bool alone = plan_.value_width(static_cast<int32_t>(root)) == plan_.width(id) &&
                     plan_.gradient_width(plan_.gradient(id).root) == plan_.width(id);
  if (!alone || readings_[root] != 1 || gradients_[GradientRoot(id)].held()) {
    return false;
  }
  gradients_[GradientRoot(id)] = std::move(values_[root]);
  readings_[root] = 0;
  present_[Index(id)] = 1;
  return true;
}

bool TrainUnit::Empty() const {
  const auto held = [](const Block& block) { return block.held(); };
  return extras_.empty() && std::none_of(values_.begin(), values_.end(), held) &&
         std::none_of(gradients_.begin(), gradients_.end(), held);
}

}  // namespace penstock::runtime
