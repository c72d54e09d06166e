#include "runtime/stage_weights.h"

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <thread>

#include "runtime/quantize.h"

namespace penstock::runtime {
namespace {

using Key = std::vector<int32_t>;

Key KeyOf(std::span<const TensorId> ids) {
  Key key;
  for (const TensorId id : ids) {
    key.push_back(id.value());
  }
  return key;
}

// Biases stand beside matrices under keys that can't be those of a tensor: the list with a marker
// in front.
Key BiasKey(std::span<const TensorId> ids) {
  Key key = KeyOf(ids);
  key.insert(key.begin(), -2);
  return key;
}

// What a stage needs, each thing once, in the order of first use.
struct Needs {
  struct Bias {
    std::vector<TensorId> biases;
    std::vector<TensorId> weights;  // give the width where a bias is absent
  };

  std::vector<std::vector<TensorId>> matrices;
  std::vector<TensorId> vectors;
  std::vector<Bias> biases;
};

class NeedsCollector {
 public:
  NeedsCollector(const model::Graph& graph, const WeightRule& rule) : graph_(graph), rule_(rule) {}

  Needs Collect(int32_t first_op, int32_t last_op) {
    for (int32_t i = first_op; i < last_op; ++i) {
      std::visit([this](const auto& params) { Add(params); },
                 graph_.ops[static_cast<size_t>(i)].params);
    }
    return std::move(needs_);
  }

 private:
  void Matrix(std::vector<TensorId> parts) {
    if (seen_.insert(KeyOf(parts)).second) {
      needs_.matrices.push_back(std::move(parts));
    }
  }

  void Vector(TensorId id) {
    if (id.valid() && seen_.insert({id.value(), -1}).second) {
      needs_.vectors.push_back(id);
    }
  }

  void Add(const model::EmbedOp& op) { Matrix({op.table}); }

  void Add(const model::RmsNormOp& op) { Vector(op.weight); }

  void Add(const model::LinearOp& op) {
    size_t begin = 0;
    for (const size_t end : PackGroups(op, rule_)) {
      const std::vector<TensorId> parts(op.weights.begin() + static_cast<int64_t>(begin),
                                        op.weights.begin() + static_cast<int64_t>(end));
      Matrix(parts);
      if (!op.biases.empty()) {
        const std::vector<TensorId> biases(op.biases.begin() + static_cast<int64_t>(begin),
                                           op.biases.begin() + static_cast<int64_t>(end));
        if (seen_.insert(BiasKey(biases)).second) {
          needs_.biases.push_back({biases, parts});
        }
      }
      begin = end;
    }
  }

  void Add(const model::MoeOp& op) {
    Vector(op.router);
    Vector(op.router_bias);
    for (size_t e = 0; e < op.up.size(); ++e) {
      Matrix({op.gate[e], op.up[e]});
      Matrix({op.down[e]});
    }
  }

  void Add(const model::LatentAttentionOp& op) {
    if (op.absorbed) {
      Vector(op.expand);
    } else {
      Matrix({op.expand});
    }
  }

  void Add(const model::ShortConvOp& op) {
    for (const TensorId id : op.weights) {
      Vector(id);
    }
  }

  void Add(const model::DeltaAttentionOp& op) {
    Vector(op.a_log);
    Vector(op.dt_bias);
  }

  void Add(const model::DepthReadOp& op) {
    Vector(op.query);
    Vector(op.key_norm);
  }

  void Add(const model::StreamWeightsOp& op) {
    for (const TensorId id : {op.base, op.mix, op.norm, op.scale}) {
      Vector(id);
    }
  }

  template <class Other>
  void Add(const Other&) {}

  const model::Graph& graph_;
  const WeightRule& rule_;
  std::set<Key> seen_;
  Needs needs_;
};

int64_t Elements(const model::WeightTensor& tensor) {
  int64_t elements = 1;
  for (const int64_t n : tensor.shape) {
    elements *= n;
  }
  return elements;
}

int64_t BiasWidth(const model::Graph& graph, const Needs::Bias& bias) {
  int64_t width = 0;
  for (const TensorId id : bias.weights) {
    width += graph.tensor(id).shape[0];
  }
  return width;
}

using SourcePtr = std::unique_ptr<MatrixSource>;

// Hands on, and says so to the loading thread's progress.
class WatchedSource final : public MatrixSource {
 public:
  WatchedSource(SourcePtr inner, std::function<void()> on_read)
      : inner_(std::move(inner)), on_read_(std::move(on_read)) {}

  const std::string& name() const override { return inner_->name(); }

  int64_t rows() const override { return inner_->rows(); }

  int64_t columns() const override { return inner_->columns(); }

  DType type() const override { return inner_->type(); }

  Result<> ReadRows(int64_t begin, int64_t count, std::span<float> out) const override {
    Notice();
    return inner_->ReadRows(begin, count, out);
  }

  std::span<const std::byte> RawRow(int64_t row) const override {
    Notice();
    return inner_->RawRow(row);
  }

  void DropPages() const override { inner_->DropPages(); }

 private:
  void Notice() const {
    if (std::this_thread::get_id() == loader_) {
      on_read_();
    }
  }

