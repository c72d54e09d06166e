// The layer graphs of all families, interpreted in float64 with plain loops, against transformers'
// float64 logits: what a graph says is what the model computes, whatever kernels and cuts do.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/file.h"
#include "base/json.h"
#include "model/config.h"
#include "support/npy.h"
#include "weights/model_files.h"

namespace penstock::testing {
namespace {

using model::Graph;
using model::Op;

struct Rows {
  int64_t width = 0;
  std::vector<double> data;

  int64_t rows() const { return static_cast<int64_t>(data.size()) / width; }

  double* row(int64_t r) { return data.data() + r * width; }

  const double* row(int64_t r) const { return data.data() + r * width; }
};

Rows Zeros(int64_t rows, int64_t width) {
  return {width, std::vector<double>(static_cast<size_t>(rows * width), 0.0)};
}

double Activate(model::Activation activation, double x) {
  switch (activation) {
    case model::Activation::kSilu:
      return x / (1.0 + std::exp(-x));
    case model::Activation::kGeluTanh:
      return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case model::Activation::kGelu:
      return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)));
    case model::Activation::kRelu:
      return std::max(x, 0.0);
    case model::Activation::kReluSquared:
      return std::max(x, 0.0) * std::max(x, 0.0);
    case model::Activation::kSigmoid:
      return 1.0 / (1.0 + std::exp(-x));
    case model::Activation::kSitu:
      ADD_FAILURE() << "SiTU belongs to graphs that this interpreter leaves out";
      break;
  }
  return 0.0;
}

// Latent attention, short convolutions and delta attention are not interpreted here: the models
// that have them are held to the float64 reference of tools/kimi_reference.py.
bool Interprets(const Graph& graph) {
  return std::none_of(graph.ops.begin(), graph.ops.end(), [](const Op& op) {
    return std::holds_alternative<model::LatentAttentionOp>(op.params) ||
           std::holds_alternative<model::ShortConvOp>(op.params) ||
           std::holds_alternative<model::DeltaAttentionOp>(op.params);
  });
}

// Runs one sequence from its beginning.
class Interpreter {
 public:
  Interpreter(const Graph& graph, const weights::ModelFiles& files, std::vector<int64_t> tokens)
      : graph_(graph), files_(files), tokens_(std::move(tokens)), values_(graph.values.size()) {}

  Rows Run() {
    for (const Op& op : graph_.ops) {
      op_ = &op;
      std::visit(*this, op.params);
    }
    return values_[static_cast<size_t>(graph_.logits.value())];
  }

  void operator()(const model::EmbedOp& p) {
    const Rows table = Tensor(p.table);
    Rows& out = Out(static_cast<int64_t>(tokens_.size()), table.width);
    for (size_t t = 0; t < tokens_.size(); ++t) {
      for (int64_t c = 0; c < table.width; ++c) {
        out.row(static_cast<int64_t>(t))[c] =
            table.row(tokens_[t])[c] * static_cast<double>(p.scale);
      }
    }
  }

  void operator()(const model::RmsNormOp& p) {
    const Rows& x = In(0);
    const Rows weight = Tensor(p.weight);
    const int64_t group = p.group > 0 ? p.group : x.width;
    Rows& out = Out(x.rows(), x.width);
    for (int64_t at = 0; at < static_cast<int64_t>(x.data.size()); at += group) {
      const double* in = x.data.data() + at;
      const double square = std::inner_product(in, in + group, in, 0.0);
      const double factor =
          1.0 / std::sqrt(square / static_cast<double>(group) + static_cast<double>(p.epsilon));
      for (int64_t c = 0; c < group; ++c) {
        out.data[static_cast<size_t>(at + c)] =
            in[c] * factor * (weight.data[static_cast<size_t>(c)] + (p.add_one ? 1.0 : 0.0));
      }
    }
  }

  void operator()(const model::LinearOp& p) {
    for (size_t i = 0; i < p.weights.size(); ++i) {
      Rows y = Product(In(0), Tensor(p.weights[i]));
      if (!p.biases.empty() && p.biases[i].valid()) {
        const Rows bias = Tensor(p.biases[i]);
        for (size_t e = 0; e < y.data.size(); ++e) {
          y.data[e] += bias.data[e % bias.data.size()];
        }
      }
      Value(op_->outputs[i]) = std::move(y);
    }
  }

  void operator()(const model::SplitOp& p) {
    const Rows& x = In(0);
    int64_t at = 0;
    for (size_t i = 0; i < p.widths.size(); ++i) {
      Rows part = Zeros(x.rows(), p.widths[i]);
      for (int64_t r = 0; r < x.rows(); ++r) {
        std::copy_n(x.row(r) + at, p.widths[i], part.row(r));
      }
      at += p.widths[i];
      Value(op_->outputs[i]) = std::move(part);
    }
  }

