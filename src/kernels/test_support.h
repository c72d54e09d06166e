// What the kernel tests share: weight sources in memory, filled tensors, norms.

#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device.h"

namespace penstock::kernels {

// `count` numbers of mean 0 in [-1, 1], the same for the same seed.
inline std::vector<float> RandomFloats(int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  uint64_t state = seed * 0x9e3779b97f4a7c15U + 1;
  for (float& value : values) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    value = static_cast<float>(static_cast<double>(state >> 11) / 4503599627370496.0 - 1.0);
  }
  return values;
}

inline float RoundToBf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000U);
}

// A float32 matrix in memory.
class FloatSource final : public MatrixSource {
 public:
  FloatSource(std::string name, int64_t rows, int64_t columns, std::vector<float> values)
      : name_(std::move(name)), rows_(rows), columns_(columns), values_(std::move(values)) {}

  const std::string& name() const override { return name_; }

  int64_t rows() const override { return rows_; }

  int64_t columns() const override { return columns_; }

  DType type() const override { return DType::kF32; }

  const std::vector<float>& values() const { return values_; }

  Result<> ReadRows(int64_t begin, int64_t count, std::span<float> out) const override {
    for (int64_t i = 0; i < count * columns_; ++i) {
      const float value = values_[static_cast<size_t>(begin * columns_ + i)];
      if (!std::isfinite(value)) {
        return MakeError(ErrorCode::kCorruptData, "[test] tensor {}, row {}: not finite", name_,
                         begin + i / columns_);
      }
      out[static_cast<size_t>(i)] = value;
    }
    return {};
  }

  std::span<const std::byte> RawRow(int64_t row) const override {
    return std::as_bytes(std::span(values_).subspan(static_cast<size_t>(row * columns_),
                                                    static_cast<size_t>(columns_)));
  }

  void DropPages() const override {}

 private:
  std::string name_;
  int64_t rows_;
  int64_t columns_;
  std::vector<float> values_;
};

// A float32 tensor that owns its memory.
class Filled {
 public:
  Filled(int64_t rows, int64_t columns, float value = 0.0F)
      : rows_(rows), columns_(columns), values_(static_cast<size_t>(rows * columns), value) {}

  Filled(int64_t rows, int64_t columns, std::vector<float> values)
      : rows_(rows), columns_(columns), values_(std::move(values)) {}

  Tensor tensor() { return {values_.data(), DType::kF32, rows_, columns_}; }

  std::span<const float> row(int64_t r) const {
    return std::span(values_).subspan(static_cast<size_t>(r * columns_),
                                      static_cast<size_t>(columns_));
  }

  std::vector<float>& values() { return values_; }

  const std::vector<float>& values() const { return values_; }

 private:
  int64_t rows_;
  int64_t columns_;
  std::vector<float> values_;
};

// Bytes that a kernel may use as its workspace, 64-byte aligned.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) : bytes_(bytes), storage_(static_cast<size_t>(bytes + 64)) {}

  Tensor tensor() {
    void* start = storage_.data();
    size_t space = storage_.size();
    std::align(64, static_cast<size_t>(bytes_), start, space);
    return {start, DType::kU8, 1, bytes_};
  }

 private:
  int64_t bytes_;
  std::vector<std::byte> storage_;
};

// L2 norm of the difference over L2 norm of the reference.
template <class A, class B>
double RelativeError(const A& got, const B& reference) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double d = static_cast<double>(got[i]) - static_cast<double>(reference[i]);
    difference += d * d;
    norm += static_cast<double>(reference[i]) * static_cast<double>(reference[i]);
  }
  return std::sqrt(difference / norm);
}

inline std::vector<double> Doubles(std::span<const float> x) {
  return {x.begin(), x.end()};
}

inline std::unique_ptr<Device> MakeDevice(int threads = 1) {
  CpuOptions options;
  options.threads = threads;
  Result<std::unique_ptr<Device>> device = CreateCpuDevice(options);
  PENSTOCK_CHECK(device.ok(), "the machine has a device");
  return std::move(device).value();
}

}  // namespace penstock::kernels
