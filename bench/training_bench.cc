// Micro benchmarks of the training kernels: every operation of one layer and of the head, for
// SmolLM2-135M and for a model of 350M, with 512 rows.
//
// Names are train/<model>/<product type>/<operation>/<threads>; `rate` counts two operations per
// multiply-add. train/.../layer and train/.../head run their operations in the order of a step and
// report each one's share of the time in percent.

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <time.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/training.h"

namespace penstock::kernels {
namespace {

struct Model {
  const char* name;
  int64_t width;
  int64_t ffn;
  int64_t heads;
  int64_t kv_heads;
  int64_t vocabulary;
};

constexpr Model kModels[] = {{"135m", 576, 1536, 9, 3, 49152}, {"350m", 1024, 2816, 16, 16, 49152}};
constexpr int64_t kRows = 512;
constexpr int64_t kHeadDim = 64;

// What is run, with its multiply-adds counted twice (0: bound by memory).
struct Operation {
  std::string name;
  double operations;
  std::function<void()> run;
};

class Bench {
 public:
  Bench(const Model& model, ProductType type, int threads, bool head) : model_(model), type_(type) {
    CpuOptions options;
    options.threads = threads;
    auto device = CreateCpuDevice(options);
    PENSTOCK_CHECK(device.ok(), "the machine has a device");
    device_ = std::move(device).value();
    kernels_ = CreateCpuTraining(*device_);
    if (head) {
      Head();
    } else {
      Layer();
    }
  }

  const std::vector<Operation>& operations() const { return operations_; }

 private:
  Tensor Numbers(int64_t rows, int64_t columns) {
    Tensor tensor = Bytes(rows * columns * 4);
    tensor = Tensor(tensor.Bytes().data(), DType::kF32, rows, columns);
    for (int64_t r = 0; r < rows; ++r) {
      for (float& value : tensor.Row<float>(r)) {
        state_ = state_ * 1664525 + 1013904223;
        value = static_cast<float>(static_cast<int32_t>(state_)) * 0x1p-31F;
      }
    }
    return tensor;
  }

  Tensor Bytes(int64_t bytes) {
    auto buffer = Buffer::Allocate(account_, MemoryCategory::kWorkspace, bytes);
    PENSTOCK_CHECK(buffer.ok(), "the memory is there");
    buffers_.push_back(std::move(buffer).value());
    return {buffers_.back().data(), DType::kU8, 1, bytes};
  }

  void Add(std::string name, double operations, std::function<void()> run) {
    operations_.push_back({std::move(name), operations, std::move(run)});
  }

  // The three products of a matrix, its packing and its step.
  void Matrix(const std::string& name, int64_t outputs, int64_t inputs, Tensor x, Tensor dx) {
    TrainingDevice* k = kernels_.get();
    auto created = k->CreateMatrix(outputs, inputs, type_, account_);
    PENSTOCK_CHECK(created.ok(), "the matrix fits");
    matrices_.push_back(std::move(created).value());
    TrainMatrix* w = matrices_.back().get();
    const Tensor master = Numbers(outputs, inputs);
    const Tensor gradient = Numbers(outputs, inputs);
    const Tensor m = Numbers(outputs, inputs);
    const Tensor v = Numbers(outputs, inputs);
    k->Fill(v, 1.0F);
    const Tensor dy = Numbers(kRows, outputs);
    const Tensor y = Numbers(kRows, outputs);
    const Tensor work = Bytes(k->ProductWorkspaceBytes(outputs, inputs, type_, kRows));
    const double operations = 2.0 * static_cast<double>(kRows * outputs * inputs);
    k->Repack(*w, master, 0);
    Add(name + "_forward", operations, [=] { k->LinearForward(*w, x, {}, y, work); });
    Add(name + "_input", operations, [=] { k->LinearBackwardInput(*w, dy, false, dx, work); });
    const ProductType type = type_;
    Add(name + "_weight", operations,
        [=] { k->LinearBackwardWeight(type, dy, x, true, gradient, work); });
    Add(name + "_adamw", 0, [=] {
      AdamWParams params;
      params.lr = 1e-5F;
      k->AdamW(params, gradient, master, m, v);
    });
    Add(name + "_repack", 0, [=] { k->Repack(*w, master, 0); });
  }

