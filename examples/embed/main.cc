// Penstock inside a program of one's own: opens a model, cuts it into two stages, generates ids,
// and trains a few steps by gradient descent on a zero-bubble schedule.
//
//   penstock_embed MODEL ID[,ID...]

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstdlib>
#include <numeric>
#include <sstream>
#include <thread>

#include "runtime/train_rank.h"
#include "schedule/registry.h"
#include "serve/engine.h"

using namespace penstock;  // NOLINT: an example

constexpr int kStages = 2;
constexpr int kSteps = 3;
constexpr int64_t kNewTokens = 8;

// ---- Generating: the engine decides, its ranks are threads. ----

Result<std::vector<int32_t>> Generate(const serve::ModelBundle& model,
                                      const std::vector<int32_t>& prompt) {
  serve::RunOptions options;
  options.stages = kStages;  // or options.cut
  options.weights = runtime::WeightChoice::kF32;
  serve::RunDemand demand;
  demand.longest_prompt = std::ssize(prompt);
  demand.positions = std::ssize(prompt) + kNewTokens;
  PENSTOCK_TRY_ASSIGN(const auto engine, serve::Engine::Start(model, options, demand, nullptr, {}));
  PENSTOCK_TRY(engine->Admit(prompt, kNewTokens, {}));  // SamplingParams{}: greedy
  std::vector<int32_t> ids;
  for (bool more = true; more;) {
    PENSTOCK_TRY_ASSIGN(more, engine->Advance([&](const serve::RowResult& row) {
      ids.push_back(row.sampled.token);
      return false;  // true would end the sequence
    }));
  }
  PENSTOCK_TRY(engine->Stop());
  return ids;
}

// ---- Training: every rank runs its list of the same proven schedule. ----

// What happens to weights at the end of a step is the caller's.
class Descent final : public runtime::StepEnd {
 public:
  explicit Descent(runtime::TrainRank& rank) : rank_(rank) {}

  Result<> Optimize(StageId, std::span<const int32_t> parameters) override {
    for (const int32_t i : parameters) {
      const runtime::Parameter& parameter = rank_.parameters()[static_cast<size_t>(i)];
      const std::span<float> weights = parameter.master.All<float>();
      const std::span<const float> gradient = parameter.gradient.All<float>();
      for (size_t k = 0; k < weights.size(); ++k) {
        weights[k] -= 0.01F * gradient[k];
      }
    }
    rank_.ParametersChanged(parameters);  // packs them again for the next step
    return {};
  }

 private:
  runtime::TrainRank& rank_;
};

// The mean loss of each step, on the rank that has the head; empty on the others.
Result<std::vector<double>> TrainOnRank(const runtime::TrainSpec& spec,
                                        const runtime::StepData& data,
                                        const weights::ModelFiles& files, comm::Channel& channel,
                                        MemoryAccount& account) {
  PENSTOCK_TRY_ASSIGN(const auto device, kernels::CreateCpuDevice({.threads = 1}));
  const auto training = kernels::CreateCpuTraining(*device);
  trace::RankRecorder recorder(RankId(channel.rank()), 0);
  PENSTOCK_TRY_ASSIGN(const auto rank,
                      runtime::TrainRank::Create(spec, channel, *training, account, recorder));
  PENSTOCK_TRY(rank->Load(files));
  Descent descent(*rank);
  std::vector<double> losses;
  for (int step = 1; step <= kSteps; ++step) {
    runtime::StepData now = data;
    now.step = step;
    PENSTOCK_TRY_ASSIGN(const runtime::StepResult result, rank->RunStep(now, &descent));
    if (result.has_losses) {
      const double sum = std::accumulate(result.losses.begin(), result.losses.end(), 0.0);
      losses.push_back(sum / static_cast<double>(data.counted));
    }
  }
  return losses;
}

Result<std::vector<double>> Train(const serve::ModelBundle& model,
                                  const std::vector<int32_t>& text) {
  const model::Graph& graph = model.model.graph;
  runtime::MicroBatchData batch;  // each id is to foretell the next one
  batch.tokens.assign(text.begin(), text.end() - 1);
  batch.targets.assign(text.begin() + 1, text.end());
  batch.sequences = {{batch.rows(), 0}};
  const std::vector<runtime::MicroBatchData> batches = {batch, batch};

  PENSTOCK_TRY_ASSIGN(const auto compute, schedule::Generate("zb-h1", {kStages, 2, 1, 0}));
  PENSTOCK_TRY_ASSIGN(const auto partition,
                      model::CutBalanced(model::LayerCountWeights(graph), kStages));
  PENSTOCK_TRY_ASSIGN(const auto schedule,
                      runtime::PrepareTrainSchedule(compute, graph, partition, {}));
  runtime::TrainSpec spec;
  spec.graph = &graph;
  spec.partition = &partition;
  spec.schedule = &schedule;
  spec.largest = {batch.rows(), batch.counted()};
  runtime::StepData data;
  data.micro_batches = batches;
  data.counted = 2 * batch.counted();

  std::array<MemoryAccount, kStages> accounts;  // outlive the channels, whose buffers they count
  const auto channels = comm::CreateInProcessChannels(kStages);
  std::vector<double> losses;  // written by the one rank that has the head
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < kStages; ++r) {
    ranks.emplace_back([&, r] {
      auto done = TrainOnRank(spec, data, *model.files, *channels[r], accounts[r]);
      if (!done.ok()) {
        channels[r]->Fail(done.error());  // ends the other ranks as well
      } else if (!done->empty()) {
        losses = std::move(done).value();
      }
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  if (const auto failure = channels[0]->failure()) {
    return *failure;
  }
  return losses;
}

Result<> Main(const std::string& path, const std::vector<int32_t>& prompt) {
  PENSTOCK_TRY_ASSIGN(serve::ModelBundle model, serve::OpenBundle(path));  // headers only
  PENSTOCK_TRY_ASSIGN(const auto ids, Generate(model, prompt));
  fmt::print("ids {}\n", fmt::join(ids, ","));
  std::vector<int32_t> text = prompt;
  text.insert(text.end(), ids.begin(), ids.end());
  PENSTOCK_TRY_ASSIGN(model, serve::OpenBundle(path, model::GraphUse::kTrain));
  PENSTOCK_TRY_ASSIGN(const auto losses, Train(model, text));
  for (const double loss : losses) {
    fmt::print("loss {:.9f}\n", loss);
  }
  return {};
}

int main(int argc, char** argv) {
  std::vector<int32_t> prompt;
  std::istringstream words(argc > 2 ? argv[2] : "");
  for (std::string word; std::getline(words, word, ',');) {
    prompt.push_back(std::atoi(word.c_str()));
  }
  if (argc != 3 || prompt.empty()) {
    fmt::print(stderr, "Usage: penstock_embed MODEL ID[,ID...]\n");
    return 2;
  }
  const Result<> done = Main(argv[1], prompt);
  if (!done.ok()) {
    fmt::print(stderr, "{}\n", done.error().message);
    return ExitStatus(done.error().code);
  }
  return 0;
}
