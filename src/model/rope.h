// Rotary embedding as a config.json states it, and its inverse frequencies.
//
// The frequencies are computed in float32 in the order of operations of transformers (5.24,
// modeling_rope_utils.py), since an angle at a late position magnifies a difference of one bit.
// Formulas: linear (kaiokendev), llama3 (Llama 3.1's reference code), YaRN (arXiv 2309.00071),
// LongRoPE (arXiv 2402.13753).

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json_reader.h"
#include "base/result.h"
#include "model/graph.h"

namespace penstock::model {

// What a family asks for.
struct RopeRequest {
  int64_t head_dim = 0;
  int64_t max_positions = 0;  // max_position_embeddings
  double default_theta = 10000.0;
  bool partial = false;           // the family rotates a part of each head (else it must be all)
  bool yarn_is_longrope = false;  // Phi-3's older name for it
  std::string_view layer_type;    // "full_attention": which part of per-layer parameters
  std::string_view theta_key = "rope_theta";  // key beside the parameters; Gemma 3 has two
  bool scaled = true;  // false: parameters that are not per layer type don't concern these layers
  int64_t default_original = 0;  // original_max_position_embeddings; 0: max_positions
};

struct Rope {
  int64_t rotary_dim = 0;
  RopeTable table;
  // Positions that the model can tell apart: max_position_embeddings, times the factor for the
  // types whose configurations state the length before scaling (linear, yarn).
  int64_t context = 0;
};

// Reads `rope_parameters` (transformers 5: one object, or one per layer type) or `rope_scaling`
// and `rope_theta`. The type "factors" is Penstock's own: divisors of the frequencies, as GGUF's
// `rope_freqs.weight` holds them. Errors: kUnsupported (a type that is not known; dynamic; a key
// that the type does not have), kInvalidArgument (a missing key, an impossible value), naming the
// key.
Result<Rope> ReadRope(const JsonReader& config, const RopeRequest& request);

}  // namespace penstock::model
