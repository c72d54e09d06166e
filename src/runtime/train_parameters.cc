#include "runtime/train_parameters.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/progress.h"
#include "runtime/train_edges.h"

namespace penstock::runtime {
namespace {

constexpr int64_t kStripElements = int64_t{1} << 22;  // read at once while loading

std::vector<int32_t> KeyOf(std::span<const TensorId> parts) {
  std::vector<int32_t> key;
  for (const TensorId id : parts) {
    key.push_back(id.value());
  }
  return key;
}

int64_t RowsOf(const model::WeightTensor& tensor) {
  return tensor.shape.size() == 1 ? 1 : tensor.shape[0];
}

int64_t ColumnsOf(const model::WeightTensor& tensor) {
  return tensor.shape.back();
}

}  // namespace

Result<Buffer> TrainParameters::Get(MemoryCategory category, int64_t bytes) {
  if (device_ != nullptr) {
    return Buffer::Allocate(*account_, category, bytes);
  }
  PENSTOCK_TRY(account_->Take(category, bytes));
  return Buffer();
}

Result<> TrainParameters::Build(const TrainSpec& spec, std::span<const HeldStage> stages,
                                const kernels::TrainingDevice& sizes,
                                kernels::TrainingDevice* device, MemoryAccount& account) {
  graph_ = spec.graph;
  spec_ = spec;
  sizes_ = &sizes;
  device_ = device;
  account_ = &account;
  index_.assign(graph_->tensors.size(), -1);
  for (const HeldStage& stage : stages) {
    PENSTOCK_TRY(AddMasters(*stage.plan));
  }
  std::sort(parameters_.begin(), parameters_.end(),
            [](const Parameter& a, const Parameter& b) { return a.id < b.id; });
  for (size_t i = 0; i < parameters_.size(); ++i) {
    index_[static_cast<size_t>(parameters_[i].id.value())] = static_cast<int32_t>(i);
  }
  PENSTOCK_TRY(AddConstants(stages));
  uses_.resize(parameters_.size());
  for (const HeldStage& stage : stages) {
    for (const PlannedOp& op : stage.plan->ops) {
      PENSTOCK_TRY(AddMatrices(*op.run));
      PENSTOCK_TRY(AddBiases(*op.run));
    }
    Bind(stage);
    if (!spec.forward_only) {
      PENSTOCK_TRY(AddAccumulators(stage));
    }
  }
  if (spec.forward_only) {
    return {};
  }
  for (auto& uses : uses_) {
    std::sort(uses.begin(), uses.end(),
              [](const auto& a, const auto& b) { return a.second.op < b.second.op; });
  }
  return AddFinals();
}

Result<> TrainParameters::AddMasters(const TrainStagePlan& stage) {
  for (const PlannedOp& op : stage.ops) {
    const OpTraits& traits = op.run->traits;
    for (const auto* lists : {&traits.matrices, &traits.biases}) {
      for (const std::vector<TensorId>& parts : *lists) {
        for (const TensorId id : parts) {
          PENSTOCK_TRY(AddMaster(id));
        }
      }
    }
    for (const TensorId id : traits.vectors) {
      PENSTOCK_TRY(AddMaster(id));
    }
    for (const std::vector<TensorId>& group : traits.gradients) {
      for (const TensorId id : group) {
        int32_t& index = index_[static_cast<size_t>(id.value())];
        if (index < 0) {
          index = static_cast<int32_t>(parameters_.size());
          const model::WeightTensor& tensor = graph_->tensor(id);
          Parameter parameter;
          parameter.id = id;
          parameter.name = tensor.name;
          parameter.shape = tensor.shape;
          parameter.master = Master(id);
          parameters_.push_back(std::move(parameter));
        }
      }
    }
  }
  return {};
}

Result<> TrainParameters::AddConstants(std::span<const HeldStage> stages) {
  const bool has_first = std::any_of(stages.begin(), stages.end(), [](const HeldStage& stage) {
    return stage.plan->stage == StageId(0);
  });
  const auto readers = TensorStages(*graph_, *spec_.partition);
  for (size_t t = 0; has_first && t < readers.size(); ++t) {
    if (readers[t].empty()) {
      PENSTOCK_TRY(AddMaster(TensorId(static_cast<int32_t>(t))));
    }
  }
  for (const auto& [id, master] : masters_) {
    if (index_[static_cast<size_t>(id)] < 0) {
      const model::WeightTensor& tensor = graph_->tensor(TensorId(id));
      Parameter constant;
      constant.id = TensorId(id);
      constant.name = tensor.name;
      constant.shape = tensor.shape;
      constant.master = master.second;
      constants_.push_back(std::move(constant));
    }
  }
  return {};
}

Result<> TrainParameters::AddMaster(TensorId id) {
  if (!id.valid() || masters_.contains(id.value())) {
    return {};
  }
  const model::WeightTensor& tensor = graph_->tensor(id);
  const int64_t rows = RowsOf(tensor);
  const int64_t columns = ColumnsOf(tensor);
  PENSTOCK_TRY_ASSIGN(Buffer buffer, Get(MemoryCategory::kWeights, rows * columns * 4));
  const Tensor view(buffer.data(), DType::kF32, rows, columns);
  if (buffer.data() != nullptr) {
    std::memset(buffer.data(), 0, static_cast<size_t>(buffer.size()));
  }
  masters_.emplace(id.value(), std::pair<Buffer, Tensor>(std::move(buffer), view));
  return {};
}

Tensor TrainParameters::Master(TensorId id) const {
  const auto it = masters_.find(id.value());
  PENSTOCK_CHECK(it != masters_.end(), "a tensor of the gradients is also one of the weights");
  return it->second.second;
}

Result<> TrainParameters::AddMatrices(const TrainOp& op) {
  for (const std::vector<TensorId>& parts : op.traits.matrices) {
    const Key key = KeyOf(parts);
    if (packed_.contains(key)) {
      continue;
    }
    int64_t rows = 0;
    for (const TensorId id : parts) {
      rows += RowsOf(graph_->tensor(id));
    }
    const int64_t columns = ColumnsOf(graph_->tensor(parts[0]));
    Packed packed{nullptr, parts};
    if (device_ != nullptr) {
      PENSTOCK_TRY_ASSIGN(packed.matrix,
                          device_->CreateMatrix(rows, columns, spec_.products, *account_));
    } else {
      PENSTOCK_TRY(account_->Take(MemoryCategory::kWeights,
                                  sizes_->TrainMatrixBytes(rows, columns, spec_.products)));
    }
    packed_.emplace(key, std::move(packed));
  }
  return {};
}

Result<> TrainParameters::AddBiases(const TrainOp& op) {
  for (size_t k = 0; k < op.traits.biases.size(); ++k) {
    const std::vector<TensorId>& parts = op.traits.biases[k];
    const Key key = KeyOf(parts);
    const bool any =
        std::any_of(parts.begin(), parts.end(), [](TensorId id) { return id.valid(); });
    if (!any || biases_.contains(key)) {
      continue;
    }
    Bias bias;
    bias.parts = parts;
    int64_t width = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      // A part without a bias is as wide as the rows of its matrix.
      bias.widths.push_back(parts[i].valid() ? ColumnsOf(graph_->tensor(parts[i]))
                                             : RowsOf(graph_->tensor(op.traits.matrices[k][i])));
      width += bias.widths.back();
    }
    PENSTOCK_TRY_ASSIGN(bias.buffer, Get(MemoryCategory::kWeights, width * 4));
    bias.view = Tensor(bias.buffer.data(), DType::kF32, 1, width);
    biases_.emplace(key, std::move(bias));
  }
  return {};
}

