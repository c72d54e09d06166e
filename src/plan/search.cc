#include "plan/search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>

#include "base/units.h"
#include "plan/inference.h"
#include "plan/memory.h"
#include "plan/training.h"

namespace penstock::plan {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

using LayoutKey = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>;

LayoutKey KeyOf(const Layout& l) {
  return {l.dp, l.tp, l.pp, l.ep, l.cp};
}

std::vector<int64_t> Divisors(int64_t n, int64_t most) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d <= std::min(n, most); ++d) {
    if (n % d == 0) {
      out.push_back(d);
    }
  }
  return out;
}

std::vector<int64_t> Or(const std::optional<int64_t>& fixed, std::vector<int64_t> searched) {
  return fixed ? std::vector<int64_t>{*fixed} : std::move(searched);
}

// Counts of a dimension: all up to 16, then in growing steps.
std::vector<int64_t> Counts(int64_t most) {
  std::vector<int64_t> out;
  for (int64_t n = 1; n <= most; n += n < 16 ? 1 : (n < 64 ? 4 : 16)) {
    out.push_back(n);
  }
  return out;
}

// What --fix alone asks for.
int64_t FixedDevices(const Fixed& fixed) {
  return fixed.tp.value_or(1) * fixed.pp.value_or(1) * fixed.dp.value_or(1) * fixed.cp.value_or(1);
}

class Searcher {
 public:
  Searcher(const Context& context, const SearchOptions& options)
      : context_(context), options_(options), fixed_(options.fixed), start_(Clock::now()) {}

  void Run();
  SearchResult Take();

 protected:
  void Accept(Plan plan);
  // Keeps the rejection that is nearest to fitting per layout; `why` is asked for only then.
  template <class Why>
  void Reject(Plan plan, const Why& why);
  void Inference();
  void InferenceOf(int64_t tp, int64_t pp, InferencePricer& pricer);
  void Training();
  std::vector<Layout> TrainingVariants(Layout layout) const;
  void BestTrainingOf(const std::vector<Layout>& layouts, TrainingPricer& pricer);
  bool CannotMatter(const Layout& layout, TrainingPricer& pricer) const;
  double TokensPerStep() const;
  void TrainingShape(const Layout& layout, TrainingPricer& pricer);
  bool SetFixedCut(Layout& layout) const;
  bool TooHeavy(const Layout& layout);
  double WholeBytes(const Layout& layout);
  std::vector<int64_t> TensorParallel() const;
  std::vector<int64_t> ExpertParallel(const Layout& layout) const;
  void WeighCrossing();
  void SimulateBest();
  void UpdateFront();
  double Excess(const Plan& plan) const;

  const Context& context_;
  const SearchOptions& options_;
  const Fixed& fixed_;
  Clock::time_point start_;
  SearchResult result_;
  std::map<LayoutKey, Plan> best_;          // that fit
  std::map<LayoutKey, Rejected> rejected_;  // nearest to fitting
  std::map<std::tuple<int64_t, int64_t, hw::Precision, bool>, double> whole_bytes_;
  std::vector<Plan> front_;          // running Pareto set
  double best_of_kind_[2] = {0, 0};  // tokens/s without and with stages
  std::unique_ptr<TrainingPricer> training_;
};

// a is no worse in everything that a buyer or user looks at.
bool Dominates(const Plan& a, const Plan& b, Mode mode) {
  const double latency_a = mode == Mode::kTraining ? a.step_s : a.tpot_s;
  const double latency_b = mode == Mode::kTraining ? b.step_s : b.tpot_s;
  return latency_a <= latency_b && a.tokens_per_s >= b.tokens_per_s &&
         a.cost_per_million_tokens <= b.cost_per_million_tokens &&
         a.memory.peak() <= b.memory.peak();
}

