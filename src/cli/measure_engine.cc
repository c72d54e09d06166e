// Random models through the whole engine: what is left of their times when products, attention and
// messages are taken off belongs to operations, numbers and steps.

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/json.h"
#include "cli/calibrate.h"
#include "cost/engine_time.h"
#include "serve/engine.h"

namespace penstock::cli {
namespace {

// Rows of cheap numbers of the size that training starts from.
class RandomSource final : public MatrixSource {
 public:
  RandomSource(std::string name, int64_t rows, int64_t columns)
      : name_(std::move(name)), rows_(rows), columns_(columns) {}

  const std::string& name() const override { return name_; }

  int64_t rows() const override { return rows_; }

  int64_t columns() const override { return columns_; }

  DType type() const override { return DType::kF32; }

  Result<> ReadRows(int64_t begin, int64_t count, std::span<float> out) const override {
    auto state = static_cast<uint32_t>(begin * 2654435761 + 12345);
    for (float& value : out.first(static_cast<size_t>(count * columns_))) {
      state = state * 1664525 + 1013904223;
      value =
          rows_ == 1 ? 1.0F : static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31F * 0.03F;
    }
    return {};
  }

  std::span<const std::byte> RawRow(int64_t /*row*/) const override { return {}; }

  void DropPages() const override {}

 private:
  std::string name_;
  int64_t rows_;
  int64_t columns_;
};

// A model that is nowhere on disk.
class RandomModel final : public weights::ModelFiles {
 public:
  explicit RandomModel(Json config) : config_(std::move(config)) {}

  weights::ModelKind kind() const override { return weights::ModelKind::kFolder; }

  const std::string& path() const override { return path_; }

  const Json& config() const override { return config_; }

  const Json& generation_config() const override { return nothing_; }

  const std::vector<weights::StoredTensor>& tensors() const override { return tensors_; }

  int64_t file_bytes() const override { return 0; }

  bool Has(std::string_view) const override { return true; }

  Result<std::unique_ptr<MatrixSource>> Source(std::string_view name,
                                               std::span<const int64_t> shape) const override {
    const int64_t rows = shape.size() < 2 ? 1 : shape[0];
    return std::unique_ptr<MatrixSource>(new RandomSource(std::string(name), rows, shape.back()));
  }

  Result<weights::TokenizerMaterial> Tokenizer() const override {
    return MakeError(ErrorCode::kNotFound, "[cli.calibrate] a random model has no tokenizer");
  }

