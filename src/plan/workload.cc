#include "plan/workload.h"

#include <cmath>
#include <filesystem>

#include "base/config_path.h"

namespace penstock::plan {
namespace {

constexpr double kMaxTokens = 1e9;

Result<Length> ReadLength(const TomlTable& table, const std::string& key) {
  Length length;
  if (!table.IsTable(key)) {
    PENSTOCK_TRY_ASSIGN(length.mean, table.Number(key, 1, kMaxTokens));
    length.p50 = length.p90 = length.p99 = length.mean;
    return length;
  }
  PENSTOCK_TRY_ASSIGN(const TomlTable parts, table.Table(key));
  PENSTOCK_TRY_ASSIGN(length.mean, parts.Number("mean", 1, kMaxTokens));
  PENSTOCK_TRY_ASSIGN(length.p50, parts.NumberOr("p50", length.mean, 1, kMaxTokens));
  PENSTOCK_TRY_ASSIGN(length.p90,
                      parts.NumberOr("p90", std::max(length.mean, length.p50), 1, kMaxTokens));
  PENSTOCK_TRY_ASSIGN(length.p99, parts.NumberOr("p99", length.p90, 1, kMaxTokens));
  if (!(length.p50 <= length.p90 && length.p90 <= length.p99)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[plan.workload] {}: p50 {}, p90 {}, p99 {}, wanted them to ascend",
                     table.Place(key), length.p50, length.p90, length.p99);
  }
  return length;
}

Result<hw::Precision> ReadPrecision(const TomlTable& table, const std::string& key,
                                    hw::Precision fallback) {
  PENSTOCK_TRY_ASSIGN(const std::string name,
                      table.StringOr(key, std::string(hw::PrecisionName(fallback))));
  const auto precision = hw::ParsePrecision(name);
  if (!precision.ok()) {
    return MakeError(ErrorCode::kInvalidArgument, "[plan.workload] {}: {}", table.Place(key),
                     precision.error().message);
  }
  return precision.value();
}

Result<InferenceWorkload> ReadInference(const TomlTable& table) {
  InferenceWorkload w;
  PENSTOCK_TRY_ASSIGN(w.prompt_tokens, ReadLength(table, "prompt_tokens"));
  PENSTOCK_TRY_ASSIGN(w.output_tokens, ReadLength(table, "output_tokens"));
  PENSTOCK_TRY_ASSIGN(w.sequences, table.NumberOr("sequences", 0, 0, 1e9));
  PENSTOCK_TRY_ASSIGN(w.requests_per_s, table.NumberOr("requests_per_s", 0, 0, 1e9));
  if (w.sequences != std::floor(w.sequences)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[plan.workload] {}: got {}, wanted a whole number of sequences",
                     table.Place("sequences"), w.sequences);
  }
  if (w.requests_per_s > 0) {
    w.sequences = 0;
  }
  if (w.sequences < 1 && w.requests_per_s <= 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[plan.workload] {}: neither sequences nor requests_per_s, wanted one of them "
                     "above 0",
                     table.Place("sequences"));
  }
  PENSTOCK_TRY_ASSIGN(w.max_ttft_s, table.NumberOr("max_ttft_s", 0, 0, 1e9));
  PENSTOCK_TRY_ASSIGN(w.max_tpot_s, table.NumberOr("max_tpot_s", 0, 0, 1e9));
  w.precision_given = table.Has("precision");
  PENSTOCK_TRY_ASSIGN(w.precision, ReadPrecision(table, "precision", hw::Precision::kBf16));
  PENSTOCK_TRY_ASSIGN(w.kv_precision, ReadPrecision(table, "kv_precision", hw::Precision::kBf16));
  return w;
}

Result<TrainingWorkload> ReadTraining(const TomlTable& table) {
  TrainingWorkload w;
  PENSTOCK_TRY_ASSIGN(w.global_batch, table.Int("global_batch", 1, int64_t{1} << 40));
  PENSTOCK_TRY_ASSIGN(w.sequence_tokens, table.Int("sequence_tokens", 1, int64_t{1} << 30));
  PENSTOCK_TRY_ASSIGN(w.precision, ReadPrecision(table, "precision", hw::Precision::kBf16));
  PENSTOCK_TRY_ASSIGN(w.optimizer, table.ChoiceOr("optimizer", "adam", {"adam", "sgd"}));
  PENSTOCK_TRY_ASSIGN(w.fp32_gradients, table.BoolOr("fp32_gradients", true));
  return w;
}

}  // namespace

double Length::variation() const {
  if (p90 <= p50 || p50 <= 0) {
    return 0;
  }
  const double sigma = std::log(p90 / p50) / 1.2815515655446004;  // 90th percentile of a normal
  return std::exp(sigma * sigma) - 1;
}

Result<Workload> ReadWorkload(const std::string& name_or_path, const std::string& mode,
                              const std::vector<std::string>& sets) {
  PENSTOCK_TRY_ASSIGN(const std::string path, FindConfig("workloads", "toml", name_or_path));
  PENSTOCK_TRY_ASSIGN(TomlTable file, ReadTomlFile(path));
  std::string chosen = mode;
  if (chosen.empty()) {
    const bool inference = file.Has("inference");
    const bool training = file.Has("training");
    if (inference == training) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[plan.workload] {}: {} of the sections [inference] and [training], wanted "
                       "one, or --mode",
                       path, inference ? "both" : "none");
    }
    chosen = inference ? "inference" : "training";
  }
  for (const std::string& set : sets) {
    const size_t equals = set.find('=');
    if (equals == std::string::npos) {
      const bool file_name =
          set == "training" || set == "inference" || FindConfig("workloads", "toml", set).ok();
      return MakeError(ErrorCode::kInvalidArgument, "[plan.workload] -W {}: wanted key=value{}",
                       set, file_name ? "; a workload by name is --workload (-w) " + set : "");
    }
    const bool dotted = set.substr(0, equals).starts_with("inference.") ||
                        set.substr(0, equals).starts_with("training.");
    if (dotted && !set.starts_with(chosen + ".")) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[plan.workload] -W {}: the workload is {}, wanted a key of [{}]", set,
                       chosen, chosen);
    }
    PENSTOCK_TRY(file.Set(dotted ? set : chosen + "." + set, "-W " + set));
    if (set.starts_with("sequences=") && set != "sequences=0" && chosen == "inference") {
      PENSTOCK_TRY(file.Set("inference.requests_per_s=0", "-W"));
    }
  }
  Workload w;
  w.name = std::filesystem::path(path).stem().string();
  w.mode = chosen == "training" ? Mode::kTraining : Mode::kInference;
  if (!file.Has(chosen)) {
    return MakeError(ErrorCode::kInvalidArgument, "[plan.workload] {}: no section [{}]", path,
                     chosen);
  }
  PENSTOCK_TRY_ASSIGN(const TomlTable section, file.Table(chosen));
  if (w.mode == Mode::kTraining) {
    PENSTOCK_TRY_ASSIGN(w.training, ReadTraining(section));
  } else {
    PENSTOCK_TRY_ASSIGN(w.inference, ReadInference(section));
  }
  // The other mode's section may stand beside; its keys are not this run's business.
  const bool other = file.Has(chosen == "training" ? "inference" : "training");
  (void)other;
  PENSTOCK_TRY(file.NoUnknownKeys());
  return w;
}

}  // namespace penstock::plan
