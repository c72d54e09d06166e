// Products and attention of the CPU device, alone and on all devices together.

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <thread>

#include "base/check.h"
#include "base/file.h"
#include "cli/calibrate.h"
#include "kernels/number_source.h"

namespace penstock::cli {
namespace {

using kernels::Device;
using kernels::Matrix;
using kernels::Numbers;
using kernels::NumberSource;
using kernels::WeightType;
using Clock = std::chrono::steady_clock;

// Several times the last cache: passed in turn, hardly any of it is still there (a cache that
// replaces at random would keep exp(-6)). Weights come from memory, as in a model.
int64_t BeyondCaches() {
  static const int64_t kBytes = [] {
    int64_t cache = int64_t{32} << 20;
    if (const auto text = ReadFile("/sys/devices/system/cpu/cpu0/cache/index3/size", 64);
        text.ok()) {
      const int64_t kilobytes = std::atoll(text->c_str());
      cache = std::max<int64_t>(kilobytes << 10, int64_t{8} << 20);
    }
    return std::clamp<int64_t>(6 * cache, int64_t{96} << 20, int64_t{768} << 20);
  }();
  return kBytes;
}

Result<std::unique_ptr<Device>> MakeDevice(int threads) {
  kernels::CpuOptions options;
  options.threads = threads;
  return kernels::CreateCpuDevice(options);
}

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Copies of one matrix, together larger than the caches, passed one after the other.
class Copies {
 public:
  static Result<Copies> Load(const ProductShape& shape, Device& device, MemoryAccount& account) {
    Copies copies;
    const NumberSource source(shape.outputs, shape.inputs,
                              shape.type == WeightType::kInt4 ? DType::kQ4_1 : DType::kF32);
    const MatrixSource* parts[] = {&source};
    int64_t bytes = 0;
    while (bytes < BeyondCaches() || copies.matrices_.size() < 2) {
      PENSTOCK_TRY_ASSIGN(auto matrix, device.LoadMatrix(parts, shape.type, account));
      bytes += matrix->bytes();
      copies.matrices_.push_back(std::move(matrix));
    }
    return copies;
  }

  size_t size() const { return matrices_.size(); }

  const Matrix& operator[](size_t i) const { return *matrices_[i % matrices_.size()]; }

 private:
  std::vector<std::unique_ptr<Matrix>> matrices_;
};

// One device's product, ready to be called.
class ProductRun {
 public:
  ProductRun(const ProductShape& shape, const Copies& copies, Device& device, int64_t rows,
             size_t first)
      : copies_(copies),
        device_(device),
        rows_(rows),
        shape_(shape),
        next_(first),
        x_(Numbers(rows * shape.inputs)),
        out_(static_cast<size_t>(rows * shape.outputs)),
        scratch_(static_cast<size_t>(
            device.LinearWorkspaceBytes(shape.outputs, shape.inputs, shape.type, rows) + 64)) {}

  void operator()() {
    device_.Linear(copies_[next_++], Tensor(x_.data(), DType::kF32, rows_, shape_.inputs), {},
                   Tensor(out_.data(), DType::kF32, rows_, shape_.outputs),
                   Tensor(scratch_.data(), DType::kU8, 1, static_cast<int64_t>(scratch_.size())));
  }

