#include "plan/memory.h"

#include <algorithm>
#include <tuple>

#include "plan/hops.h"

namespace penstock::plan {
namespace {

// First unit of each stage, one more at the end.
std::vector<int32_t> Starts(const std::vector<int32_t>& cut) {
  std::vector<int32_t> starts = {0};
  for (const int32_t units : cut) {
    starts.push_back(starts.back() + units);
  }
  return starts;
}

void SetCapacity(const Context& context, MemoryAccount& account) {
  account.capacity = context.system->device.memory_bytes;
  account.reserve = context.system->device.memory_reserve_bytes;
}

// A head tied to the embedding is a second copy unless both lie on one rank.
double TiedBytes(const cost::ModelProfile& model, const Layout& layout, double bytes_each) {
  return model.tied ? model.vocabulary * model.hidden / static_cast<double>(layout.tp) * bytes_each
                    : 0;
}

// Widest rows that a layer holds at once while it runs, in elements.
double WorkingElements(const cost::LayerProfile& layer, double tp) {
  double widest = 0;
  for (const cost::Product& product : layer.products) {
    if (product.role != cost::Product::Role::kHead) {
      widest = std::max(widest, product.inputs + product.outputs / tp);
    }
  }
  return std::max(widest, layer.experts.chosen * (layer.experts.inputs + layer.experts.inner / tp));
}

}  // namespace

double StateBytesPerDevice(const cost::LayerProfile& layer, const Layout& layout, double sequences,
                           double tokens) {
  double bytes = 0;
  for (const cost::StateWork& state : layer.states) {
    bytes += state.bytes(sequences, tokens, hw::PrecisionBytes(layout.kv_precision)) *
             state.share(layout.tp);
  }
  return bytes / static_cast<double>(layout.cp);
}

std::vector<MemoryAccount> InferenceMemory(const Context& context, const Layout& layout,
                                           double sequences, double tokens, double chunk_rows) {
  const cost::ModelProfile& model = *context.model;
  const cost::Sharding sharding = layout.sharding();
  const cost::Formats formats = layout.formats();
  std::vector<MemoryAccount> ranks(static_cast<size_t>(layout.pp));
  const std::vector<int32_t> starts = Starts(layout.cut);
  std::vector<double> working(ranks.size(), 0);

  struct ClassBytes {
    double weights, kv, working;
  };

  std::vector<ClassBytes> classes;
  for (const cost::LayerProfile& layer : model.classes) {
    classes.push_back({cost::WeightBytesPerDevice(layer, sharding, formats),
                       StateBytesPerDevice(layer, layout, sequences, tokens),
                       WorkingElements(layer, static_cast<double>(layout.tp))});
  }
  for (size_t s = 0; s + 1 < starts.size(); ++s) {
    const auto rank = static_cast<size_t>(RankOfStage(layout, static_cast<int64_t>(s)));
    MemoryAccount& account = ranks[rank];
    for (int32_t l = starts[s]; l < starts[s + 1]; ++l) {
      const ClassBytes& c = classes[static_cast<size_t>(model.class_of[static_cast<size_t>(l)])];
      account.weights += c.weights;
      account.kv += c.kv;
      working[rank] = std::max(working[rank], c.working);
    }
  }
  if (layout.pp == 1) {
    ranks[0].weights -= TiedBytes(model, layout, formats.end_bytes());
  }
  const double a = formats.activation_bytes;
  // Of each rank, what is alive and sent beside the hidden vector; what comes in is still there
  // when what goes out is.
  std::vector<double> beside(ranks.size(), 0);
  std::vector<double> sent(ranks.size(), 0);
  if (!model.long_values.empty()) {
    const HopWidths hops = HopsOf(model, layout, Mode::kInference);
    for (size_t s = 0; s + 1 < starts.size(); ++s) {
      const auto rank = static_cast<size_t>(RankOfStage(layout, static_cast<int64_t>(s)));
      const double in = std::max(0.0, hops.forward[s] - model.hidden);
      const double out =
          s + 2 < starts.size() ? std::max(0.0, hops.forward[s + 1] - model.hidden) : 0;
      beside[rank] = std::max({beside[rank], in, out});
      sent[rank] = std::max(sent[rank], 2 * (in + out));
    }
    if (layout.pp == 1) {
      beside[0] = *std::max_element(model.boundary_width.begin(), model.boundary_width.end()) -
                  model.hidden;
    }
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    // Two rows of the residual stream live beside what the widest layer holds.
    ranks[r].activations = chunk_rows * a * (2 * model.hidden + working[r] + beside[r]);
    ranks[r].workspace = layout.pp > 1 ? chunk_rows * a * (4 * model.hidden + sent[r]) : 0;
    SetCapacity(context, ranks[r]);
  }
  ranks.back().workspace += std::max<double>(1, static_cast<double>(layout.micro_batch)) *
                            model.vocabulary / static_cast<double>(layout.tp) * 4;
  return ranks;
}

StateBytes TrainingStateBytes(const TrainingWorkload& workload, const Layout& layout, bool expert) {
  const double weight = std::max(2.0, hw::PrecisionBytes(workload.precision));
  StateBytes bytes;
  bytes.weights = weight;
  bytes.gradients = workload.fp32_gradients ? 4 : weight;
  const double master = weight < 4 ? 4 : 0;
  bytes.optimizer = workload.optimizer == "adam" ? master + 8 : master;
  double replicas = static_cast<double>(layout.dp * layout.cp);
  if (expert && layout.ep > 1) {
    replicas = std::max(1.0, static_cast<double>(layout.dp * layout.cp * layout.tp) /
                                 static_cast<double>(layout.ep));
  }
  if (layout.zero >= 1) {
    bytes.optimizer /= replicas;
  }
  if (layout.zero >= 2) {
    bytes.gradients /= replicas;
  }
  if (layout.zero >= 3) {
    bytes.weights /= replicas;
  }
  return bytes;
}

double ActivationBytes(const cost::LayerProfile& layer, const Layout& layout, double rows,
                       double sequence, bool fused_attention) {
  const auto tp = static_cast<double>(layout.tp);
  const double whole = layout.sequence_parallel ? tp : 1;
  if (layout.recompute == Recompute::kFull && layer.kind == model::LayerKind::kDecoder) {
    return rows * 2 * layer.width / whole;
  }
  const bool scores = layout.recompute == Recompute::kNone && !fused_attention;
  const double attention = scores ? layer.saved.scores * sequence : layer.saved.stats;
  const double routed = layer.saved.routed / (layout.ep > 1 ? whole : tp);
  return rows * (layer.saved.whole / whole + layer.saved.split / tp + attention / tp + routed);
}

double InFlight(const Layout& layout, int64_t rank) {
  const auto p = static_cast<double>(layout.pp);
  const auto v = static_cast<double>(layout.chunks);
  const auto m = static_cast<double>(layout.micro_batches);
  const auto i = static_cast<double>(rank);
  double shares = p - i;  // 1f1b
  if (layout.schedule == "gpipe" || layout.schedule == "looped-bfs") {
    shares = m;
  } else if (layout.schedule == "interleaved-1f1b" || layout.schedule == "interleaved-zb") {
    shares = (2 * (p - 1 - i) + (v - 1) * p + 1) / v;
  } else if (layout.schedule == "zb-h2") {
    shares = 2 * p - 1;
  } else if (layout.schedule == "zb-h1" || layout.schedule == "zb-v") {
    shares = p;
  } else if (layout.schedule == "v-half") {
    shares = p / 2 + 1;
  } else if (layout.schedule == "v-min") {
    shares = p / 3 + 1;
  } else if (layout.schedule == "dualpipe" || layout.schedule == "dualpipe-v") {
    shares = p + 1;
  }
  return std::min(m, shares);
}

namespace {

struct TrainingClass {
  double dense = 0;  // parameters on one device
  double expert = 0;
  double activations = 0;  // bytes of one micro-batch
  double decoder = 0;      // of which decoder layers
  double working = 0;      // bytes while the layer runs
  double matrix = 0;       // largest gradient, at 16 bits until it is added to the 32-bit sum
};

std::vector<TrainingClass> TrainingClasses(const Context& context, const Layout& layout,
                                           double rows) {
  const cost::ModelProfile& model = *context.model;
  const TrainingWorkload& workload = context.workload->training;
  const auto sequence = static_cast<double>(workload.sequence_tokens);
  const auto tp = static_cast<double>(layout.tp);
  const bool fused = context.calibration().fused_attention();
  std::vector<TrainingClass> classes;
  for (const cost::LayerProfile& layer : model.classes) {
    TrainingClass& c = classes.emplace_back();
    std::tie(c.dense, c.expert) = cost::ParametersPerDevice(layer, layout.sharding());
    c.activations = ActivationBytes(layer, layout, rows, sequence, fused);
    c.decoder = layer.kind == model::LayerKind::kDecoder ? c.activations : 0;
    if (workload.fp32_gradients) {
      c.matrix = 2 * layer.embedding_parameters / tp;
      for (const cost::Product& product : layer.products) {
        c.matrix = std::max(c.matrix, 2 * product.parameters() / product.parts(layout.tp));
      }
    }
    if (layout.recompute == Recompute::kFull && layer.kind == model::LayerKind::kDecoder) {
      Layout open = layout;
      open.recompute = Recompute::kSelective;
      c.working = ActivationBytes(layer, open, rows, sequence, fused);
    }
    if (layer.kind == model::LayerKind::kHead) {
      // Logits in 32 bits and their gradient in place; one micro-batch at a time.
      c.working = rows * 4 * model.vocabulary / tp;
    }
  }
  return classes;
}

}  // namespace

std::vector<MemoryAccount> TrainingMemory(const Context& context, const Layout& layout,
                                          const std::vector<double>& shares) {
  const cost::ModelProfile& model = *context.model;
  const TrainingWorkload& workload = context.workload->training;
  const StateBytes dense = TrainingStateBytes(workload, layout, false);
  const StateBytes expert = TrainingStateBytes(workload, layout, true);
  const auto sequence = static_cast<double>(workload.sequence_tokens);
  const double rows =
      static_cast<double>(layout.micro_batch) * sequence / static_cast<double>(layout.cp);
  std::vector<MemoryAccount> ranks(static_cast<size_t>(layout.pp));
  const std::vector<int32_t> starts = Starts(layout.cut);
  const auto tp = static_cast<double>(layout.tp);
  double gathered = 0;
  const std::vector<TrainingClass> classes = TrainingClasses(context, layout, rows);
  for (size_t s = 0; s + 1 < starts.size(); ++s) {
    const auto rank = RankOfStage(layout, static_cast<int64_t>(s));
    MemoryAccount& account = ranks[static_cast<size_t>(rank)];
    double activations = 0;
    double decoder = 0;
    double working = 0;
    double matrix = 0;
    for (int32_t l = starts[s]; l < starts[s + 1]; ++l) {
      const TrainingClass& c = classes[static_cast<size_t>(model.class_of[static_cast<size_t>(l)])];
      account.weights += c.dense * dense.weights + c.expert * expert.weights;
      account.gradients += c.dense * dense.gradients + c.expert * expert.gradients;
      account.optimizer += c.dense * dense.optimizer + c.expert * expert.optimizer;
      gathered = std::max(gathered, 2 * (c.dense + c.expert));
      activations += c.activations;
      decoder += c.decoder;
      working = std::max(working, c.working);
      matrix = std::max(matrix, c.matrix);
    }
    const double in_flight =
        shares.empty() ? InFlight(layout, rank) : shares[static_cast<size_t>(rank)];
    account.activations += activations * in_flight;
    account.decoder_activations += decoder * in_flight;
    account.workspace = std::max(account.workspace, working + matrix);
  }
  if (!model.long_values.empty()) {
    const HopWidths hops = HopsOf(model, layout, Mode::kTraining);
    for (size_t r = 0; r < ranks.size(); ++r) {
      ranks[r].activations +=
          rows * 2 * hops.kept[r] / (layout.sequence_parallel ? tp : 1) *
          (shares.empty() ? InFlight(layout, static_cast<int64_t>(r)) : shares[r]);
    }
    for (size_t s = 1; s < hops.forward.size(); ++s) {
      const double extra = std::max(0.0, hops.forward[s] - model.hidden) +
                           std::max(0.0, hops.backward[s] - model.hidden);
      for (const size_t stage : {s - 1, s}) {
        double& workspace =
            ranks[static_cast<size_t>(RankOfStage(layout, static_cast<int64_t>(stage)))].workspace;
        workspace += rows * 2 * extra / (layout.sequence_parallel ? tp : 1);
      }
    }
  }
  if (layout.pp == 1 && model.tied) {
    ranks[0].weights -= TiedBytes(model, layout, dense.weights);
    ranks[0].gradients -= TiedBytes(model, layout, dense.gradients);
    ranks[0].optimizer -= TiedBytes(model, layout, dense.optimizer);
  }
  const double message =
      rows * 2 * model.hidden / (layout.sequence_parallel ? tp : 1) * (layout.pp > 1 ? 4 : 0);
  for (MemoryAccount& account : ranks) {
    account.workspace += message + (layout.zero == 3 ? 2 * gathered : 0);
    if (layout.schedule == "dualpipe") {
      account.weights *= 2;
      account.gradients *= 2;
    }
    SetCapacity(context, account);
  }
  return ranks;
}

const MemoryAccount& Fullest(const std::vector<MemoryAccount>& ranks) {
  return *std::max_element(
      ranks.begin(), ranks.end(),
      [](const MemoryAccount& a, const MemoryAccount& b) { return a.peak() < b.peak(); });
}

}  // namespace penstock::plan