void TrainParameters::Bind(const HeldStage& stage) {
  for (const PlannedOp& op : stage.plan->ops) {
    const OpTraits& traits = op.run->traits;
    BoundWeights bound;
    bound.stage = stage.plan->stage;
    for (const std::vector<TensorId>& parts : traits.matrices) {
      bound.matrices.push_back(packed_.at(KeyOf(parts)).matrix.get());
    }
    for (const TensorId id : traits.vectors) {
      bound.vectors.push_back(Master(id));
    }
    for (const std::vector<TensorId>& parts : traits.biases) {
      const auto it = biases_.find(KeyOf(parts));
      bound.biases.push_back(it == biases_.end() ? Tensor() : it->second.view);
    }
    bound_[op.index] = std::move(bound);
  }
}

Result<> TrainParameters::AddAccumulators(const HeldStage& stage) {
  for (const PlannedOp& op : stage.plan->ops) {
    BoundWeights& bound = bound_.at(op.index);
    const auto& groups = op.run->traits.gradients;
    for (size_t lane = 0; lane < stage.lanes.size(); ++lane) {
      std::vector<Tensor> views;
      for (const std::vector<TensorId>& group : groups) {
        int64_t rows = 0;
        for (const TensorId id : group) {
          rows += RowsOf(graph_->tensor(id));
        }
        const int64_t columns = ColumnsOf(graph_->tensor(group[0]));
        PENSTOCK_TRY_ASSIGN(Buffer buffer, Get(MemoryCategory::kGradients, rows * columns * 4));
        views.emplace_back(buffer.data(), DType::kF32, rows, columns);
        accumulators_.push_back(std::move(buffer));
      }
      bound.gradients.push_back(std::move(views));
      bound.fresh.push_back(1);
    }
    for (size_t g = 0; g < groups.size(); ++g) {
      int64_t row = 0;
      for (const TensorId id : groups[g]) {
        uses_[static_cast<size_t>(Find(id))].push_back({stage.plan->stage, {op.index, g, row}});
        row += RowsOf(graph_->tensor(id));
      }
    }
  }
  return {};
}