 private:
  const Copies& copies_;
  Device& device_;
  int64_t rows_;
  ProductShape shape_;
  size_t next_;
  std::vector<float> x_;
  std::vector<float> out_;
  std::vector<std::byte> scratch_;
};

// Makes what device `index` calls; called on that device's own thread.
using MakeRun = std::function<std::function<void()>(int index)>;

// The same work on all devices at once: each goes on until all have enough, so that every sample is
// taken under load. Median over devices of their quartiles.
double TimeTogether(int devices, double seconds, const MakeRun& make) {
  std::vector<double> quartiles(static_cast<size_t>(devices));
  std::barrier<> ready(devices);
  std::vector<std::thread> threads;
  for (int d = 0; d < devices; ++d) {
    threads.emplace_back([&, d] {
      const std::function<void()> run = make(d);
      run();
      ready.arrive_and_wait();
      std::vector<double> samples;
      const Clock::time_point start = Clock::now();
      do {
        const Clock::time_point before = Clock::now();
        run();
        samples.push_back(Since(before));
      } while (Since(start) < seconds || samples.size() < 3);
      quartiles[static_cast<size_t>(d)] = Quartile(std::move(samples));
      ready.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::sort(quartiles.begin(), quartiles.end());
  return quartiles[quartiles.size() / 2];
}

// The shortest call: threads that wait for each other meet other work on the machine too often for
// a quartile.
double LeastOf(double seconds, const std::function<void()>& body) {
  body();
  double least = 1e9;
  int calls = 0;
  const Clock::time_point start = Clock::now();
  do {
    const Clock::time_point before = Clock::now();
    body();
    least = std::min(least, Since(before));
  } while (Since(start) < seconds || ++calls < 5);
  return least;
}

const std::vector<int64_t>& RowGrid(bool quick) {
  static const std::vector<int64_t> kRows = {1, 2, 4, 6, 8, 16, 32, 64, 128, 512};
  static const std::vector<int64_t> kFew = {1, 4, 16, 64, 256};
  return quick ? kFew : kRows;
}

Result<hw::ProductTable> MeasureOne(const ProductShape& shape, const MeasureOptions& options,
                                    std::vector<std::unique_ptr<Device>>& devices) {
  MemoryAccount account;
  PENSTOCK_TRY_ASSIGN(const Copies copies, Copies::Load(shape, *devices[0], account));
  std::vector<hw::CurvePoint> alone;
  std::vector<hw::CurvePoint> together;
  for (const int64_t rows : RowGrid(options.quick)) {
    const auto x = static_cast<double>(rows);
    ProductRun run(shape, copies, *devices[0], rows, 0);
    alone.push_back({x, TimeOf(options.sample_s, [&] { run(); })});
    double shared = alone.back().y;
    if (options.devices > 1) {
      shared = TimeTogether(options.devices, options.sample_s, [&](int d) {
        const size_t first =
            copies.size() * static_cast<size_t>(d) / static_cast<size_t>(options.devices);
        auto mine = std::make_shared<ProductRun>(shape, copies, *devices[static_cast<size_t>(d)],
                                                 rows, first);
        return [mine] { (*mine)(); };
      });
    }
    together.push_back({x, std::max(alone.back().y, shared)});
  }
  hw::ProductTable table;
  table.weights = PrecisionOf(shape.type);
  table.outputs = static_cast<double>(shape.outputs);
  table.inputs = static_cast<double>(shape.inputs);
  PENSTOCK_TRY_ASSIGN(table.alone_s, hw::Curve::Make(std::move(alone), hw::Curve::Scale::kLinear,
                                                     "measured products"));
  PENSTOCK_TRY_ASSIGN(
      table.together_s,
      hw::Curve::Make(std::move(together), hw::Curve::Scale::kLinear, "measured products"));
  return table;
}

constexpr int64_t kBlockTokens = 32;

// Keys and values of several layers, together larger than the caches, and the operation on them.
class AttentionRun {
 public:
  static Result<std::unique_ptr<AttentionRun>> Make(const AttentionShape& shape, Device& device,
                                                    int64_t rows, int64_t first) {
    std::unique_ptr<AttentionRun> run(new AttentionRun(shape, device, rows, first));
    const int64_t all = first + rows;
    kernels::KvCacheSpec spec;
    spec.blocks = (all + kBlockTokens - 1) / kBlockTokens;
    spec.kv_heads = shape.kv_heads;
    spec.head_dim = spec.value_dim = shape.head_dim;
    const int64_t each = std::max<int64_t>(1, device.KvCacheBytes(spec));
    const int64_t count = std::clamp<int64_t>(BeyondCaches() / 3 / each, 2, 512);
    for (int64_t i = 0; i < count; ++i) {
      PENSTOCK_TRY_ASSIGN(auto cache, device.CreateKvCache(spec, run->account_));
      run->caches_.push_back(std::move(cache));
    }
    for (int64_t b = 0; b < spec.blocks; ++b) {
      run->table_.push_back(static_cast<int32_t>(b));
    }
    run->scratch_.resize(
        static_cast<size_t>(device.AttentionWorkspaceBytes(run->params_, all) + 64));
    // Fills every position of every layer with numbers; a window of one key leaves the scores out.
    kernels::AttentionParams fill = run->params_;
    fill.window = 1;
    for (size_t i = 0; i < run->caches_.size(); ++i) {
      for (int64_t at = 0; at < all; at += rows) {
        run->Call(fill, i, std::min(rows, all - at), at);
      }
    }
    return run;
  }

  void operator()() { Call(params_, next_++ % caches_.size(), rows_, first_); }

 private:
  AttentionRun(const AttentionShape& shape, Device& device, int64_t rows, int64_t first)
      : device_(device),
        shape_(shape),
        rows_(rows),
        first_(first),
        q_(Numbers(rows * shape.heads * shape.head_dim)),
        k_(Numbers(rows * shape.kv_heads * shape.head_dim)),
        out_(q_.size()) {
    params_.heads = shape.heads;
    params_.kv_heads = shape.kv_heads;
    params_.head_dim = params_.value_dim = shape.head_dim;
    params_.scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
  }

  void Call(const kernels::AttentionParams& params, size_t layer, int64_t rows, int64_t first) {
    kernels::SequenceRows sequence;
    sequence.rows = rows;
    sequence.first_position = first;
    sequence.blocks = table_;
    const Tensor keys(k_.data(), DType::kF32, rows, shape_.kv_heads * shape_.head_dim);
    const int64_t width = shape_.heads * shape_.head_dim;
    device_.Attention(
        *caches_[layer], params, {&sequence, 1}, Tensor(q_.data(), DType::kF32, rows, width), keys,
        keys, Tensor(out_.data(), DType::kF32, rows, width),
        Tensor(scratch_.data(), DType::kU8, 1, static_cast<int64_t>(scratch_.size())));
  }

  Device& device_;
  AttentionShape shape_;
  int64_t rows_;
  int64_t first_;
  std::vector<float> q_;
  std::vector<float> k_;
  std::vector<float> out_;
  MemoryAccount account_;
  std::vector<std::unique_ptr<kernels::KvCache>> caches_;
  kernels::AttentionParams params_;
  std::vector<int32_t> table_;
  std::vector<std::byte> scratch_;
  size_t next_ = 0;
};

Result<hw::Shared> TimeAttention(const AttentionShape& shape, int64_t rows, int64_t first,
                                 const MeasureOptions& options,
                                 std::vector<std::unique_ptr<Device>>& devices) {
  std::vector<std::unique_ptr<AttentionRun>> runs;
  for (const auto& device : devices) {
    PENSTOCK_TRY_ASSIGN(auto run, AttentionRun::Make(shape, *device, rows, first));
    runs.push_back(std::move(run));
  }
  hw::Shared time;
  time.alone_s = TimeOf(options.sample_s, [&] { (*runs[0])(); });
  time.together_s = time.alone_s;
  if (options.devices > 1) {
    time.together_s =
        std::max(time.alone_s, TimeTogether(options.devices, options.sample_s, [&](int d) {
                   return [run = runs[static_cast<size_t>(d)].get()] { (*run)(); };
                 }));
  }
  return time;
}

Result<std::vector<std::unique_ptr<Device>>> MakeDevices(const MeasureOptions& options) {
  std::vector<std::unique_ptr<Device>> devices;
  for (int d = 0; d < options.devices; ++d) {
    PENSTOCK_TRY_ASSIGN(auto device, MakeDevice(options.threads));
    devices.push_back(std::move(device));
  }
  return devices;
}

double Pairs(int64_t rows, int64_t first) {
  return static_cast<double>(rows) *
         (static_cast<double>(first) + static_cast<double>(rows + 1) / 2);
}

}  // namespace

hw::Precision PrecisionOf(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return hw::Precision::kFp32;
    case WeightType::kBF16:
      return hw::Precision::kBf16;
    case WeightType::kInt8:
      return hw::Precision::kInt8;
    case WeightType::kInt4:
      return hw::Precision::kInt4;
  }
  return hw::Precision::kBf16;
}

double Quartile(std::vector<double> samples) {
  PENSTOCK_CHECK(!samples.empty(), "there are samples");
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 4];
}

double TimeOf(double seconds, const std::function<void()>& body) {
  body();
  std::vector<double> samples;
  const Clock::time_point start = Clock::now();
  do {
    const Clock::time_point before = Clock::now();
    body();
    samples.push_back(Since(before));
  } while (Since(start) < seconds || samples.size() < 3);
  return Quartile(std::move(samples));
}

Result<std::vector<hw::ProductTable>> MeasureProducts(const std::vector<ProductShape>& shapes,
                                                      const MeasureOptions& options,
                                                      const MeasureProgress& progress) {
  PENSTOCK_TRY_ASSIGN(auto devices, MakeDevices(options));
  std::vector<hw::ProductTable> tables;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const ProductShape& s = shapes[i];
    if (progress) {
      progress(fmt::format("{} {} x {}", kernels::WeightTypeName(s.type), s.outputs, s.inputs),
               static_cast<double>(i) / static_cast<double>(shapes.size()));
    }
    PENSTOCK_TRY_ASSIGN(hw::ProductTable table, MeasureOne(s, options, devices));
    tables.push_back(std::move(table));
  }
  return tables;
}

Result<std::vector<std::vector<double>>> MeasureThreadScaling(const ProductShape& shape, int cores,
                                                              const MeasureOptions& options) {
  std::vector<std::vector<double>> out;
  std::vector<int> counts;
  for (int threads = 1; threads < cores; threads *= 2) {
    counts.push_back(threads);
  }
  counts.push_back(cores);
  if (counts.size() < 2) {
    return out;
  }
  PENSTOCK_TRY_ASSIGN(auto base, MakeDevice(options.threads));
  MemoryAccount account;
  PENSTOCK_TRY_ASSIGN(const Copies copies, Copies::Load(shape, *base, account));
  for (const int64_t rows : {1, 16, 512}) {
    ProductRun one(shape, copies, *base, rows, 0);
    const double before = LeastOf(4 * options.sample_s, [&] { one(); });
    for (const int threads : counts) {
      if (threads == options.threads) {
        continue;
      }
      PENSTOCK_TRY_ASSIGN(auto device, MakeDevice(threads));
      ProductRun run(shape, copies, *device, rows, 0);
      const double after = LeastOf(4 * options.sample_s, [&] { run(); });
      out.push_back({static_cast<double>(threads), static_cast<double>(rows), before / after});
    }
  }
  return out;
}

Result<double> MeasureSharing(const ProductShape& shape, const MeasureOptions& options) {
  MeasureOptions twice = options;
  twice.devices = 2 * options.devices;
  PENSTOCK_TRY_ASSIGN(auto devices, MakeDevices(twice));
  MemoryAccount account;
  PENSTOCK_TRY_ASSIGN(const Copies copies, Copies::Load(shape, *devices[0], account));
  // Products per second of all devices together.
  const auto rate = [&](int count) {
    std::vector<int64_t> calls(static_cast<size_t>(count), 0);
    std::barrier<> ready(count + 1);
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int d = 0; d < count; ++d) {
      threads.emplace_back([&, d] {
        const auto at = static_cast<size_t>(d);
        ProductRun run(shape, copies, *devices[at], 64,
                       copies.size() * at / static_cast<size_t>(count));
        run();
        ready.arrive_and_wait();
        while (!stop.load(std::memory_order_relaxed)) {
          run();
          ++calls[at];
        }
      });
    }
    ready.arrive_and_wait();
    const Clock::time_point start = Clock::now();
    std::this_thread::sleep_for(std::chrono::duration<double>(8 * options.sample_s));
    stop.store(true);
    const double seconds = Since(start);
    for (std::thread& thread : threads) {
      thread.join();
    }
    int64_t all = 0;
    for (const int64_t n : calls) {
      all += n;
    }
    return static_cast<double>(all) / seconds;
  };
  std::vector<double> ratios;
  for (int i = 0; i < 3; ++i) {
    const double own = rate(options.devices);
    ratios.push_back(own / rate(twice.devices));
  }
  std::sort(ratios.begin(), ratios.end());
  return std::clamp(ratios[1], 1.0, 2.0);
}

