#include "plan/training.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "base/units.h"
#include "plan/cut.h"
#include "plan/hops.h"
#include "plan/memory.h"
#include "schedule/registry.h"
#include "sim/simulate.h"

namespace penstock::plan {
namespace {

using cost::LayerTime;

struct ClassStep {
  StageStep step;
  LayerTime forward;
  double compute_s = 0;  // F, I and W: arithmetic alone
  double memory_s = 0;
  double start_s = 0;
  double comm_s = 0;  // exposed collectives of all of them

  double total_s() const { return step.f_s + step.i_s + step.w_s; }
};

// What does not depend on stages: by class of layers, and all layers together.
struct Prices {
  std::vector<ClassStep> classes;
  StageStep all;
  double dense = 0;  // parameters on one device
  double expert = 0;
  double activations = 0;  // bytes of one micro-batch
};

// Of one micro-batch.
struct IdleParts {
  double slowest_s = 0;    // rank
  double others_s = 0;     // all other ranks
  double beyond_w_s = 0;   // sum over ranks: F + I beyond W, where it is
  double beyond_2w_s = 0;  // and beyond twice W
};

using PriceKey = std::tuple<int64_t, int64_t, int64_t, int64_t, bool, Recompute, hw::Precision>;
using CutKey = std::tuple<PriceKey, int64_t, int64_t, std::string, int, int64_t, int64_t, double>;

}  // namespace

struct TrainingPricer::Impl {
  explicit Impl(const Context& c) : context(c), work(c.workload->training) {
    const auto sequence = static_cast<double>(work.sequence_tokens);
    const double rows = static_cast<double>(work.global_batch) * sequence;
    // As frameworks count: causal attention in full, backward twice forward.
    model_flops = 3 * cost::ModelFlops(*c.model, rows, sequence, rows);
    unit_seconds.resize(c.model->class_of.size());
    unit_fixed.resize(c.model->class_of.size());
    unit_live.resize(c.model->class_of.size());
  }

  const Prices& PricesOf(const Layout& layout);

  const std::vector<ClassStep>& Classes(const Layout& layout) { return PricesOf(layout).classes; }

  double Rows(const Layout& layout) const {
    return static_cast<double>(layout.micro_batch) * static_cast<double>(work.sequence_tokens) /
           static_cast<double>(layout.cp);
  }

  double OptimizerSeconds(const Layout& layout, double dense, double expert) const;
  double IdleSeconds(const Layout& layout, const IdleParts& parts) const;
  ClassStep PriceClass(const cost::LayerProfile& layer, const Layout& layout) const;
  std::string Cut(Layout& layout);
  double HopSeconds(const Layout& layout) const;
  double ExchangeSeconds(const Layout& layout, double params, double expert_params) const;
  double ExposedExchange(const Layout& layout, double seconds, double compute_s) const;
  void Finish(Plan& plan, double schedule_s, double busy_s);
  std::string Judge(const Plan& plan) const;