// Where the complete gradient stands: in the accumulator of the first use, lane 0. Sums that run in
// two directions through several ranks need the uses unchanged and get memory of their own.
Result<> TrainParameters::AddFinals() {
  const auto stages = TensorStages(*graph_, *spec_.partition);
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Parameter& parameter = parameters_[p];
    const bool apart = stages[static_cast<size_t>(parameter.id.value())].size() > 1 &&
                       spec_.schedule->placement.num_directions() > 1;
    if (!apart) {
      parameter.gradient = UsePart(static_cast<int32_t>(p), uses_[p][0].second, 0);
      continue;
    }
    const model::WeightTensor& tensor = graph_->tensor(parameter.id);
    PENSTOCK_TRY_ASSIGN(Buffer buffer,
                        Get(MemoryCategory::kGradients, RowsOf(tensor) * ColumnsOf(tensor) * 4));
    parameter.gradient = Tensor(buffer.data(), DType::kF32, RowsOf(tensor), ColumnsOf(tensor));
    finals_.push_back(std::move(buffer));
  }
  return {};
}

std::vector<TensorUse> TrainParameters::Uses(int32_t parameter, StageId stage) const {
  std::vector<TensorUse> uses;
  for (const auto& [of, use] : uses_[static_cast<size_t>(parameter)]) {
    if (!stage.valid() || of == stage) {
      uses.push_back(use);
    }
  }
  return uses;
}

Tensor TrainParameters::UsePart(int32_t parameter, const TensorUse& use, size_t lane) const {
  const model::WeightTensor& tensor =
      graph_->tensor(parameters_[static_cast<size_t>(parameter)].id);
  if (device_ == nullptr) {
    return {nullptr, DType::kF32, RowsOf(tensor), ColumnsOf(tensor)};
  }
  return bound_.at(use.op).gradients[lane][use.group].Rows(use.first_row, RowsOf(tensor));
}

