#include "hw/system.h"

#include <algorithm>
#include <filesystem>

#include "base/config_path.h"

namespace penstock::hw {
namespace {

constexpr double kMaxBytes = 1e18;
constexpr double kMaxRate = 1e18;
constexpr double kMaxSeconds = 1e4;
constexpr double kMaxLatency = 1;  // of a message: around the globe takes 0.2 s

Result<Curve> ReadRows(const TomlTable& table, const std::string& key, Curve::Scale scale) {
  PENSTOCK_TRY_ASSIGN(const auto rows, table.RowsOr(key, 2));
  std::vector<CurvePoint> points;
  for (const auto& row : rows) {
    if (row[1] < 0) {
      return MakeError(ErrorCode::kInvalidArgument, "[hw.system] {}: got {}, wanted no negatives",
                       table.Place(key), row[1]);
    }
    points.push_back({row[0], row[1]});
  }
  return Curve::Make(std::move(points), scale, table.Place(key));
}

// A number from 0 to 1, or rows [GFLOP, share].
Result<Curve> ReadEfficiency(const TomlTable& table, const std::string& key) {
  if (table.IsNumber(key)) {
    PENSTOCK_TRY_ASSIGN(const double share, table.Number(key, 1e-4, 1));
    return Curve(share);
  }
  PENSTOCK_TRY_ASSIGN(Curve curve, ReadRows(table, key, Curve::Scale::kLogX));
  for (const CurvePoint& point : curve.points()) {
    if (point.y <= 0 || point.y > 1) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[hw.system] {}: an efficiency of {}, wanted above 0 and at most 1",
                       table.Place(key), point.y);
    }
  }
  return curve;
}

Result<Calibration> ReadCalibration(const TomlTable& table, const Device& device) {
  Calibration c;
  if (table.Has("matrix_efficiency")) {
    PENSTOCK_TRY_ASSIGN(c.matrix_efficiency, ReadEfficiency(table, "matrix_efficiency"));
  }
  PENSTOCK_TRY_ASSIGN(const TomlTable by_precision, table.Table("matrix_efficiency_by_precision"));
  for (const std::string& key : by_precision.keys()) {
    const auto precision = ParsePrecision(key);
    if (!precision.ok()) {
      return MakeError(ErrorCode::kInvalidArgument, "[hw.system] {}: {}", by_precision.Place(key),
                       precision.error().message);
    }
    PENSTOCK_TRY_ASSIGN(Curve curve, ReadEfficiency(by_precision, key));
    c.matrix_efficiency_by_precision[precision.value()] = std::move(curve);
  }
  const auto share = [&](std::string_view key, double& value, double low) -> Result<> {
    PENSTOCK_TRY_ASSIGN(value, table.NumberOr(key, value, low, 1));
    return {};
  };
  const auto seconds = [&](std::string_view key, double& value) -> Result<> {
    PENSTOCK_TRY_ASSIGN(value, table.NumberOr(key, value, 0, kMaxSeconds));
    return {};
  };
  PENSTOCK_TRY(share("attention_efficiency", c.attention_efficiency, 1e-4));
  PENSTOCK_TRY(share("memory_efficiency", c.memory_efficiency, 1e-4));
  PENSTOCK_TRY(share("exposed_data_parallel", c.exposed_data_parallel, 0));
  PENSTOCK_TRY(share("exposed_tensor_parallel", c.exposed_tensor_parallel, 0));
  PENSTOCK_TRY(share("exposed_hop", c.exposed_hop, 0));
  PENSTOCK_TRY(seconds("operation_overhead_s", c.operation_overhead_s));
  PENSTOCK_TRY(seconds("layer_overhead_s", c.layer_overhead_s));
  PENSTOCK_TRY(seconds("fixed_per_step_s", c.fixed_per_step_s));
  PENSTOCK_TRY_ASSIGN(c.attention_score_bytes, table.NumberOr("attention_score_bytes", 0, 0, 1000));
  PENSTOCK_TRY(share("activations_through_memory", c.activations_through_memory, 0));
  if (table.Has("memory_reserve_bytes")) {
    PENSTOCK_TRY_ASSIGN(c.memory_reserve_bytes,
                        table.Number("memory_reserve_bytes", 0, device.memory_bytes));
  }
  PENSTOCK_TRY_ASSIGN(c.skips_masked_attention,
                      table.BoolOr("skips_masked_attention", c.skips_masked_attention));
  PENSTOCK_TRY_ASSIGN(c.fitted_on, table.StringsOr("fitted_on"));
  PENSTOCK_TRY_ASSIGN(c.source, table.StringOr("source", ""));
  return c;
}