  void Attention() {
    TrainingDevice* k = kernels_.get();
    const AttentionParams params{model_.heads, model_.kv_heads, kHeadDim, kHeadDim, 0.125F, 0, 0};
    const Tensor q = Numbers(kRows, model_.heads * kHeadDim);
    const Tensor key = Numbers(kRows, model_.kv_heads * kHeadDim);
    const Tensor value = Numbers(kRows, model_.kv_heads * kHeadDim);
    const Tensor out = Numbers(kRows, model_.heads * kHeadDim);
    const Tensor dout = Numbers(kRows, model_.heads * kHeadDim);
    const Tensor dq = Numbers(kRows, model_.heads * kHeadDim);
    const Tensor dk = Numbers(kRows, model_.kv_heads * kHeadDim);
    const Tensor dv = Numbers(kRows, model_.kv_heads * kHeadDim);
    const Tensor lse = Numbers(kRows, model_.heads);
    const Tensor work = Bytes(k->TrainAttentionWorkspaceBytes(params, kRows, kRows));
    // What a causal mask leaves: half of the pairs of rows.
    const double one = static_cast<double>(kRows * (kRows + 1) * model_.heads * kHeadDim);
    const auto segments = [] { return std::vector<Segment>{{.first_row = 0, .rows = kRows}}; };
    Add("attention_forward", 2 * one,
        [=] { k->AttentionForward(params, segments(), q, key, value, out, lse, work); });
    Add("attention_backward", 5 * one, [=] {
      k->AttentionBackward(params, segments(), q, key, value, out, lse, dout, dq, dk, dv, work);
    });
    const int64_t heads = model_.heads + model_.kv_heads;
    const Tensor both = Numbers(kRows, heads * kHeadDim);
    const Tensor turned = Numbers(kRows, heads * kHeadDim);
    for (int64_t i = 0; i < kHeadDim / 2; ++i) {
      frequencies_.push_back(1.0F / static_cast<float>(i + 1));
    }
    const auto rope = [this, heads] {
      RopeParams r;
      r.heads = heads;
      r.head_dim = kHeadDim;
      r.rotary_dim = kHeadDim;
      r.inverse_frequencies = frequencies_;
      return r;
    };
    Add("rope_forward", 0, [=] { k->RopeForward(both, rope(), segments(), turned); });
    Add("rope_backward", 0, [=] { k->RopeBackward(turned, rope(), segments(), false, both); });
  }

  void Norm(const std::string& name, Tensor x) {
    TrainingDevice* k = kernels_.get();
    Device* d = device_.get();
    const Tensor weight = Numbers(1, model_.width);
    const Tensor dweight = Numbers(1, model_.width);
    const Tensor dy = Numbers(kRows, model_.width);
    const Tensor y = Numbers(kRows, model_.width);
    Add(name + "_forward", 0, [=] { d->RmsNorm(x, weight, 1e-5F, false, 0, y); });
    Add(name + "_input", 0,
        [=] { k->RmsNormBackwardInput(x, weight, 1e-5F, false, 0, dy, true, y); });
    Add(name + "_weight", 0, [=] { k->RmsNormBackwardWeight(x, 1e-5F, 0, dy, dweight); });
    Add(name + "_add", 0, [=] { d->Add(x, dy, y); });
  }

  void Layer() {
    const Tensor x = Numbers(kRows, model_.width);
    const Tensor dx = Numbers(kRows, model_.width);
    const Tensor inner = Numbers(kRows, model_.ffn);
    const Tensor dinner = Numbers(kRows, model_.ffn);
    const Tensor both = Numbers(kRows, 2 * model_.ffn);
    const Tensor dboth = Numbers(kRows, 2 * model_.ffn);
    const int64_t ffn = model_.ffn;
    TrainingDevice* k = kernels_.get();
    Device* d = device_.get();
    Norm("norm1", x);
    Matrix("qkv", (model_.heads + 2 * model_.kv_heads) * kHeadDim, model_.width, x, dx);
    Attention();
    Matrix("o", model_.width, model_.heads * kHeadDim, Numbers(kRows, model_.heads * kHeadDim),
           Numbers(kRows, model_.heads * kHeadDim));
    Norm("norm2", x);
    Matrix("gate_up", 2 * ffn, model_.width, x, dx);
    Add("gated_forward", 0,
        [=] { d->Gated(Activation::kSilu, both.Columns(0, ffn), both.Columns(ffn, ffn), inner); });
    Add("gated_backward", 0, [=] {
      k->GatedBackward(Activation::kSilu, both.Columns(0, ffn), both.Columns(ffn, ffn), dinner,
                       false, dboth.Columns(0, ffn), false, dboth.Columns(ffn, ffn));
    });
    Matrix("down", model_.width, ffn, inner, dinner);
  }

