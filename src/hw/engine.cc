#include "hw/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace penstock::hw {
namespace {

constexpr double kMaxSeconds = 1e4;

// Rows [x, alone, together] as two curves over x.
Result<std::pair<Curve, Curve>> ReadPair(const TomlTable& table, const std::string& key) {
  PENSTOCK_TRY_ASSIGN(const auto rows, table.RowsOr(key, 3));
  std::vector<CurvePoint> alone;
  std::vector<CurvePoint> together;
  for (const auto& row : rows) {
    if (row[0] <= 0 || !(row[1] > 0) || !(row[2] > 0) || row[1] > kMaxSeconds ||
        row[2] > kMaxSeconds) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[hw.engine] {}: a row of {}, {} s and {} s, wanted [rows > 0, seconds > 0, "
                       "seconds > 0]",
                       table.Place(key), row[0], row[1], row[2]);
    }
    alone.push_back({row[0], row[1]});
    together.push_back({row[0], std::max(row[1], row[2])});
  }
  const auto scale = key == "pair_s" ? Curve::Scale::kLogX : Curve::Scale::kLinear;
  std::pair<Curve, Curve> out;
  PENSTOCK_TRY_ASSIGN(out.first, Curve::Make(std::move(alone), scale, table.Place(key)));
  PENSTOCK_TRY_ASSIGN(out.second, Curve::Make(std::move(together), scale, table.Place(key)));
  return out;
}

// A list of two numbers.
Result<Shared> ReadShared(const TomlTable& table, const std::string& key) {
  PENSTOCK_TRY_ASSIGN(const auto numbers, table.NumbersOr(key, 0, kMaxSeconds));
  if (numbers.size() != 2) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[hw.engine] {}: {} numbers, wanted two: alone and together", table.Place(key),
                     numbers.size());
  }
  return Shared{numbers[0], std::max(numbers[0], numbers[1])};
}

Result<Curve> ReadMessages(const TomlTable& table, const std::string& key,
                           Curve::Scale scale = Curve::Scale::kLinear) {
  if (!table.Has(key)) {
    return Curve();
  }
  PENSTOCK_TRY_ASSIGN(const auto rows, table.RowsOr(key, 2));
  std::vector<CurvePoint> points;
  for (const auto& row : rows) {
    points.push_back({row[0], row[1]});
  }
  return Curve::Make(std::move(points), scale, table.Place(key));
}

Result<Precision> ReadWeights(const TomlTable& table) {
  PENSTOCK_TRY_ASSIGN(const std::string name, table.String("weights"));
  const auto precision = ParsePrecision(name);
  if (!precision.ok()) {
    return MakeError(ErrorCode::kInvalidArgument, "[hw.engine] {}: {}", table.Place("weights"),
                     precision.error().message);
  }
  return precision.value();
}

// The measured type whose kernels would serve: its own, else the next wider or nearest one.
Precision Nearest(const std::vector<ProductTable>& products, Precision wanted) {
  const auto has = [&](Precision p) {
    return std::any_of(products.begin(), products.end(),
                       [p](const ProductTable& t) { return t.weights == p; });
  };
  const auto chain = [wanted]() -> std::vector<Precision> {
    switch (wanted) {
      case Precision::kFp4:
      case Precision::kInt4:
        return {Precision::kInt4, Precision::kInt8, Precision::kBf16, Precision::kFp32};
      case Precision::kFp8:
      case Precision::kInt8:
        return {Precision::kInt8, Precision::kBf16, Precision::kFp32};
      case Precision::kFp16:
      case Precision::kBf16:
        return {Precision::kBf16, Precision::kFp32, Precision::kInt8};
      case Precision::kFp32:
        break;
    }
    return {Precision::kFp32, Precision::kBf16};
  }();
  for (const Precision p : chain) {
    if (has(p)) {
      return p;
    }
  }
  return products.front().weights;
}

std::string FormatPair(const Curve& alone, const Curve& together) {
  std::string text = "[";
  for (size_t i = 0; i < alone.points().size(); ++i) {
    text += fmt::format("{}[{:g}, {:.4e}, {:.4e}]", i > 0 ? ", " : "", alone.points()[i].x,
                        alone.points()[i].y, together.points()[i].y);
  }
  return text + "]";
}