Result<Device> ReadDevice(const TomlTable& table) {
  Device d;
  PENSTOCK_TRY_ASSIGN(d.name, table.String("name"));
  PENSTOCK_TRY_ASSIGN(d.memory_bytes, table.Number("memory_bytes", 1e6, kMaxBytes));
  PENSTOCK_TRY_ASSIGN(d.memory_reserve_bytes,
                      table.NumberOr("memory_reserve_bytes", 0.05 * d.memory_bytes, 0, kMaxBytes));
  if (d.memory_reserve_bytes >= d.memory_bytes) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[hw.system] {}: got {}, wanted less than memory_bytes ({})",
                     table.Place("memory_reserve_bytes"), d.memory_reserve_bytes, d.memory_bytes);
  }
  PENSTOCK_TRY_ASSIGN(d.memory_bandwidth,
                      table.Number("memory_bandwidth_bytes_per_s", 1e6, kMaxRate));
  PENSTOCK_TRY_ASSIGN(d.power_w, table.NumberOr("power_w", 0, 0, 1e6));
  PENSTOCK_TRY_ASSIGN(d.source, table.StringOr("source", ""));
  PENSTOCK_TRY_ASSIGN(const TomlTable peaks, table.Table("peak_flops_per_s"));
  for (const std::string& key : peaks.keys()) {
    const auto precision = ParsePrecision(key);
    if (!precision.ok()) {
      return MakeError(ErrorCode::kInvalidArgument, "[hw.system] {}: {}", peaks.Place(key),
                       precision.error().message);
    }
    PENSTOCK_TRY_ASSIGN(d.peak_flops[precision.value()], peaks.Number(key, 1e6, kMaxRate));
  }
  if (d.peak_flops.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[hw.system] {}: no rate, wanted at least one of fp32, bf16, fp16 (FLOP/s)",
                     table.Place("peak_flops_per_s"));
  }
  return d;
}

Result<LinkLevel> ReadLink(const TomlTable& table) {
  LinkLevel l;
  PENSTOCK_TRY_ASSIGN(l.name, table.String("name"));
  PENSTOCK_TRY_ASSIGN(l.span, table.IntOr("span_devices", 0, 2, int64_t{1} << 40));
  PENSTOCK_TRY_ASSIGN(l.latency_s, table.Number("latency_s", 0, kMaxLatency));
  PENSTOCK_TRY_ASSIGN(l.bandwidth, table.Number("bandwidth_bytes_per_s", 1e3, kMaxRate));
  PENSTOCK_TRY_ASSIGN(l.collective_latency_s,
                      table.NumberOr("collective_latency_s", 2 * l.latency_s, 0, 2 * kMaxLatency));
  PENSTOCK_TRY_ASSIGN(
      l.collective_step_latency_s,
      table.NumberOr("collective_step_latency_s", 2 * l.latency_s, 0, 2 * kMaxLatency));
  PENSTOCK_TRY_ASSIGN(l.collective_efficiency, table.NumberOr("collective_efficiency", 1, 1e-3, 1));
  PENSTOCK_TRY_ASSIGN(l.source, table.StringOr("source", ""));
  if (table.Has("message_s")) {
    PENSTOCK_TRY_ASSIGN(l.message_s, ReadRows(table, "message_s", Curve::Scale::kLinear));
  }
  PENSTOCK_TRY_ASSIGN(const auto rows, table.RowsOr("all_reduce_s", 3));
  std::map<int64_t, std::vector<CurvePoint>> by_devices;
  for (const auto& row : rows) {
    if (row[0] < 2 || row[2] < 0) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[hw.system] {}: a row of {} devices and {} s, wanted [devices >= 2, bytes, "
                       "seconds >= 0]",
                       table.Place("all_reduce_s"), row[0], row[2]);
    }
    by_devices[static_cast<int64_t>(row[0])].push_back({row[1], row[2]});
  }
  for (auto& [devices, points] : by_devices) {
    PENSTOCK_TRY_ASSIGN(
        l.all_reduce_s[devices],
        Curve::Make(std::move(points), Curve::Scale::kLinear, table.Place("all_reduce_s")));
  }
  return l;
}

Result<> CheckLinks(const TomlTable& file, const std::vector<LinkLevel>& links) {
  if (links.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[hw.system] {}: no [[link]], wanted one level at least", file.source());
  }
  for (size_t i = 0; i < links.size(); ++i) {
    const bool last = i + 1 == links.size();
    if (last != (links[i].span == 0)) {
      return MakeError(ErrorCode::kInvalidArgument, "[hw.system] {}: link '{}': {}", file.source(),
                       links[i].name,
                       last ? "span_devices on the last level, wanted none there (it joins any "
                              "number)"
                            : "no span_devices, wanted the number of devices that it joins");
    }
    if (i > 0 && !last && links[i].span <= links[i - 1].span) {
      return MakeError(
          ErrorCode::kInvalidArgument,
          "[hw.system] {}: link '{}' joins {} devices, wanted more than the {} of '{}'",
          file.source(), links[i].name, links[i].span, links[i - 1].span, links[i - 1].name);
    }
  }
  return {};
}

}  // namespace