  void Head() {
    TrainingDevice* k = kernels_.get();
    const Tensor x = Numbers(kRows, model_.width);
    const Tensor dx = Numbers(kRows, model_.width);
    Matrix("head", model_.vocabulary, model_.width, x, dx);
    const Tensor logits = Numbers(kRows, model_.vocabulary);
    const Tensor lse = Numbers(kRows, 1);
    targets_.assign(kRows, 7);
    nll_.resize(kRows);
    Add("loss_forward", 0, [=, this] { k->CrossEntropy(logits, targets_, nll_, lse); });
    // In place, as a step does it; the numbers stay finite over repetitions.
    Add("loss_backward", 0,
        [=, this] { k->CrossEntropyBackward(logits, targets_, lse, 0.01F, logits); });
    const Tensor table = Numbers(model_.vocabulary, model_.width);
    ids_.assign(kRows, 0);
    for (size_t i = 0; i < ids_.size(); ++i) {
      ids_[i] = static_cast<int32_t>(i * 31 % static_cast<size_t>(model_.vocabulary));
    }
    Add("embed_forward", 0, [=, this] { k->EmbedForward(table, ids_, 1.0F, dx); });
    Add("embed_weight", 0, [=, this] { k->EmbedBackwardWeight(ids_, 1.0F, x, table); });
    Add("sum_of_squares", 0, [=] { benchmark::DoNotOptimize(k->SumOfSquares(table)); });
    Add("dropout", 0, [=] { k->Dropout(x, DropoutKey{1, 2, 3, 4}, 0.1F, dx); });
  }

  Model model_;
  ProductType type_;
  MemoryAccount account_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<TrainingDevice> kernels_;
  std::vector<Buffer> buffers_;
  std::vector<std::unique_ptr<TrainMatrix>> matrices_;
  std::vector<float> frequencies_;
  std::vector<int32_t> targets_;
  std::vector<int32_t> ids_;
  std::vector<double> nll_;
  std::vector<Operation> operations_;
  uint32_t state_ = 1;
};

const char* TypeName(ProductType type) {
  return type == ProductType::kF32 ? "f32" : "bf16";
}

double Now(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void RunAll(benchmark::State& state, const Model& model, ProductType type, bool head, int threads) {
  const Bench bench(model, type, threads, head);
  std::vector<double> seconds(bench.operations().size());
  const clockid_t clock = threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
  for (auto _ : state) {
    for (size_t i = 0; i < seconds.size(); ++i) {
      const double begin = Now(clock);
      bench.operations()[i].run();
      seconds[i] += Now(clock) - begin;
    }
  }
  double all = 0;
  double operations = 0;
  for (size_t i = 0; i < seconds.size(); ++i) {
    all += seconds[i];
    operations += bench.operations()[i].operations;
  }
  for (size_t i = 0; i < seconds.size(); ++i) {
    state.counters[bench.operations()[i].name] = 100.0 * seconds[i] / all;
  }
  state.counters["rate"] = benchmark::Counter(operations * static_cast<double>(state.iterations()),
                                              benchmark::Counter::kIsRate);
}

void RunOne(benchmark::State& state, const Model& model, ProductType type, bool head, size_t index,
            int threads) {
  const Bench bench(model, type, threads, head);
  const Operation& operation = bench.operations()[index];
  for (auto _ : state) {
    operation.run();
  }
  if (operation.operations > 0) {
    state.counters["rate"] =
        benchmark::Counter(operation.operations * static_cast<double>(state.iterations()),
                           benchmark::Counter::kIsRate);
  }
}

template <class... Args>
void Register(const std::string& name, int threads, const Args&... args) {
  auto* entry = benchmark::RegisterBenchmark(name.c_str(), args..., threads);
  entry->Unit(benchmark::kMicrosecond);
  if (threads > 1) {
    entry->UseRealTime();
  }
}

void RegisterAll() {
  for (const Model& model : kModels) {
    for (const bool head : {false, true}) {
      // Names only.
      std::vector<std::string> names;
      {
        Model small = model;
        small.vocabulary = 64;
        const Bench bench(small, ProductType::kF32, 1, head);
        for (const Operation& operation : bench.operations()) {
          names.push_back(operation.name);
        }
      }
      for (int threads = 1; threads <= std::min(2, UsableCores()); ++threads) {
        for (const ProductType type : {ProductType::kBF16, ProductType::kF32}) {
          const auto name = [&](const std::string& operation) {
            return fmt::format("train/{}/{}/{}/{}", model.name, TypeName(type), operation, threads);
          };
          Register(name(head ? "head" : "layer"), threads, RunAll, model, type, head);
          for (size_t i = 0; i < names.size(); ++i) {
            Register(name(names[i]), threads, RunOne, model, type, head, i);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace penstock::kernels

int main(int argc, char** argv) {
  penstock::kernels::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
