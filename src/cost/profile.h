// What a layer asks of a device, taken from the layer graph once: products, attention, state,
// parameters, saved activations. Layers that ask for the same share a class, so that a planner
// prices a class and multiplies.
//
// Numbers are of the whole model (nothing divided yet); roofline.h and plan/ divide them.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "hw/precision.h"
#include "model/cut_search.h"
#include "model/graph.h"

namespace penstock::hw {
struct Engine;
}

namespace penstock::cost {

// A multiplication of rows with weights [outputs, inputs].
struct Product {
  enum class Shard : uint8_t { kSplit, kHeads, kWhole };
  enum class Role : uint8_t { kDense, kRouter, kHead };
  double outputs = 0;
  double inputs = 0;
  Shard shard = Shard::kSplit;
  Role role = Role::kDense;
  int64_t heads = 0;  // kHeads: divided into at most this many parts, copied beyond
  int32_t op = 0;     // operation of the layer: parts of one operation read the same rows
  std::optional<hw::Precision> stored;  // type of the file's matrix; none: as the plan says
  double stored_bytes = 0;              // as the engine packs it; 0: by the type

  double parameters() const { return outputs * inputs; }

  // Parts that `tp` ranks hold of it.
  double parts(int64_t tp) const {
    switch (shard) {
      case Shard::kSplit:
        return static_cast<double>(tp);
      case Shard::kHeads:
        return static_cast<double>(tp < heads ? tp : heads);
      case Shard::kWhole:
        return 1;
    }
    return 1;
  }

  friend bool operator==(const Product&, const Product&) = default;
};

// Scores and weighted sums over the state.
struct AttentionWork {
  double heads = 0;
  double kv_heads = 0;  // that the heads share; 0: as many
  double score_dim = 0;
  double value_dim = 0;
  double window = 0;            // 0: all
  double decode_score_dim = 0;  // while decoding, where it differs (latent attention, absorbed)
  double decode_value_dim = 0;

  friend bool operator==(const AttentionWork&, const AttentionWork&) = default;
};

struct StateWork {
  model::LayerState::Kind kind = model::LayerState::Kind::kPagedKv;
  double elements_per_token = 0;
  double sequence_bytes = 0;
  double window = 0;
  int64_t heads = 0;

  // Share of it that one of `tp` ranks keeps.
  double share(int64_t tp) const {
    if (kind == model::LayerState::Kind::kLatent || heads == 0) {
      return 1;
    }
    return 1.0 / static_cast<double>(tp < heads ? tp : heads);
  }

  // Bytes for `sequences` of `tokens` each, before `share`.
  double bytes(double sequences, double tokens, double element_bytes) const {
    const double kept = window > 0 && window < tokens ? window : tokens;
    return sequences * (kept * elements_per_token * element_bytes + sequence_bytes);
  }

  friend bool operator==(const StateWork&, const StateWork&) = default;
};

// Routed experts: all of one layer together.
struct ExpertWork {
  double experts = 0;
  double chosen = 0;
  double parameters = 0;  // of all experts
  double products = 0;    // matrices per expert
  double inputs = 0;      // width of a row that is sent to an expert
  double inner = 0;       // width between up and down

  friend bool operator==(const ExpertWork&, const ExpertWork&) = default;
};

// Activations that training keeps per row, in bytes at 16 bits (Korthikanti et al. 2022, section
// 4), by how they are divided: `whole` on every tensor-parallel rank without sequence parallelism,
// `split` always by tp; `scores` per key that a row could see, by tp, unless recomputed.
struct SavedActivations {
  double whole = 0;
  double split = 0;
  double scores = 0;
  double stats = 0;   // kept instead of scores by fused attention, by tp
  double routed = 0;  // of expert rows, by tp where experts are divided by tp

