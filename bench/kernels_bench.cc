// Micro benchmarks of the kernels, beside the limits of the machine: multiply-add rate and memory
// bandwidth. Run with --benchmark_repetitions=9 --benchmark_report_aggregates_only=true.
//
// Matrix products: name linear/<type>/<layer>/<rows>/<threads>; `rate` counts two
// operations per weight and row, `weights` the bytes of weights read per second.

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/peaks.h"
#include "kernels/cpu/pool.h"
#include "kernels/device.h"
#include "kernels/number_source.h"

namespace penstock::kernels {
namespace {

std::unique_ptr<Device> MakeDevice(int threads) {
  CpuOptions options;
  options.threads = threads;
  auto device = CreateCpuDevice(options);
  PENSTOCK_CHECK(device.ok(), "the machine has a device");
  return std::move(device).value();
}

struct Shape {
  const char* name;
  int64_t outputs;
  int64_t inputs;
};

// Feed-forward layers of a 1.1B Llama, and of SmolLM2-135M with its head.
constexpr Shape kShapes[] = {{"1b_qkv", 3072, 2048},      {"1b_gate_up", 16384, 2048},
                             {"1b_down", 2048, 8192},     {"135m_qkv", 960, 576},
                             {"135m_gate_up", 3072, 576}, {"135m_down", 576, 1536},
                             {"135m_head", 49152, 576}};

void Linear(benchmark::State& state, WeightType type, const Shape& shape, int64_t rows,
            int threads) {
  auto device = MakeDevice(threads);
  MemoryAccount account;
  const NumberSource source(shape.outputs, shape.inputs,
                            type == WeightType::kInt4 ? DType::kQ4_0 : DType::kF32);
  const MatrixSource* parts[] = {&source};
  // As many copies as exceed the last cache: layers follow one another and none is cached.
  std::vector<std::unique_ptr<Matrix>> copies;
  int64_t bytes = 0;
  while (bytes < (int64_t{160} << 20)) {
    auto matrix = device->LoadMatrix(parts, type, account);
    PENSTOCK_CHECK(matrix.ok(), "the matrix fits");
    bytes += matrix.value()->bytes();
    copies.push_back(std::move(matrix).value());
  }
  std::vector<float> x = Numbers(rows * shape.inputs);
  std::vector<float> out(static_cast<size_t>(rows * shape.outputs));
  std::vector<std::byte> scratch(static_cast<size_t>(
      device->LinearWorkspaceBytes(shape.outputs, shape.inputs, type, rows) + 64));
  const Tensor workspace(scratch.data(), DType::kU8, 1, static_cast<int64_t>(scratch.size()));
  size_t next = 0;
  for (auto _ : state) {
    device->Linear(*copies[next], Tensor(x.data(), DType::kF32, rows, shape.inputs), {},
                   Tensor(out.data(), DType::kF32, rows, shape.outputs), workspace);
    next = (next + 1) % copies.size();
  }
  const auto calls = static_cast<double>(state.iterations());
  const auto operations = 2.0 * static_cast<double>(rows * shape.outputs * shape.inputs);
  state.counters["rate"] = benchmark::Counter(operations * calls, benchmark::Counter::kIsRate);
  state.counters["weights"] =
      benchmark::Counter(static_cast<double>(copies[0]->bytes()) * calls,
                         benchmark::Counter::kIsRate, benchmark::Counter::kIs1024);
}

void ReadBandwidth(benchmark::State& state, int threads) {
  ThreadPool pool(threads, {});
  // As weights lie: in memory of an account, on huge pages.
  MemoryAccount account;
  auto allocated = Buffer::Allocate(account, MemoryCategory::kWeights, int64_t{256} << 20);
  PENSTOCK_CHECK(allocated.ok(), "the buffer fits");
  const std::span<std::byte> buffer(allocated.value().data(), size_t{256} << 20);
  std::fill(buffer.begin(), buffer.end(), std::byte{1});
  std::vector<int64_t> sinks(static_cast<size_t>(threads) * 8);
  for (auto _ : state) {
    pool.Run([&](int thread) {
      const size_t share = buffer.size() / static_cast<size_t>(threads);
      sinks[static_cast<size_t>(thread) * 8] =
          bench::ReadAll(buffer.subspan(share * static_cast<size_t>(thread), share));
    });
    benchmark::DoNotOptimize(sinks.data());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(buffer.size()));
}

// One layer of 1.1B (32 heads, 8 of keys, 64 wide) or 135M (9 heads, 3 of keys).
struct AttentionShape {
  const char* name;
  int64_t heads;
  int64_t kv_heads;
  int64_t rows;
  int64_t position;
};

constexpr AttentionShape kAttention[] = {
    {"1b_prefill_512", 32, 8, 512, 0},  {"135m_prefill_512", 9, 3, 512, 0},
    {"1b_decode_512", 32, 8, 1, 511},   {"135m_decode_512", 9, 3, 1, 511},
    {"1b_decode_4096", 32, 8, 1, 4095},
};

void Attention(benchmark::State& state, const AttentionShape& shape, int threads) {
  auto device = MakeDevice(threads);
  MemoryAccount account;
  const int64_t blocks = (shape.position + shape.rows + 31) / 32;
  KvCacheSpec spec;
  spec.blocks = blocks;
  spec.kv_heads = shape.kv_heads;
  spec.head_dim = spec.value_dim = 64;
  auto cache = device->CreateKvCache(spec, account);
  PENSTOCK_CHECK(cache.ok(), "the cache fits");
  AttentionParams params;
  params.heads = shape.heads;
  params.kv_heads = shape.kv_heads;
  params.head_dim = params.value_dim = 64;
  params.scale = 0.125F;
  std::vector<int32_t> table;
  for (int64_t b = 0; b < blocks; ++b) {
    table.push_back(static_cast<int32_t>(b));
  }
  const int64_t all = shape.position + shape.rows;
  std::vector<float> q = Numbers(all * shape.heads * 64);
  std::vector<float> k = Numbers(all * shape.kv_heads * 64);
  std::vector<float> out(q.size());
  std::vector<std::byte> scratch(
      static_cast<size_t>(device->AttentionWorkspaceBytes(params, all) + 64));
  const auto run = [&](int64_t rows, int64_t position) {
    SequenceRows sequence;
    sequence.rows = rows;
    sequence.first_position = position;
    sequence.blocks = table;
    const Tensor keys(k.data(), DType::kF32, rows, shape.kv_heads * 64);
    device->Attention(*cache.value(), params, {&sequence, 1},
                      Tensor(q.data(), DType::kF32, rows, shape.heads * 64), keys, keys,
                      Tensor(out.data(), DType::kF32, rows, shape.heads * 64),
                      Tensor(scratch.data(), DType::kU8, 1, static_cast<int64_t>(scratch.size())));
  };
  run(all, 0);
  for (auto _ : state) {
    run(shape.rows, shape.position);
  }
  const double pairs =
      static_cast<double>(shape.rows) *
      (static_cast<double>(shape.position) + static_cast<double>(shape.rows + 1) / 2.0);
  state.counters["rate"] = benchmark::Counter(4.0 * 64.0 * static_cast<double>(shape.heads) *
                                                  pairs * static_cast<double>(state.iterations()),
                                              benchmark::Counter::kIsRate);
}

// Fixed cost of one operation: a tiny row, and the same over two threads.
void Overhead(benchmark::State& state, bool linear, int threads) {
  if (!linear) {
    ThreadPool pool(threads, {});
    for (auto _ : state) {
      pool.Run([](int thread) { benchmark::DoNotOptimize(thread); });
    }
    return;
  }
  auto device = MakeDevice(threads);
  std::vector<float> x = Numbers(2048);
  std::vector<float> w = Numbers(2048);
  const Tensor row(x.data(), DType::kF32, 1, 2048);
  const Tensor weight(w.data(), DType::kF32, 1, 2048);
  for (auto _ : state) {
    device->RmsNorm(row, weight, 1e-5F, false, 0, row);
  }
}

// One thread is timed by its processor time, which other processes disturb least; several by the
// clock on the wall.
template <class... Args>
void Add(const std::string& name, int threads, const Args&... args) {
  auto* entry = benchmark::RegisterBenchmark(name.c_str(), args..., threads);
  if (threads > 1) {
    entry->UseRealTime();
  }
}

void RunPeak(benchmark::State& state, const bench::Peak& peak, int /*threads*/) {
  for (auto _ : state) {
    peak.run();
  }
  state.counters["rate"] = benchmark::Counter(
      peak.operations * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void Register() {
  for (const bench::Peak& peak : bench::Peaks()) {
    Add(fmt::format("peak/{}", peak.name), 1, RunPeak, peak);
  }
  for (int threads = 1; threads <= std::min(2, UsableCores()); ++threads) {
    Add(fmt::format("read_bandwidth/{}", threads), threads, ReadBandwidth);
    for (const WeightType type :
         {WeightType::kF32, WeightType::kBF16, WeightType::kInt8, WeightType::kInt4}) {
      for (const Shape& shape : kShapes) {
        for (const int64_t rows : {1, 4, 16, 512}) {
          Add(fmt::format("linear/{}/{}/{}/{}", WeightTypeName(type), shape.name, rows, threads),
              threads, Linear, type, shape, rows);
        }
      }
    }
    for (const AttentionShape& shape : kAttention) {
      Add(fmt::format("attention/{}/{}", shape.name, threads), threads, Attention, shape);
    }
    Add(fmt::format("overhead/rms_norm_2048/{}", threads), threads, Overhead, true);
    Add(fmt::format("overhead/pool/{}", threads), threads, Overhead, false);
  }
}

}  // namespace
}  // namespace penstock::kernels

int main(int argc, char** argv) {
  penstock::kernels::Register();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