  Context context;
  TrainingWorkload work;
  double model_flops = 0;
  bool weigh_crossing = false;  // in cuts
  std::vector<double> unit_seconds, unit_fixed, unit_live;
  std::map<PriceKey, Prices> prices;
  std::map<CutKey, std::vector<int32_t>> cuts;
};

ClassStep TrainingPricer::Impl::PriceClass(const cost::LayerProfile& layer,
                                           const Layout& layout) const {
  const hw::Calibration& c = context.calibration();
  const auto sequence = static_cast<double>(work.sequence_tokens);
  cost::StepShape shape;
  shape.rows = static_cast<double>(layout.micro_batch) * sequence / static_cast<double>(layout.cp);
  shape.context = c.skips_masked_attention ? sequence / 2 : sequence;
  shape.head_rows = shape.rows;
  // Keys and values are in the layer's own rows: nothing is read from a state.
  const cost::Formats formats{layout.precision, hw::Precision::kBf16};
  const LayerTime f =
      cost::ForwardTime(layer, shape, layout.sharding(), formats, context.machine());
  ClassStep out;
  out.forward = f;
  const double comm = c.exposed_tensor_parallel * (f.tensor_s + f.expert_s) + f.context_s;
  const double products = f.busy_s - f.attention_busy_s;
  out.step.f_s = f.busy_s + comm;
  out.step.i_s = products + 2 * f.attention_busy_s + comm;
  out.step.w_s = products;
  double times = 1;  // forward passes in all
  if (layer.kind == model::LayerKind::kDecoder) {
    if (layout.recompute == Recompute::kFull) {
      out.step.i_s += out.step.f_s;
      times = 2;
    } else if (layout.recompute == Recompute::kSelective || c.fused_attention()) {
      out.step.i_s += f.attention_busy_s;
    }
  }
  if (layer.kind == model::LayerKind::kEmbedding) {
    out.step.i_s = 0;
    out.step.w_s = f.busy_s;
  }
  out.compute_s = (2 + times) * f.compute_s;
  out.memory_s = (2 + times) * f.memory_s;
  out.start_s = (2 + times) * f.start_s;
  out.comm_s = (1 + times) * comm;
  return out;
}

const Prices& TrainingPricer::Impl::PricesOf(const Layout& layout) {
  const PriceKey key{
      layout.tp,        layout.ep,       layout.cp, layout.micro_batch, layout.sequence_parallel,
      layout.recompute, layout.precision};
  auto it = prices.find(key);
  if (it == prices.end()) {
    Prices p;
    const auto sequence = static_cast<double>(work.sequence_tokens);
    std::vector<double> dense, expert, activations;
    for (const cost::LayerProfile& layer : context.model->classes) {
      p.classes.push_back(PriceClass(layer, layout));
      const auto [d, e] = cost::ParametersPerDevice(layer, layout.sharding());
      dense.push_back(d);
      expert.push_back(e);
      activations.push_back(ActivationBytes(layer, layout, Rows(layout), sequence,
                                            context.system->training.fused_attention()));
    }
    for (const int32_t class_of : context.model->class_of) {
      const auto c = static_cast<size_t>(class_of);
      p.all.f_s += p.classes[c].step.f_s;
      p.all.i_s += p.classes[c].step.i_s;
      p.all.w_s += p.classes[c].step.w_s;
      p.dense += dense[c];
      p.expert += expert[c];
      p.activations += activations[c];
    }
    it = prices.emplace(key, std::move(p)).first;
  }
  return it->second;
}

// Cuts pp x chunks stages. With one chunk per rank memory is a constraint of the cut; with several
// the cut balances time, and memory is checked after.
std::string TrainingPricer::Impl::Cut(Layout& layout) {
  const cost::ModelProfile& model = *context.model;
  if (!layout.cut.empty()) {
    return "";
  }
  if (layout.stages() == 1) {
    layout.cut = {model.num_layers()};
    return "";
  }
  const PriceKey price{
      layout.tp,        layout.ep,       layout.cp, layout.micro_batch, layout.sequence_parallel,
      layout.recompute, layout.precision};
  const auto sequence = static_cast<double>(work.sequence_tokens);
  const double rows =
      static_cast<double>(layout.micro_batch) * sequence / static_cast<double>(layout.cp);
  // Per boundary and micro-batch, forward; as much comes back.
  std::vector<double> crossing = weigh_crossing ? CrossingBytes(model) : std::vector<double>();
  double most = 0;
  for (double& bytes : crossing) {
    bytes *= rows / static_cast<double>(layout.tp);
    most = std::max(most, bytes);
  }
  const cost::LinkCost link = crossing.empty() ? cost::LinkCost() : HopLink(context, layout, most);
  const CutKey key{price,
                   layout.pp,
                   layout.chunks,
                   layout.chunks > 1 ? "" : layout.schedule,
                   layout.zero,
                   layout.chunks > 1 ? 0 : layout.dp,
                   layout.chunks > 1 ? 0 : std::min(layout.micro_batches, 2 * layout.pp),
                   crossing.empty() ? 0 : link.bytes_per_s};
  if (const auto it = cuts.find(key); it != cuts.end()) {
    layout.cut = it->second;
    return "";
  }
  const std::vector<ClassStep>& classes = Classes(layout);
  const StateBytes dense = TrainingStateBytes(work, layout, false);
  const StateBytes expert = TrainingStateBytes(work, layout, true);
  std::vector<double> seconds, fixed, live;
  for (size_t c = 0; c < classes.size(); ++c) {
    const StageStep& s = classes[c].step;
    seconds.push_back(s.f_s + s.i_s + s.w_s);
    const auto [d, e] = cost::ParametersPerDevice(model.classes[c], layout.sharding());
    fixed.push_back(d * (dense.weights + dense.gradients + dense.optimizer) +
                    e * (expert.weights + expert.gradients + expert.optimizer));
    live.push_back(ActivationBytes(model.classes[c], layout, rows, sequence,
                                   context.calibration().fused_attention()));
  }
  for (size_t u = 0; u < unit_seconds.size(); ++u) {
    const auto c = static_cast<size_t>(model.class_of[u]);
    unit_seconds[u] = seconds[c];
    unit_fixed[u] = fixed[c];
    unit_live[u] = live[c];
  }
  CutProblem problem;
  problem.seconds = unit_seconds;
  problem.stages = static_cast<int32_t>(layout.stages());
  problem.crossing_bytes = crossing;
  problem.seconds_per_byte = link.bytes_per_s > 0 ? 2 / link.bytes_per_s : 0;
  problem.live_per_crossing_byte =
      layout.sequence_parallel ? 1 : static_cast<double>(layout.tp);  // each holds all of it
  std::vector<double> shares;
  std::optional<CutResult> cut;
  if (layout.chunks == 1) {
    for (int64_t r = 0; r < layout.pp; ++r) {
      shares.push_back(InFlight(layout, r));
    }
    problem.fixed_bytes = unit_fixed;
    problem.live_bytes = unit_live;
    problem.live = shares;
    problem.capacity_bytes = context.system->device.usable_bytes();
    cut = FindCut(problem);
  }
  if (!cut) {
    problem.fixed_bytes = {};
    problem.live_bytes = {};
    problem.live = {};
    problem.capacity_bytes = 0;
    cut = FindCut(problem);
  }
  layout.cut = cut->units;
  if (cuts.size() > 200000) {
    cuts.clear();
  }
  cuts.emplace(key, layout.cut);
  return "";
}

double TrainingPricer::Impl::HopSeconds(const Layout& layout) const {
  if (layout.pp == 1) {
    return 0;
  }
  const double rows = static_cast<double>(layout.micro_batch * work.sequence_tokens) /
                      static_cast<double>(layout.cp);
  if (!context.model->long_values.empty() && layout.cut.size() > 1) {
    // The mean of both directions.
    const HopWidths hops = HopsOf(*context.model, layout, Mode::kTraining);
    const double bytes = rows * 2 / static_cast<double>(layout.tp);
    double seconds = 0;
    for (size_t s = 1; s < hops.forward.size(); ++s) {
      for (const double width : {hops.forward[s], hops.backward[s]}) {
        seconds += width > 0
                       ? hw::MessageSeconds(*context.system, layout.hop_distance(), bytes * width)
                       : 0;
      }
    }
    return seconds / (2 * static_cast<double>(layout.stages() - 1));
  }
  // The widest boundary of the cut; each tensor-parallel rank sends its share.
  const std::vector<double>& widths = context.model->boundary_width;
  double width = 0;
  int32_t unit = 0;
  for (size_t s = 0; s + 1 < layout.cut.size(); ++s) {
    unit += layout.cut[s];
    width = std::max(width, widths[static_cast<size_t>(std::max(unit - 1, 0))]);
  }
  if (layout.cut.size() < 2) {
    width = *std::max_element(widths.begin(), widths.end());
  }
  return hw::MessageSeconds(*context.system, layout.hop_distance(),
                            rows * width * 2 / static_cast<double>(layout.tp));
}

// The exchange of gradients and weights between replicas.
double TrainingPricer::Impl::ExchangeSeconds(const Layout& layout, double params,
                                             double expert_params) const {
  const hw::System& system = *context.system;
  const double gradient = work.fp32_gradients ? 4 : 2;
  const auto exchange = [&](double n, const hw::Group& group) {
    if (group.devices < 2 || n <= 0) {
      return 0.0;
    }
    if (layout.zero == 0) {
      return hw::AllReduceSeconds(system, group, n * gradient);
    }
    const double gather = hw::AllGatherSeconds(system, group, n * 2);
    const double scatter = hw::AllGatherSeconds(system, group, n * gradient);
    // Sharded gradients are reduced for every micro-batch, since nobody holds their sum; sharded
    // weights are gathered for every forward and backward pass.
    const auto m = static_cast<double>(layout.micro_batches);
    return (layout.zero >= 2 ? m : 1) * scatter + (layout.zero == 3 ? 2 * m : 1) * gather;
  };
  double seconds = exchange(params, {layout.dp * layout.cp, layout.tp});
  if (expert_params > 0) {
    const int64_t replicas =
        layout.ep > 1 ? layout.dp * layout.cp * layout.tp / layout.ep : layout.dp * layout.cp;
    seconds += exchange(expert_params, {replicas, layout.ep > 1 ? layout.ep : layout.tp});
  }
  return seconds;
}

// What nothing hides of it.
double TrainingPricer::Impl::ExposedExchange(const Layout& layout, double seconds,
                                             double compute_s) const {
  const double share = context.calibration().exposed_data_parallel;
  if (layout.zero >= 2) {  // hidden behind the layers of the same micro-batch, where it fits
    return std::max(share * seconds, seconds - compute_s);
  }
  return share * seconds;
}

double TrainingPricer::Impl::OptimizerSeconds(const Layout& layout, double dense,
                                              double expert) const {
  const StateBytes state = TrainingStateBytes(work, layout, false);
  const double replicas = static_cast<double>(layout.dp * layout.cp);
  const double touched = dense * (2 * state.optimizer + 4 + 2 / (layout.zero > 0 ? replicas : 1)) +
                         expert * 2 * TrainingStateBytes(work, layout, true).optimizer;
  return touched /
         (context.system->device.memory_bandwidth * context.calibration().memory_efficiency);
}

// What the schedule leaves idle of the slowest rank's time, by closed forms.
double TrainingPricer::Impl::IdleSeconds(const Layout& layout, const IdleParts& parts) const {
  const auto p = static_cast<double>(layout.pp);
  const auto v = static_cast<double>(layout.chunks);
  const double rest = (p - 1) / p;
  const std::string& schedule = layout.schedule;
  if (schedule == "interleaved-1f1b" || schedule == "looped-bfs") {
    const auto left = layout.micro_batches % layout.pp;
    return parts.others_s / v +
           (left != 0 ? static_cast<double>(layout.pp - left) * (v - 1) / v * parts.slowest_s : 0);
  }
  if (schedule == "zb-h1" || schedule == "dualpipe-v" || schedule == "interleaved-zb" ||
      schedule == "v-half") {
    return rest * parts.beyond_w_s / (schedule == "interleaved-zb" ? v : 1) *
           (schedule == "dualpipe-v" ? 0.5 : 1);
  }
  if (schedule == "zb-h2" || schedule == "zb-v") {
    return rest * parts.beyond_2w_s;
  }
  return parts.others_s;
}

void TrainingPricer::Impl::Finish(Plan& plan, double schedule_s, double busy_s) {
  const Layout& layout = plan.layout;
  const hw::Calibration& c = context.calibration();
  const cost::ModelProfile& model = *context.model;
  // Parameters of the fullest rank.
  const std::vector<ClassStep>& classes = Classes(layout);
  std::vector<double> dense(static_cast<size_t>(layout.pp), 0);
  std::vector<double> expert(dense.size(), 0);
  std::vector<ClassStep> ranks(dense.size());
  std::vector<std::pair<double, double>> parameters;
  for (const cost::LayerProfile& layer : model.classes) {
    parameters.push_back(cost::ParametersPerDevice(layer, layout.sharding()));
  }
  size_t unit = 0;
  for (size_t s = 0; s < layout.cut.size(); ++s) {
    const auto r = static_cast<size_t>(RankOfStage(layout, static_cast<int64_t>(s)));
    for (int32_t i = 0; i < layout.cut[s]; ++i, ++unit) {
      const auto k = static_cast<size_t>(model.class_of[unit]);
      const auto [d, e] = parameters[k];
      dense[r] += d;
      expert[r] += e;
      ranks[r].compute_s += classes[k].compute_s;
      ranks[r].memory_s += classes[k].memory_s;
      ranks[r].start_s += classes[k].start_s;
      ranks[r].step.f_s += classes[k].total_s();
      ranks[r].comm_s += classes[k].comm_s;
    }
  }
  const size_t fullest =
      static_cast<size_t>(std::max_element(dense.begin(), dense.end()) - dense.begin());
  const double gradient_s =
      ExposedExchange(layout, ExchangeSeconds(layout, dense[fullest], expert[fullest]), busy_s);
  const double optimizer_s = OptimizerSeconds(layout, dense[fullest], expert[fullest]);
  plan.step_s = schedule_s + gradient_s + optimizer_s + c.fixed_per_step_s;
  plan.gradient_s = gradient_s;
  plan.optimizer_s = optimizer_s;
  const auto m = static_cast<double>(layout.micro_batches);
  const auto busiest = std::max_element(
      ranks.begin(), ranks.end(),
      [](const ClassStep& a, const ClassStep& b) { return a.total_s() < b.total_s(); });
  plan.compute_s = m * busiest->compute_s;
  plan.memory_s = m * busiest->memory_s + optimizer_s;
  plan.start_s = m * busiest->start_s;
  plan.exposed_s = m * busiest->comm_s;
  plan.operations_s = m * busiest->total_s() - plan.start_s - plan.exposed_s;
  plan.communication_s = m * busiest->comm_s + gradient_s;
  plan.bubble_s = std::max(0.0, schedule_s - busy_s);
  plan.bubble_ratio = plan.bubble_s / plan.step_s;
  const double tokens = static_cast<double>(work.global_batch * work.sequence_tokens);
  plan.tokens_per_s = tokens / plan.step_s;
  plan.mfu = model_flops / (plan.step_s * static_cast<double>(layout.devices()) *
                            context.system->device.Rate(layout.precision).second);
  const double largest = std::max({plan.compute_s, plan.communication_s, plan.bubble_s});
  plan.bound_by = largest == plan.compute_s
                      ? (plan.memory_s > plan.compute_s ? "memory time" : "compute")
                      : (largest == plan.bubble_s ? "bubbles" : "links");
  plan.tokens_per_s_per_device = plan.tokens_per_s / static_cast<double>(layout.devices());
  plan.cost_per_million_tokens =
      UsdPerMillionTokens(*context.system, layout.devices(), plan.tokens_per_s);
  plan.energy_j_per_token =
      static_cast<double>(layout.devices()) * context.system->device.power_w / plan.tokens_per_s;
}

std::string TrainingPricer::Impl::Judge(const Plan& plan) const {
  if (plan.memory.fits()) {
    return "";
  }
  const double usable = plan.memory.capacity - plan.memory.reserve;
  return fmt::format(
      "does not fit memory: the fullest device needs {} (weights {}, gradients {}, optimizer {}, "
      "activations {}, workspace {}), {} more than the {} usable",
      FormatBytes(plan.memory.peak()), FormatBytes(plan.memory.weights),
      FormatBytes(plan.memory.gradients), FormatBytes(plan.memory.optimizer),
      FormatBytes(plan.memory.activations), FormatBytes(plan.memory.workspace),
      FormatBytes(plan.memory.peak() - usable), FormatBytes(usable));
}

TrainingPricer::TrainingPricer(const Context& context) : impl_(std::make_unique<Impl>(context)) {}

TrainingPricer::~TrainingPricer() = default;

std::vector<StageStep> TrainingPricer::Stages(const Layout& layout) {
  const std::vector<ClassStep>& classes = impl_->Classes(layout);
  std::vector<StageStep> stages;
  size_t unit = 0;
  for (const int32_t units : layout.cut) {
    StageStep& stage = stages.emplace_back();
    for (int32_t i = 0; i < units; ++i, ++unit) {
      const StageStep& s = classes[static_cast<size_t>(impl_->context.model->class_of[unit])].step;
      stage.f_s += s.f_s;
      stage.i_s += s.i_s;
      stage.w_s += s.w_s;
    }
  }
  return stages;
}

void TrainingPricer::WeighCrossing(Plan& plan) {
  impl_->weigh_crossing = true;
  Recut(*impl_->context.model, plan, [&](Plan& other) { return Price(other); });
  impl_->weigh_crossing = false;
}

double TrainingPricer::LeastStepSeconds(const Layout& layout) {
  const StageStep& all = impl_->PricesOf(layout).all;
  const int64_t micro_batches = impl_->work.global_batch / (layout.dp * layout.micro_batch);
  return static_cast<double>(micro_batches) * (all.f_s + all.i_s + all.w_s) /
             static_cast<double>(layout.pp) +
         impl_->context.calibration().fixed_per_step_s;
}

LeastPlan TrainingPricer::Least(const Layout& asked) {
  Layout layout = asked;
  layout.micro_batches = impl_->work.global_batch / (layout.dp * layout.micro_batch);
  const Prices& prices = impl_->PricesOf(layout);
  const StageStep& all = prices.all;
  const auto p = static_cast<double>(layout.pp);
  const auto m = static_cast<double>(layout.micro_batches);
  const double sum = all.f_s + all.i_s + all.w_s;
  IdleParts parts;
  parts.slowest_s = sum / p;
  parts.others_s = sum - parts.slowest_s;
  parts.beyond_w_s = std::max(0.0, all.f_s + all.i_s - all.w_s);
  parts.beyond_2w_s = std::max(0.0, all.f_s + all.i_s - 2 * all.w_s);
  const double busy_s = m * parts.slowest_s;
  // Of the rank that holds most of the dense parameters nothing is known of its experts.
  const double exchange_s = impl_->context.calibration().exposed_data_parallel *
                            impl_->ExchangeSeconds(layout, prices.dense / p, 0);
  LeastPlan out;
  constexpr double kRounding = 1 - 1e-9;
  out.step_s = kRounding * (busy_s + impl_->IdleSeconds(layout, parts) + exchange_s +
                            impl_->OptimizerSeconds(layout, prices.dense / p, 0) +
                            impl_->context.calibration().fixed_per_step_s);
  const StateBytes dense = TrainingStateBytes(impl_->work, layout, false);
  const StateBytes expert = TrainingStateBytes(impl_->work, layout, true);
  double kept = InFlight(layout, 0);
  for (int64_t r = 1; r < layout.pp; ++r) {
    kept = std::min(kept, InFlight(layout, r));
  }
  if (layout.pp > 1 || !impl_->context.model->tied) {
    out.peak_bytes = kRounding / p *
                     (prices.dense * (dense.weights + dense.gradients + dense.optimizer) +
                      prices.expert * (expert.weights + expert.gradients + expert.optimizer) +
                      kept * prices.activations);
  }
  return out;
}

std::string TrainingPricer::Why(const Plan& plan) const {
  return impl_->Judge(plan);
}

bool TrainingPricer::Price(Plan& plan) {
  Layout& layout = plan.layout;
  layout.micro_batches = impl_->work.global_batch / (layout.dp * layout.micro_batch);
  impl_->Cut(layout);
  const std::vector<StageStep> stages = Stages(layout);
  const auto p = static_cast<size_t>(layout.pp);
  const auto m = static_cast<double>(layout.micro_batches);
  std::vector<StageStep> ranks(p);
  for (size_t s = 0; s < stages.size(); ++s) {
    const auto r = static_cast<size_t>(RankOfStage(layout, static_cast<int64_t>(s)));
    ranks[r].f_s += stages[s].f_s;
    ranks[r].i_s += stages[s].i_s;
    ranks[r].w_s += stages[s].w_s;
  }
  IdleParts parts;
  double sum = 0;
  plan.stage_s.clear();
  for (const StageStep& r : ranks) {
    const double all = r.f_s + r.i_s + r.w_s;
    plan.stage_s.push_back(all);
    parts.slowest_s = std::max(parts.slowest_s, all);
    sum += all;
    parts.beyond_w_s += std::max(0.0, r.f_s + r.i_s - r.w_s);
    parts.beyond_2w_s += std::max(0.0, r.f_s + r.i_s - 2 * r.w_s);
  }
  parts.others_s = sum - parts.slowest_s;
  plan.hop_s = impl_->HopSeconds(layout) * impl_->context.calibration().exposed_hop;
  const double hops =
      layout.pp > 1 ? 2 * (static_cast<double>(layout.stages()) - 1) * plan.hop_s : 0;
  plan.simulated = false;
  const double busy_s = m * parts.slowest_s;
  impl_->Finish(plan, busy_s + impl_->IdleSeconds(layout, parts) + hops, busy_s);
  plan.per_rank = TrainingMemory(impl_->context, layout);
  plan.memory = Fullest(plan.per_rank);
  return plan.memory.fits();
}

double UsdPerMillionTokens(const hw::System& system, int64_t devices, double tokens_per_s) {
  return static_cast<double>(devices) * system.price_usd_per_device_hour / 3600 / tokens_per_s *
         1e6;
}

Result<schedule::Schedule> ScheduleOf(const Layout& layout) {
  schedule::GeneratorOptions options;
  options.ranks = static_cast<int>(layout.pp);
  options.micro_batches = static_cast<int>(layout.micro_batches);
  options.chunks = static_cast<int>(layout.chunks);
  return schedule::Generate(layout.schedule, options);
}

Result<std::string> TrainingPricer::Simulate(Plan& plan) {
  if (plan.layout.pp == 1) {
    plan.simulated = true;
    return impl_->Judge(plan);
  }
  PENSTOCK_TRY_ASSIGN(const schedule::Schedule schedule, ScheduleOf(plan.layout));
  cost::CostModel costs;
  for (const StageStep& s : Stages(plan.layout)) {
    cost::StageCost& stage = costs.stages.emplace_back();
    stage.f_s = s.f_s;
    stage.i_s = s.i_s;
    stage.w_s = s.w_s;
  }
  costs.link.latency_s = plan.hop_s;
  if (!impl_->context.model->long_values.empty()) {
    // Each hop by what it sends; a message waits for the one before on its link.
    const HopWidths hops = HopsOf(*impl_->context.model, plan.layout, Mode::kTraining);
    const double row_bytes = static_cast<double>(plan.layout.micro_batch) *
                             static_cast<double>(impl_->work.sequence_tokens) /
                             static_cast<double>(plan.layout.cp * plan.layout.tp) * 2;
    costs.link = HopLink(impl_->context, plan.layout, row_bytes * hops.largest());
    for (size_t s = 1; s < costs.stages.size(); ++s) {
      costs.stages[s - 1].output_bytes = std::llround(row_bytes * hops.forward[s]);
      costs.stages[s].gradient_bytes = std::llround(row_bytes * hops.backward[s]);
    }
  }
  sim::SimOptions options;
  options.period = false;
  PENSTOCK_TRY_ASSIGN(const sim::SimResult result, sim::Simulate(schedule, costs, options));
  double busy = 0;
  std::vector<double> shares;
  for (const sim::RankResult& rank : result.ranks) {
    busy = std::max(busy, rank.busy_s);
    shares.push_back(rank.peak_activations);
  }
  impl_->Finish(plan, result.makespan_s, busy);
  plan.per_rank = TrainingMemory(impl_->context, plan.layout, shares);
  plan.memory = Fullest(plan.per_rank);
  plan.simulated = true;
  return impl_->Judge(plan);
}

void ExplainTraining(const Context& context, Plan& plan) {
  const Layout& l = plan.layout;
  const TrainingWorkload& w = context.workload->training;
  std::vector<std::string>& a = plan.arithmetic;
  a.clear();
  a.push_back(fmt::format("{} = tp {} x cp {} x dp {} x pp {}", Counted(l.devices(), "device"),
                          l.tp, l.cp, l.dp, l.pp));
  a.push_back(fmt::format("{} of {} on each of {} = {}",
                          Counted(l.micro_batches, "micro-batch", "micro-batches"),
                          Counted(l.micro_batch, "sequence"), Counted(l.dp, "replica"),
                          Counted(w.global_batch, "sequence")));
  double slowest = 0;
  for (const double s : plan.stage_s) {
    slowest = std::max(slowest, s);
  }
  a.push_back(fmt::format(
      "step = {} micro-batches x busiest rank {} + idle {} + gradients that nothing hides {} + "
      "optimizer {} + fixed {} = {}{}",
      l.micro_batches, FormatSeconds(slowest), FormatSeconds(plan.bubble_s),
      FormatSeconds(plan.gradient_s), FormatSeconds(plan.optimizer_s),
      FormatSeconds(context.calibration().fixed_per_step_s), FormatSeconds(plan.step_s),
      l.pp == 1        ? ""
      : plan.simulated ? ", " + l.schedule + " simulated"
                       : ", " + l.schedule + " by closed form"));
  a.push_back(BusiestLine("per step, all micro-batches", plan));
  a.back() +=
      fmt::format(" = {}", FormatSeconds(plan.operations_s + plan.start_s + plan.exposed_s));
  a.push_back(
      fmt::format("fullest device: weights {} + gradients {} + optimizer {} + activations {} + "
                  "workspace {} = {} "
                  "of {} ({} kept free)",
                  FormatBytes(plan.memory.weights), FormatBytes(plan.memory.gradients),
                  FormatBytes(plan.memory.optimizer), FormatBytes(plan.memory.activations),
                  FormatBytes(plan.memory.workspace), FormatBytes(plan.memory.peak()),
                  FormatBytes(plan.memory.capacity), FormatBytes(plan.memory.reserve)));
}

}  // namespace penstock::plan