std::string FormatShared(const Shared& s) {
  return fmt::format("[{:.4e}, {:.4e}]", s.alone_s, s.together_s);
}

std::string FormatMessages(const Curve& curve) {
  std::string text = "[";
  for (size_t i = 0; i < curve.points().size(); ++i) {
    text += fmt::format("{}[{:.0f}, {:.4e}]", i > 0 ? ", " : "", curve.points()[i].x,
                        curve.points()[i].y);
  }
  return text + "]";
}

}  // namespace

Shared Engine::ProductSeconds(Precision weights, double outputs, double inputs, double rows) const {
  if (rows <= 0 || outputs <= 0 || inputs <= 0) {
    return {};
  }
  const Precision type = Nearest(products, weights);
  // Inverse squares of distances over the logarithms of outputs and inputs: exact at a measured
  // shape, between its neighbours elsewhere.
  Shared sum;
  double all = 0;
  for (const ProductTable& table : products) {
    if (table.weights != type) {
      continue;
    }
    const double x = std::log(outputs / table.outputs);
    const double y = std::log(inputs / table.inputs);
    const double distance = x * x + y * y;
    const double scale = outputs * inputs / (table.outputs * table.inputs);
    if (distance < 1e-9) {
      return scale * table.At(rows);
    }
    const double weight = 1 / (distance * distance);
    sum += weight * scale * table.At(rows);
    all += weight;
  }
  return all > 0 ? 1 / all * sum : sum;
}

Shared Engine::AttentionSeconds(double heads, double kv_heads, double numbers, double rows,
                                double pairs) const {
  if (attention.empty() || rows <= 0) {
    return {};
  }
  const double group = kv_heads > 0 ? heads / kv_heads : 1;
  const auto distance = [&](const AttentionTable& a) {
    const double x = std::log(a.group / group);
    const double y = std::log(a.numbers / std::max(1.0, numbers));
    return x * x + y * y;
  };
  const auto nearest = std::min_element(
      attention.begin(), attention.end(),
      [&](const AttentionTable& a, const AttentionTable& b) { return distance(a) < distance(b); });
  const double work = heads * numbers * pairs;
  return {nearest->slice.alone_s + work * nearest->pair_alone_s.At(rows),
          nearest->slice.together_s + work * nearest->pair_together_s.At(rows)};
}

double Engine::Speedup(int64_t count, double rows) const {
  if (count == threads) {
    return 1;
  }
  double best = 1;
  double distance = -1;
  for (const auto& row : thread_speedup) {
    if (static_cast<int64_t>(row[0]) != count) {
      continue;
    }
    const double d = std::abs(std::log(row[1] / std::max(1.0, rows)));
    if (distance < 0 || d < distance) {
      distance = d;
      best = row[2];
    }
  }
  return best;
}