 private:
  std::string path_ = "random";
  Json config_;
  Json nothing_ = Json::object();
  std::vector<weights::StoredTensor> tensors_;
};

struct RandomShape {
  int64_t hidden, inner, heads, kv_heads, layers, vocabulary;
};

// Narrow with many layers, wide with few.
constexpr RandomShape kShapes[] = {{576, 1536, 9, 3, 40, 32768}, {2048, 8192, 32, 8, 3, 32768}};

Result<serve::ModelBundle> MakeBundle(const RandomShape& s) {
  const Json config = {{"architectures", {"LlamaForCausalLM"}},
                       {"model_type", "llama"},
                       {"vocab_size", s.vocabulary},
                       {"hidden_size", s.hidden},
                       {"intermediate_size", s.inner},
                       {"num_hidden_layers", s.layers},
                       {"num_attention_heads", s.heads},
                       {"num_key_value_heads", s.kv_heads},
                       {"hidden_act", "silu"},
                       {"max_position_embeddings", 4096},
                       {"rms_norm_eps", 1e-5},
                       {"rope_theta", 10000.0},
                       {"tie_word_embeddings", true}};
  serve::ModelBundle bundle;
  bundle.files = std::make_unique<RandomModel>(config);
  PENSTOCK_TRY_ASSIGN(bundle.model, model::BuildModel(config, "random"));
  return bundle;
}

// What rank 0 did: F by rows, and the time from one F to the next beyond F itself.
struct Observed {
  std::map<int, std::vector<double>> f_s;  // rows -> seconds
  std::map<int, std::vector<double>> gap_s;
};

Result<Observed> Observe(const serve::ModelBundle& bundle, const MeasureOptions& options,
                         int64_t sequences, int64_t prompt, int64_t output) {
  serve::RunOptions run;
  run.threads = options.threads;
  run.weights = runtime::WeightChoice::kInt8;
  run.keep_trace = true;
  serve::RunDemand demand;
  demand.sequences = sequences;
  demand.positions = prompt + output;
  demand.longest_prompt = prompt;
  PENSTOCK_TRY_ASSIGN(const auto engine,
                      serve::Engine::Start(bundle, run, demand, nullptr, nullptr));
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < prompt; ++i) {
    ids.push_back(static_cast<int32_t>(i * 7919 % bundle.model.config.vocabulary));
  }
  for (int round = 0; round < 3; ++round) {  // the first one warms up
    std::vector<int32_t> live;
    for (int64_t s = 0; s < sequences; ++s) {
      PENSTOCK_TRY_ASSIGN(const int32_t sequence, engine->Admit(ids, output, {}));
      live.push_back(sequence);
    }
    bool more = true;
    while (more) {
      PENSTOCK_TRY_ASSIGN(more, engine->Advance([](const serve::RowResult&) { return false; }));
    }
    for (const int32_t sequence : live) {
      engine->decider().Release(sequence);
    }
  }
  PENSTOCK_TRY_ASSIGN(const serve::RunReport report, engine->Stop());
  Observed out;
  const trace::Slice* before = nullptr;
  for (const trace::Slice& slice : report.ranks[0].timeline.slices) {
    if (slice.action.kind != schedule::OpKind::kForward) {
      continue;
    }
    out.f_s[slice.rows].push_back(slice.end_s - slice.start_s);
    if (before != nullptr && before->rows == slice.rows) {
      out.gap_s[slice.rows].push_back(slice.start_s - before->end_s);
    }
    before = &slice;
  }
  return out;
}

// One equation: operations and numbers that together take `left_s`.
struct Equation {
  double operations = 0;
  double numbers = 0;
  double left_s = 0;
  double whole_s = 0;
};

// What the engine's tables say of all layers for `rows` rows of `sequences` that begin at `first`.
Equation Explain(const cost::ModelProfile& model, const hw::Engine& engine, double rows,
                 double sequences, double first, double measured_s) {
  Equation e;
  e.whole_s = measured_s;
  cost::Formats formats;
  formats.weights = hw::Precision::kInt8;
  double known = 0;
  for (int32_t l = 0; l < model.num_layers(); ++l) {
    const cost::LayerProfile& layer = model.layer(l);
    known +=
        cost::EngineRowsSeconds(layer, rows, sequences, cost::Sharding(), formats, engine).alone_s;
    if (!layer.attention.empty()) {
      known += sequences * cost::EngineAttentionSeconds(layer, rows / sequences, first,
                                                        cost::Sharding(), engine)
                               .alone_s;
    }
    e.operations += layer.launches;
    e.numbers += (layer.kind == model::LayerKind::kHead ? sequences : rows) *
                 (layer.whole_row_elements + layer.split_row_elements);
  }
  e.left_s = measured_s - known;
  return e;
}

// Least squares of relative errors, neither figure below zero.
std::pair<double, double> Solve(const std::vector<Equation>& equations) {
  double aa = 0;
  double ab = 0;
  double bb = 0;
  double ay = 0;
  double by = 0;
  for (const Equation& e : equations) {
    const double w = 1 / (e.whole_s * e.whole_s);
    aa += w * e.operations * e.operations;
    ab += w * e.operations * e.numbers;
    bb += w * e.numbers * e.numbers;
    ay += w * e.operations * e.left_s;
    by += w * e.numbers * e.left_s;
  }
  const double det = aa * bb - ab * ab;
  double a = det > 0 ? (ay * bb - by * ab) / det : 0;
  double b = det > 0 ? (aa * by - ab * ay) / det : 0;
  if (a < 0) {
    a = 0;
    b = std::max(0.0, by / bb);
  } else if (b < 0) {
    b = 0;
    a = std::max(0.0, ay / aa);
  }
  return {a, b};
}

double LogitSeconds() {
  std::vector<float> logits(49152);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(i * 7919 % 1024) * 0.001F;
  }
  volatile int32_t sink = 0;
  const double seconds = TimeOf(0.02, [&] { sink = serve::Sample(logits, {}, {}, 0, 1).token; });
  (void)sink;
  return seconds / static_cast<double>(logits.size());
}

}  // namespace

Result<> MeasureRest(const MeasureOptions& options, hw::Engine& engine) {
  const double logit = LogitSeconds();
  engine.operation = {};
  engine.element = {};
  engine.logit = {logit, logit};
  std::vector<Equation> equations;
  std::vector<double> gaps;
  for (const RandomShape& shape : kShapes) {
    PENSTOCK_TRY_ASSIGN(const serve::ModelBundle bundle, MakeBundle(shape));
    PENSTOCK_TRY_ASSIGN(const cost::ModelProfile profile,
                        cost::BuildProfile(bundle.model.graph, "random", "llama"));

    const struct {
      int64_t sequences, prompt, output;
    } runs[] = {{1, 512, 24}, {8, 64, 16}, {1, 128, 8}};

    for (const auto& run : runs) {
      PENSTOCK_TRY_ASSIGN(const Observed seen,
                          Observe(bundle, options, run.sequences, run.prompt, run.output));
      const auto n = static_cast<double>(run.sequences);
      const int prefill_rows = static_cast<int>(run.sequences * run.prompt);
      if (const auto it = seen.f_s.find(prefill_rows); it != seen.f_s.end()) {
        equations.push_back(Explain(profile, engine, prefill_rows, n, 0, Quartile(it->second)));
      }
      if (const auto it = seen.f_s.find(static_cast<int>(run.sequences)); it != seen.f_s.end()) {
        equations.push_back(Explain(profile, engine, n, n,
                                    static_cast<double>(run.prompt + run.output / 2),
                                    Quartile(it->second)));
      }
      if (const auto it = seen.gap_s.find(static_cast<int>(run.sequences));
          it != seen.gap_s.end()) {
        gaps.push_back(Quartile(it->second));
      }
    }
  }
  const auto [operation, number] = Solve(equations);
  // Numbers pass the caches of one core; only what lies in memory is shared.
  engine.operation = {operation, operation};
  engine.element = {number, number};
  engine.step_s = gaps.empty() ? 0 : Quartile(gaps);
  return {};
}

}  // namespace penstock::cli
