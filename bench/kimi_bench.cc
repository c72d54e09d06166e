// One layer of Kimi K3 in its released sizes, with 16 experts instead of 896, operation by
// operation: what the parts that other models lack cost beside its matrix products.
//
//   penstock_kimi_bench [prefill|decode|state|training] [THREADS [ROWS [REPEATS]]]
//
// prefill and training run ROWS positions of one sequence (default 512), decode one position of
// each of ROWS sequences (default 1; their states together exceed the last cache), state decodes
// with delta attention alone, positions 0 to 15 of a chunk of all sequences. Per operation
// the median of REPEATS (default 5) in milliseconds (one thread: of processor time, more: on the
// wall) and its share; then the ratios that
// docs/performance.md quotes.

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/peaks.h"
#include "kernels/cpu/pool.h"
#include "kernels/device.h"
#include "kernels/number_source.h"
#include "kernels/training.h"

namespace penstock::kernels {
namespace {

constexpr int64_t kHidden = 7168;
constexpr int64_t kHeads = 96;
constexpr int64_t kDim = 128;
constexpr int64_t kWidth = kHeads * kDim;
constexpr int64_t kTaps = 4;
constexpr int64_t kLatent = 3584;
constexpr int64_t kExpertWidth = 3072;
constexpr int64_t kSharedWidth = 6144;
constexpr int64_t kExperts = 16;
constexpr int64_t kSources = 9;  // the most that a read has
constexpr int64_t kDecodePosition = 1000;
constexpr int64_t kChunk = 16;  // of delta attention

enum class Kind { kProduct, kDelta, kRead, kOther };

struct Operation {
  std::string name;
  Kind kind;
  bool mixer;  // of the delta attention sublayer, not of the experts
  std::function<void()> run;
  double seconds = 0;
};

// Of one thread the processor time, which other processes disturb least; else the clock on the
// wall.
bool lone_thread = true;

double Now() {
  timespec time{};
  clock_gettime(lone_thread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double ReadBytesPerS(int threads) {
  ThreadPool pool(threads, {});
  MemoryAccount account;
  auto buffer = Buffer::Allocate(account, MemoryCategory::kWeights, int64_t{256} << 20);
  PENSTOCK_CHECK(buffer.ok(), "the buffer fits");
  const std::span<std::byte> bytes(buffer.value().data(), size_t{256} << 20);
  std::fill(bytes.begin(), bytes.end(), std::byte{1});
  std::vector<int64_t> sinks(static_cast<size_t>(threads) * 8);
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) {
    const double start = Now();
    pool.Run([&](int thread) {
      const size_t share = bytes.size() / static_cast<size_t>(threads);
      sinks[static_cast<size_t>(thread) * 8] =
          bench::ReadAll(bytes.subspan(share * static_cast<size_t>(thread), share));
    });
    times.push_back(Now() - start);
  }
  return static_cast<double>(bytes.size()) / Median(times);
}

class Layer {
 public:
  Layer(int threads, int64_t rows, int repeats, bool decode)
      : rows_(rows), repeats_(repeats), decode_(decode) {
    CpuOptions options;
    options.threads = threads;
    auto device = CreateCpuDevice(options);
    PENSTOCK_CHECK(device.ok(), "the machine has a device");
    device_ = std::move(device).value();
    // So many sequences' states that none is in a cache when its turn comes again.
    slots_ = decode ? std::max<int64_t>(rows, 48) : 1;
    for (int64_t i = 0; i < slots_; ++i) {
      slot_ids_.push_back(static_cast<int32_t>(i));
      positions_.push_back(decode ? kDecodePosition : 0);
    }
  }

  Device& device() { return *device_; }

  Tensor Bytes(int64_t bytes) {
    auto buffer =
        Buffer::Allocate(account_, MemoryCategory::kWorkspace, std::max<int64_t>(bytes, 64));
    PENSTOCK_CHECK(buffer.ok(), "the memory is there");
    buffers_.push_back(std::move(buffer).value());
    return {buffers_.back().data(), DType::kU8, 1, bytes};
  }

  Tensor Floats(int64_t rows, int64_t columns) {
    const Tensor bytes = Bytes(rows * columns * 4);
    const std::vector<float> values = Numbers(rows * columns);
    std::copy(values.begin(), values.end(), reinterpret_cast<float*>(bytes.Bytes().data()));
    return {bytes.Bytes().data(), DType::kF32, rows, columns};
  }

  void Add(std::string name, Kind kind, bool mixer, std::function<void()> run) {
    operations_.push_back({std::move(name), kind, mixer, std::move(run)});
  }

  const Matrix* Load(int64_t outputs, int64_t inputs) {
    const NumberSource source(outputs, inputs, DType::kF32);
    const MatrixSource* parts[] = {&source};
    auto matrix = device_->LoadMatrix(parts, WeightType::kBF16, account_);
    PENSTOCK_CHECK(matrix.ok(), "the matrix fits");
    matrices_.push_back(std::move(matrix).value());
    return matrices_.back().get();
  }

  // y = W x; the result.
  Tensor Product(const std::string& name, Tensor x, int64_t outputs, bool mixer) {
    const Matrix* w = Load(outputs, x.columns());
    const Tensor y = Floats(rows_, outputs);
    const Tensor work =
        Bytes(device_->LinearWorkspaceBytes(outputs, x.columns(), WeightType::kBF16, rows_));
    Add(name, Kind::kProduct, mixer, [=, this] { device_->Linear(*w, x, {}, y, work); });
    return y;
  }

  // The rows of this turn: a prompt, or a position of each of the next sequences.
  std::vector<SequenceRows> Sequences() {
    std::vector<SequenceRows> out;
    for (int64_t i = 0; i < (decode_ ? rows_ : 1); ++i) {
      SequenceRows sequence;
      sequence.first_row = i;
      sequence.rows = decode_ ? 1 : rows_;
      sequence.first_position = positions_[turn_] + (walk_ ? walked_[turn_]++ : 0);
      sequence.blocks = {slot_ids_.data() + turn_, 1};
      out.push_back(sequence);
      turn_ = (turn_ + 1) % slot_ids_.size();
    }
    return out;
  }

  // Of the convolutions' results.
  Tensor DeltaAttention(Tensor f, Tensor b) {
    auto slots = device_->CreateSlots(slots_, device_->DeltaSlotBytes(kHeads, kDim), account_);
    PENSTOCK_CHECK(slots.ok(), "the states fit");
    states_ = std::move(slots).value();
    const Tensor out = Floats(rows_, kWidth);
    const DeltaParams params{kHeads, kDim, true, -5.0F, Floats(1, kHeads), Floats(1, kWidth)};
    const Tensor work = Bytes(device_->DeltaWorkspaceBytes(params));
    Add("delta attention", Kind::kDelta, true, [=, this] {
      device_->DeltaAttention(*states_, params, Sequences(), conv_out_[0], conv_out_[1],
                              conv_out_[2], f, b, out, work);
    });
    return out;
  }

  // Nothing but delta attention, which goes on from position to position.
  void BuildDelta() {
    conv_out_ = {Floats(rows_, kWidth), Floats(rows_, kWidth), Floats(rows_, kWidth)};
    DeltaAttention(Floats(rows_, kWidth), Floats(rows_, kHeads));
    FillStates();
    walk_ = true;
    walked_.assign(slot_ids_.size(), 0);
  }

  // Median of the seconds of one turn over whole chunks of all sequences.
  double WalkSeconds() {
    std::vector<double> times;
    const int64_t turns = kChunk * slots_ / rows_;
    for (int i = 0; i <= repeats_; ++i) {
      const double start = Now();
      for (int64_t turn = 0; turn < turns; ++turn) {
        operations_[0].run();
      }
      if (i > 0) {
        times.push_back((Now() - start) / static_cast<double>(turns));
      }
    }
    return Median(times);
  }

  // Slots hold a state, and rows of a chunk behind it.
  void FillStates() {
    for (Operation& operation : operations_) {
      if (operation.kind == Kind::kDelta) {
        for (int64_t i = 0; i < slots_; ++i) {
          operation.run();
        }
      }
    }
  }

  void DeltaSublayer(Tensor x) {
    Tensor q = Product("q_proj", x, kWidth, true);
    Tensor k = Product("k_proj", x, kWidth, true);
    Tensor v = Product("v_proj", x, kWidth, true);
    auto conv =
        device_->CreateSlots(slots_, device_->ShortConvSlotBytes(3 * kWidth, kTaps), account_);
    PENSTOCK_CHECK(conv.ok(), "the tails fit");
    conv_ = std::move(conv).value();
    conv_weights_ = {Floats(kWidth, kTaps), Floats(kWidth, kTaps), Floats(kWidth, kTaps)};
    conv_in_ = {q, k, v};
    conv_out_ = {Floats(rows_, kWidth), Floats(rows_, kWidth), Floats(rows_, kWidth)};
    Add("short convolutions", Kind::kOther, true, [this] {
      ShortConvParams params{kTaps, Activation::kSilu, conv_weights_};
      device_->ShortConv(*conv_, params, Sequences(), conv_in_, conv_out_);
    });
    const Tensor f = Product("f_b_proj", Product("f_a_proj", x, kDim, true), kWidth, true);
    const Tensor b = Product("b_proj", x, kHeads, true);
    const Tensor gate = Product("g_proj", x, kWidth, true);
    const Tensor out = DeltaAttention(f, b);
    const Tensor norm = Floats(1, kDim);
    Add("norm and gate of heads", Kind::kOther, true, [=, this] {
      device_->RmsNorm(out, norm, 1e-5F, false, kDim, out);
      device_->Gated(Activation::kSigmoid, gate, out, out);
    });
    Product("o_proj", out, kHidden, true);
  }

  void Experts(Tensor x) {
    const Tensor z = Product("latent down", x, kLatent, false);
    std::vector<const Matrix*> gate_up;
    std::vector<const Matrix*> down;
    for (int64_t e = 0; e < kExperts; ++e) {
      gate_up.push_back(Load(2 * kExpertWidth, kLatent));
      down.push_back(Load(kLatent, kExpertWidth));
    }
    const Tensor y = Floats(rows_, kLatent);
    const Tensor router = Floats(kExperts, kHidden);
    const Tensor work = Bytes(device_->MoeWorkspaceBytes(kExperts, kExperts, kLatent, kExpertWidth,
                                                         WeightType::kBF16, rows_));
    Add("experts, 16 of 16", Kind::kProduct, false, [=, this] {
      MoeParams params;
      params.sigmoid = true;
      params.normalize = true;
      params.chosen = kExperts;
      params.activation = Activation::kSitu;
      params.situ = {4.0F, 25.0F};
      params.router_input = x;
      params.router = router;
      params.gate_up = gate_up;
      params.down = down;
      device_->Moe(params, z, y, work);
    });
    Product("latent up", y, kHidden, false);
    const Tensor both = Product("shared gate and up", x, 2 * kSharedWidth, false);
    const Tensor inner = Floats(rows_, kSharedWidth);
    Add("shared SiTU", Kind::kOther, false, [=, this] {
      device_->Situ({4.0F, 25.0F}, both.Columns(0, kSharedWidth),
                    both.Columns(kSharedWidth, kSharedWidth), inner);
    });
    Product("shared down", inner, kHidden, false);
  }

  void Read(const std::string& name, Tensor out) {
    std::vector<Tensor> sources;
    for (int64_t i = 0; i < kSources; ++i) {
      sources.push_back(Floats(rows_, kHidden));
    }
    const Tensor query = Floats(1, kHidden);
    const Tensor key = Floats(1, kHidden);
    Add(name, Kind::kRead, false,
        [=, this] { device_->DepthRead(sources, query, key, 1e-5F, out); });
  }

  void Norm(Tensor x) {
    const Tensor weight = Floats(1, kHidden);
    Add("norm", Kind::kOther, false,
        [=, this] { device_->RmsNorm(x, weight, 1e-5F, false, 0, x); });
  }

  void Build() {
    const Tensor x = Floats(rows_, kHidden);
    Read("depth read of 9, attention", x);
    Norm(x);
    DeltaSublayer(x);
    const Tensor h = Floats(rows_, kHidden);
    Read("depth read of 9, experts", h);
    Norm(h);
    Experts(h);
    const Tensor sum = Floats(rows_, kHidden);
    Add("two sums", Kind::kOther, false, [=, this] {
      device_->Add(sum, h, sum);
      device_->Add(sum, x, sum);
    });
    if (decode_) {
      FillStates();
    }
  }

  // Turns of the whole layer in its order, each operation timed.
  void Measure() {
    std::vector<std::vector<double>> times(operations_.size());
    for (int turn = 0; turn <= repeats_; ++turn) {
      for (size_t i = 0; i < operations_.size(); ++i) {
        const double start = Now();
        operations_[i].run();
        if (turn > 0) {
          times[i].push_back(Now() - start);
        }
      }
    }
    for (size_t i = 0; i < operations_.size(); ++i) {
      operations_[i].seconds = Median(times[i]);
    }
  }

  double Sum(const std::function<bool(const Operation&)>& which) const {
    double sum = 0;
    for (const Operation& operation : operations_) {
      sum += which(operation) ? operation.seconds : 0;
    }
    return sum;
  }

  void Print() const {
    const double all = Sum([](const Operation&) { return true; });
    for (const Operation& operation : operations_) {
      fmt::print("{:28} {:9.3f} ms {:6.2f} %\n", operation.name, operation.seconds * 1e3,
                 100 * operation.seconds / all);
    }
    const double mixer = Sum([](const Operation& o) { return o.mixer; });
    const double products =
        Sum([](const Operation& o) { return o.mixer && o.kind == Kind::kProduct; });
    const double reads = Sum([](const Operation& o) { return o.kind == Kind::kRead; });
    fmt::print("layer                        {:9.3f} ms\n", all * 1e3);
    fmt::print("delta attention sublayer: {:.1f} % of the rate of its products alone\n",
               100 * products / mixer);
    fmt::print("both depth reads: {:.2f} % of the layer\n", 100 * reads / all);
  }

  const Operation& Find(Kind kind) const {
    return *std::find_if(operations_.begin(), operations_.end(),
                         [kind](const Operation& o) { return o.kind == kind; });
  }

 private:
  int64_t rows_;
  int repeats_;
  bool decode_;
  int64_t slots_ = 1;
  size_t turn_ = 0;
  std::unique_ptr<Device> device_;
  MemoryAccount account_;
  std::vector<int32_t> slot_ids_;
  std::vector<int64_t> positions_;
  bool walk_ = false;
  std::vector<int64_t> walked_;
  std::vector<Buffer> buffers_;
  std::vector<std::unique_ptr<Matrix>> matrices_;
  std::unique_ptr<SlotCache> conv_, states_;
  std::vector<Tensor> conv_weights_, conv_in_, conv_out_;
  std::vector<Operation> operations_;
};

void PrintStateRate(double seconds, int threads, int64_t rows) {
  const double bytes = static_cast<double>(rows * kHeads * kDim * kDim * 4);
  const double rate = bytes / seconds;
  const double memory = ReadBytesPerS(threads);
  fmt::print("state read at {:.1f} GB/s, memory read at {:.1f} GB/s: {:.0f} %\n", rate / 1e9,
             memory / 1e9, 100 * rate / memory);
}

// Decoding over whole chunks: all that it reads and writes.
void PrintWalkRate(double seconds, int threads, int64_t rows) {
  PrintStateRate(seconds, threads, rows);
  double read = 0;
  double written = 0;
  for (int64_t i = 0; i < kChunk; ++i) {
    // State, running decay, keys and updates of the chunk; keys are carried on, rows added.
    read += static_cast<double>(4 * kDim * (kDim + 1 + 2 * i)) / kChunk;
    written += static_cast<double>(4 * kDim * (i + 3)) / kChunk;
  }
  written += 4.0 * kDim * kDim / kChunk;
  const double rate = static_cast<double>(rows * kHeads) * (read + written) / seconds;
  const double memory = ReadBytesPerS(threads);
  fmt::print("{:.0f} bytes read and {:.0f} written a head: {:.1f} GB/s: {:.0f} %\n", read, written,
             rate / 1e9, 100 * rate / memory);
}

void Inference(bool decode, int threads, int64_t rows, int repeats) {
  Layer layer(threads, rows, repeats, decode);
  layer.Build();
  layer.Measure();
  fmt::print("{} of {} rows, bf16 weights, {}\n", decode ? "decode" : "prefill", rows,
             layer.device().Description());
  layer.Print();
  if (decode) {
    PrintStateRate(layer.Find(Kind::kDelta).seconds, threads, rows);
  }
}

// The sequence operations of one layer beside its products, forward, I and W.
void Training(int threads, int64_t rows, int repeats) {
  Layer layer(threads, rows, repeats, false);
  const std::unique_ptr<TrainingDevice> owner = CreateCpuTraining(layer.device());
  TrainingDevice* k = owner.get();
  MemoryAccount account;
  const auto floats = [&](int64_t r, int64_t c) { return layer.Floats(r, c); };
  std::vector<std::unique_ptr<TrainMatrix>> matrices;
  const Tensor gradient = floats(kWidth, kHidden);
  const auto product = [&](const std::string& name, int64_t outputs, int64_t inputs) {
    auto created = k->CreateMatrix(outputs, inputs, ProductType::kBF16, account);
    PENSTOCK_CHECK(created.ok(), "the matrix fits");
    matrices.push_back(std::move(created).value());
    TrainMatrix* w = matrices.back().get();
    k->Repack(*w, Tensor(gradient.Bytes().data(), DType::kF32, outputs, inputs), 0);
    const Tensor x = floats(rows, inputs);
    const Tensor y = floats(rows, outputs);
    const Tensor work =
        layer.Bytes(k->ProductWorkspaceBytes(outputs, inputs, ProductType::kBF16, rows));
    const Tensor dw(gradient.Bytes().data(), DType::kF32, outputs, inputs);
    layer.Add(name + " forward", Kind::kProduct, true,
              [=] { k->LinearForward(*w, x, {}, y, work); });
    layer.Add(name + " input", Kind::kProduct, true,
              [=] { k->LinearBackwardInput(*w, y, false, x, work); });
    layer.Add(name + " weight", Kind::kProduct, true,
              [=] { k->LinearBackwardWeight(ProductType::kBF16, y, x, true, dw, work); });
  };
  for (const char* name : {"q_proj", "k_proj", "v_proj", "g_proj"}) {
    product(name, kWidth, kHidden);
  }
  product("o_proj", kHidden, kWidth);
  product("f_b_proj", kWidth, kDim);
  const Segment segment{.first_row = 0, .rows = rows};
  std::vector<Tensor> x, dx;
  for (int i = 0; i < 4; ++i) {
    x.push_back(floats(rows, kWidth));
    dx.push_back(floats(rows, kWidth));
  }
  const Tensor b = floats(rows, kHeads);
  const Tensor db = floats(rows, kHeads);
  const Tensor out = floats(rows, kWidth);
  const Tensor w = floats(kWidth, kTaps);
  const Tensor dw = floats(kWidth, kTaps);
  const DeltaParams params{kHeads, kDim, true, -5.0F, floats(1, kHeads), floats(1, kWidth)};
  const Tensor work = layer.Bytes(k->TrainDeltaWorkspaceBytes(params, rows));
  std::vector<float> sums(static_cast<size_t>(kWidth + kHeads));
  const auto three = [&](const std::string& name, const std::function<void(size_t)>& run) {
    layer.Add(name, Kind::kOther, true, [=] {
      for (size_t i = 0; i < 3; ++i) {
        run(i);
      }
    });
  };
  const std::span<const Segment> segments(&segment, 1);
  three("short convolutions forward",
        [=](size_t i) { k->ShortConvForward({kTaps}, segments, x[i], w.All<float>(), out); });
  three("short convolutions input", [=](size_t i) {
    k->ShortConvBackwardInput({kTaps}, segments, x[i], w.All<float>(), out, false, dx[i]);
  });
  three("short convolutions weight", [=](size_t i) {
    k->ShortConvBackwardWeight({kTaps}, segments, x[i], w.All<float>(), out, dw.All<float>());
  });
  layer.Add("delta attention forward", Kind::kDelta, true,
            [=] { k->DeltaForward(params, segments, x[0], x[1], x[2], x[3], b, out, work); });
  DeltaGradients to;
  to.q = dx[0];
  to.k = dx[1];
  to.v = dx[2];
  to.f = dx[3];
  to.b = db;
  to.sums = sums;
  layer.Add("delta attention backward", Kind::kDelta, true,
            [=] { k->DeltaBackward(params, segments, x[0], x[1], x[2], x[3], b, out, to, work); });
  layer.Measure();
  fmt::print("training of {} rows, bf16 products, {}\n", rows, layer.device().Description());
  layer.Print();
}

int Main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "prefill";
  const int threads = argc > 2 ? std::atoi(argv[2]) : 1;
  const int64_t rows = argc > 3                              ? std::atoll(argv[3])
                       : mode == "decode" || mode == "state" ? 1
                                                             : 512;
  const int repeats = argc > 4 ? std::atoi(argv[4]) : 5;
  if (threads < 1 || rows < 1 || repeats < 1 ||
      (mode != "prefill" && mode != "decode" && mode != "state" && mode != "training")) {
    fmt::print(stderr,
               "penstock_kimi_bench [prefill|decode|state|training] [THREADS [ROWS [REPEATS]]]\n");
    return 2;
  }
  lone_thread = threads == 1;
  if (mode == "state") {
    Layer layer(threads, rows, repeats, true);
    layer.BuildDelta();
    const double seconds = layer.WalkSeconds();
    fmt::print("delta attention of {} rows {:9.3f} ms\n", rows, seconds * 1e3);
    PrintWalkRate(seconds, threads, rows);
  } else if (mode == "training") {
    Training(threads, rows, repeats);
  } else {
    Inference(mode == "decode", threads, rows, repeats);
  }
  return 0;
}

}  // namespace
}  // namespace penstock::kernels

int main(int argc, char** argv) {
  return penstock::kernels::Main(argc, argv);
}