Result<> TrainParameters::Load(const weights::ModelFiles& files) {
  for (const auto& [id, master] : masters_) {
    const model::WeightTensor& tensor = graph_->tensor(TensorId(id));
    PENSTOCK_TRY_ASSIGN(const std::unique_ptr<MatrixSource> source,
                        files.Source(tensor.name, tensor.shape));
    const std::span<float> out = master.second.All<float>();
    const int64_t columns = source->columns();
    const int64_t strip = std::max<int64_t>(1, kStripElements / std::max<int64_t>(1, columns));
    for (int64_t row = 0; row < source->rows(); row += strip) {
      const int64_t rows = std::min(strip, source->rows() - row);
      PENSTOCK_TRY(source->ReadRows(
          row, rows,
          out.subspan(static_cast<size_t>(row * columns), static_cast<size_t>(rows * columns))));
      Progress();
    }
    source->DropPages();
  }
  Changed({});
  return {};
}

void TrainParameters::FillBias(Bias& bias) {
  int64_t column = 0;
  for (size_t i = 0; i < bias.parts.size(); ++i) {
    const std::span<float> out = bias.view.Columns(column, bias.widths[i]).All<float>();
    if (bias.parts[i].valid()) {
      const std::span<const float> from = Master(bias.parts[i]).All<float>();
      std::copy(from.begin(), from.end(), out.begin());
    } else {
      std::fill(out.begin(), out.end(), 0.0F);
    }
    column += bias.widths[i];
  }
}

void TrainParameters::Changed(std::span<const int32_t> parameters) {
  std::set<TensorId> changed;
  for (const int32_t p : parameters) {
    changed.insert(parameters_[static_cast<size_t>(p)].id);
  }
  const auto touched = [&](TensorId id) {
    return id.valid() && (parameters.empty() || changed.contains(id));
  };
  for (auto& [key, packed] : packed_) {
    int64_t row = 0;
    for (const TensorId id : packed.parts) {
      if (touched(id)) {
        device_->Repack(*packed.matrix, Master(id), row);
      }
      row += RowsOf(graph_->tensor(id));
    }
  }
  for (auto& [key, bias] : biases_) {
    if (std::any_of(bias.parts.begin(), bias.parts.end(), touched)) {
      FillBias(bias);
    }
  }
}

void TrainParameters::Update(int32_t parameter, const kernels::AdamWParams& params, Tensor g,
                             Tensor m, Tensor v) {
  const Parameter& p = parameters_[static_cast<size_t>(parameter)];
  const Tensor w = p.master;
  const auto shaped = [&](Tensor x) {
    return Tensor(x.Bytes().data(), DType::kF32, w.rows(), w.columns());
  };
  std::vector<kernels::PackedRows> images;
  for (auto& [key, packed] : packed_) {
    int64_t row = 0;
    for (const TensorId id : packed.parts) {
      if (id == p.id) {
        images.push_back({packed.matrix.get(), row});
      }
      row += RowsOf(graph_->tensor(id));
    }
  }
  device_->AdamWRepack(params, shaped(g), w, shaped(m), shaped(v), images);
  for (auto& [key, bias] : biases_) {
    if (std::find(bias.parts.begin(), bias.parts.end(), p.id) != bias.parts.end()) {
      FillBias(bias);
    }
  }
}

void TrainParameters::BeginGradients() {
  for (auto& [op, bound] : bound_) {
    std::fill(bound.fresh.begin(), bound.fresh.end(), uint8_t{1});
  }
}

bool TrainParameters::TakeFirst(int32_t op, size_t lane, bool writes_first) {
  BoundWeights& bound = bound_.at(op);
  if (bound.fresh[lane] == 0) {
    return false;
  }
  bound.fresh[lane] = 0;
  const std::vector<Tensor>& gradients = bound.gradients[lane];
  for (size_t g = writes_first ? 1 : 0; g < gradients.size(); ++g) {
    device_->Fill(gradients[g], 0.0F);
  }
  return true;
}

void TrainParameters::FinishGradients(StageId stage) {
  for (auto& [op, bound] : bound_) {
    for (size_t lane = 0; lane < bound.fresh.size(); ++lane) {
      if (!stage.valid() || bound.stage == stage) {
        TakeFirst(op, lane, false);
      }
    }
  }
}

}  // namespace penstock::runtime
