#include "model/rope.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/json.h"
#include "base/units.h"

namespace penstock::model {
namespace {

constexpr double kMaxFactor = 1e6;
constexpr int64_t kMaxPositions = int64_t{1} << 31;
constexpr double kMinTheta = 1.001;  // log(theta) divides

// 1 / base^(2i/dim), i = 0 .. dim/2 - 1.
std::vector<float> PlainFrequencies(double theta, int64_t dim, bool inverted = true) {
  std::vector<float> out;
  const auto base = static_cast<float>(theta);
  for (int64_t i = 0; i < dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(dim);
    // Rounded once from double: what a float power function with an error under one half bit gives.
    const auto power =
        static_cast<float>(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
    out.push_back(inverted ? 1.0F / power : power);
  }
  return out;
}

// One set of parameters with its defaults filled in.
struct Parameters {
  JsonReader reader;
  double theta = 0.0;
  int64_t dim = 0;
  int64_t original = 0;  // original_max_position_embeddings
  bool original_stated = false;
  int64_t max_positions = 0;
};

// For types that mean nothing without it. Others take max_position_embeddings, as transformers
// does.
Result<> NeedOriginal(const Parameters& p) {
  if (!p.original_stated) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.rope] {}: original_max_position_embeddings: missing, wanted the "
                     "positions before scaling",
                     p.reader.where());
  }
  return {};
}

// The factor of types that may leave it to the ratio of positions after and before scaling, which
// a null says (as in transformers, where a missing key is an error).
Result<double> FactorOrRatio(const Parameters& p, bool may_be_absent) {
  const bool ratio = p.reader.Contains("factor") ? !p.reader.Has("factor") : may_be_absent;
  if (!ratio) {
    return p.reader.Number("factor", 1e-6, kMaxFactor);
  }
  PENSTOCK_TRY(NeedOriginal(p));
  return static_cast<double>(p.max_positions) / static_cast<double>(p.original);
}

Result<> ReadLinear(const Parameters& p, Rope& rope) {
  PENSTOCK_TRY_ASSIGN(const double factor, p.reader.Number("factor", 1e-6, kMaxFactor));
  rope.table.inverse_frequencies = PlainFrequencies(p.theta, p.dim);
  for (float& f : rope.table.inverse_frequencies) {
    f /= static_cast<float>(factor);
  }
  rope.context =
      std::min(kMaxPositions, static_cast<int64_t>(static_cast<double>(p.max_positions) * factor));
  return {};
}

Result<> ReadLlama3(const Parameters& p, Rope& rope) {
  PENSTOCK_TRY_ASSIGN(const double factor, p.reader.Number("factor", 1e-6, kMaxFactor));
  PENSTOCK_TRY_ASSIGN(const double low, p.reader.Number("low_freq_factor", 1e-6, kMaxFactor));
  PENSTOCK_TRY_ASSIGN(const double high, p.reader.Number("high_freq_factor", 1e-6, kMaxFactor));
  if (!(high > low)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.rope] {}: high_freq_factor: got {}, wanted more than low_freq_factor "
                     "({})",
                     p.reader.where(), high, low);
  }
  PENSTOCK_TRY(NeedOriginal(p));
  const auto original = static_cast<double>(p.original);
  const auto low_wavelength = static_cast<float>(original / low);
  const auto high_wavelength = static_cast<float>(original / high);
  rope.table.inverse_frequencies = PlainFrequencies(p.theta, p.dim);
  for (float& f : rope.table.inverse_frequencies) {
    const float wavelength = static_cast<float>(2.0 * std::numbers::pi) / f;
    const auto divisor = static_cast<float>(factor);
    if (wavelength > low_wavelength) {
      f = f / divisor;
    } else if (!(wavelength < high_wavelength)) {
      const float smooth = (static_cast<float>(original) / wavelength - static_cast<float>(low)) /
                           static_cast<float>(high - low);
      f = (1.0F - smooth) * f / divisor + smooth * f;
    }
  }
  return {};
}

