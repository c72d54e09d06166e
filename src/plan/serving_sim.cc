#include "plan/serving_sim.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <queue>

#include "base/check.h"

namespace penstock::plan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int64_t kSimulatedTokens = 256;

struct Arrival {
  double at_s = 0;
  int32_t stage = 0;
  int64_t step = 0;

  friend bool operator>(const Arrival& a, const Arrival& b) {
    return std::tie(a.at_s, a.step, a.stage) > std::tie(b.at_s, b.step, b.stage);
  }
};

// A stage at work.
struct Running {
  bool active = false;
  int64_t step = 0;
  hw::Shared cost;
  double left = 0;  // part still to do
};

class Machine {
 public:
  explicit Machine(const ServingQuestion& q)
      : q_(q),
        steps_(q.rules),
        running_(q.units.size()),
        queues_(q.units.size()),
        busy_(q.units.size(), 0) {
    for (const Request& request : q.requests) {
      steps_.Add({std::max<int64_t>(1, request.prompt_tokens),
                  std::max<int64_t>(1, request.output_tokens)});
    }
    int32_t first = 0;
    for (const int32_t units : q.units) {
      stages_.emplace_back(*q.model, first, first + units, q.formats, *q.engine);
      first += units;
      const auto boundary = static_cast<size_t>(std::max(first - 1, 0));
      widths_.push_back(q.model->boundary_width[boundary]);
    }
    first_token_s_.assign(q.requests.size(), -1);
    last_token_s_.assign(q.requests.size(), -1);
    produced_.assign(q.requests.size(), 0);
    const int64_t threads = q.threads > 0 ? q.threads : q.engine->threads;
    own_cores_ = std::max(1.0, static_cast<double>(q.engine->cores) / static_cast<double>(threads));
    threads_ = threads;
  }

  ServingForecast Run();

 private:
  size_t last() const { return stages_.size() - 1; }

  double Messages(double bytes) const {
    const hw::Curve& curve = q_.across_processes && !q_.engine->mpi_message_s.empty()
                                 ? q_.engine->mpi_message_s
                                 : q_.engine->message_s;
    return curve.empty() ? 0 : curve.At(bytes);
  }

  hw::Shared CostOf(size_t stage, const Step& step);
  double Speed(const Running& r, double busy) const;
  void Decide();
  void Start(size_t stage, int64_t step);
  void Finish(size_t stage);
  void TakeResult(int64_t number);

  const ServingQuestion& q_;
  ServingSteps steps_;
  std::vector<cost::EngineStage> stages_;
  std::vector<double> widths_;
  std::map<int64_t, Step> live_;
  std::vector<Running> running_;
  std::vector<std::deque<int64_t>> queues_;
  std::vector<double> busy_;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> messages_;
  std::map<int64_t, double> results_;  // step -> when its result lies at the first rank
  int64_t awaited_ = -1;
  bool done_ = false;
  double now_s_ = 0;
  double own_cores_ = 1;
  int64_t threads_ = 1;
  std::vector<double> first_token_s_;
  std::vector<double> last_token_s_;
  std::vector<int64_t> produced_;
  std::vector<double> tokens_at_s_;
  std::vector<cost::EngineStage::Slice> slices_;
};

hw::Shared Machine::CostOf(size_t stage, const Step& step) {
  slices_.clear();
  for (const StepSlice& slice : step.slices) {
    slices_.push_back({static_cast<double>(slice.rows), static_cast<double>(slice.first)});
  }
  const auto rows = static_cast<double>(step.rows());
  hw::Shared cost = stages_[stage].Seconds(rows, static_cast<double>(step.selected()), slices_);
  if (threads_ != q_.engine->threads) {
    cost = 1 / q_.engine->Speedup(threads_, rows) * cost;
  }
  if (stage == 0) {
    const double more = q_.engine->step_s + q_.engine->announce_s * static_cast<double>(last());
    cost += hw::Shared{more, more};
  }
  return cost;
}

