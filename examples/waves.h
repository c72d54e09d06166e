// Weights for the examples: numbers from a formula instead of a file.

#pragma once

#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/json.h"
#include "weights/model_files.h"

namespace penstock {

struct Waves final : public MatrixSource {
  const std::string& name() const override { return name_; }

  int64_t rows() const override { return rows_; }

  int64_t columns() const override { return columns_; }

  DType type() const override { return DType::kF32; }

  Result<> ReadRows(int64_t begin, int64_t count, std::span<float> out) const override {
    for (int64_t i = 0; i < count * columns_; ++i) {
      out[static_cast<size_t>(i)] =
          0.2F * std::sin(0.7F * static_cast<float>(begin * columns_ + i));
    }
    return {};
  }

  std::span<const std::byte> RawRow(int64_t) const override { return {}; }

  void DropPages() const override {}

  std::string name_;
  int64_t rows_ = 0, columns_ = 0;
};

struct WaveFiles final : public weights::ModelFiles {
  weights::ModelKind kind() const override { return weights::ModelKind::kFolder; }

  const std::string& path() const override { return text_; }

  const Json& config() const override { return json_; }

  const Json& generation_config() const override { return json_; }

  const std::vector<weights::StoredTensor>& tensors() const override { return none_; }

  int64_t file_bytes() const override { return 0; }

  bool Has(std::string_view) const override { return true; }

  Result<std::unique_ptr<MatrixSource>> Source(std::string_view name,
                                               std::span<const int64_t> shape) const override {
    auto waves = std::make_unique<Waves>();
    std::tie(waves->name_, waves->rows_, waves->columns_) =
        std::tuple(std::string(name), shape.size() > 1 ? shape[0] : 1, shape.back());
    return std::unique_ptr<MatrixSource>(std::move(waves));
  }

  Result<weights::TokenizerMaterial> Tokenizer() const override {
    return MakeError(ErrorCode::kNotFound, "[example] there is no tokenizer");
  }

  std::string text_ = "waves";
  Json json_;
  std::vector<weights::StoredTensor> none_;
};

}  // namespace penstock