double YarnMagnitude(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

Result<double> YarnAttentionFactor(const Parameters& p, double factor) {
  if (p.reader.Has("attention_factor")) {
    return p.reader.Number("attention_factor", 0.0, kMaxFactor);
  }
  PENSTOCK_TRY_ASSIGN(const double mscale, p.reader.NumberOr("mscale", 0.0, 0.0, kMaxFactor));
  PENSTOCK_TRY_ASSIGN(const double all_dim,
                      p.reader.NumberOr("mscale_all_dim", 0.0, 0.0, kMaxFactor));
  if (mscale != 0.0 && all_dim != 0.0) {
    return YarnMagnitude(factor, mscale) / YarnMagnitude(factor, all_dim);
  }
  return YarnMagnitude(factor, 1.0);
}

Result<> ReadYarn(const Parameters& p, Rope& rope) {
  PENSTOCK_TRY_ASSIGN(const double factor, FactorOrRatio(p, /*may_be_absent=*/false));
  PENSTOCK_TRY_ASSIGN(const double attention, YarnAttentionFactor(p, factor));
  PENSTOCK_TRY_ASSIGN(double fast, p.reader.NumberOr("beta_fast", 32.0, 0.0, kMaxFactor));
  PENSTOCK_TRY_ASSIGN(double slow, p.reader.NumberOr("beta_slow", 1.0, 0.0, kMaxFactor));
  PENSTOCK_TRY_ASSIGN(const bool truncate, p.reader.BoolOr("truncate", true));
  fast = fast == 0.0 ? 32.0 : fast;
  slow = slow == 0.0 ? 1.0 : slow;
  if (fast < slow) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.rope] {}: beta_fast: got {}, wanted at least beta_slow ({})",
                     p.reader.where(), fast, slow);
  }
  const auto dim = static_cast<double>(p.dim);
  // The pair that turns `rotations` times over the original context.
  const auto pair_of = [&](double rotations) {
    return dim * std::log(static_cast<double>(p.original) / (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(p.theta));
  };
  double low = pair_of(fast);
  double high = pair_of(slow);
  if (truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) {
    high += 0.001;
  }
  const std::vector<float> powers = PlainFrequencies(p.theta, p.dim, /*inverted=*/false);
  for (size_t i = 0; i < powers.size(); ++i) {
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0F,
        1.0F);
    const float keep = 1.0F - ramp;
    const float extrapolated = 1.0F / powers[i];
    const float interpolated = 1.0F / (static_cast<float>(factor) * powers[i]);
    rope.table.inverse_frequencies.push_back(interpolated * (1.0F - keep) + extrapolated * keep);
  }
  rope.table.scale = static_cast<float>(attention);
  rope.context =
      std::clamp(static_cast<int64_t>(std::llround(static_cast<double>(p.original) * factor)),
                 p.max_positions, kMaxPositions);
  return {};
}

Result<std::vector<double>> ReadDivisors(const Parameters& p, std::string_view key) {
  const auto pairs = static_cast<size_t>(p.dim / 2);
  PENSTOCK_TRY_ASSIGN(std::vector<double> divisors, p.reader.NumbersOr(key, 65536));
  if (divisors.size() != pairs) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.rope] {}: {}: got {}, wanted {} (half of the rotated part of a head)",
                     p.reader.where(), key, Counted(divisors.size(), "number"), pairs);
  }
  for (const double d : divisors) {
    if (!(d > 0.0) || d > 1e30) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[model.rope] {}: {}: got {}, wanted positive numbers", p.reader.where(),
                       key, d);
    }
  }
  return divisors;
}

std::vector<float> Divided(const Parameters& p, const std::vector<double>& divisors) {
  std::vector<float> out = PlainFrequencies(p.theta, p.dim, /*inverted=*/false);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = 1.0F / (static_cast<float>(divisors[i]) * out[i]);
  }
  return out;
}