// Parts per second while `busy` devices work: slower by what they take of memory, and of cores
// where there are fewer than devices.
double Machine::Speed(const Running& r, double busy) const {
  const double with = std::min(busy, own_cores_);
  const double share = busy > own_cores_ ? busy / own_cores_ * q_.engine->sharing : 1.0;
  return 1 / (r.cost.At(with, static_cast<double>(q_.engine->devices())) * share);
}

// Where stages share cores, and more micro-batches are on their way than there are cores, a core
// idles at times although a stage could work.
void Machine::Start(size_t stage, int64_t step) {
  hw::Shared cost = CostOf(stage, live_.at(step));
  const auto replicas = static_cast<double>(q_.replicas);
  const double devices = static_cast<double>(q_.units.size()) * replicas;
  if (devices > own_cores_ && static_cast<double>(live_.size()) * replicas > own_cores_) {
    const double idle = q_.engine->HandOver(devices);
    cost += hw::Shared{idle, idle};
  }
  running_[stage] = {true, step, cost, 1};
}

// The first rank: the next micro-batch, or a result, or nothing until one comes.
void Machine::Decide() {
  while (!done_ && !running_[0].active) {
    if (awaited_ >= 0) {
      const auto it = results_.find(awaited_);
      if (it == results_.end() || it->second > now_s_) {
        return;
      }
      TakeResult(awaited_);
      awaited_ = -1;
    }
    Step step;
    int64_t awaited = -1;
    switch (steps_.Advance(step, awaited)) {
      case ServingSteps::Next::kDone:
        done_ = true;
        return;
      case ServingSteps::Next::kNeedResult:
        awaited_ = awaited;
        break;
      case ServingSteps::Next::kStep: {
        const int64_t number = step.number;
        live_[number] = std::move(step);
        Start(0, number);
        break;
      }
    }
  }
}

void Machine::TakeResult(int64_t number) {
  const Step& step = live_.at(number);
  steps_.OnResult(number);
  for (const StepSlice& slice : step.slices) {
    if (slice.complete) {
      steps_.OnToken(slice.sequence, /*last=*/false);
      const auto s = static_cast<size_t>(slice.sequence);
      if (first_token_s_[s] < 0) {
        first_token_s_[s] = now_s_;
      }
      last_token_s_[s] = now_s_;
      ++produced_[s];
      tokens_at_s_.push_back(now_s_);
    }
  }
  results_.erase(number);
  live_.erase(number);
}

void Machine::Finish(size_t stage) {
  running_[stage].active = false;
  const int64_t number = running_[stage].step;
  const Step& step = live_.at(number);
  if (stage < last()) {
    const double bytes = static_cast<double>(step.rows()) * widths_[stage] * 4;
    messages_.push({now_s_ + Messages(bytes), static_cast<int32_t>(stage) + 1, number});
  } else if (step.selected() > 0) {
    const double small =
        stages_.size() > 1 ? Messages(64.0 * static_cast<double>(step.selected())) : 0.0;
    results_[number] = now_s_ + small;
    messages_.push({now_s_ + small, 0, number});
  } else {
    live_.erase(number);
  }
  if (stage > 0 && !queues_[stage].empty()) {
    const int64_t next = queues_[stage].front();
    queues_[stage].pop_front();
    Start(stage, next);
  }
}