  void operator()(const model::RopeOp& p) {
    Rows x = In(0);
    const bool far = !p.table.long_inverse_frequencies.empty() && x.rows() > p.table.long_from;
    const auto& frequencies = far ? p.table.long_inverse_frequencies : p.table.inverse_frequencies;
    const auto scale = static_cast<double>(far ? p.table.long_scale : p.table.scale);
    const int64_t half = p.rotary_dim / 2;
    for (int64_t r = 0; r < x.rows(); ++r) {
      for (int64_t h = 0; h < p.heads; ++h) {
        double* head = x.row(r) + h * p.head_dim;
        for (int64_t i = 0; i < half; ++i) {
          double& a = head[p.interleaved ? 2 * i : i];
          double& b = head[p.interleaved ? 2 * i + 1 : i + half];
          const double angle =
              static_cast<double>(r) * static_cast<double>(frequencies[static_cast<size_t>(i)]);
          const double c = std::cos(angle) * scale;
          const double s = std::sin(angle) * scale;
          const double turned = a * c - b * s;
          b = b * c + a * s;
          a = turned;
        }
      }
    }
    Value(op_->outputs[0]) = std::move(x);
  }

  void operator()(const model::AttentionOp& p) {
    const Rows& q = In(0);
    const Rows& k = In(1);
    const Rows& v = In(2);
    Rows& out = Out(q.rows(), p.heads * p.value_dim);
    for (int64_t r = 0; r < q.rows(); ++r) {
      const int64_t first = p.window > 0 ? std::max<int64_t>(0, r - p.window + 1) : 0;
      for (int64_t h = 0; h < p.heads; ++h) {
        const int64_t kv = h / (p.heads / p.kv_heads);
        std::vector<double> scores;
        for (int64_t j = first; j <= r; ++j) {
          const double* query = q.row(r) + h * p.head_dim;
          double score =
              std::inner_product(query, query + p.head_dim, k.row(j) + kv * p.head_dim, 0.0) *
              static_cast<double>(p.scale);
          if (p.soft_cap > 0.0F) {
            score = p.soft_cap * std::tanh(score / static_cast<double>(p.soft_cap));
          }
          scores.push_back(score);
        }
        Softmax(scores);
        for (int64_t j = first; j <= r; ++j) {
          for (int64_t c = 0; c < p.value_dim; ++c) {
            out.row(r)[h * p.value_dim + c] +=
                scores[static_cast<size_t>(j - first)] * v.row(j)[kv * p.value_dim + c];
          }
        }
      }
    }
  }

  void operator()(const model::GatedOp& p) {
    const Rows& gate = In(0);
    const Rows& up = In(1);
    Rows& out = Out(gate.rows(), gate.width);
    for (size_t e = 0; e < out.data.size(); ++e) {
      out.data[e] = Activate(p.activation, gate.data[e]) * up.data[e];
    }
  }

  void operator()(const model::ActivationOp& p) {
    Rows x = In(0);
    for (double& e : x.data) {
      e = Activate(p.activation, e);
    }
    Value(op_->outputs[0]) = std::move(x);
  }

