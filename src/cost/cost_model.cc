#include "cost/cost_model.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace penstock::cost {

using schedule::OpKind;

double CostModel::StageSeconds(OpKind kind, StageId stage) const {
  if (!stage.valid() || static_cast<size_t>(stage.value()) >= stages.size())
    return 0;
  const StageCost& cost = stages[static_cast<size_t>(stage.value())];
  switch (kind) {
    case OpKind::kForward:
      return cost.f_s;
    case OpKind::kBackward:
      return cost.i_s + cost.w_s;
    case OpKind::kBackwardInput:
      return cost.i_s;
    case OpKind::kBackwardWeight:
      return cost.w_s;
    case OpKind::kRecompute:
      return cost.r_s;
    case OpKind::kOptimizer:
      return cost.optimizer_s;
    default:
      return 0;
  }
}

namespace {

constexpr double kLongestSeconds = 1e9;

Error WrongCost(std::string_view text, std::string_view item, std::string_view wanted) {
  return MakeError(ErrorCode::kInvalidArgument, "[cost.uniform] --cost {}: got '{}', wanted {}",
                   text.substr(0, 80), item.substr(0, 40), wanted);
}

}  // namespace

Result<UniformCost> ParseUniformCost(std::string_view text) {
  UniformCost cost;
  std::string seen;
  std::string_view rest = text;
  while (true) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    if (item.size() < 3 || item[1] != '=')
      return WrongCost(text, item, "items like F=1,I=1,W=1,C=0 with letters F I W B R C");
    const char letter = item[0];
    double seconds = 0;
    const char* const end = item.data() + item.size();
    const auto [stop, error] = std::from_chars(item.data() + 2, end, seconds);
    if (error != std::errc() || stop != end || !(seconds >= 0) || seconds > kLongestSeconds)
      return WrongCost(text, item, "a number of seconds from 0 to 1e9");
    const std::string_view clash = letter == 'B'                      ? "BIW"
                                   : (letter == 'I' || letter == 'W') ? "B"
                                                                      : "";
    if (seen.find(letter) != std::string::npos || seen.find_first_of(clash) != std::string::npos)
      return WrongCost(text, item, "each time once (B stands for I and W together)");
    seen += letter;
    switch (letter) {
      case 'F':
        cost.f_s = seconds;
        break;
      case 'I':
        cost.i_s = seconds;
        break;
      case 'W':
        cost.w_s = seconds;
        break;
      case 'B':
        cost.i_s = cost.w_s = seconds / 2;
        break;
      case 'R':
        cost.r_s = seconds;
        break;
      case 'C':
        cost.c_s = seconds;
        break;
      default:
        return WrongCost(text, item, "one of the letters F I W B R C");
    }
    if (comma == std::string_view::npos)
      return cost;
    rest.remove_prefix(comma + 1);
  }
}

CostModel MakeUniformCost(const UniformCost& cost, int stages, int chunks) {
  CostModel model;
  const double share = 1.0 / chunks;
  StageCost stage;
  stage.f_s = cost.f_s * share;
  stage.i_s = cost.i_s * share;
  stage.w_s = cost.w_s * share;
  stage.r_s = (cost.r_s < 0 ? cost.f_s : cost.r_s) * share;
  model.stages.assign(static_cast<size_t>(stages), stage);
  model.link.latency_s = cost.c_s;
  return model;
}

namespace {

StageCost Scaled(const StageCost& part, int64_t divisor) {
  const auto d = static_cast<double>(divisor);
  StageCost out = part;
  out.f_s /= d;
  out.i_s /= d;
  out.w_s /= d;
  out.r_s /= d;
  out.optimizer_s /= d;
  out.activation_bytes /= divisor;
  return out;
}

void AddPart(StageCost& sum, const StageCost& part) {
  sum.f_s += part.f_s;
  sum.i_s += part.i_s;
  sum.w_s += part.w_s;
  sum.r_s += part.r_s;
  sum.optimizer_s += part.optimizer_s;
  sum.activation_bytes += part.activation_bytes;
  sum.output_bytes = part.output_bytes;  // what leaves is that of the last part
}

}  // namespace

Result<CostModel> FitCosts(const CostFile& file, const schedule::Schedule& schedule) {
  CostModel model = file.model;
  const auto parts = static_cast<int64_t>(file.model.stages.size());
  const int64_t stages = schedule.num_stages();
  if (parts % stages != 0 && stages % parts != 0) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[cost.fit] {}: {} stages, wanted as many as the schedule has ({}), a multiple "
        "or a divisor",
        file.source, parts, stages);
  }
  if (parts >= stages) {
    const int64_t group = parts / stages;
    model.stages.clear();
    for (int64_t s = 0; s < stages; ++s) {
      StageCost sum = file.model.stages[static_cast<size_t>(s * group)];
      for (int64_t i = 1; i < group; ++i)
        AddPart(sum, file.model.stages[static_cast<size_t>(s * group + i)]);
      model.stages.push_back(sum);
    }
  } else {
    const int64_t split = stages / parts;
    model.stages.clear();
    for (int64_t s = 0; s < stages; ++s)
      model.stages.push_back(Scaled(file.model.stages[static_cast<size_t>(s / split)], split));
  }
  const auto ranks = static_cast<size_t>(schedule.num_ranks());
  if (model.memory_bytes.size() == 1)
    model.memory_bytes.resize(ranks, model.memory_bytes[0]);
  if (!model.memory_bytes.empty() && model.memory_bytes.size() != ranks) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cost.fit] {}: memory_bytes has {} numbers, wanted one or one per rank ({})",
                     file.source, model.memory_bytes.size(), ranks);
  }
  for (const auto& [pair, link] : model.links) {
    if (std::max(pair.first, pair.second) >= static_cast<int>(ranks)) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[cost.fit] {}: link from rank {} to rank {}, wanted ranks below {}",
                       file.source, pair.first, pair.second, ranks);
    }
  }
  PENSTOCK_TRY(CheckCosts(model, schedule));
  return model;
}

Result<CostModel> CostSource::For(const schedule::Schedule& schedule) const {
  if (file)
    return FitCosts(*file, schedule);
  return MakeUniformCost(uniform, schedule.num_stages(), schedule.chunks());
}

Result<> CheckCosts(const CostModel& model, const schedule::Schedule& schedule) {
  if (model.stages.size() != static_cast<size_t>(schedule.num_stages())) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cost.check] costs of {} stages, wanted those of {}", model.stages.size(),
                     schedule.num_stages());
  }
  auto legal = [](double x) { return std::isfinite(x) && x >= 0; };
  for (size_t s = 0; s < model.stages.size(); ++s) {
    const StageCost& c = model.stages[s];
    if (!legal(c.f_s) || !legal(c.i_s) || !legal(c.w_s) || !legal(c.r_s) || !legal(c.optimizer_s) ||
        c.activation_bytes < 0 || c.output_bytes < 0 || c.gradient_bytes < 0) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[cost.check] stage {} has a cost that is negative or not finite", s);
    }
  }
  if (!model.micro_batch_scale.empty() &&
      model.micro_batch_scale.size() != static_cast<size_t>(schedule.micro_batches)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cost.check] scales of {} micro-batches, wanted those of {}",
                     model.micro_batch_scale.size(), schedule.micro_batches);
  }
  if (!model.slice_scale.empty() &&
      model.slice_scale.size() != static_cast<size_t>(schedule.slices)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cost.check] scales of {} slices, wanted those of {}",
                     model.slice_scale.size(), schedule.slices);
  }
  return {};
}

}  // namespace penstock::cost