template <class Why>
void Searcher::Reject(Plan plan, const Why& why) {
  const LayoutKey key = KeyOf(plan.layout);
  if (options_.only_best || best_.contains(key)) {
    return;
  }
  const auto it = rejected_.find(key);
  const auto nearer = [](const Plan& a, const Plan& b) {
    return a.memory.fits() && b.memory.fits() ? a.tokens_per_s > b.tokens_per_s
                                              : a.memory.peak() < b.memory.peak();
  };
  if (it == rejected_.end() || nearer(plan, it->second.plan)) {
    std::string words = why(plan);
    rejected_[key] = Rejected{std::move(plan), std::move(words)};
  }
}

void Searcher::Accept(Plan plan) {
  const LayoutKey key = KeyOf(plan.layout);
  double& best_of_kind = best_of_kind_[plan.layout.pp > 1];
  best_of_kind = std::max(best_of_kind, plan.tokens_per_s);
  const Mode mode = context_.workload->mode;
  bool dominated = options_.only_best;
  for (const Plan& other : front_) {
    dominated = dominated || Dominates(other, plan, mode);
  }
  if (!dominated) {
    std::erase_if(front_, [&](const Plan& other) { return Dominates(plan, other, mode); });
    if (front_.size() < 4096) {
      front_.push_back(plan);
    }
  }
  const auto it = best_.find(key);
  if (it == best_.end() || plan.tokens_per_s > it->second.tokens_per_s) {
    best_[key] = std::move(plan);
  }
}

bool Searcher::SetFixedCut(Layout& layout) const {
  if (fixed_.layers.empty()) {
    return true;
  }
  layout.cut.assign(fixed_.layers.begin(), fixed_.layers.end());
  layout.cut.front() += 1;
  layout.cut.back() += 1;
  return static_cast<int64_t>(layout.cut.size()) == layout.stages();
}

std::vector<int64_t> Searcher::TensorParallel() const {
  if (context_.system->engine) {
    return Or(fixed_.tp, {1});  // this project's engine divides models into stages only
  }
  std::vector<int64_t> out;
  const int64_t domain = context_.system->domain();
  for (const int64_t d :
       Divisors(std::max<int64_t>(1, context_.model->attention_heads), options_.devices)) {
    const bool power = (d & (d - 1)) == 0;
    // Beyond the scale-up domain a few wide groups; inside, every divisor of the heads.
    if (d <= std::min<int64_t>(domain, 16) || (power && d <= 4 * std::min<int64_t>(domain, 256))) {
      out.push_back(d);
    }
  }
  return Or(fixed_.tp, out);
}

std::vector<int64_t> Searcher::ExpertParallel(const Layout& layout) const {
  if (!context_.model->has_experts) {
    return Or(fixed_.ep, {1});
  }
  std::vector<int64_t> out = {1};
  const int64_t all = layout.dp * layout.tp * layout.cp;
  for (int64_t e = 2; e <= all && e <= 1024; e *= 2) {
    if (all % e == 0 && e >= layout.tp) {
      out.push_back(e);
    }
  }
  return Or(fixed_.ep, out);
}

// Weights of the whole model divided as the layout's tp and ep say.
double Searcher::WholeBytes(const Layout& layout) {
  const auto [it, fresh] =
      whole_bytes_.try_emplace({layout.tp, layout.ep, layout.precision, layout.as_stored}, 0.0);
  if (fresh) {
    std::vector<double> classes;
    for (const cost::LayerProfile& layer : context_.model->classes) {
      classes.push_back(cost::WeightBytesPerDevice(layer, layout.sharding(), layout.formats()));
    }
    for (const int32_t c : context_.model->class_of) {
      it->second += classes[static_cast<size_t>(c)];
    }
  }
  return it->second;
}

// Weights alone over the least that a stage can hold: no need to price it. Offers the rejection.
bool Searcher::TooHeavy(const Layout& layout) {
  if (!options_.prune) {
    return false;
  }
  double bytes = 0;
  if (context_.workload->mode == Mode::kInference) {
    bytes = WholeBytes(layout);
  }
  const double least = bytes / static_cast<double>(layout.pp);
  if (least <= context_.system->device.usable_bytes() * 1.3) {
    return false;
  }
  ++result_.pruned;
  return rejected_.contains(KeyOf(layout));
}

