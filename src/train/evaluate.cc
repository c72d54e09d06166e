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
    batch.counted_later = runtime::CountLater(setup.model.graph, batch.micro_batches);
    batches.push_back(std::move(batch));
  }
  return batches;
}

double EvalResult::weighted() const {
  double sum = 0;
  for (const EvalTerm& term : terms) {
    sum += term.weight * term.loss();
  }
  return sum;
}

namespace {

// What this rank knows: one number per term and micro-batch, NaN where the logits are elsewhere, so
// that sums are taken in one order whoever has the heads.
Result<std::vector<double>> LossesHere(const std::vector<EvalBatch>& batches, size_t terms,
                                       runtime::TrainRank& rank) {
  std::vector<double> losses;
  for (size_t b = 0; b < batches.size(); ++b) {
    const EvalBatch& batch = batches[b];
    PENSTOCK_TRY_ASSIGN(const runtime::StepResult result,
                        rank.RunEval({static_cast<int64_t>(b), batch.micro_batches, batch.counted,
                                      batch.counted_later}));
    for (size_t k = 0; k < terms; ++k) {
      const std::vector<double>& of_term = k == 0 ? result.losses : result.auxiliary[k - 1];
      for (size_t i = 0; i < batch.micro_batches.size(); ++i) {
        losses.push_back(i < of_term.size() ? of_term[i] : std::nan(""));
      }
    }
  }
  return losses;
}

EvalResult SumOf(const model::Graph& graph, const std::vector<EvalBatch>& batches,
                 const std::vector<double>& losses) {
  EvalResult total;
  for (const model::LossTerm& term : graph.losses) {
    total.terms.push_back({term.name, static_cast<double>(term.weight), 0, 0});
  }
  size_t at = 0;
  for (const EvalBatch& batch : batches) {
    for (size_t k = 0; k < total.terms.size(); ++k) {
      for (size_t i = 0; i < batch.micro_batches.size(); ++i) {
        total.terms[k].nll += losses[at++];
      }
      const int32_t shift = graph.losses[k].shift;
      total.terms[k].targets +=
          shift == 0 ? batch.counted : batch.counted_later[static_cast<size_t>(shift) - 1];
    }
  }
  return total;
}

}  // namespace

Result<EvalResult> Evaluate(const TrainSetup& setup, const std::vector<EvalBatch>& batches,
                            runtime::TrainRank& rank, Links& links) {
  const model::Graph& graph = setup.model.graph;
  PENSTOCK_TRY_ASSIGN(std::vector<double> losses, LossesHere(batches, graph.losses.size(), rank));
  if (links.rank() > 0) {
    if (links.rank() < setup.ranks()) {
      PENSTOCK_TRY(links.SendBlob(0, std::as_bytes(std::span(losses))));
    }
    return EvalResult();
  }
  for (int32_t r = 1; r < setup.ranks(); ++r) {
    PENSTOCK_TRY_ASSIGN(const auto bytes, links.ReceiveBlob(r, int64_t{1} << 32));
    std::vector<double> other(bytes.size() / sizeof(double));
    std::memcpy(other.data(), bytes.data(), other.size() * sizeof(double));
    for (size_t i = 0; i < std::min(other.size(), losses.size()); ++i) {
      losses[i] = std::isnan(losses[i]) ? other[i] : losses[i];
    }
  }
  return SumOf(graph, batches, losses);
}

}  // namespace penstock::train
