#include "support/training_runs.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/rng.h"
#include "model/config.h"
#include "model/cut.h"
#include "model/inventory.h"
#include "schedule/registry.h"
#include "support/model_maker.h"

namespace penstock::testing {

Result<TrainModel> OpenTrainModel(const std::string& path) {
  TrainModel opened;
  PENSTOCK_TRY_ASSIGN(opened.files, weights::OpenModel(path));
  PENSTOCK_TRY_ASSIGN(model::Model built,
                      model::BuildModel(opened.files->config(), path, model::GraphUse::kTrain));
  opened.graph = std::move(built.graph);
  return opened;
}

Result<> WriteRandomModel(const std::string& folder, const Json& config, uint64_t seed) {
  PENSTOCK_TRY_ASSIGN(const model::Model built,
                      model::BuildModel(config, folder, model::GraphUse::kTrain));
  TensorMap tensors;
  uint32_t index = 0;
  for (const model::WeightTensor& tensor : built.graph.tensors) {
    PlainTensor& plain = tensors[tensor.name];
    plain.shape = tensor.shape;
    const float middle = tensor.name.ends_with("norm.weight") ? 0.8F : 0.0F;
    const int64_t elements = model::Elements(tensor);
    for (int64_t i = 0; i < elements; ++i) {
      const auto words = Philox({static_cast<uint32_t>(i), index, 0, 0}, seed);
      plain.values.push_back(middle +
                             0.4F * (static_cast<float>(words[0] >> 8) / 16777216.0F - 0.5F));
    }
    ++index;
  }
  WriteModel(folder, config, tensors);
  return {};
}

std::string TrainCase::Text() const {
  return fmt::format("{} p={} v={} slices={} m={} replicas={} recompute={} dropout={} threads={}",
                     schedule, ranks, chunks, slices, micro_batches, replicas,
                     static_cast<int>(recompute), dropout, threads);
}

std::vector<runtime::MicroBatchData> RandomBatches(int micro_batches, int64_t vocabulary,
                                                   int64_t rows, uint64_t seed) {
  std::vector<runtime::MicroBatchData> batches;
  for (int j = 0; j < micro_batches; ++j) {
    runtime::MicroBatchData batch;
    batch.key = static_cast<uint32_t>(j);
    uint32_t counter = 0;
    const auto draw = [&](int64_t below) {
      const auto words = Philox({counter++, static_cast<uint32_t>(j), 0, 0}, seed);
      return static_cast<int32_t>(words[0] % static_cast<uint64_t>(below));
    };
    const int64_t own = rows - draw(rows / 3 + 1);
    for (int64_t left = own; left > 0;) {
      const int64_t part = std::min<int64_t>(left, 1 + draw(own));
      batch.sequences.push_back({part, 0});
      left -= part;
    }
    for (int64_t row = 0; row < own; ++row) {
      batch.tokens.push_back(draw(vocabulary));
      batch.targets.push_back(row > 0 && draw(5) == 0 ? -1 : draw(vocabulary));
    }
    batches.push_back(std::move(batch));
  }
  return batches;
}

Result<TrainOutcome> RunTrainCase(const TrainModel& model, const TrainCase& test,
                                  const std::vector<runtime::MicroBatchData>& batches,
                                  const schedule::Schedule* compute) {
  schedule::Schedule made;
  if (compute != nullptr) {
    made = *compute;
  } else {
    PENSTOCK_TRY_ASSIGN(made, schedule::Generate(test.schedule, {test.ranks, test.micro_batches,
                                                                 test.chunks, test.slices}));
  }
  Result<model::Partition> partition =
      test.cut.empty()
          ? model::CutBalanced(model::LayerCountWeights(model.graph), made.num_stages(), true)
          : model::CutAt(model.graph.num_layers(), test.cut);
  if (!partition.ok()) {
    return partition.error();
  }
  PENSTOCK_TRY_ASSIGN(const schedule::Schedule schedule,
                      runtime::PrepareTrainSchedule(made, model.graph, partition.value(),
                                                    {.recompute = test.recompute,
                                                     .optimizer = false,
                                                     .credits = 2,
                                                     .naive = test.naive,
                                                     .link_seconds = test.link_seconds}));
  runtime::GradientJob job;
  job.graph = &model.graph;
  job.files = model.files.get();
  job.partition = &partition.value();
  job.schedule = &schedule;
  job.micro_batches = batches;
  job.replicas = test.replicas;
  job.lane_starts = test.lane_starts;
  job.recompute = test.recompute;
  job.products = test.products;
  job.dropout = test.dropout;
  job.seed = 17;
  job.threads = test.threads;
  job.keep_trace = test.keep_trace;
  TrainOutcome outcome;
  PENSTOCK_TRY_ASSIGN(outcome.ranks, runtime::RunGradientThreads(job));
  outcome.loss = runtime::MeanLoss(job, outcome.ranks);
  for (const runtime::RankGradients& rank : outcome.ranks) {
    for (const auto& [name, numbers] : rank.gradients) {
      if (!outcome.gradients.emplace(name, numbers).second) {
        return MakeError(ErrorCode::kInternal, "{} is counted twice", name);
      }
    }
  }
  return outcome;
}

}  // namespace penstock::testing