void Searcher::InferenceOf(int64_t tp, int64_t pp, InferencePricer& pricer) {
  const InferenceWorkload& w = context_.workload->inference;
  const int64_t most = options_.devices / (tp * pp);
  const auto sequences = w.arrivals() ? int64_t{1} << 40 : static_cast<int64_t>(w.sequences);
  std::vector<int64_t> replicas;
  for (const int64_t dp : Counts(std::min(most, sequences))) {
    replicas.push_back(dp);
  }
  if (!replicas.empty() && replicas.back() != std::min(most, sequences)) {
    replicas.push_back(std::min(most, sequences));
  }
  if (replicas.empty() && FixedDevices(fixed_) > options_.devices) {
    replicas.push_back(1);  // to be rejected with a reason
  }
  for (const int64_t dp : Or(fixed_.dp, replicas)) {
    Layout layout;
    layout.dp = dp;
    layout.tp = tp;
    layout.pp = pp;
    layout.replicas_outermost = true;
    layout.precision = fixed_.precision.value_or(w.precision);
    layout.kv_precision = fixed_.kv_precision.value_or(w.kv_precision);
    layout.as_stored = w.as_stored && !fixed_.precision;
    layout.chunks = fixed_.chunks.value_or(1);
    layout.cp = fixed_.cp.value_or(1);
    layout.sequence_parallel = fixed_.sequence_parallel.value_or(false);
    layout.prefill_chunk_tokens = fixed_.prefill_chunk_tokens.value_or(0);
    for (const int64_t ep : ExpertParallel(layout)) {
      layout.ep = ep;
      // As many groups as stages; one more where hops leave room in the ring.
      std::vector<int64_t> groups = {pp};
      if (pp > 1 && !context_.system->engine) {
        groups.push_back(pp + 1);
      }
      for (const int64_t g : groups) {
        Plan plan;
        plan.layout = layout;
        plan.layout.micro_batches = g;
        plan.layout.micro_batch = fixed_.micro_batch.value_or(0);
        if (!SetFixedCut(plan.layout)) {
          continue;
        }
        std::string why = Impossible(context_, plan.layout);
        if (why.empty() && plan.layout.devices() > options_.devices) {
          why = fmt::format("needs {} of {}", Counted(plan.layout.devices(), "device"),
                            options_.devices);
        }
        if (!why.empty()) {
          plan.layout.cut.assign(static_cast<size_t>(std::min<int64_t>(pp, 1 << 12)), 0);
          Reject(std::move(plan), [&](const Plan&) { return why; });
          break;
        }
        if (TooHeavy(plan.layout)) {
          break;
        }
        const bool good = pricer.Price(plan);
        ++result_.evaluated;
        if (good) {
          Accept(std::move(plan));
        } else {
          Reject(std::move(plan), [&](const Plan& p) { return pricer.Why(p); });
        }
        if (fixed_.micro_batch) {
          break;
        }
      }
    }
  }
}

void Searcher::Inference() {
  InferencePricer pricer(context_);
  for (const int64_t tp : TensorParallel()) {
    const int64_t most = std::max<int64_t>(1, options_.devices / tp);
    for (const int64_t pp :
         Or(fixed_.pp, Counts(std::min<int64_t>(most, context_.model->num_layers())))) {
      InferenceOf(tp, pp, pricer);
    }
  }
}