  void operator()(const model::MoeOp& p) {
    const Rows& x = In(0);
    const Rows logits = Product(x, Tensor(p.router));
    Rows& out = Out(x.rows(), x.width);
    for (int64_t r = 0; r < x.rows(); ++r) {
      std::vector<double> scores(logits.row(r), logits.row(r) + logits.width);
      Softmax(scores);
      std::vector<size_t> order(scores.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t a, size_t b) { return scores[a] > scores[b]; });
      order.resize(static_cast<size_t>(p.chosen));
      double sum = 0.0;
      for (const size_t e : order) {
        sum += scores[e];
      }
      Rows row = Zeros(1, x.width);
      row.data.assign(x.row(r), x.row(r) + x.width);
      for (const size_t e : order) {
        Rows inner = Product(row, Tensor(p.gate[e]));
        const Rows up = Product(row, Tensor(p.up[e]));
        for (size_t c = 0; c < inner.data.size(); ++c) {
          inner.data[c] = Activate(p.activation, inner.data[c]) * up.data[c];
        }
        const Rows y = Product(inner, Tensor(p.down[e]));
        const double weight = scores[e] / (p.normalize ? sum : 1.0);
        for (int64_t c = 0; c < x.width; ++c) {
          out.row(r)[c] += weight * static_cast<double>(p.weight_scale) * y.row(0)[c];
        }
      }
    }
  }

  void operator()(const model::AddOp&) {
    Rows x = In(0);
    for (size_t e = 0; e < x.data.size(); ++e) {
      x.data[e] += In(1).data[e];
    }
    Value(op_->outputs[0]) = std::move(x);
  }

  void operator()(const model::ScaleOp& p) {
    Rows x = In(0);
    for (double& e : x.data) {
      e *= static_cast<double>(p.factor);
    }
    Value(op_->outputs[0]) = std::move(x);
  }

  void operator()(const model::SoftCapOp& p) {
    Rows x = In(0);
    for (double& e : x.data) {
      e = p.cap * std::tanh(e / static_cast<double>(p.cap));
    }
    Value(op_->outputs[0]) = std::move(x);
  }

  void operator()(const model::DepthReadOp& p) {
    const Rows query = Tensor(p.query);
    const Rows norm = p.key_norm.valid() ? Tensor(p.key_norm) : Rows{};
    const int64_t width = query.width;
    Rows& out = Out(In(0).rows(), width);
    for (int64_t r = 0; r < out.rows(); ++r) {
      std::vector<double> scores;
      for (size_t j = 0; j < op_->inputs.size(); ++j) {
        const double* s = In(j).row(r);
        double score = 0.0;
        for (int64_t c = 0; c < width; ++c) {
          const auto at = static_cast<size_t>(c);
          score += query.data[at] * (norm.data.empty() ? 1.0 : norm.data[at]) * s[c];
        }
        const double square = std::inner_product(s, s + width, s, 0.0);
        scores.push_back(score / std::sqrt(square / static_cast<double>(width) +
                                           static_cast<double>(p.epsilon)));
      }
      Softmax(scores);
      for (size_t j = 0; j < scores.size(); ++j) {
        for (int64_t c = 0; c < width; ++c) {
          out.row(r)[c] += scores[j] * In(j).row(r)[c];
        }
      }
    }
  }

  void operator()(const model::ConcatOp&) {
    int64_t width = 0;
    for (size_t i = 0; i < op_->inputs.size(); ++i) {
      width += In(i).width;
    }
    Rows y = Zeros(In(0).rows(), width);
    for (int64_t r = 0; r < y.rows(); ++r) {
      double* to = y.row(r);
      for (size_t i = 0; i < op_->inputs.size(); ++i) {
        to = std::copy_n(In(i).row(r), In(i).width, to);
      }
    }
    Value(op_->outputs[0]) = std::move(y);
  }

  void operator()(const model::StreamWeightsOp& p) {
    const Rows& x = In(0);
    const int64_t width = x.width / p.streams;
    const int64_t each = p.streams + 2;
    const Rows base = Tensor(p.base);
    Rows y = Zeros(x.rows(), p.streams * each);
    for (int64_t r = 0; r < y.rows(); ++r) {
      std::copy(base.data.begin(), base.data.end(), y.row(r));
      for (int64_t k = 0; p.mix.valid() && k < p.streams; ++k) {
        const Rows mix = Tensor(p.mix);
        const Rows norm = Tensor(p.norm);
        const Rows scale = Tensor(p.scale);
        const double* s = x.row(r) + k * width;
        const double square = std::inner_product(s, s + width, s, 0.0);
        const double root =
            std::sqrt(square / static_cast<double>(width) + static_cast<double>(p.epsilon));
        for (int64_t j = 0; j < each; ++j) {
          double dot = 0.0;
          for (int64_t c = 0; c < width; ++c) {
            dot += mix.row(j)[c] * norm.data[static_cast<size_t>(c)] * s[c];
          }
          y.row(r)[k * each + j] += scale.data[j + 1 == each ? 1 : 0] * std::tanh(dot / root);
        }
      }
    }
    Value(op_->outputs[0]) = std::move(y);
  }

  void operator()(const model::StreamReadOp& p) {
    const Rows& x = In(0);
    const int64_t width = x.width / p.streams;
    Rows y = Zeros(x.rows(), width);
    for (int64_t r = 0; r < y.rows(); ++r) {
      for (int64_t k = 0; k < p.streams; ++k) {
        for (int64_t c = 0; c < width; ++c) {
          y.row(r)[c] += In(1).row(r)[k * (p.streams + 2)] * x.row(r)[k * width + c];
        }
      }
    }
    Value(op_->outputs[0]) = std::move(y);
  }

  void operator()(const model::StreamWriteOp& p) {
    const Rows& x = In(0);
    const int64_t width = x.width / p.streams;
    Rows out = Zeros(x.rows(), x.width);
    for (int64_t r = 0; r < out.rows(); ++r) {
      const double* share = In(1).row(r);
      for (int64_t j = 0; j < p.streams; ++j) {
        for (int64_t c = 0; c < width; ++c) {
          double sum = share[j * (p.streams + 2) + p.streams + 1] * In(2).row(r)[c];
          for (int64_t k = 0; k < p.streams; ++k) {
            sum += share[k * (p.streams + 2) + j + 1] * x.row(r)[k * width + c];
          }
          out.row(r)[j * width + c] = sum;
        }
      }
    }
    Value(op_->outputs[0]) = std::move(out);
  }

  void operator()(const model::SelectRowsOp&) { Value(op_->outputs[0]) = In(0); }

  void operator()(const model::LatentAttentionOp&) { NotHere("latent attention"); }

  void operator()(const model::ShortConvOp&) { NotHere("a short convolution"); }

  void operator()(const model::DeltaAttentionOp&) { NotHere("delta attention"); }

  void operator()(const model::CountedOp& p) { ADD_FAILURE() << p.kind << " is counted, not run"; }

 private:
  static void NotHere(const char* what) { ADD_FAILURE() << what << " is not interpreted"; }

  const Rows& In(size_t i) const { return values_[static_cast<size_t>(op_->inputs[i].value())]; }

  Rows& Value(ValueId id) { return values_[static_cast<size_t>(id.value())]; }

  Rows& Out(int64_t rows, int64_t width) { return Value(op_->outputs[0]) = Zeros(rows, width); }

  Rows Tensor(TensorId id) const {
    const model::WeightTensor& tensor = graph_.tensor(id);
    const auto source = files_.Source(tensor.name, tensor.shape);
    EXPECT_TRUE(source.ok()) << source.error().message;
    const MatrixSource& matrix = *source.value();
    std::vector<float> data(static_cast<size_t>(matrix.rows() * matrix.columns()));
    EXPECT_TRUE(matrix.ReadRows(0, matrix.rows(), data).ok());
    return {matrix.columns(), std::vector<double>(data.begin(), data.end())};
  }

  static Rows Product(const Rows& x, const Rows& weight) {
    Rows y = Zeros(x.rows(), weight.rows());
    for (int64_t r = 0; r < x.rows(); ++r) {
      for (int64_t o = 0; o < weight.rows(); ++o) {
        y.row(r)[o] = std::inner_product(x.row(r), x.row(r) + x.width, weight.row(o), 0.0);
      }
    }
    return y;
  }

  static void Softmax(std::vector<double>& scores) {
    const double top = *std::max_element(scores.begin(), scores.end());
    double sum = 0.0;
    for (double& s : scores) {
      s = std::exp(s - top);
      sum += s;
    }
    for (double& s : scores) {
      s /= sum;
    }
  }

  const Graph& graph_;
  const weights::ModelFiles& files_;
  std::vector<int64_t> tokens_;
  std::vector<Rows> values_;
  const Op* op_ = nullptr;
};

