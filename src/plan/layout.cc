#include "plan/layout.h"

#include <array>
#include <charconv>
#include <numeric>
#include <set>

#include "base/units.h"

namespace penstock::plan {
namespace {

constexpr std::array<std::string_view, 15> kKeys = {
    "tp",     "pp",          "dp",        "ep",           "cp",
    "chunks", "micro_batch", "schedule",  "recompute",    "sequence_parallel",
    "zero",   "layers",      "precision", "kv_precision", "prefill_chunk"};

// Schedules that training plans are made of; sim/ prices them exactly.
constexpr std::array<std::string_view, 12> kSchedules = {
    "gpipe",          "1f1b", "interleaved-1f1b", "looped-bfs", "zb-h1",      "zb-h2",
    "interleaved-zb", "zb-v", "v-half",           "v-min",      "dualpipe-v", "dualpipe"};

Result<int64_t> ParseCount(std::string_view key, std::string_view value, int64_t low,
                           int64_t high) {
  int64_t number = 0;
  const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (code != std::errc() || end != value.data() + value.size() || number < low || number > high) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[plan.layout] --fix {}: got '{}', wanted an integer from {} to {}", key,
                     value, low, high);
  }
  return number;
}

Result<> ParseLayers(std::string_view value, int64_t decoder_layers, Fixed& fixed) {
  std::string_view rest = value;
  while (true) {
    const size_t slash = rest.find('/');
    PENSTOCK_TRY_ASSIGN(const int64_t count,
                        ParseCount("layers", rest.substr(0, slash), 0, 1 << 20));
    fixed.layers.push_back(count);
    if (slash == std::string_view::npos) {
      break;
    }
    rest.remove_prefix(slash + 1);
  }
  const int64_t sum = std::accumulate(fixed.layers.begin(), fixed.layers.end(), int64_t{0});
  if (sum != decoder_layers) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[plan.layout] --fix layers={}: {} in {}, wanted the model's {} "
                     "decoder layers, each in one stage",
                     value, Counted(sum, "layer"), Counted(fixed.layers.size(), "stage"),
                     decoder_layers);
  }
  return {};
}

Result<> ParseOne(std::string_view key, std::string_view value, int64_t decoder_layers,
                  Fixed& fixed) {
  const auto count = [&](std::optional<int64_t>& out, int64_t low, int64_t high) -> Result<> {
    PENSTOCK_TRY_ASSIGN(out, ParseCount(key, value, low, high));
    return {};
  };
  constexpr int64_t kMost = int64_t{1} << 24;
  if (key == "tp")
    return count(fixed.tp, 1, kMost);
  if (key == "pp")
    return count(fixed.pp, 1, 4096);
  if (key == "dp")
    return count(fixed.dp, 1, kMost);
  if (key == "ep")
    return count(fixed.ep, 1, kMost);
  if (key == "cp")
    return count(fixed.cp, 1, kMost);
  if (key == "chunks")
    return count(fixed.chunks, 1, 4096);
  if (key == "micro_batch")
    return count(fixed.micro_batch, 1, kMost);
  if (key == "zero")
    return count(fixed.zero, 0, 3);
  if (key == "prefill_chunk")
    return count(fixed.prefill_chunk_tokens, 1, int64_t{1} << 30);
  if (key == "layers")
    return ParseLayers(value, decoder_layers, fixed);
  if (key == "schedule") {
    for (const std::string_view name : kSchedules) {
      if (name == value) {
        fixed.schedule = std::string(value);
        return {};
      }
    }
    const std::string near = NearestName(value, kSchedules);
    return MakeError(ErrorCode::kInvalidArgument,
                     "[plan.layout] --fix schedule: got '{}', wanted one of {}{}", value,
                     fmt::join(kSchedules, ", "), near.empty() ? "" : " ('" + near + "'?)");
  }
  if (key == "recompute") {
    for (const Recompute r : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      if (RecomputeName(r) == value) {
        fixed.recompute = r;
        return {};
      }
    }
    return MakeError(ErrorCode::kInvalidArgument,
                     "[plan.layout] --fix recompute: got '{}', wanted none, selective or full",
                     value);
  }
  if (key == "sequence_parallel") {
    if (value != "true" && value != "false") {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[plan.layout] --fix sequence_parallel: got '{}', wanted true or false",
                       value);
    }
    fixed.sequence_parallel = value == "true";
    return {};
  }
  if (key == "precision" && value.find('/') != std::string_view::npos) {
    for (std::string_view rest = value; !rest.empty();) {
      const size_t slash = rest.find('/');
      PENSTOCK_TRY_ASSIGN(const hw::Precision one, hw::ParsePrecision(rest.substr(0, slash)));
      fixed.precisions.push_back(one);
      rest.remove_prefix(slash == std::string_view::npos ? rest.size() : slash + 1);
    }
    return {};
  }
  if (key == "precision" || key == "kv_precision") {
    PENSTOCK_TRY_ASSIGN((key == "precision" ? fixed.precision : fixed.kv_precision),
                        hw::ParsePrecision(value));
    return {};
  }
  const std::string near = NearestName(key, kKeys);
  return MakeError(ErrorCode::kInvalidArgument,
                   "[plan.layout] --fix: unknown key '{}', wanted {}\n  known: {}", key,
                   near.empty() ? "one of those below" : "'" + near + "'?", fmt::join(kKeys, ", "));
}

}  // namespace