Result<> ReadLongRope(const Parameters& p, Rope& rope) {
  PENSTOCK_TRY_ASSIGN(const std::vector<double> short_factor, ReadDivisors(p, "short_factor"));
  PENSTOCK_TRY_ASSIGN(const std::vector<double> long_factor, ReadDivisors(p, "long_factor"));
  PENSTOCK_TRY(NeedOriginal(p));
  PENSTOCK_TRY_ASSIGN(const double factor, FactorOrRatio(p, /*may_be_absent=*/true));
  double attention = 1.0;
  if (p.reader.Has("attention_factor")) {
    PENSTOCK_TRY_ASSIGN(attention, p.reader.Number("attention_factor", 0.0, kMaxFactor));
  } else if (factor > 1.0 && p.original > 1) {
    attention = std::sqrt(1.0 + std::log(factor) / std::log(static_cast<double>(p.original)));
  }
  rope.table.inverse_frequencies = Divided(p, short_factor);
  rope.table.long_inverse_frequencies = Divided(p, long_factor);
  rope.table.long_from = p.original;
  rope.table.scale = static_cast<float>(attention);
  rope.table.long_scale = rope.table.scale;
  return {};
}

Result<> ReadFactors(const Parameters& p, Rope& rope) {
  PENSTOCK_TRY_ASSIGN(const std::vector<double> divisors, ReadDivisors(p, "factors"));
  rope.table.inverse_frequencies = PlainFrequencies(p.theta, p.dim);
  for (size_t i = 0; i < divisors.size(); ++i) {
    rope.table.inverse_frequencies[i] /= static_cast<float>(divisors[i]);
  }
  return {};
}

Result<> ReadDefault(const Parameters& p, Rope& rope) {
  rope.table.inverse_frequencies = PlainFrequencies(p.theta, p.dim);
  return {};
}

struct RopeType {
  std::string_view name;
  std::vector<std::string_view> keys;  // beside those of all types
  Result<> (*read)(const Parameters& p, Rope& rope);
};

const std::vector<RopeType>& Types() {
  static const std::vector<RopeType> types = {
      {"default", {}, ReadDefault},
      {"linear", {"factor"}, ReadLinear},
      {"llama3",
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
       ReadLlama3},
      {"yarn",
       {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow",
        "mscale", "mscale_all_dim", "truncate"},
       ReadYarn},
      {"longrope",
       {"factor", "original_max_position_embeddings", "attention_factor", "short_factor",
        "long_factor"},
       ReadLongRope},
      {"factors", {"factors"}, ReadFactors},
  };
  return types;
}

// A key that the type does not have may change what the model computes, or belong to a type that
// is not stated.
Result<> RefuseOddKeys(const JsonReader& parameters, const RopeType& type) {
  // "finetuned" is what YaRN's authors note beside it.
  constexpr std::string_view kOfAll[] = {"rope_type", "type", "rope_theta", "partial_rotary_factor",
                                         "finetuned"};
  for (const auto& [key, value] : parameters.object().items()) {
    const bool known = std::find(std::begin(kOfAll), std::end(kOfAll), key) != std::end(kOfAll) ||
                       std::find(type.keys.begin(), type.keys.end(), key) != type.keys.end();
    // transformers may write the length before scaling beside any type.
    if (!known && !value.is_null() && key != "original_max_position_embeddings") {
      const std::string keys =
          type.keys.empty() ? "no keys of its own" : fmt::format("{}", fmt::join(type.keys, ", "));
      return MakeError(ErrorCode::kUnsupported, "[model.rope] {}: {}: rope_type '{}' has {}",
                       parameters.where(), key, type.name, keys);
    }
  }
  return {};
}

Result<> ReadByType(const std::string& stated, const Parameters& p, const RopeRequest& request,
                    Rope& rope) {
  const bool longrope = stated == "su" || (stated == "yarn" && request.yarn_is_longrope);
  const std::string_view name = longrope ? "longrope" : std::string_view(stated);
  for (const RopeType& type : Types()) {
    if (type.name == name) {
      PENSTOCK_TRY(RefuseOddKeys(p.reader, type));
      return type.read(p, rope);
    }
  }
  return MakeError(ErrorCode::kUnsupported,
                   "[model.rope] {}: rope_type: got '{}', supported are default, linear, llama3, "
                   "yarn, longrope and factors",
                   p.reader.where(), stated);
}

const Json& EmptyObject() {
  static const Json empty = Json::object();
  return empty;
}

bool IsPerLayerType(const Json& parameters) {
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const Json& item) { return item.is_object(); });
}

struct FoundParameters {
  const Json* object = nullptr;
  std::string key;
  bool per_layer_type = false;
};