void Searcher::TrainingShape(const Layout& base, TrainingPricer& pricer) {
  struct Choice {
    std::string schedule;
    int64_t chunks;
  };

  std::vector<Choice> choices;
  if (fixed_.schedule) {
    const bool folded = *fixed_.schedule == "zb-v" || *fixed_.schedule == "v-half" ||
                        *fixed_.schedule == "v-min" || *fixed_.schedule == "dualpipe-v";
    const bool looped =
        fixed_.schedule->starts_with("interleaved") || *fixed_.schedule == "looped-bfs";
    for (const int64_t v : Or(fixed_.chunks, looped ? std::vector<int64_t>{2, 3, 4, 5, 6, 8}
                                                    : std::vector<int64_t>{folded ? 2 : 1})) {
      choices.push_back({*fixed_.schedule, v});
    }
  } else if (base.pp == 1) {
    choices.push_back({"1f1b", fixed_.chunks.value_or(1)});
  } else {
    for (const int64_t v : Or(fixed_.chunks, {1, 2, 3, 4, 5, 6, 8, 10, 12})) {
      if (v > 1 && base.pp * v > context_.model->num_layers()) {
        continue;
      }
      if (v == 1) {
        choices.push_back({"1f1b", 1});
        choices.push_back({"zb-h1", 1});
      } else {
        choices.push_back({"interleaved-1f1b", v});
        if (v == 2) {
          choices.push_back({"zb-v", 2});
          choices.push_back({"dualpipe-v", 2});
        }
      }
    }
  }
  std::vector<int64_t> zeros = {1};
  if (base.dp * base.cp == 1) {
    zeros = {0};
  } else if (base.pp == 1) {
    zeros = {1, 2, 3};
  }
  for (const int64_t zero : Or(fixed_.zero, zeros)) {
    for (const Choice& choice : choices) {
      Plan plan;
      plan.layout = base;
      plan.layout.schedule = choice.schedule;
      plan.layout.chunks = choice.chunks;
      plan.layout.zero = static_cast<int>(zero);
      if (!SetFixedCut(plan.layout)) {
        continue;
      }
      const std::string impossible = Impossible(context_, plan.layout);
      if (!impossible.empty()) {
        plan.layout.cut.assign(static_cast<size_t>(std::min<int64_t>(base.pp, 1 << 12)), 0);
        Reject(std::move(plan), [&](const Plan&) { return impossible; });
        continue;
      }
      if (options_.prune && CannotMatter(plan.layout, pricer)) {
        ++result_.pruned;
        continue;
      }
      ++result_.evaluated;
      if (pricer.Price(plan)) {
        Accept(std::move(plan));
      } else {
        Reject(std::move(plan), [&](const Plan& p) { return pricer.Why(p); });
      }
    }
  }
}

double Searcher::TokensPerStep() const {
  const TrainingWorkload& w = context_.workload->training;
  return static_cast<double>(w.global_batch * w.sequence_tokens);
}

// Whether bounds say that the layout changes nothing of the answer: neither the best of its devices
// nor the Pareto set; of a search for the best alone, neither the first with nor without stages.
bool Searcher::CannotMatter(const Layout& layout, TrainingPricer& pricer) const {
  const LeastPlan least = pricer.Least(layout);
  if (options_.only_best) {
    return least.peak_bytes > context_.system->device.usable_bytes() ||
           TokensPerStep() < kSimulationMargin * best_of_kind_[layout.pp > 1] * least.step_s;
  }
  const auto best = best_.find(KeyOf(layout));
  if (best == best_.end()) {
    return false;
  }
  if (least.peak_bytes > context_.system->device.usable_bytes()) {
    return true;  // rejections of what has a plan are not kept
  }
  Plan ideal;
  ideal.step_s = least.step_s;
  ideal.tokens_per_s = TokensPerStep() / least.step_s;
  if (best->second.tokens_per_s < ideal.tokens_per_s) {
    return false;
  }
  ideal.cost_per_million_tokens =
      UsdPerMillionTokens(*context_.system, layout.devices(), ideal.tokens_per_s);
  ideal.memory.weights = least.peak_bytes;
  return std::any_of(front_.begin(), front_.end(),
                     [&](const Plan& plan) { return Dominates(plan, ideal, Mode::kTraining); });
}

std::vector<Layout> Searcher::TrainingVariants(Layout layout) const {
  const TrainingWorkload& w = context_.workload->training;
  std::vector<Layout> out;
  for (const int64_t ep : ExpertParallel(layout)) {
    layout.ep = ep;
    for (const int64_t mb : Or(fixed_.micro_batch, {1, 2, 4, 8})) {
      if (!fixed_.micro_batch && w.global_batch % (layout.dp * mb) != 0) {
        continue;
      }
      layout.micro_batch = mb;
      std::vector<Recompute> modes = {Recompute::kSelective, Recompute::kFull};
      if (!context_.calibration().fused_attention()) {
        modes.push_back(Recompute::kNone);  // with fused attention the same as selective
      }
      if (fixed_.recompute) {
        modes = {*fixed_.recompute};
      }
      for (const Recompute recompute : modes) {
        layout.recompute = recompute;
        out.push_back(layout);
      }
    }
  }
  return out;
}