std::string BusiestLine(std::string_view per, const Plan& plan) {
  std::string line = fmt::format(
      "busiest device {}: operations {} (the larger of arithmetic, in all {}, and memory, in all "
      "{}, one by one)",
      per, FormatSeconds(plan.operations_s), FormatSeconds(plan.compute_s),
      FormatSeconds(plan.memory_s));
  if (plan.start_s > 0) {
    line += fmt::format(" + starting them {}", FormatSeconds(plan.start_s));
  }
  if (plan.exposed_s > plan.operations_s * 1e-9) {
    line += fmt::format(" + exposed links {}", FormatSeconds(plan.exposed_s));
  }
  return line;
}

std::string_view RecomputeName(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "none";
    case Recompute::kSelective:
      return "selective";
    case Recompute::kFull:
      return "full";
  }
  return "";
}

int64_t RankOfStage(const Layout& layout, int64_t stage) {
  const bool folded = layout.schedule == "zb-v" || layout.schedule == "v-half" ||
                      layout.schedule == "v-min" || layout.schedule == "dualpipe-v";
  return folded && stage >= layout.pp ? 2 * layout.pp - 1 - stage : stage % layout.pp;
}

std::vector<int64_t> DecoderLayers(const std::vector<int32_t>& cut) {
  std::vector<int64_t> layers(cut.begin(), cut.end());
  if (!layers.empty()) {
    // The first unit is the embedding, the last one the head; empty stages may stand at the ends.
    for (auto it = layers.begin(); it != layers.end(); ++it) {
      if (*it > 0) {
        *it -= 1;
        break;
      }
    }
    for (auto it = layers.rbegin(); it != layers.rend(); ++it) {
      if (*it > 0) {
        *it -= 1;
        break;
      }
    }
  }
  return layers;
}

std::string LayoutText(const Layout& l) {
  std::string text;
  const auto add = [&](std::string_view name, int64_t value) {
    if (value > 1) {
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value);
    }
  };
  add("tp", l.tp);
  add("pp", l.pp);
  add("dp", l.dp);
  add("ep", l.ep);
  add("cp", l.cp);
  add("chunks", l.chunks);
  add("zero", l.zero);
  return text.empty() ? "one device" : text;
}

Result<Fixed> ParseFixed(std::string_view text, int64_t decoder_layers) {
  Fixed fixed;
  std::set<std::string_view> keys;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[plan.layout] --fix: got '{}', wanted key=value, for instance tp=8,pp=2",
                       item);
    }
    if (!keys.insert(item.substr(0, equals)).second) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[plan.layout] --fix: '{}' stands there twice, wanted each key once",
                       item.substr(0, equals));
    }
    PENSTOCK_TRY(ParseOne(item.substr(0, equals), item.substr(equals + 1), decoder_layers, fixed));
  }
  const int64_t stages = static_cast<int64_t>(fixed.layers.size());
  if (stages > 0) {
    const int64_t chunks = fixed.chunks.value_or(1);
    if (!fixed.pp) {
      fixed.pp = stages / chunks;
    }
    if (*fixed.pp * chunks != stages) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[plan.layout] --fix layers: {} stages, wanted pp x chunks = {}", stages,
                       *fixed.pp * chunks);
    }
  }
  constexpr double kMostDevices = 1 << 20;  // as --devices
  double devices = 1;
  for (const auto& part : {fixed.tp, fixed.pp, fixed.dp, fixed.cp}) {
    devices *= static_cast<double>(part.value_or(1));
  }
  if (devices > kMostDevices) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[plan.layout] --fix: tp x pp x dp x cp is {:.0f} devices, wanted at most "
                     "{:.0f}",
                     devices, kMostDevices);
  }
  return fixed;
}

}  // namespace penstock::plan