Result<std::vector<hw::AttentionTable>> MeasureAttention(const std::vector<AttentionShape>& shapes,
                                                         const MeasureOptions& options) {
  PENSTOCK_TRY_ASSIGN(auto devices, MakeDevices(options));
  std::vector<hw::AttentionTable> tables;
  for (const AttentionShape& shape : shapes) {
    const auto work = static_cast<double>(shape.heads * 2 * shape.head_dim);
    hw::AttentionTable table;
    table.numbers = static_cast<double>(2 * shape.head_dim);
    table.group = static_cast<double>(shape.heads) / static_cast<double>(shape.kv_heads);
    constexpr int64_t kShort = 127;
    constexpr int64_t kLong = 1023;
    PENSTOCK_TRY_ASSIGN(const hw::Shared few, TimeAttention(shape, 1, kShort, options, devices));
    PENSTOCK_TRY_ASSIGN(const hw::Shared many, TimeAttention(shape, 1, kLong, options, devices));
    const double between = Pairs(1, kLong) - Pairs(1, kShort);
    hw::Shared pair{std::max(0.0, many.alone_s - few.alone_s) / between / work,
                    std::max(0.0, many.together_s - few.together_s) / between / work};
    table.slice = {std::max(0.0, few.alone_s - pair.alone_s * work * Pairs(1, kShort)),
                   std::max(0.0, few.together_s - pair.together_s * work * Pairs(1, kShort))};
    std::vector<hw::CurvePoint> alone = {{1, pair.alone_s}};
    std::vector<hw::CurvePoint> together = {{1, pair.together_s}};
    for (const int64_t rows : {32, 128, 512}) {
      PENSTOCK_TRY_ASSIGN(const hw::Shared time, TimeAttention(shape, rows, 0, options, devices));
      const double all = work * Pairs(rows, 0);
      alone.push_back(
          {static_cast<double>(rows), std::max(1e-15, time.alone_s - table.slice.alone_s) / all});
      together.push_back({static_cast<double>(rows),
                          std::max(1e-15, time.together_s - table.slice.together_s) / all});
    }
    PENSTOCK_TRY_ASSIGN(
        table.pair_alone_s,
        hw::Curve::Make(std::move(alone), hw::Curve::Scale::kLogX, "measured attention"));
    PENSTOCK_TRY_ASSIGN(
        table.pair_together_s,
        hw::Curve::Make(std::move(together), hw::Curve::Scale::kLogX, "measured attention"));
    tables.push_back(std::move(table));
  }
  return tables;
}

}  // namespace penstock::cli
