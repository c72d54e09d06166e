#include "plan/inference.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <unordered_map>

#include "base/check.h"
#include "base/units.h"
#include "model/cut.h"
#include "model/cut_search.h"
#include "plan/cut.h"
#include "plan/hops.h"
#include "plan/memory.h"
#include "plan/serving_rules.h"
#include "plan/serving_sim.h"

namespace penstock::plan {
namespace {

using cost::LayerTime;

// What one execution costs on each stage, and the whole lap.
struct StageTimes {
  std::vector<double> total_s;  // with what is exposed of collectives
  double sum_s = 0;
  double slowest_s = 0;
  size_t busiest = 0;
  LayerTime busiest_time;
};

struct PriceKey {
  int64_t tp, ep, stride;
  double rows;
  int kind;       // 0: decode, 1: prefill, 2: decode beside a prefill chunk
  int precision;  // of weights, twice, and whether as stored

  friend bool operator==(const PriceKey&, const PriceKey&) = default;
};

struct KeyHash {
  size_t operator()(const PriceKey& k) const {
    size_t h = static_cast<size_t>(k.tp) * 1000003u + static_cast<size_t>(k.ep);
    h = h * 1000003u + static_cast<size_t>(k.stride);
    h = h * 1000003u + std::hash<double>()(k.rows);
    return h * 31u + static_cast<size_t>(k.kind * 64 + k.precision);
  }
};

double CeilDiv(double a, double b) {
  return std::ceil(a / b - 1e-9);
}

}  // namespace

struct InferencePricer::Impl {
  explicit Impl(const Context& c)
      : context(c),
        work(c.workload->inference),
        prompt(work.prompt_tokens.mean),
        output(work.output_tokens.mean) {
    const cost::ModelProfile& m = *c.model;
    prefill_flops = cost::ModelFlops(m, prompt, prompt / 2, 1);
    decode_flops = cost::ModelFlops(m, 1, prompt + output / 2, 1);
    unit_bytes.resize(m.class_of.size());
    unit_seconds.resize(m.class_of.size());
  }

  const std::vector<LayerTime>& Classes(const Layout& layout, double rows, int kind);
  StageTimes Stages(const Layout& layout, const std::vector<LayerTime>& classes) const;
  double HopSeconds(const Layout& layout, double rows, const std::vector<int32_t>& cut) const;
  double Capacity(const Layout& layout, double chunk_rows) const;
  bool Cut(Layout& layout, double sequences, double chunk_rows);
  void EngineLayout(Layout& layout, double sequences) const;
  void EngineRun(Plan& plan, double sequences);
  std::vector<MemoryAccount> Memory(const Layout& layout, double sequences, double tokens,
                                    double chunk_rows) const;
  double PrefillSeconds(const Layout& layout, double sequences, double chunk_rows, double* slowest);
  bool ChooseChunk(Layout& layout, double sequences);
  void Lockstep(Plan& plan, double sequences);
  std::string Arrivals(Plan& plan, double most);
  void Account(Plan& plan, const StageTimes& stages, double groups, double lap);
  void Rates(Plan& plan) const;
  std::string Judge(const Plan& plan) const;
  bool Good(const Plan& plan) const;
  double MostSequences(const Layout& layout);