  SourcePtr inner_;
  std::function<void()> on_read_;
  std::thread::id loader_ = std::this_thread::get_id();
};

Result<SourcePtr> OpenSource(const model::Graph& graph, TensorId id, const HeldMatrix& held,
                             const weights::ModelFiles& files) {
  const model::WeightTensor& tensor = graph.tensor(id);
  PENSTOCK_TRY_ASSIGN(SourcePtr source, files.Source(tensor.name, tensor.shape));
  if (held.type == kernels::WeightType::kInt4 && source->type() != held.source) {
    return SourcePtr(std::make_unique<Q41Source>(std::move(source)));
  }
  return source;
}

Result<std::unique_ptr<kernels::Matrix>> LoadMatrix(const model::Graph& graph,
                                                    const std::vector<TensorId>& parts,
                                                    const WeightRule& rule,
                                                    const weights::ModelFiles& files,
                                                    kernels::Device& device, MemoryAccount& account,
                                                    const std::function<void()>& on_read) {
  std::vector<SourcePtr> sources;
  std::vector<const MatrixSource*> pointers;
  for (const TensorId id : parts) {
    PENSTOCK_TRY_ASSIGN(SourcePtr source, OpenSource(graph, id, rule.held(id), files));
    if (on_read) {
      source = std::make_unique<WatchedSource>(std::move(source), on_read);
    }
    pointers.push_back(source.get());
    sources.push_back(std::move(source));
  }
  return device.LoadMatrix(pointers, rule.held(parts[0]).type, account);
}

Result<> ReadVector(const model::Graph& graph, TensorId id, const weights::ModelFiles& files,
                    std::span<float> out) {
  const model::WeightTensor& tensor = graph.tensor(id);
  PENSTOCK_TRY_ASSIGN(const SourcePtr source, files.Source(tensor.name, tensor.shape));
  PENSTOCK_TRY(source->ReadRows(0, source->rows(), out));
  source->DropPages();
  return {};
}

}  // namespace

Result<StageWeights> StageWeights::Load(const model::Graph& graph, int32_t first_op,
                                        int32_t last_op, const WeightRule& rule,
                                        const weights::ModelFiles& files, kernels::Device& device,
                                        MemoryAccount& account, const Progress& progress) {
  StageWeights weights;
  const Needs needs = NeedsCollector(graph, rule).Collect(first_op, last_op);
  int64_t loaded = 0;
  std::function<void()> on_read;
  if (progress) {
    on_read = [&progress, &loaded] { progress(loaded); };
  }
  for (const std::vector<TensorId>& parts : needs.matrices) {
    PENSTOCK_TRY_ASSIGN(auto matrix,
                        LoadMatrix(graph, parts, rule, files, device, account, on_read));
    loaded += matrix->bytes();
    weights.matrices_[KeyOf(parts)] = std::move(matrix);
    if (progress) {
      progress(loaded);
    }
  }
  for (const TensorId id : needs.vectors) {
    const model::WeightTensor& tensor = graph.tensor(id);
    PENSTOCK_TRY_ASSIGN(Buffer buffer,
                        Buffer::Allocate(account, MemoryCategory::kWeights, Elements(tensor) * 4));
    auto owner = std::make_unique<Buffer>(std::move(buffer));
    const int64_t columns = tensor.shape.back();
    const Tensor view = Tensor::Of(*owner, DType::kF32, Elements(tensor) / columns, columns);
    PENSTOCK_TRY(ReadVector(graph, id, files, view.All<float>()));
    weights.vectors_[{id.value()}] = {std::move(owner), view};
  }
  for (const Needs::Bias& bias : needs.biases) {
    const int64_t width = BiasWidth(graph, bias);
    PENSTOCK_TRY_ASSIGN(Buffer buffer,
                        Buffer::Allocate(account, MemoryCategory::kWeights, width * 4));
    auto owner = std::make_unique<Buffer>(std::move(buffer));
    const Tensor view = Tensor::Of(*owner, DType::kF32, 1, width);
    int64_t column = 0;
    for (size_t i = 0; i < bias.weights.size(); ++i) {
      const int64_t part = graph.tensor(bias.weights[i]).shape[0];
      const std::span<float> out = view.Columns(column, part).All<float>();
      if (bias.biases[i].valid()) {
        PENSTOCK_TRY(ReadVector(graph, bias.biases[i], files, out));
      } else {
        std::fill(out.begin(), out.end(), 0.0F);
      }
      column += part;
    }
    weights.vectors_[BiasKey(bias.biases)] = {std::move(owner), view};
  }
  return weights;
}

int64_t StageWeights::PlannedBytes(const model::Graph& graph, int32_t first_op, int32_t last_op,
                                   const WeightRule& rule, const kernels::Device& device) {
  const Needs needs = NeedsCollector(graph, rule).Collect(first_op, last_op);
  int64_t bytes = 0;
  for (const std::vector<TensorId>& parts : needs.matrices) {
    int64_t rows = 0;
    for (const TensorId id : parts) {
      rows += graph.tensor(id).shape[0];
    }
    const HeldMatrix& held = rule.held(parts[0]);
    bytes += device.MatrixBytes(rows, graph.tensor(parts[0]).shape[1], held.type, held.source);
  }
  for (const TensorId id : needs.vectors) {
    bytes += Elements(graph.tensor(id)) * 4;
  }
  for (const Needs::Bias& bias : needs.biases) {
    bytes += BiasWidth(graph, bias) * 4;
  }
  return bytes;
}

const kernels::Matrix& StageWeights::matrix(std::span<const TensorId> parts) const {
  const auto it = matrices_.find(KeyOf(parts));
  PENSTOCK_CHECK(it != matrices_.end(), "the matrix was loaded");
  return *it->second;
}

Tensor StageWeights::vector(TensorId id) const {
  const auto it = vectors_.find({id.value()});
  PENSTOCK_CHECK(it != vectors_.end(), "the vector was loaded");
  return it->second.second;
}

Tensor StageWeights::bias(std::span<const TensorId> biases) const {
  const auto it = vectors_.find(BiasKey(biases));
  PENSTOCK_CHECK(it != vectors_.end(), "the bias was loaded");
  return it->second.second;
}

}  // namespace penstock::runtime