ServingForecast Machine::Run() {
  Decide();
  while (true) {
    double busy = 0;
    for (const Running& r : running_) {
      busy += r.active ? 1 : 0;
    }
    busy *= static_cast<double>(q_.replicas);
    double end_s = kNever;
    size_t ends = 0;
    for (size_t s = 0; s < running_.size(); ++s) {
      if (running_[s].active) {
        const double at = now_s_ + running_[s].left / Speed(running_[s], busy);
        if (at < end_s) {
          end_s = at;
          ends = s;
        }
      }
    }
    const double message_s = messages_.empty() ? kNever : messages_.top().at_s;
    if (end_s == kNever && message_s == kNever) {
      break;
    }
    const double until = std::min(end_s, message_s);
    for (size_t s = 0; s < running_.size(); ++s) {
      if (running_[s].active) {
        running_[s].left =
            std::max(0.0, running_[s].left - (until - now_s_) * Speed(running_[s], busy));
        busy_[s] += until - now_s_;
      }
    }
    now_s_ = until;
    if (message_s <= end_s) {
      const Arrival arrival = messages_.top();
      messages_.pop();
      const auto stage = static_cast<size_t>(arrival.stage);
      if (stage > 0) {
        if (running_[stage].active || !queues_[stage].empty()) {
          queues_[stage].push_back(arrival.step);
        } else {
          Start(stage, arrival.step);
        }
      }
    } else {
      Finish(ends);
    }
    Decide();
  }
  ServingForecast f;
  for (const Request& request : q_.requests) {
    f.prefill_tokens += request.prompt_tokens;
  }
  f.prefill_s = *std::max_element(first_token_s_.begin(), first_token_s_.end());
  f.end_s = now_s_;
  f.decode_s = std::max(0.0, f.end_s - f.prefill_s);
  f.decode_tokens = std::count_if(tokens_at_s_.begin(), tokens_at_s_.end(),
                                  [&](double at) { return at > f.prefill_s; });
  double tail = 0;
  int64_t later = 0;
  for (size_t s = 0; s < produced_.size(); ++s) {
    tail += last_token_s_[s] - first_token_s_[s];
    later += produced_[s] - 1;
  }
  f.tpot_s = later > 0 ? tail / static_cast<double>(later) : 0;
  const double first_end_s = *std::min_element(last_token_s_.begin(), last_token_s_.end());
  const auto steady = std::count_if(tokens_at_s_.begin(), tokens_at_s_.end(), [&](double at) {
    return at > f.prefill_s && at <= first_end_s;
  });
  f.steady_token_s = steady > 0 ? (first_end_s - f.prefill_s) / static_cast<double>(steady) : 0;
  f.busy_s = busy_;
  f.shares_cores =
      static_cast<double>(stages_.size()) * static_cast<double>(q_.replicas) > own_cores_;
  return f;
}

}  // namespace

ServingForecast ForecastServing(const ServingQuestion& question) {
  PENSTOCK_CHECK(!question.requests.empty() && !question.units.empty(),
                 "a run has requests and stages");
  // Long outputs: each simulated token stands for several, at the middle of their positions.
  int64_t longest = 1;
  for (const Request& request : question.requests) {
    longest = std::max(longest, request.output_tokens);
  }
  const int64_t stride = (longest + kSimulatedTokens - 1) / kSimulatedTokens;
  if (stride == 1) {
    return Machine(question).Run();
  }
  // The first tokens as they are; then laps at a few lengths, weighted by the tokens between.
  ServingQuestion start = question;
  constexpr int64_t kFirst = 32;
  for (Request& request : start.requests) {
    request.output_tokens = std::min(request.output_tokens, kFirst);
  }
  ServingForecast f = Machine(start).Run();
  constexpr int64_t kPieces = 4;
  double per_token = 0;
  for (int64_t piece = 0; piece < kPieces; ++piece) {
    ServingQuestion later = question;
    for (Request& request : later.requests) {
      const int64_t at = request.output_tokens * (2 * piece + 1) / (2 * kPieces);
      request.prompt_tokens += at;
      request.output_tokens = kFirst;
    }
    const ServingForecast there = Machine(later).Run();
    per_token += there.steady_token_s / kPieces;
  }
  int64_t tokens = 0;
  for (const Request& request : question.requests) {
    tokens += request.output_tokens;
  }
  f.decode_tokens = std::max<int64_t>(0, tokens - static_cast<int64_t>(question.requests.size()));
  f.decode_s = static_cast<double>(f.decode_tokens) * per_token;
  // The first tokens of a sequence wait for the prompts of others.
  const double lap_s = per_token * static_cast<double>(question.requests.size());
  f.tpot_s = (f.tpot_s * (kFirst - 1) + lap_s * static_cast<double>(longest - kFirst)) /
             static_cast<double>(longest - 1);
  f.end_s = f.prefill_s + f.decode_s;
  return f;
}

}  // namespace penstock::plan
