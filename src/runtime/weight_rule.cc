#include "runtime/weight_rule.h"

#include <array>
#include <map>
#include <set>

#include "base/units.h"

namespace penstock::runtime {
namespace {

using kernels::WeightType;

constexpr std::array<std::string_view, 5> kChoices = {"auto", "f32", "bf16", "int8", "int4"};
constexpr int64_t kInt4Block = 32;

bool FourBit(DType type) {
  return type == DType::kQ4_0 || type == DType::kQ4_1 || type == DType::kMXFP4;
}

WeightType TypeFor(WeightChoice choice, DType source, int64_t columns) {
  switch (choice) {
    case WeightChoice::kF32:
      return WeightType::kF32;
    case WeightChoice::kBF16:
      return WeightType::kBF16;
    case WeightChoice::kInt8:
      return WeightType::kInt8;
    case WeightChoice::kInt4:
      return columns % kInt4Block == 0 ? WeightType::kInt4 : WeightType::kInt8;
    case WeightChoice::kAuto:
      break;
  }
  if (FourBit(source)) {
    return WeightType::kInt4;
  }
  return source == DType::kQ8_0 ? WeightType::kInt8 : WeightType::kBF16;
}

// Routers decide which experts run: they are read as vectors are, in float32.
std::set<int32_t> Routers(const model::Graph& graph) {
  std::set<int32_t> routers;
  for (const model::Op& op : graph.ops) {
    if (const auto* moe = std::get_if<model::MoeOp>(&op.params)) {
      routers.insert(moe->router.value());
    }
  }
  return routers;
}

std::vector<TensorId> ExpertMatrices(const model::MoeOp& op) {
  std::vector<TensorId> ids = op.gate;
  ids.insert(ids.end(), op.up.begin(), op.up.end());
  ids.insert(ids.end(), op.down.begin(), op.down.end());
  return ids;
}

// The experts of a layer are held alike, whatever mixture a file has.
void HoldExpertsAlike(const model::MoeOp& op, WeightChoice choice, std::vector<HeldMatrix>& held) {
  const std::vector<TensorId> ids = ExpertMatrices(op);
  const auto at = [&](TensorId id) -> HeldMatrix& { return held[static_cast<size_t>(id.value())]; };
  bool same_type = true;
  bool same_blocks = true;
  for (const TensorId id : ids) {
    const HeldMatrix& first = at(ids.front());
    same_type = same_type && at(id).type == first.type;
    same_blocks =
        same_blocks && (at(id).source == DType::kMXFP4) == (first.source == DType::kMXFP4);
  }
  const bool four_bit = same_type && at(ids.front()).type == WeightType::kInt4;
  if (same_type && (same_blocks || !four_bit)) {
    return;
  }
  for (const TensorId id : ids) {
    if (choice == WeightChoice::kAuto) {
      at(id).type = WeightType::kBF16;
    } else if (four_bit) {
      at(id).source = DType::kQ4_1;  // quantized while it is loaded
    } else {
      at(id).type = WeightType::kInt8;
    }
  }
}

}  // namespace

Result<WeightChoice> ParseWeightChoice(std::string_view text) {
  for (size_t i = 0; i < kChoices.size(); ++i) {
    if (kChoices[i] == text) {
      return static_cast<WeightChoice>(i);
    }
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   "[runtime.weights] --weights: got '{}', wanted auto, f32, bf16, int8 or int4",
                   text);
}

Result<WeightRule> WeightRule::Create(const model::Graph& graph, const weights::ModelFiles& files,
                                      WeightChoice choice) {
  WeightRule rule;
  const std::set<int32_t> routers = Routers(graph);
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const model::WeightTensor& tensor = graph.tensors[i];
    PENSTOCK_TRY_ASSIGN(const auto source, files.Source(tensor.name, tensor.shape));
    HeldMatrix held{WeightType::kF32, source->type()};
    if (tensor.role != model::TensorRole::kVector && !routers.contains(static_cast<int32_t>(i))) {
      held.type = TypeFor(choice, source->type(), tensor.shape.back());
      if (held.type == WeightType::kInt4 && !FourBit(held.source)) {
        held.source = DType::kQ4_1;  // quantized while it is loaded
      }
    }
    rule.held_.push_back(held);
  }
  for (const model::Op& op : graph.ops) {
    if (const auto* moe = std::get_if<model::MoeOp>(&op.params)) {
      HoldExpertsAlike(*moe, choice, rule.held_);
    }
  }
  return rule;
}

std::string WeightRule::Summary() const {
  std::map<std::string_view, int> counts;
  for (const HeldMatrix& held : held_) {
    ++counts[kernels::WeightTypeName(held.type)];
  }
  std::string text;
  for (const auto& [name, count] : counts) {
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", name, Counted(count, "tensor"));
  }
  return text;
}

std::vector<size_t> PackGroups(const model::LinearOp& op, const WeightRule& rule) {
  std::vector<size_t> ends;
  for (size_t i = 1; i <= op.weights.size(); ++i) {
    if (i < op.weights.size()) {
      const HeldMatrix& a = rule.held(op.weights[i - 1]);
      const HeldMatrix& b = rule.held(op.weights[i]);
      if (a.type == b.type && (a.type != WeightType::kInt4 || a.source == b.source)) {
        continue;
      }
    }
    ends.push_back(i);
  }
  return ends;
}

}  // namespace penstock::runtime