  Context context;
  InferenceWorkload work;
  bool weigh_crossing = false;  // in cuts
  double prompt = 0;
  double output = 0;
  double prefill_flops = 0;
  double decode_flops = 0;
  std::vector<double> unit_bytes;
  std::vector<double> unit_seconds;
  std::vector<double> class_bytes;
  std::unordered_map<PriceKey, std::vector<LayerTime>, KeyHash> prices;
};

const std::vector<LayerTime>& InferencePricer::Impl::Classes(const Layout& layout, double rows,
                                                             int kind) {
  const bool across = layout.ep > layout.tp;
  const PriceKey key{
      layout.tp, layout.ep, across ? layout.pp : 1,
      rows,      kind,      2 * static_cast<int>(layout.precision) + (layout.as_stored ? 1 : 0)};
  if (const auto it = prices.find(key); it != prices.end()) {
    return it->second;
  }
  if (prices.size() > 100000) {
    prices.clear();
  }
  cost::StepShape shape;
  shape.rows = rows;
  if (kind == 0) {
    shape.sequences = rows;
    shape.context = prompt + output / 2;
    shape.state_tokens = shape.context;
    shape.head_rows = rows;
    shape.decode = true;
  } else {
    shape.sequences = std::max(1.0, rows / prompt);
    shape.context = prompt / 2;
    shape.state_tokens = rows < prompt ? prompt / 2 : prompt;
    shape.head_rows = rows / prompt;
  }
  const cost::Formats formats = layout.formats();
  std::vector<LayerTime> times;
  for (const cost::LayerProfile& layer : context.model->classes) {
    times.push_back(cost::ForwardTime(layer, shape, layout.sharding(), formats, context.machine()));
  }
  return prices.emplace(key, std::move(times)).first->second;
}

StageTimes InferencePricer::Impl::Stages(const Layout& layout,
                                         const std::vector<LayerTime>& classes) const {
  StageTimes out;
  size_t unit = 0;
  for (size_t s = 0; s < layout.cut.size(); ++s) {
    LayerTime time;
    // Neighbours are alike: one product per run of equal layers.
    for (int32_t i = 0; i < layout.cut[s];) {
      const int32_t c = context.model->class_of[unit];
      double run = 0;
      for (; i < layout.cut[s] && context.model->class_of[unit] == c; ++i, ++unit) {
        run += 1;
      }
      time += classes[static_cast<size_t>(c)] * run;
    }
    const double total = time.total_s(context.calibration());
    out.total_s.push_back(total);
    out.sum_s += total;
    if (total > out.slowest_s || s == 0) {
      out.slowest_s = total;
      out.busiest = s;
      out.busiest_time = time;
    }
  }
  return out;
}

// All hops of one lap, the sampled ids back to the first stage too.
double InferencePricer::Impl::HopSeconds(const Layout& layout, double rows,
                                         const std::vector<int32_t>& cut) const {
  if (layout.pp == 1) {
    return 0;
  }
  double seconds = 0;
  int32_t unit = 0;
  for (size_t s = 0; s + 1 < cut.size(); ++s) {
    unit += cut[s];
    const size_t boundary = static_cast<size_t>(std::max(unit - 1, 0));
    const double bytes =
        rows * context.model->boundary_width[boundary] * 2 / static_cast<double>(layout.tp);
    seconds += hw::MessageSeconds(*context.system, layout.hop_distance(), bytes);
  }
  return seconds * context.calibration().exposed_hop +
         hw::MessageSeconds(*context.system, layout.hop_distance() * (layout.pp - 1), 4 * rows);
}

bool InferencePricer::Impl::Cut(Layout& layout, double sequences, double chunk_rows) {
  if (!layout.cut.empty()) {
    return true;
  }
  const cost::ModelProfile& model = *context.model;
  if (layout.pp == 1) {
    layout.cut = {model.num_layers()};
    return true;
  }
  const double rows = std::max<double>(1, static_cast<double>(layout.micro_batch));
  const std::vector<LayerTime>& classes = Classes(layout, rows, 0);
  const cost::Formats formats = layout.formats();
  const double tokens = prompt + output;
  class_bytes.clear();
  for (const cost::LayerProfile& layer : model.classes) {
    class_bytes.push_back(cost::WeightBytesPerDevice(layer, layout.sharding(), formats) +
                          StateBytesPerDevice(layer, layout, sequences, tokens));
  }
  for (size_t u = 0; u < unit_seconds.size(); ++u) {
    const auto c = static_cast<size_t>(model.class_of[u]);
    unit_seconds[u] = classes[c].total_s(context.calibration());
    unit_bytes[u] = class_bytes[c];
  }
  // What every stage needs beside its layers: working rows and messages.
  Layout probe = layout;
  probe.cut.assign(static_cast<size_t>(layout.pp), 0);
  probe.cut[0] = model.num_layers();
  const MemoryAccount whole = InferenceMemory(context, probe, 0, 0, chunk_rows)[0];
  CutProblem problem;
  problem.seconds = unit_seconds;
  problem.fixed_bytes = unit_bytes;
  problem.capacity_bytes = whole.capacity - whole.reserve - whole.activations - whole.workspace -
                           rows * model.vocabulary / static_cast<double>(layout.tp) * 4;
  problem.stages = static_cast<int32_t>(layout.pp);
  std::vector<double> crossing = weigh_crossing ? CrossingBytes(model) : std::vector<double>();
  for (double& bytes : crossing) {
    bytes *= rows / static_cast<double>(layout.tp);
  }
  if (!crossing.empty()) {
    const double most = *std::max_element(crossing.begin(), crossing.end());
    const cost::LinkCost link = HopLink(context, layout, most);
    problem.crossing_bytes = crossing;
    problem.seconds_per_byte = link.bytes_per_s > 0 ? 1 / link.bytes_per_s : 0;
  }
  std::optional<CutResult> cut;
  if (problem.capacity_bytes > 0) {
    cut = FindCut(problem);
  }
  const bool fits = cut.has_value();
  if (!fits) {  // the best cut that ignores memory, so that the rejection has figures
    problem.fixed_bytes = {};
    cut = FindCut(problem);
  }
  layout.cut = cut->units;
  return fits;
}

double InferencePricer::Impl::PrefillSeconds(const Layout& layout, double sequences,
                                             double chunk_rows, double* slowest) {
  const double rows = sequences * prompt;
  // Chunks of equal cost; the last one may be a part of one.
  const double size = std::min(rows, chunk_rows);
  const double chunks = rows / size;
  const StageTimes stages = Stages(layout, Classes(layout, size, 1));
  if (slowest != nullptr) {
    *slowest = stages.slowest_s * chunks;
  }
  return stages.sum_s + (chunks - 1) * stages.slowest_s + HopSeconds(layout, size, layout.cut) +
         context.calibration().fixed_per_step_s;
}

// The prefill micro-batch that ends soonest and fits.
bool InferencePricer::Impl::ChooseChunk(Layout& layout, double sequences) {
  const double rows = sequences * prompt;
  std::vector<double> candidates;
  if (layout.prefill_chunk_tokens > 0) {
    candidates.push_back(std::min(rows, static_cast<double>(layout.prefill_chunk_tokens)));
  } else {
    for (double c = 512; c < rows && c <= 32768; c *= 2) {
      candidates.push_back(c);
    }
    candidates.push_back(std::min(rows, 32768.0));
  }
  const bool fits = Cut(layout, sequences, candidates.front());
  layout.prefill_chunk_tokens = static_cast<int64_t>(std::llround(candidates.front()));
  double best = PrefillSeconds(layout, sequences, candidates.front(), nullptr);
  // Larger micro-batches while they are faster and their rows fit beside the rest.
  const MemoryAccount account = Fullest(
      InferenceMemory(context, layout, sequences, std::ceil(prompt + output), candidates.front()));
  const double room = account.capacity - account.reserve - account.peak();
  const double row_bytes = (account.activations + account.workspace) / candidates.front();
  for (size_t i = 1; i < candidates.size(); ++i) {
    const double seconds = PrefillSeconds(layout, sequences, candidates[i], nullptr);
    if (seconds < best && row_bytes * (candidates[i] - candidates.front()) <= room) {
      best = seconds;
      layout.prefill_chunk_tokens = static_cast<int64_t>(std::llround(candidates[i]));
    }
  }
  return fits;
}

void InferencePricer::Impl::Account(Plan& plan, const StageTimes& stages, double groups,
                                    double lap) {
  const hw::Calibration& c = context.calibration();
  plan.step_s = lap;
  plan.stage_s = stages.total_s;
  plan.compute_s = groups * stages.busiest_time.compute_s;
  plan.memory_s = groups * stages.busiest_time.memory_s;
  plan.start_s = groups * stages.busiest_time.start_s;
  plan.operations_s = groups * stages.busiest_time.busy_s - plan.start_s;
  plan.exposed_s = std::max(0.0, groups * stages.slowest_s - groups * stages.busiest_time.busy_s);
  plan.communication_s = groups * c.exposed_tensor_parallel *
                             (stages.busiest_time.tensor_s + stages.busiest_time.expert_s) +
                         (plan.layout.pp > 1 ? plan.hop_s : 0);
  plan.utilisation = std::min(1.0, groups * stages.slowest_s / lap);
  plan.bubble_s = std::max(0.0, lap - groups * stages.slowest_s);
  plan.bubble_ratio = plan.bubble_s / lap;
  const double busy = std::max(plan.compute_s, plan.memory_s);
  // The host's fixed time is idle time too, but no more stages or groups would fill it.
  const double overhead = plan.start_s + std::min(plan.bubble_s, c.fixed_per_step_s);
  const double bubbles = std::max(0.0, plan.bubble_s - c.fixed_per_step_s);
  const double largest = std::max({busy, plan.communication_s, bubbles, overhead});
  plan.bound_by = largest == busy ? (plan.memory_s >= plan.compute_s ? "memory time" : "compute")
                  : largest == plan.communication_s ? "links"
                  : largest == bubbles              ? "bubbles"
                                                    : "overhead";
}

void InferencePricer::Impl::Lockstep(Plan& plan, double sequences) {
  const Layout& layout = plan.layout;
  const auto rows = static_cast<double>(layout.micro_batch);
  const auto groups = static_cast<double>(layout.micro_batches);
  const StageTimes stages = Stages(layout, Classes(layout, rows, 0));
  plan.hop_s = HopSeconds(layout, rows, layout.cut);
  const double lap = std::max(stages.sum_s + plan.hop_s, groups * stages.slowest_s) +
                     context.calibration().fixed_per_step_s;
  Account(plan, stages, groups, lap);
  plan.tpot_s = lap;
  plan.ttft_s =
      PrefillSeconds(layout, sequences, static_cast<double>(layout.prefill_chunk_tokens), nullptr);
  const double run = plan.ttft_s + (output - 1) * lap;
  plan.tokens_per_s = work.sequences * output / run;
  plan.prefill_tokens_per_s = plan.ttft_s > 0 ? work.sequences * prompt / plan.ttft_s : 0;
  plan.decode_tokens_per_s = lap > 0 ? work.sequences / lap : 0;
  plan.concurrent_sequences = work.sequences;
  const double flops = work.sequences * (prefill_flops + (output - 1) * decode_flops);
  plan.mfu = flops / (run * static_cast<double>(layout.devices()) *
                      context.system->device.Rate(layout.precision).second);
}

// Open arrivals on one replica. Decode laps stretch by the share of time that prefill takes; the
// live number follows from Little's law; prompts queue before the pipe (Allen and Cunneen's
// approximation of a queue with general service times).
std::string InferencePricer::Impl::Arrivals(Plan& plan, double most) {
  Layout& layout = plan.layout;
  const double rate = work.requests_per_s / static_cast<double>(layout.dp);
  const auto groups = static_cast<double>(layout.micro_batches);
  const double chunk = static_cast<double>(layout.prefill_chunk_tokens);
  double bottleneck = 0;
  const double path = PrefillSeconds(layout, 1, chunk, &bottleneck);
  const double prefill_share = rate * bottleneck;
  const auto lap_of = [&](double live, StageTimes* stages) {
    const double rows = std::max(1.0, std::ceil(live / groups));
    const StageTimes s = Stages(layout, Classes(layout, rows, 0));
    const double g = std::min(groups, live);
    const double lap = std::max(s.sum_s + HopSeconds(layout, rows, layout.cut), g * s.slowest_s) +
                       context.calibration().fixed_per_step_s;
    if (stages != nullptr) {
      *stages = s;
    }
    return lap / std::max(1e-9, 1 - prefill_share);
  };
  if (prefill_share >= 1) {
    plan.ttft_s = path;
    plan.tokens_per_s = static_cast<double>(layout.dp) / bottleneck * output;  // at most
    return fmt::format("prefill alone takes {:.0f} % of a replica's time at {:.3g} requests/s",
                       100 * prefill_share, work.requests_per_s);
  }
  double low = 1;
  double high = std::max(1.0, std::floor(most));
  if (most < 1) {
    return "memory holds no sequence of the final length beside the weights";
  }
  const auto served = [&](double live) { return live / (output * lap_of(live, nullptr)); };
  const bool saturated = served(high) < rate;
  while (!saturated && high - low > 1) {
    const double middle = std::floor((low + high) / 2);
    (served(middle) >= rate ? high : low) = middle;
  }
  const double live = !saturated && served(low) >= rate ? low : high;
  StageTimes stages;
  const double lap = lap_of(live, &stages);
  const double rows = std::max(1.0, std::ceil(live / groups));
  plan.hop_s = HopSeconds(layout, rows, layout.cut);
  Account(plan, stages, std::min(groups, live), lap);
  layout.micro_batch = static_cast<int64_t>(rows);
  plan.tpot_s = lap;
  // A chunk runs beside a decode step of each group.
  const double chunks = std::max(1.0, CeilDiv(prompt, chunk));
  const double service = bottleneck + chunks * stages.slowest_s;
  const double load = std::min(0.999, rate * service);
  const double wait = load / (1 - load) * 0.5 * (1 + work.prompt_tokens.variation()) * service;
  plan.ttft_s = path + chunks * stages.slowest_s + wait;
  plan.concurrent_sequences = live * static_cast<double>(layout.dp);
  const double requests =
      saturated ? served(high) * static_cast<double>(layout.dp) : work.requests_per_s;
  plan.tokens_per_s = requests * output;
  plan.mfu = requests * (prefill_flops + output * decode_flops) /
             (static_cast<double>(layout.devices()) *
              context.system->device.Rate(layout.precision).second);
  if (saturated) {
    return fmt::format(
        "serves {:.3g} of {:.3g} requests/s: memory holds {:.0f} sequences per replica", requests,
        work.requests_per_s, high);
  }
  if (rate * service >= 1) {
    return fmt::format(
        "prompts queue without end: prefill beside decode takes {:.0f} % of the time",
        100 * rate * service);
  }
  return "";
}

// As the engine lays out a run: stages by decode work, as many groups as stages, its own chunks.
void InferencePricer::Impl::EngineLayout(Layout& layout, double sequences) const {
  if (layout.cut.empty()) {
    model::CutWeights weights = context.model->decode_cut;
    if (const double measured = cost::DecodeWorkPerByte(
            *context.system->engine, layout.formats().weights, context.across_processes);
        measured > 0) {
      weights.work_per_byte = measured;
    }
    const Result<model::Partition> cut = model::CutBalanced(weights, layout.pp);
    PENSTOCK_CHECK(cut.ok(), "a layout has no more stages than the model has layers");
    for (int32_t s = 0; s < cut.value().num_stages(); ++s) {
      layout.cut.push_back(cut.value().end_layer(StageId(s)) - cut.value().first_layer(StageId(s)));
    }
  }
  if (layout.prefill_chunk_tokens == 0) {
    layout.prefill_chunk_tokens = PrefillChunk(static_cast<int64_t>(std::llround(prompt)),
                                               layout.pp, static_cast<int64_t>(sequences));
  }
}

// The run of one replica, simulated; replicas beside it share the machine.
void InferencePricer::Impl::EngineRun(Plan& plan, double sequences) {
  const Layout& layout = plan.layout;
  ServingQuestion q;
  q.model = context.model;
  q.engine = &*context.system->engine;
  q.units = layout.cut;
  q.formats = layout.formats();
  q.across_processes = context.across_processes;
  q.replicas = layout.dp;
  q.rules.groups = static_cast<int32_t>(layout.pp);
  q.rules.prefill_chunk = layout.prefill_chunk_tokens;
  q.rules.max_rows = layout.prefill_chunk_tokens +
                     static_cast<int64_t>(CeilDiv(sequences, static_cast<double>(layout.pp)));
  q.rules.attention_share = context.model->attention_share;
  const Request request{static_cast<int64_t>(std::llround(prompt)),
                        static_cast<int64_t>(std::llround(std::max(1.0, output)))};
  q.requests.assign(static_cast<size_t>(sequences), request);
  const ServingForecast f = ForecastServing(q);
  const StageTimes stages =
      Stages(layout, Classes(layout, static_cast<double>(layout.micro_batch), 0));
  const double lap = f.tpot_s > 0 ? f.tpot_s : stages.sum_s;
  plan.hop_s = HopSeconds(layout, static_cast<double>(layout.micro_batch), layout.cut);
  Account(plan, stages, static_cast<double>(layout.micro_batches), lap);
  plan.ttft_s = f.prefill_s;
  plan.tpot_s = lap;
  plan.prefill_tokens_per_s = f.prefill_tokens_per_s() * static_cast<double>(layout.dp);
  plan.decode_tokens_per_s = f.decode_tokens_per_s() * static_cast<double>(layout.dp);
  plan.shares_cores = f.shares_cores;
  plan.tokens_per_s = f.end_s > 0 ? work.sequences * output / f.end_s : 0;
  plan.concurrent_sequences = work.sequences;
  const double flops = work.sequences * (prefill_flops + (output - 1) * decode_flops);
  plan.mfu = flops / (f.end_s * static_cast<double>(layout.devices()) *
                      context.system->device.Rate(layout.precision).second);
}

std::vector<MemoryAccount> InferencePricer::Impl::Memory(const Layout& layout, double sequences,
                                                         double tokens, double chunk_rows) const {
  if (context.system->engine && context.engine_memory) {
    auto accounts = context.engine_memory(layout, static_cast<int64_t>(sequences));
    if (accounts.ok()) {
      for (MemoryAccount& account : accounts.value()) {
        account.capacity = context.system->device.memory_bytes;
        account.reserve = context.system->device.memory_reserve_bytes;
      }
      return std::move(accounts).value();
    }
  }
  return InferenceMemory(context, layout, sequences, tokens, chunk_rows);
}

double InferencePricer::Impl::MostSequences(const Layout& layout) {
  const double tokens = std::ceil(prompt + output);
  const auto chunk = static_cast<double>(std::max<int64_t>(layout.prefill_chunk_tokens, 512));
  const std::vector<MemoryAccount> empty = InferenceMemory(context, layout, 0, tokens, chunk);
  const std::vector<MemoryAccount> one = InferenceMemory(context, layout, 1, tokens, chunk);
  double most = 1e12;
  for (size_t r = 0; r < empty.size(); ++r) {
    const double room = empty[r].capacity - empty[r].reserve - empty[r].peak();
    const double each = one[r].kv;
    if (each > 0) {
      most = std::min(most, std::floor(room / each));
    } else if (room < 0) {
      most = 0;
    }
  }
  return std::max(0.0, most);
}

void InferencePricer::Impl::Rates(Plan& plan) const {
  const Layout& layout = plan.layout;
  plan.tokens_per_s_per_device = plan.tokens_per_s / static_cast<double>(layout.devices());
  if (plan.tokens_per_s > 0) {
    plan.cost_per_million_tokens = static_cast<double>(layout.devices()) *
                                   context.system->price_usd_per_device_hour / 3600 /
                                   plan.tokens_per_s * 1e6;
    plan.energy_j_per_token =
        static_cast<double>(layout.devices()) * context.system->device.power_w / plan.tokens_per_s;
  }
}

bool InferencePricer::Impl::Good(const Plan& plan) const {
  return plan.memory.fits() && plan.refused.empty() &&
         !(work.max_ttft_s > 0 && plan.ttft_s > work.max_ttft_s) &&
         !(work.max_tpot_s > 0 && plan.tpot_s > work.max_tpot_s);
}

std::string InferencePricer::Impl::Judge(const Plan& plan) const {
  if (!plan.memory.fits()) {
    const double over = plan.memory.peak() - (plan.memory.capacity - plan.memory.reserve);
    return fmt::format(
        "does not fit memory: the fullest device needs {} (weights {}, KV {}, working "
        "space {}), {} more than the {} usable",
        FormatBytes(plan.memory.peak()), FormatBytes(plan.memory.weights),
        FormatBytes(plan.memory.kv),
        FormatBytes(plan.memory.peak() - plan.memory.weights - plan.memory.kv), FormatBytes(over),
        FormatBytes(plan.memory.capacity - plan.memory.reserve));
  }
  if (!plan.refused.empty()) {
    return plan.refused;
  }
  if (work.max_ttft_s > 0 && plan.ttft_s > work.max_ttft_s) {
    return fmt::format("time to first token {} over the target of {}", FormatSeconds(plan.ttft_s),
                       FormatSeconds(work.max_ttft_s));
  }
  if (work.max_tpot_s > 0 && plan.tpot_s > work.max_tpot_s) {
    return fmt::format("time per token {} over the target of {}", FormatSeconds(plan.tpot_s),
                       FormatSeconds(work.max_tpot_s));
  }
  return "";
}

InferencePricer::InferencePricer(const Context& context) : impl_(std::make_unique<Impl>(context)) {}

InferencePricer::~InferencePricer() = default;

std::vector<double> InferencePricer::DecodeStages(const Layout& layout, double rows) {
  return impl_->Stages(layout, impl_->Classes(layout, rows, 0)).total_s;
}

double InferencePricer::MostSequences(const Layout& layout) {
  return impl_->MostSequences(layout);
}

void InferencePricer::WeighCrossing(Plan& plan) {
  impl_->weigh_crossing = true;
  Recut(*impl_->context.model, plan, [&](Plan& other) { return Price(other); });
  impl_->weigh_crossing = false;
}

std::string InferencePricer::Why(const Plan& plan) const {
  return impl_->Judge(plan);
}

bool InferencePricer::Price(Plan& plan) {
  Impl& self = *impl_;
  Layout& layout = plan.layout;
  layout.schedule = layout.pp > 1 ? "decode-ring" : "forward";
  layout.recompute = Recompute::kNone;
  if (self.work.arrivals()) {
    if (layout.micro_batches <= 0) {
      layout.micro_batches = layout.pp;
    }
    layout.micro_batch = std::max<int64_t>(1, layout.micro_batch);
    if (layout.prefill_chunk_tokens == 0) {
      layout.prefill_chunk_tokens = static_cast<int64_t>(std::min(2048.0, self.prompt));
    }
    const bool fits = self.Cut(layout, 1, static_cast<double>(layout.prefill_chunk_tokens));
    const double most = fits ? self.MostSequences(layout) : 0;
    plan.refused = self.Arrivals(plan, most);
    const double live = std::max(
        1.0, plan.concurrent_sequences / static_cast<double>(std::max<int64_t>(1, layout.dp)));
    plan.per_rank =
        InferenceMemory(self.context, layout, live, std::ceil(self.prompt + self.output),
                        static_cast<double>(layout.prefill_chunk_tokens));
    plan.memory = Fullest(plan.per_rank);
    self.Rates(plan);
    return self.Good(plan);
  }
  const double sequences = std::ceil(self.work.sequences / static_cast<double>(layout.dp));
  if (layout.micro_batch <= 0) {
    const auto wanted = static_cast<double>(std::max<int64_t>(layout.micro_batches, 1));
    layout.micro_batch = static_cast<int64_t>(std::ceil(sequences / wanted));
  }
  layout.micro_batch = std::min<int64_t>(layout.micro_batch, static_cast<int64_t>(sequences));
  layout.micro_batches =
      static_cast<int64_t>(CeilDiv(sequences, static_cast<double>(layout.micro_batch)));
  if (self.context.system->engine && layout.tp == 1 && layout.ep == 1 && layout.cp == 1) {
    self.EngineLayout(layout, sequences);
    self.EngineRun(plan, sequences);
  } else {
    self.ChooseChunk(layout, sequences);
    self.Lockstep(plan, sequences);
  }
  plan.per_rank = self.Memory(layout, sequences, std::ceil(self.prompt + self.output),
                              static_cast<double>(layout.prefill_chunk_tokens));
  plan.memory = Fullest(plan.per_rank);
  self.Rates(plan);
  return self.Good(plan);
}

void ExplainInference(const Context& context, Plan& plan) {
  const Layout& l = plan.layout;
  const InferenceWorkload& w = context.workload->inference;
  std::vector<std::string>& a = plan.arithmetic;
  a.clear();
  a.push_back(
      fmt::format("{} = tp {} x pp {} x dp {}", Counted(l.devices(), "device"), l.tp, l.pp, l.dp));
  a.push_back(fmt::format("{} of {} in flight per replica", Counted(l.micro_batches, "group"),
                          Counted(l.micro_batch, "sequence")));
  double sum = 0;
  double slowest = 0;
  for (const double s : plan.stage_s) {
    sum += s;
    slowest = std::max(slowest, s);
  }
  a.push_back(
      fmt::format("lap = max(sum of stages {} + hops {}, {} x slowest stage {}) + host {} = {}",
                  FormatSeconds(sum), FormatSeconds(plan.hop_s), Counted(l.micro_batches, "group"),
                  FormatSeconds(slowest), FormatSeconds(context.calibration().fixed_per_step_s),
                  FormatSeconds(plan.step_s)));
  a.push_back(BusiestLine("per lap", plan));
  a.back() +=
      fmt::format(" + idle {} = {}", FormatSeconds(plan.bubble_s), FormatSeconds(plan.step_s));
  if (!w.arrivals()) {
    a.push_back(fmt::format(
        "run = first token {} + {:.0f} laps x {} ; {:.0f} sequences x {:.0f} tokens / run = {:.1f} "
        "tokens/s",
        FormatSeconds(plan.ttft_s), w.output_tokens.mean - 1, FormatSeconds(plan.step_s),
        w.sequences, w.output_tokens.mean, plan.tokens_per_s));
  } else {
    a.push_back(fmt::format("live sequences = rate x tokens x lap = {:.3g} x {:.0f} x {} = {:.0f}",
                            w.requests_per_s, w.output_tokens.mean, FormatSeconds(plan.tpot_s),
                            plan.concurrent_sequences));
  }
  a.push_back(
      fmt::format("fullest device: weights {} + KV {} + activations {} + workspace {} = {} of {} "
                  "({} kept free)",
                  FormatBytes(plan.memory.weights), FormatBytes(plan.memory.kv),
                  FormatBytes(plan.memory.activations), FormatBytes(plan.memory.workspace),
                  FormatBytes(plan.memory.peak()), FormatBytes(plan.memory.capacity),
                  FormatBytes(plan.memory.reserve)));
}

}  // namespace penstock::plan