// The most promising first, until no bound promises more than was found.
void Searcher::BestTrainingOf(const std::vector<Layout>& layouts, TrainingPricer& pricer) {
  std::vector<std::pair<double, Layout>> candidates;
  for (const Layout& layout : layouts) {
    for (Layout& variant : TrainingVariants(layout)) {
      const double least_s = pricer.LeastStepSeconds(variant);
      candidates.emplace_back(least_s, std::move(variant));
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [least_s, layout] : candidates) {
    if (TokensPerStep() < kSimulationMargin * best_of_kind_[layout.pp > 1] * least_s) {
      ++result_.pruned;
    } else {
      TrainingShape(layout, pricer);
    }
  }
}

void Searcher::Training() {
  training_ = std::make_unique<TrainingPricer>(context_);
  const TrainingWorkload& w = context_.workload->training;
  std::vector<int64_t> contexts = {1};
  for (int64_t cp = 2; cp <= 64 && w.sequence_tokens / cp >= 4096; cp *= 2) {
    contexts.push_back(cp);
  }
  std::vector<Layout> layouts;
  for (const int64_t tp : TensorParallel()) {
    for (const int64_t cp : Or(fixed_.cp, contexts)) {
      const int64_t most = std::max<int64_t>(1, options_.devices / (tp * cp));
      for (const int64_t pp :
           Or(fixed_.pp, Counts(std::min<int64_t>(most, context_.model->num_layers())))) {
        const int64_t left = std::max<int64_t>(options_.devices / (tp * cp * pp),
                                               FixedDevices(fixed_) > options_.devices ? 1 : 0);
        for (const int64_t dp : Or(fixed_.dp, Divisors(w.global_batch, left))) {
          Layout layout;
          layout.tp = tp;
          layout.cp = cp;
          layout.pp = pp;
          layout.dp = dp;
          layout.precision = fixed_.precision.value_or(w.precision);
          layout.sequence_parallel = fixed_.sequence_parallel.value_or(tp > 1);
          layouts.push_back(layout);
        }
      }
    }
  }
  std::erase_if(layouts, [&](const Layout& layout) {
    if (layout.devices() <= options_.devices) {
      return false;
    }
    Plan plan;
    plan.layout = layout;
    plan.layout.cut.assign(static_cast<size_t>(std::min<int64_t>(layout.pp, 1 << 12)), 0);
    Reject(std::move(plan), [&](const Plan&) {
      return fmt::format("needs {} of {}", Counted(layout.devices(), "device"), options_.devices);
    });
    return true;
  });
  if (options_.only_best) {
    BestTrainingOf(layouts, *training_);
    return;
  }
  // Most devices first: their plans prune the rest.
  std::stable_sort(layouts.begin(), layouts.end(),
                   [](const Layout& a, const Layout& b) { return a.devices() > b.devices(); });
  for (const Layout& layout : layouts) {
    for (const Layout& variant : TrainingVariants(layout)) {
      TrainingShape(variant, *training_);
    }
  }
}

void Searcher::Run() {
  if (context_.workload->mode == Mode::kTraining) {
    Training();
  } else {
    Inference();
  }
}

void Searcher::SimulateBest() {
  const auto start = Clock::now();
  const size_t most = std::min<size_t>(result_.plans.size(), 16);
  std::vector<Plan> kept;
  for (size_t i = 0; i < result_.plans.size(); ++i) {
    Plan& plan = result_.plans[i];
    const int64_t actions = plan.layout.stages() * plan.layout.micro_batches;
    // Of a search for the best alone only what simulating can make the best with stages.
    const bool matters =
        !options_.only_best || plan.tokens_per_s >= kSimulationMargin * best_of_kind_[1];
    if (i < most && plan.layout.pp > 1 && matters && actions <= 400000) {
      const Result<std::string> why = training_->Simulate(plan);
      result_.simulated += why.ok() ? 1 : 0;
      if (why.ok() && !why.value().empty()) {
        result_.rejected.push_back({std::move(plan), why.value()});
        continue;
      }
    }
    kept.push_back(std::move(plan));
  }
  result_.plans = std::move(kept);
  result_.simulate_s = SecondsSince(start);
}

// Cuts of the best plans once more, where boundaries differ in what crosses: the search cuts by the
// layers' times alone, which is fast.
void Searcher::WeighCrossing() {
  if (context_.model->long_values.empty() || !fixed_.layers.empty()) {
    return;
  }
  std::optional<InferencePricer> serving;
  if (training_ == nullptr) {
    serving.emplace(context_);
  }
  for (size_t i = 0; i < std::min<size_t>(result_.plans.size(), 16); ++i) {
    Plan& plan = result_.plans[i];
    if (plan.layout.pp > 1) {
      training_ != nullptr ? training_->WeighCrossing(plan) : serving->WeighCrossing(plan);
    }
  }
  SortPlans(result_.plans);
}

// How many times over its targets or under its arrivals a plan is; 0 for what has none of them.
double Searcher::Excess(const Plan& plan) const {
  const InferenceWorkload& w = context_.workload->inference;
  if (context_.workload->mode == Mode::kTraining) {
    return 0;
  }
  double times = 0;
  if (w.max_ttft_s > 0) {
    times = std::max(times, plan.ttft_s / w.max_ttft_s);
  }
  if (w.max_tpot_s > 0) {
    times = std::max(times, plan.tpot_s / w.max_tpot_s);
  }
  if (w.arrivals() && plan.tokens_per_s > 0) {
    times = std::max(times, w.requests_per_s * w.output_tokens.mean / plan.tokens_per_s);
  }
  return times;
}

// The Pareto set with the simulated figures of the plans that were simulated.
void Searcher::UpdateFront() {
  const auto same = [](const Layout& a, const Layout& b) {
    return KeyOf(a) == KeyOf(b) && a.schedule == b.schedule && a.chunks == b.chunks &&
           a.micro_batch == b.micro_batch && a.recompute == b.recompute && a.zero == b.zero;
  };
  std::vector<Plan> all;
  for (const Plan& plan : result_.plans) {
    std::erase_if(front_, [&](const Plan& p) { return same(p.layout, plan.layout); });
    all.push_back(plan);
  }
  for (const Rejected& r : result_.rejected) {
    std::erase_if(front_, [&](const Plan& p) { return same(p.layout, r.plan.layout); });
  }
  for (Plan& plan : all) {
    const auto beaten = [&](const Plan& by) { return Dominates(by, plan, Mode::kTraining); };
    if (std::none_of(front_.begin(), front_.end(), beaten)) {
      std::erase_if(front_, [&](const Plan& p) { return Dominates(plan, p, Mode::kTraining); });
      front_.push_back(std::move(plan));
    }
  }
}

SearchResult Searcher::Take() {
  for (auto& [key, plan] : best_) {
    result_.plans.push_back(std::move(plan));
  }
  SortPlans(result_.plans);
  WeighCrossing();
  result_.seconds_s = SecondsSince(start_);
  if (options_.simulate && training_ != nullptr) {
    SimulateBest();
    SortPlans(result_.plans);
    UpdateFront();
  }
  result_.pareto = std::move(front_);
  std::sort(result_.pareto.begin(), result_.pareto.end(),
            [](const Plan& a, const Plan& b) { return a.tokens_per_s > b.tokens_per_s; });
  for (auto& [key, rejected] : rejected_) {
    if (!best_.contains(key)) {
      result_.rejected.push_back(std::move(rejected));
    }
  }
  // The ones with figures first, nearest to fitting.
  std::sort(result_.rejected.begin(), result_.rejected.end(),
            [&](const Rejected& a, const Rejected& b) {
              // What holds the model and fails a target comes before what holds it not.
              const auto rank = [&](const Rejected& r) {
                const double peak = r.plan.memory.peak();
                const bool holds = peak > 0 && r.plan.memory.fits();
                return std::tuple(holds ? 0 : (peak > 0 ? 1 : 2), holds ? Excess(r.plan) : peak,
                                  -r.plan.tokens_per_s);
              };
              return rank(a) < rank(b);
            });
  for (const Rejected& rejected : result_.rejected) {
    if (rejected.plan.layout.pp == 1 && rejected.plan.memory.peak() > 0) {
      result_.nearest_without = rejected;
      break;
    }
  }
  if (result_.rejected.size() > options_.keep_rejected) {
    result_.rejected.resize(options_.keep_rejected);
  }
  return std::move(result_);
}

}  // namespace