// The object that holds the parameters of this layer type; empty when the config has none.
Result<FoundParameters> FindParameters(const JsonReader& config, const RopeRequest& request) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* parameters = config.Find(key);
    if (parameters == nullptr) {
      continue;
    }
    if (!parameters->is_object()) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[model.rope] {}: {}: got {}, wanted an object or null", config.where(), key,
                       parameters->type_name());
    }
    if (parameters->empty()) {
      continue;
    }
    if (!IsPerLayerType(*parameters)) {
      if (!request.scaled) {
        continue;
      }
      return FoundParameters{parameters, key, false};
    }
    const auto part =
        request.layer_type.empty() ? parameters->end() : parameters->find(request.layer_type);
    if (part != parameters->end() && part->is_object()) {
      return FoundParameters{&*part, fmt::format("{}.{}", key, request.layer_type), true};
    }
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.rope] {}: {}: has parameters per layer type, but none for '{}'",
                     config.where(), key,
                     request.layer_type.empty() ? "all layers" : request.layer_type);
  }
  return FoundParameters{&EmptyObject(), "rope_parameters", false};
}

Result<int64_t> RotaryDim(const JsonReader& config, const JsonReader& parameters,
                          const RopeRequest& request) {
  PENSTOCK_TRY_ASSIGN(const double outer, config.NumberOr("partial_rotary_factor", 1.0, 0.0, 1.0));
  PENSTOCK_TRY_ASSIGN(const double partial,
                      parameters.NumberOr("partial_rotary_factor", outer, 0.0, 1.0));
  const auto dim = static_cast<int64_t>(static_cast<double>(request.head_dim) * partial);
  if (!request.partial && dim != request.head_dim) {
    return MakeError(ErrorCode::kUnsupported,
                     "[model.rope] {}: partial_rotary_factor: got {}, supported is 1 for this "
                     "family",
                     config.where(), partial);
  }
  if (dim < 2 || dim % 2 != 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.rope] {}: rotary embedding turns {} columns of a head (head size {}, "
                     "partial_rotary_factor {}), wanted an even number from 2",
                     config.where(), dim, request.head_dim, partial);
  }
  return dim;
}

// Fills in `original` and whether it was stated.
Result<> ReadOriginal(const JsonReader& config, const RopeRequest& request, bool per_layer_type,
                      Parameters& p) {
  constexpr const char* kKey = "original_max_position_embeddings";
  const JsonReader& from = !per_layer_type && config.Has(kKey) ? config : p.reader;
  p.original_stated = from.Has(kKey) || request.default_original > 0;
  const int64_t fallback =
      request.default_original > 0 ? request.default_original : request.max_positions;
  PENSTOCK_TRY_ASSIGN(p.original, from.IntOr(kKey, fallback, 1, kMaxPositions));
  return {};
}

}  // namespace

Result<Rope> ReadRope(const JsonReader& config, const RopeRequest& request) {
  PENSTOCK_TRY_ASSIGN(const FoundParameters found, FindParameters(config, request));
  const JsonReader parameters(*found.object, fmt::format("{}: {}", config.where(), found.key));
  PENSTOCK_TRY_ASSIGN(const std::string old_type, parameters.StringOr("type", "default"));
  PENSTOCK_TRY_ASSIGN(const std::string type, parameters.StringOr("rope_type", old_type));
  PENSTOCK_TRY_ASSIGN(const double outer_theta,
                      config.NumberOr(request.theta_key, request.default_theta, kMinTheta, 1e15));
  PENSTOCK_TRY_ASSIGN(const double theta,
                      parameters.NumberOr("rope_theta", outer_theta, kMinTheta, 1e15));
  PENSTOCK_TRY_ASSIGN(const int64_t dim, RotaryDim(config, parameters, request));
  Parameters filled{
      .reader = parameters, .theta = theta, .dim = dim, .max_positions = request.max_positions};
  PENSTOCK_TRY(ReadOriginal(config, request, found.per_layer_type, filled));
  Rope rope;
  rope.rotary_dim = dim;
  rope.context = request.max_positions;
  PENSTOCK_TRY(ReadByType(type, filled, request, rope));
  return rope;
}

}  // namespace penstock::model