Result<Engine> ReadEngine(const TomlTable& table) {
  Engine e;
  PENSTOCK_TRY_ASSIGN(e.instruction_set, table.StringOr("instruction_set", ""));
  PENSTOCK_TRY_ASSIGN(e.version, table.StringOr("version", ""));
  PENSTOCK_TRY_ASSIGN(e.source, table.StringOr("source", ""));
  PENSTOCK_TRY_ASSIGN(e.threads, table.Int("threads", 1, 4096));
  PENSTOCK_TRY_ASSIGN(e.cores, table.Int("cores", 1, 65536));
  PENSTOCK_TRY_ASSIGN(e.operation, ReadShared(table, "operation_s"));
  PENSTOCK_TRY_ASSIGN(e.element, ReadShared(table, "element_s"));
  PENSTOCK_TRY_ASSIGN(e.logit, ReadShared(table, "logit_s"));
  PENSTOCK_TRY_ASSIGN(e.sharing, table.NumberOr("sharing", 1, 1, 10));
  PENSTOCK_TRY_ASSIGN(e.step_s, table.Number("step_s", 0, kMaxSeconds));
  PENSTOCK_TRY_ASSIGN(e.announce_s, table.Number("announce_s", 0, kMaxSeconds));
  PENSTOCK_TRY_ASSIGN(e.message_s, ReadMessages(table, "message_s"));
  PENSTOCK_TRY_ASSIGN(e.mpi_message_s, ReadMessages(table, "mpi_message_s"));
  PENSTOCK_TRY_ASSIGN(e.hand_over_s, ReadMessages(table, "hand_over_s", Curve::Scale::kLogX));
  PENSTOCK_TRY_ASSIGN(e.thread_speedup, table.RowsOr("thread_speedup", 3));
  PENSTOCK_TRY_ASSIGN(const auto products, table.Tables("product"));
  for (const TomlTable& product : products) {
    ProductTable& p = e.products.emplace_back();
    PENSTOCK_TRY_ASSIGN(p.weights, ReadWeights(product));
    PENSTOCK_TRY_ASSIGN(p.outputs, product.Number("outputs", 1, 1e9));
    PENSTOCK_TRY_ASSIGN(p.inputs, product.Number("inputs", 1, 1e9));
    PENSTOCK_TRY_ASSIGN(std::tie(p.alone_s, p.together_s), ReadPair(product, "rows_s"));
  }
  PENSTOCK_TRY_ASSIGN(const auto attention, table.Tables("attention"));
  for (const TomlTable& one : attention) {
    AttentionTable& a = e.attention.emplace_back();
    PENSTOCK_TRY_ASSIGN(a.group, one.Number("heads_per_key_head", 1, 1e6));
    PENSTOCK_TRY_ASSIGN(a.numbers, one.NumberOr("head_numbers", 128, 1, 1e6));
    PENSTOCK_TRY_ASSIGN(a.slice, ReadShared(one, "slice_s"));
    PENSTOCK_TRY_ASSIGN(std::tie(a.pair_alone_s, a.pair_together_s), ReadPair(one, "pair_s"));
  }
  if (e.products.empty() || e.attention.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[hw.engine] {}: {} products and {} attentions, wanted one of each at least",
                     table.Place("product"), e.products.size(), e.attention.size());
  }
  return e;
}

std::string FormatEngine(const Engine& e) {
  std::string out = fmt::format(
      "[engine]\ninstruction_set = \"{}\"\nversion = \"{}\"\nthreads = {}  # of one device\ncores "
      "= {}  # that the devices of this machine share\noperation_s = {}  # alone, together\n"
      "element_s = {}\nlogit_s = {}\nsharing = {:.3f}\nstep_s = {:.4e}\nannounce_s = "
      "{:.4e}\nmessage_s = {}\n",
      e.instruction_set, e.version, e.threads, e.cores, FormatShared(e.operation),
      FormatShared(e.element), FormatShared(e.logit), e.sharing, e.step_s, e.announce_s,
      FormatMessages(e.message_s));
  if (!e.mpi_message_s.empty()) {
    out += fmt::format("mpi_message_s = {}\n", FormatMessages(e.mpi_message_s));
  }
  if (!e.hand_over_s.empty()) {
    out +=
        fmt::format("hand_over_s = {}  # stages that share the cores, idle core time per start\n",
                    FormatMessages(e.hand_over_s));
  }
  if (!e.thread_speedup.empty()) {
    out += "thread_speedup = [";
    for (size_t i = 0; i < e.thread_speedup.size(); ++i) {
      const auto& row = e.thread_speedup[i];
      out += fmt::format("{}[{:g}, {:g}, {:.3f}]", i > 0 ? ", " : "", row[0], row[1], row[2]);
    }
    out += "]  # threads, rows, times as fast\n";
  }
  out += fmt::format("source = \"{}\"\n", e.source);
  for (const ProductTable& p : e.products) {
    out += fmt::format(
        "\n[[engine.product]]\nweights = \"{}\"\noutputs = {:.0f}\ninputs = {:.0f}\nrows_s = {}\n",
        PrecisionName(p.weights), p.outputs, p.inputs, FormatPair(p.alone_s, p.together_s));
  }
  for (const AttentionTable& a : e.attention) {
    out += fmt::format(
        "\n[[engine.attention]]\nheads_per_key_head = {:g}\nhead_numbers = {:g}\nslice_s = "
        "{}\npair_s "
        "= {}\n",
        a.group, a.numbers, FormatShared(a.slice), FormatPair(a.pair_alone_s, a.pair_together_s));
  }
  return out;
}

}  // namespace penstock::hw
