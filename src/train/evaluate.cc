#include "train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace penstock::train {

std::vector<EvalBatch> EvalBatches(const TrainSetup& setup, bool validation) {
  const Dataset& dataset = *setup.dataset;
  const PipelineSection& pipeline = setup.config.pipeline;
  const int64_t sequences = validation ? dataset.validation_sequences() : dataset.sequences();
  const int64_t per_batch = pipeline.micro_batches * pipeline.micro_batch;
  std::vector<EvalBatch> batches;
  for (int64_t begin = 0; begin < sequences; begin += per_batch) {
    EvalBatch batch;
    batch.micro_batches = dataset.InOrder(validation, begin, std::min(sequences, begin + per_batch),
                                          pipeline.micro_batch);
    for (const runtime::MicroBatchData& data : batch.micro_batches) {
      batch.counted += data.counted();
    }
    batches.push_back(std::move(batch));
  }
  return batches;
}

Result<EvalResult> Evaluate(const TrainSetup& setup, const std::vector<EvalBatch>& batches,
                            runtime::TrainRank& rank, Links& links) {
  // One number per micro-batch, so that the sum is taken in one order whoever has the head.
  std::vector<double> losses;
  for (size_t b = 0; b < batches.size(); ++b) {
    PENSTOCK_TRY_ASSIGN(
        const runtime::StepResult result,
        rank.RunEval({static_cast<int64_t>(b), batches[b].micro_batches, batches[b].counted}));
    const size_t count = batches[b].micro_batches.size();
    for (size_t i = 0; i < count; ++i) {
      losses.push_back(result.has_losses && i < result.losses.size() ? result.losses[i]
                                                                     : std::nan(""));
    }
  }
  EvalResult total;
  if (links.rank() > 0) {
    if (links.rank() < setup.ranks()) {
      PENSTOCK_TRY(links.SendBlob(0, std::as_bytes(std::span(losses))));
    }
    return total;
  }
  for (int32_t r = 1; r < setup.ranks(); ++r) {
    PENSTOCK_TRY_ASSIGN(const auto bytes, links.ReceiveBlob(r, int64_t{1} << 32));
    std::vector<double> other(bytes.size() / sizeof(double));
    std::memcpy(other.data(), bytes.data(), other.size() * sizeof(double));
    for (size_t i = 0; i < std::min(other.size(), losses.size()); ++i) {
      losses[i] = std::isnan(losses[i]) ? other[i] : losses[i];
    }
  }
  for (const double loss : losses) {
    total.nll += loss;
  }
  for (const EvalBatch& batch : batches) {
    total.targets += batch.counted;
  }
  return total;
}

}  // namespace penstock::train