std::pair<Precision, double> Device::Rate(Precision stored) const {
  const auto chain = [](Precision p) -> std::vector<Precision> {
    switch (p) {
      case Precision::kFp4:
        return {Precision::kFp4, Precision::kFp8, Precision::kBf16, Precision::kFp16,
                Precision::kFp32};
      case Precision::kFp8:
        return {Precision::kFp8, Precision::kBf16, Precision::kFp16, Precision::kFp32};
      case Precision::kInt4:
        return {Precision::kInt4, Precision::kBf16, Precision::kFp16, Precision::kInt8,
                Precision::kFp32};
      case Precision::kInt8:
        return {Precision::kInt8, Precision::kBf16, Precision::kFp16, Precision::kFp32};
      case Precision::kBf16:
        return {Precision::kBf16, Precision::kFp16, Precision::kFp32};
      case Precision::kFp16:
        return {Precision::kFp16, Precision::kBf16, Precision::kFp32};
      case Precision::kFp32:
        return {Precision::kFp32, Precision::kBf16, Precision::kFp16};
    }
    return {};
  };
  for (const Precision p : chain(stored)) {
    if (const auto it = peak_flops.find(p); it != peak_flops.end()) {
      return {p, it->second};
    }
  }
  return *peak_flops.begin();
}

void System::TakeReserve(const Calibration& calibration) {
  device.memory_reserve_bytes =
      calibration.memory_reserve_bytes.value_or(device.memory_reserve_bytes);
}

const LinkLevel& System::LevelFor(int64_t extent) const {
  for (const LinkLevel& level : links) {
    if (level.span == 0 || extent <= level.span) {
      return level;
    }
  }
  return links.back();
}

Result<System> ParseSystem(const TomlTable& file, const std::string& name) {
  System s;
  s.name = name;
  PENSTOCK_TRY_ASSIGN(s.title, file.StringOr("title", name));
  PENSTOCK_TRY_ASSIGN(s.provenance, file.StringOr("provenance", ""));
  PENSTOCK_TRY_ASSIGN(const TomlTable device, file.Table("device"));
  PENSTOCK_TRY_ASSIGN(s.device, ReadDevice(device));
  PENSTOCK_TRY_ASSIGN(const auto links, file.Tables("link"));
  for (const TomlTable& link : links) {
    PENSTOCK_TRY_ASSIGN(LinkLevel level, ReadLink(link));
    s.links.push_back(std::move(level));
  }
  PENSTOCK_TRY(CheckLinks(file, s.links));
  PENSTOCK_TRY_ASSIGN(const TomlTable host, file.Table("host"));
  PENSTOCK_TRY_ASSIGN(s.host_memory_bytes,
                      host.NumberOr("memory_bytes_per_device", 0, 0, kMaxBytes));
  PENSTOCK_TRY_ASSIGN(s.host_source, host.StringOr("source", ""));
  PENSTOCK_TRY_ASSIGN(const TomlTable price, file.Table("price"));
  PENSTOCK_TRY_ASSIGN(s.price_usd_per_device_hour,
                      price.NumberOr("usd_per_device_hour", 0, 0, 1e6));
  PENSTOCK_TRY_ASSIGN(s.price_source, price.StringOr("source", ""));
  PENSTOCK_TRY_ASSIGN(const TomlTable inference, file.Table("inference"));
  PENSTOCK_TRY_ASSIGN(s.inference, ReadCalibration(inference, s.device));
  PENSTOCK_TRY_ASSIGN(const TomlTable training, file.Table("training"));
  PENSTOCK_TRY_ASSIGN(s.training, ReadCalibration(training, s.device));
  if (file.Has("engine")) {
    PENSTOCK_TRY_ASSIGN(const TomlTable engine, file.Table("engine"));
    PENSTOCK_TRY_ASSIGN(s.engine, ReadEngine(engine));
  }
  PENSTOCK_TRY(file.NoUnknownKeys());
  return s;
}

Result<System> ReadSystem(const std::string& name_or_path) {
  PENSTOCK_TRY_ASSIGN(const std::string path, FindConfig("systems", "toml", name_or_path));
  PENSTOCK_TRY_ASSIGN(const TomlTable file, ReadTomlFile(path));
  PENSTOCK_TRY_ASSIGN(System system,
                      ParseSystem(file, std::filesystem::path(path).stem().string()));
  system.path = path;
  return system;
}

}  // namespace penstock::hw