// float32 frequencies and scales are what differs from a float64 run.
constexpr double kLimit = 2e-6;

void Compare(const std::string& path, const std::string& folder) {
  const auto files = weights::OpenModel(path);
  ASSERT_TRUE(files.ok()) << files.error().message;
  const auto built = model::BuildModel(files.value()->config(), path);
  ASSERT_TRUE(built.ok()) << built.error().message;
  if (!Interprets(built->graph)) {
    return;
  }
  const auto golden = ReadJsonFile(folder + "/golden.json");
  ASSERT_TRUE(golden.ok()) << golden.error().message;
  for (const Json& prompt : golden.value()["prompts"]) {
    Interpreter interpreter(built->graph, *files.value(),
                            prompt["tokens"].get<std::vector<int64_t>>());
    const Rows logits = interpreter.Run();
    const auto want = ReadNpy(folder + "/" + prompt["logits"].get<std::string>());
    ASSERT_TRUE(want.ok()) << want.error().message;
    const Npy got = {logits.rows(), logits.width,
                     std::vector<float>(logits.data.begin(), logits.data.end())};
    EXPECT_LT(RelativeError(got, want.value()), kLimit) << path << " " << prompt["name"];
  }
}

TEST(GraphReference, GraphsOfAllFamiliesGiveTransformersLogits) {
  const std::string models = std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/models/";
  int folders = 0;
  int twins = 0;
  for (const auto& entry : std::filesystem::directory_iterator(models)) {
    const std::string folder = entry.path().string();
    if (!FileExists(folder + "/config.json")) {
      continue;
    }
    Compare(folder, folder);
    ++folders;
    const std::string twin = models + "gguf/" + entry.path().filename().string() + ".gguf";
    if (FileExists(twin)) {
      Compare(twin, folder);
      ++twins;
    }
  }
  EXPECT_GE(folders, 17);
  EXPECT_GE(twins, 11);
}

}  // namespace
}  // namespace penstock::testing
