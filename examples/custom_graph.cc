// A graph of one's own: five decoder layers, and a last read that looks back at all of them. It is
// cut into three stages, and one training step runs on three ranks and on one: the same bits.
//
//   penstock_custom_graph

#include <fmt/format.h>

#include "model/attention_residuals.h"
#include "model/decoder.h"
#include "runtime/gradient_run.h"
#include "schedule/registry.h"
#include "waves.h"

using namespace penstock;  // NOLINT: an example

Result<model::Graph> BuildGraph(int64_t layers) {
  const model::DecoderConfig decoder = {.vocabulary = 50, .hidden = 16, .tied = true};
  model::GraphBuilder b;
  std::vector<ValueId> depth = {model::EmbeddingLayer(b, decoder)};
  for (int64_t i = 0; i < layers; ++i) {
    const std::string tag = std::to_string(i);
    b.BeginLayer(model::LayerKind::kDecoder, "layer " + tag);
    const model::AttentionPiece attention = {
        .heads = 2, .kv_heads = 1, .head_dim = 8, .scale = 0.35F};
    const ValueId a =
        b.Add(depth.back(), model::SelfAttention(b, depth.back(), attention, "a" + tag + ".", tag),
              "middle." + tag);
    depth.push_back(b.Add(a, model::GatedMlp(b, a, {.intermediate = 24}, "m" + tag + ".", tag),
                          "hidden." + tag));
  }
  b.BeginLayer(model::LayerKind::kHead, "head");  // reads across all layers
  const ValueId x = model::DepthRead(b, depth, {}, "last_read", "read");
  const ValueId rows = b.SelectRows(x, "rows");
  return std::move(b).Build(
      model::HeadLogits(b, rows, model::HeadTensor(b, decoder), {}, "norm", 0, ""));
}

Result<double> Loss(const model::Graph& graph, const std::vector<int64_t>& cut) {
  PENSTOCK_TRY_ASSIGN(const model::Partition stages, model::CutAt(graph.num_layers(), cut));
  PENSTOCK_TRY_ASSIGN(auto compute, schedule::Generate("zb-h1", {stages.num_stages(), 2, 1, 0}));
  PENSTOCK_TRY_ASSIGN(const auto plan,
                      runtime::PrepareTrainSchedule(compute, graph, stages, {.optimizer = false}));
  const WaveFiles files;
  const runtime::MicroBatchData batch = {{3, 1, 4, 1, 5, 9}, {1, 4, 1, 5, 9, 2}, {{6, 0}}};
  runtime::GradientJob job = {&graph, &files, &stages, &plan, {batch, batch}};
  PENSTOCK_TRY_ASSIGN(const auto ranks, runtime::RunGradientThreads(job));
  return runtime::MeanLoss(job, ranks);
}

int main() {
  const Result<model::Graph> graph = BuildGraph(5);
  if (!graph.ok()) {
    fmt::print("{}\n", graph.error().message);
    return 1;
  }
  const Result<double> one = Loss(graph.value(), {});
  const Result<double> three = Loss(graph.value(), {3, 5});
  for (const Result<double>* loss : {&one, &three}) {
    fmt::print("{}\n",
               loss->ok() ? fmt::format("loss {:.17g}", loss->value()) : loss->error().message);
  }
  return one.ok() && three.ok() && one.value() == three.value() ? 0 : 1;
}