  friend bool operator==(const SavedActivations&, const SavedActivations&) = default;
};

struct LayerProfile {
  model::LayerKind kind = model::LayerKind::kDecoder;
  std::vector<Product> products;
  std::vector<AttentionWork> attention;
  std::vector<StateWork> states;
  ExpertWork experts;
  double embedding_parameters = 0;
  double embedding_stored_bytes = 0;  // as the engine packs it; 0: by the type
  double vector_parameters = 0;
  double whole_row_elements = 0;  // elements per row that norms, adds and rotations read and write
  double split_row_elements = 0;  // the same behind a division by tp
  double extra_flops_per_row = 0;
  double width = 0;        // of the residual stream
  double collectives = 0;  // sums over tensor-parallel ranks of [rows, width], forward
  double launches = 0;     // operations that a device starts
  SavedActivations saved;

  // All of them, experts too; of the experts alone.
  double parameters() const;

  double dense_parameters() const { return parameters() - experts.parameters; }

  friend bool operator==(const LayerProfile&, const LayerProfile&) = default;
};

// An activation that a later layer reads.
struct CrossingValue {
  // Layers first .. last, each of which reads it.
  struct Readers {
    int32_t first = 0;
    int32_t last = 0;
    bool keeps = false;  // their backward passes need the value, which nobody else keeps for them
  };

  double width = 0;
  int32_t producer = 0;  // layer
  // Ascending; the producer's own layer only where that keeps it.
  std::vector<Readers> readers;
  std::string name;  // of the graph's value
};

struct ModelProfile {
  std::string name;
  std::string family;
  std::vector<LayerProfile> classes;
  std::vector<int32_t> class_of;       // by layer: embedding, decoder layers, head
  std::vector<double> boundary_width;  // elements per row that cross after layer l
  std::vector<CrossingValue> crossing;
  std::string long_values;  // what makes more than one vector cross: "attention residuals"; empty:
                            // a plain residual
  double vocabulary = 0;
  double hidden = 0;
  double parameters = 0;         // each stored tensor once
  double parameters_active = 0;  // that one token multiplies with (and its embedding row)
  double parameters_mtp = 0;     // of multi-token-prediction layers, beside the rest
  bool tied = false;             // the head multiplies with the embedding's table
  bool has_experts = false;
  int64_t max_kv_heads = 0;
  int64_t attention_heads = 0;
  model::CutWeights decode_cut;  // what the engine balances stages by
  double attention_share = 0;    // what the engine's prefill chunks shrink by

  int32_t num_layers() const { return static_cast<int32_t>(class_of.size()); }

  int32_t decoder_layers() const { return num_layers() - 2; }

  const LayerProfile& layer(int32_t l) const {
    return classes[static_cast<size_t>(class_of[static_cast<size_t>(l)])];
  }
};

// How a file's matrix would be held by the engine: its type, and the bytes that packing gives.
struct HeldTensor {
  hw::Precision type = hw::Precision::kBf16;
  double bytes = 0;
};

// None for tensors that are no matrices.
using HeldTensors = std::function<std::optional<HeldTensor>(TensorId)>;

// O(operations). With `held` products know how the file stores them. Errors: kUnsupported (an
// operation whose work is not known).
Result<ModelProfile> BuildProfile(const model::Graph& graph, std::string name, std::string family,
                                  const HeldTensors& held = nullptr);

// Relative time of each layer in steady decode, in multiply-adds per row: matrices, attention, and
// the elements that everything else writes. What the engine cuts by.
std::vector<double> DecodeWork(const model::Graph& graph);

// The same with what crosses each boundary in float32, a byte as much as `work_per_byte`
// multiply-adds. 0: as much as copying it is on common machines, where 0.5 (threads) to 8
// (processes) multiply-adds of a product that reads its weights from memory were measured.
model::CutWeights DecodeCut(const model::Graph& graph, double work_per_byte = 0);

// Multiply-adds that take as long as a further byte of a message on a calibrated machine: of
// products with few rows and weights held as `weights`; 0 where it was not measured.
double DecodeWorkPerByte(const hw::Engine& engine, hw::Precision weights, bool across_processes);
// The same in training: multiply-adds of the forward pass per byte of a value that crosses. The
// backward pass multiplies twice as much and sends the value's gradient.
double TrainWorkPerByte(const hw::Engine& engine, bool across_processes);

// Work of a row that looks back one position, over the work of a row by itself: attention's
// multiply-adds against the matrices'.
double AttentionShare(const model::Graph& graph);

}  // namespace penstock::cost
