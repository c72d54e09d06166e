// The costs file: TOML, see docs/formats.md.

#include <fmt/format.h>

#include "base/file.h"
#include "base/toml.h"
#include "cost/cost_model.h"

namespace penstock::cost {
namespace {

constexpr double kMostSeconds = 1e9;
constexpr double kMostBytesPerSecond = 1e18;
constexpr int64_t kMostBytes = int64_t{1} << 40;  // of a micro-batch: sums over millions fit
constexpr int64_t kMostMemoryBytes = int64_t{1} << 56;
constexpr size_t kMostParts = schedule::kMaxStages;

Result<StageCost> ReadPart(const TomlTable& table) {
  StageCost part;
  PENSTOCK_TRY_ASSIGN(part.f_s, table.Number("f_s", 0, kMostSeconds));
  PENSTOCK_TRY_ASSIGN(part.i_s, table.NumberOr("i_s", 0, 0, kMostSeconds));
  PENSTOCK_TRY_ASSIGN(part.w_s, table.NumberOr("w_s", 0, 0, kMostSeconds));
  PENSTOCK_TRY_ASSIGN(part.r_s, table.NumberOr("r_s", part.f_s, 0, kMostSeconds));
  PENSTOCK_TRY_ASSIGN(part.optimizer_s, table.NumberOr("optimizer_s", 0, 0, kMostSeconds));
  PENSTOCK_TRY_ASSIGN(part.activation_bytes, table.IntOr("activation_bytes", 0, 0, kMostBytes));
  PENSTOCK_TRY_ASSIGN(part.output_bytes, table.IntOr("output_bytes", 0, 0, kMostBytes));
  PENSTOCK_TRY_ASSIGN(part.gradient_bytes,
                      table.IntOr("gradient_bytes", part.output_bytes, 0, kMostBytes));
  return part;
}

Result<> ReadLink(const TomlTable& table, CostModel& model) {
  LinkCost link;
  PENSTOCK_TRY_ASSIGN(link.latency_s, table.NumberOr("latency_s", 0, 0, kMostSeconds));
  PENSTOCK_TRY_ASSIGN(link.bytes_per_s, table.NumberOr("bytes_per_s", 0, 0, kMostBytesPerSecond));
  PENSTOCK_TRY_ASSIGN(link.occupied, table.BoolOr("occupied", false));
  if (!table.Has("from") && !table.Has("to")) {
    model.link = link;
    return {};
  }
  PENSTOCK_TRY_ASSIGN(const int64_t from, table.Int("from", 0, schedule::kMaxStages));
  PENSTOCK_TRY_ASSIGN(const int64_t to, table.Int("to", 0, schedule::kMaxStages));
  model.links[{static_cast<int>(from), static_cast<int>(to)}] = link;
  return {};
}

}  // namespace

Result<CostFile> ParseCostFile(std::string_view text, const std::string& source) {
  PENSTOCK_TRY_ASSIGN(const TomlTable file, ParseToml(text, source));
  CostFile out;
  out.source = source;
  PENSTOCK_TRY_ASSIGN(const std::vector<TomlTable> parts, file.Tables("stage"));
  if (parts.empty() || parts.size() > kMostParts) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cost.file] {}: {} tables [[stage]], wanted 1 to {}", source, parts.size(),
                     kMostParts);
  }
  for (const TomlTable& table : parts) {
    PENSTOCK_TRY_ASSIGN(StageCost part, ReadPart(table));
    out.model.stages.push_back(part);
  }
  if (file.IsTable("link")) {
    PENSTOCK_TRY_ASSIGN(const TomlTable table, file.Table("link"));
    PENSTOCK_TRY(ReadLink(table, out.model));
  } else {
    PENSTOCK_TRY_ASSIGN(const std::vector<TomlTable> links, file.Tables("link"));
    for (const TomlTable& table : links)
      PENSTOCK_TRY(ReadLink(table, out.model));
  }
  PENSTOCK_TRY_ASSIGN(out.model.memory_bytes, file.IntsOr("memory_bytes", 1, kMostMemoryBytes));
  PENSTOCK_TRY_ASSIGN(out.model.micro_batch_scale, file.NumbersOr("micro_batch_scale", 0, 1e6));
  PENSTOCK_TRY(file.NoUnknownKeys());
  return out;
}

Result<CostFile> ReadCostFile(const std::string& path) {
  PENSTOCK_TRY_ASSIGN(const std::string text, ReadFile(path, size_t{16} << 20));
  return ParseCostFile(text, path);
}

namespace {

void AppendLink(std::string& out, const LinkCost& link) {
  out += fmt::format("latency_s = {}\nbytes_per_s = {}\n", link.latency_s, link.bytes_per_s);
  if (link.occupied)
    out += "occupied = true\n";
}

template <class T>
void AppendList(std::string& out, std::string_view key, const std::vector<T>& values) {
  if (!values.empty())
    out += fmt::format("{} = [{}]\n", key, fmt::join(values, ", "));
}

}  // namespace

std::string FormatCostFile(const CostModel& model, std::string_view comment) {
  std::string out;
  while (!comment.empty()) {
    const size_t end = comment.find('\n');
    out += fmt::format("# {}\n", comment.substr(0, end));
    comment.remove_prefix(end == std::string_view::npos ? comment.size() : end + 1);
  }
  AppendList(out, "memory_bytes", model.memory_bytes);
  AppendList(out, "micro_batch_scale", model.micro_batch_scale);
  out += "\n[[link]]\n";
  AppendLink(out, model.link);
  for (const auto& [pair, link] : model.links) {
    out += fmt::format("\n[[link]]\nfrom = {}\nto = {}\n", pair.first, pair.second);
    AppendLink(out, link);
  }
  for (const StageCost& stage : model.stages) {
    out += fmt::format("\n[[stage]]\nf_s = {}\ni_s = {}\nw_s = {}\nr_s = {}\n", stage.f_s,
                       stage.i_s, stage.w_s, stage.r_s);
    if (stage.optimizer_s != 0)
      out += fmt::format("optimizer_s = {}\n", stage.optimizer_s);
    out += fmt::format("activation_bytes = {}\n", stage.activation_bytes);
    if (stage.output_bytes != 0 || stage.gradient_bytes != 0) {
      out += fmt::format("output_bytes = {}\ngradient_bytes = {}\n", stage.output_bytes,
                         stage.gradient_bytes);
    }
  }
  return out;
}

}  // namespace penstock::cost