void SortPlans(std::vector<Plan>& plans) {
  std::stable_sort(plans.begin(), plans.end(),
                   [](const Plan& a, const Plan& b) { return a.tokens_per_s > b.tokens_per_s; });
  if (plans.empty()) {
    return;
  }
  const double limit = 0.98 * plans.front().tokens_per_s;
  const auto tie = std::find_if(plans.begin(), plans.end(),
                                [&](const Plan& p) { return p.tokens_per_s < limit; });
  const auto first = std::min_element(plans.begin(), tie, [](const Plan& a, const Plan& b) {
    const auto order = [](const Plan& p) {
      return std::tuple(p.layout.pp > 1, p.layout.devices(), -p.tokens_per_s);
    };
    return order(a) < order(b);
  });
  std::rotate(plans.begin(), first, first + 1);
}

namespace {

void Merge(SearchResult part, Mode mode, SearchResult& all) {
  const auto append = [](auto& to, auto& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  append(all.plans, part.plans);
  append(all.rejected, part.rejected);
  append(all.pareto, part.pareto);
  std::vector<Plan> front;
  for (const Plan& plan : all.pareto) {
    const bool dominated =
        std::any_of(all.pareto.begin(), all.pareto.end(), [&](const Plan& other) {
          return &other != &plan && Dominates(other, plan, mode) && !Dominates(plan, other, mode);
        });
    if (!dominated) {
      front.push_back(plan);
    }
  }
  all.pareto = std::move(front);
  if (part.nearest_without &&
      (!all.nearest_without ||
       (part.nearest_without->plan.memory.fits() && !all.nearest_without->plan.memory.fits()))) {
    all.nearest_without = std::move(part.nearest_without);
  }
  all.evaluated += part.evaluated;
  all.pruned += part.pruned;
  all.seconds_s += part.seconds_s;
  all.simulated += part.simulated;
  all.simulate_s += part.simulate_s;
}

}  // namespace

Result<SearchResult> Search(const Context& context, const SearchOptions& options) {
  if (options.devices < 1) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[plan.search] --devices: got {}, wanted 1 or more", options.devices);
  }
  const Fixed& fixed = options.fixed;
  const bool training = context.workload->mode == Mode::kTraining;
  const auto refuse = [&](const char* key) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[plan.search] --fix {}: {} has none, wanted it with a {} workload", key,
                     training ? "training" : "serving", training ? "serving" : "training");
  };
  if (!training && (fixed.schedule || fixed.recompute || fixed.zero)) {
    return refuse(fixed.schedule ? "schedule" : fixed.recompute ? "recompute" : "zero");
  }
  if (training && (fixed.prefill_chunk_tokens || fixed.kv_precision)) {
    return refuse(fixed.kv_precision ? "kv_precision" : "prefill_chunk");
  }
  if (options.fixed.precisions.empty()) {
    Searcher searcher(context, options);
    searcher.Run();
    return searcher.Take();
  }
  SearchResult all;
  for (const hw::Precision precision : options.fixed.precisions) {
    SearchOptions one = options;
    one.fixed.precisions.clear();
    one.fixed.precision = precision;
    Searcher searcher(context, one);
    searcher.Run();
    Merge(searcher.Take(), context.workload->mode, all);
  }
  SortPlans(all.plans);
  return all;
}

}  // namespace penstock::plan
