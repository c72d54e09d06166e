// The layer graph: what a model computes, without a word about who computes it or how it is cut.
//
// A graph is a list of operations in execution order. Each operation belongs to a layer (0 is the
// embedding, the last one the head), reads values, writes values, and names the weight tensors and
// the per-sequence state that it uses. Values are written once and may be read by any later
// operation of any later layer: which of them cross a boundary is worked out by cut.h, not stated
// by a family.
//
// Every activation is a matrix [tokens, width] in float32. A family is a function that builds a
// graph with a GraphBuilder.

#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace penstock::model {

enum class ValueType : uint8_t { kTokens, kActivation };

// One value of the graph. Width 1 for kTokens (int32 ids).
struct Value {
  std::string name;  // "hidden.3": stands in `inspect`, messages and errors
  ValueType type = ValueType::kActivation;
  int64_t width = 0;  // elements per token
  LayerId producer;   // layer that writes it; invalid for the model's input (the token ids)
};

enum class TensorRole : uint8_t { kMatrix, kVector, kEmbedding };

// A weight by its canonical name: that of the Hugging Face folder. Vectors are what operations read
// in float32 as it is, of shape [n] mostly; matrices have [outputs, inputs]. A tensor that is used
// twice (tied weights, shared layers) stands here once.
struct WeightTensor {
  std::string name;
  std::vector<int64_t> shape;
  TensorRole role = TensorRole::kMatrix;
  bool routed_expert = false;  // only a chosen few of these are read per token
  bool replicated = false;     // every tensor-parallel rank holds it whole: latent down-projections
};

// Rotation angles of rotary embedding: angle(position, i) = position * inverse_frequencies[i],
// computed in float32.
struct RopeTable {
  std::vector<float> inverse_frequencies;       // rotary_dim / 2
  std::vector<float> long_inverse_frequencies;  // LongRoPE: used by sequences whose full length
                                                // exceeds `long_from`; else empty
  int64_t long_from = 0;
  float scale = 1.0F;  // multiplies cos and sin (YaRN and LongRoPE attention factor)
  float long_scale = 1.0F;
};

// kSitu exists as a gated unit only: beta tanh(gate / beta) sigmoid(gate) * (linear_beta tanh(up /
// linear_beta), or up where linear_beta is 0).
enum class Activation : uint8_t {
  kSilu,
  kGeluTanh,
  kGelu,
  kRelu,
  kReluSquared,
  kSigmoid,
  kSitu,
};

// ---- Operations. Inputs and outputs are listed in the order given. ----

// tokens -> x [width]. x = table[id] * scale
struct EmbedOp {
  TensorId table;
  float scale = 1.0F;
  int32_t shift = 0;  // row i takes the id of row i + shift of its sequence, the last rows their
                      // own. Above 0 in graphs for training only: what follows is not known else
};

// x -> y. y = x / sqrt(mean(x^2) + eps) * (weight, or 1 + weight), over groups of `group` columns
// (0: the whole row).
struct RmsNormOp {
  TensorId weight;
  float epsilon = 1e-6F;
  bool add_one = false;
  int64_t group = 0;  // per-head norms: the head size; the weight then has `group` elements
};

// x -> y_0, y_1, ...: y_i = x W_i^T (+ b_i). Several matrices that read the same input are one
// operation.
struct LinearOp {
  std::vector<TensorId> weights;
  std::vector<TensorId> biases;  // empty, or one per weight (invalid id: none)
};

// x_0, x_1, ... -> y: their columns side by side. The same value may stand several times.
struct ConcatOp {};

// x -> one value per part: adjacent columns of x. No work: the outputs are views. (Fused
// projections of one stored matrix.)
struct SplitOp {
  std::vector<int64_t> widths;
};

// x -> y. Rotates `rotary_dim` columns of each head, from `offset` on, by the row's position.
struct RopeOp {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
  bool interleaved = false;  // pairs (0,1),(2,3).. instead of (i, i + rotary_dim/2)
  RopeTable table;
  int64_t offset = 0;  // of the rotated columns within a head
};

// q, k, v -> o [heads * value_dim]. Appends k and v to the state, then attends causally over it.
// A row sees its own position and the `window` - 1 before it (0: all).
struct AttentionOp {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t value_dim = 0;
  float scale = 1.0F;
  float soft_cap = 0.0F;  // 0: none; else cap * tanh(score / cap) before the mask
  int64_t window = 0;
  int32_t state = -1;  // index into Graph::states
};

// q, latent, key -> o [heads * value_dim]. Multi-head latent attention (DeepSeek-V2, arXiv
// 2405.04434): per head the query is [nope | rope], keys and values are [k | v] = expand c with the
// latent row c of a token, and every head's key ends with the token's `key` row [rope]. Appends
// latent and key to the state, then attends causally over it.
struct LatentAttentionOp {
  TensorId expand;  // [heads * (nope + value_dim), latent], per head keys, then values
  int64_t heads = 0;
  int64_t nope = 0;
  int64_t rope = 0;
  int64_t value_dim = 0;
  int64_t latent = 0;
  float scale = 1.0F;
  // Absorbed: queries go through `expand`, and scores are taken with the latent rows. Else keys and
  // values are expanded again, page by page. The two round differently; see SetLatentAttention.
  bool absorbed = true;
  int32_t state = -1;  // index into Graph::states
};

// x_0, x_1, ... -> y_0, y_1, ...: y = act(causal convolution of x along the sequence), each column
// alone: y[t][c] = act(sum over j of weight[c][j] x[t - taps + 1 + j][c]), zeros before the
// sequence. Keeps the last taps - 1 rows of each x per sequence.
struct ShortConvOp {
  std::vector<TensorId> weights;  // per input: a vector [width, 1, taps]
  int64_t taps = 0;
  Activation activation = Activation::kSilu;
  int32_t state = -1;
};

// q, k, v, f, b -> o [heads * dim]. Kimi delta attention (Kimi Linear, arXiv 2510.26692): per head
// a state S [dim keys, dim values], zero before the sequence. With q and k normalized to length 1
// (epsilon 1e-6 under the root), q times dim^-1/2, beta = sigmoid(b), and the decay g per key
// column
//   S <- diag(exp g) S;  S <- S + beta k (v - S^T k)^T;  o = S^T q
//   g = lower_bound * sigmoid(exp(a_log) (f + dt_bias)), or -exp(a_log) softplus(f + dt_bias).
struct DeltaAttentionOp {
  TensorId a_log;    // [heads]
  TensorId dt_bias;  // [heads * dim]
  int64_t heads = 0;
  int64_t dim = 0;
  bool bounded = false;       // the first form of g
  float lower_bound = -5.0F;  // of g; negative
  int32_t state = -1;
};

// gate, up -> y = act(gate) * up
struct GatedOp {
  Activation activation = Activation::kSilu;
  float beta = 0.0F;         // kSitu
  float linear_beta = 0.0F;  // kSitu; 0: up as it is
};

// x -> y = act(x)
struct ActivationOp {
  Activation activation = Activation::kSilu;
};

// x -> y, or z, x -> y: the experts take the first input, the router reads the last. Routes each
// token to `chosen` of the experts; y = sum over the chosen, in ascending expert order, of weight *
// down(act(gate) * up).
struct MoeOp {
  enum class Scoring : uint8_t { kSoftmax, kSigmoid };
  TensorId router;                       // [experts, width]
  TensorId router_bias;                  // invalid: none; used for choosing only
  std::vector<TensorId> gate, up, down;  // one per expert
  int64_t chosen = 0;
  bool normalize = false;  // divide the chosen weights by their sum
  Scoring scoring = Scoring::kSoftmax;
  float weight_scale = 1.0F;
  Activation activation = Activation::kSilu;
  float beta = 0.0F;  // as in GatedOp
  float linear_beta = 0.0F;
  // Experts come from the `chosen_groups` best of `groups` equal runs of experts; a run counts as
  // the sum of its two best scores, biases included.
  int64_t groups = 1;
  int64_t chosen_groups = 1;
};

// a, b -> a + b
struct AddOp {};

// x -> x * factor
struct ScaleOp {
  float factor = 1.0F;
};

// x -> cap * tanh(x / cap)
struct SoftCapOp {
  float cap = 0.0F;
};

// s_0, s_1, ... -> y = sum over j of a_j s_j, a = softmax over j of the sum over columns of
// query * key_norm * s_j / sqrt(mean(s_j^2) + epsilon): attention over depth. The sources (at least
// one) have one width; their order is the order of the sum.
struct DepthReadOp {
  TensorId query;     // [1, width]
  TensorId key_norm;  // [width]; invalid: none
  float epsilon = 1e-6F;
};

// ---- Multi-stream residuals (hyper-connections, arXiv 2409.19606). The n streams of a token lie
// side by side in one value of n * width columns. A row's coefficients, [n * (n + 2)]: per stream k
// its share in what a sublayer reads (column 0), its share in each stream afterwards (columns 1 to
// n), and the share of the sublayer's output in stream k (column n + 1). ----

// streams -> coefficients. c_k = base_k, and where `mix` is there + (scale of the column) *
// tanh(norm(stream_k) mix^T). Base and mix have the columns (rows) of the coefficients of one
// stream.
struct StreamWeightsOp {
  int64_t streams = 0;
  TensorId base;   // [streams, streams + 2]
  TensorId mix;    // [streams + 2, width]; invalid: static, and the next two too
  TensorId norm;   // [width], of the streams before `mix`
  TensorId scale;  // [2]: of columns 0 to n, and of column n + 1
  float epsilon = 1e-6F;
};

inline constexpr int64_t kMaxStreams = 16;

// streams, coefficients -> x [width] = sum over k of c_k0 stream_k
struct StreamReadOp {
  int64_t streams = 0;
};

// streams, coefficients, y -> streams'. stream'_j = sum over k of c_k,j+1 stream_k + c_j,n+1 y
struct StreamWriteOp {
  int64_t streams = 0;
};

// x -> the rows whose logits are wanted (the last of each finished prompt, decode rows; all rows
// when every logit is asked for). Stands in front of the head's work; values after it have fewer
// rows.
struct SelectRowsOp {};

// inputs -> outputs of stated widths. Work that `plan` and `inspect` count and that no kernel does
// yet; a graph with one of these is refused by whoever runs graphs. Families use it for the parts
// that the operations above do not cover.
struct CountedOp {
  std::string kind;               // "layer norm", "latent attention", "experts", "depth read"
  std::vector<TensorId> weights;  // matrices are multiplied with every row (routed experts: with
                                  // the rows that chose them), vectors are read
  int64_t experts = 0;            // of the tensors marked routed_expert ...
  int64_t chosen = 0;             // ... this share of the experts is read by one token
  // Attention over the state: `heads` x (score_dim + value_dim) multiply-adds per key that is seen;
  // while decoding `decode_...` instead, where they are not 0 (latent attention, absorbed).
  int64_t heads = 0;
  int64_t score_dim = 0;
  int64_t value_dim = 0;
  int64_t decode_score_dim = 0;
  int64_t decode_value_dim = 0;
  int64_t window = 0;              // keys that a row sees at most; 0: all
  double extra_flops_per_row = 0;  // beside all of these (recurrences, convolutions, depth reads)
  double saved_bytes_per_row = 0;  // activations kept for the backward pass, at 16 bits
  int32_t state = -1;              // index into Graph::states; -1: none
};

using OpParams =
    std::variant<EmbedOp, RmsNormOp, LinearOp, SplitOp, RopeOp, AttentionOp, LatentAttentionOp,
                 ShortConvOp, DeltaAttentionOp, GatedOp, ActivationOp, MoeOp, AddOp, ScaleOp,
                 SoftCapOp, ConcatOp, DepthReadOp, StreamWeightsOp, StreamReadOp, StreamWriteOp,
                 SelectRowsOp, CountedOp>;

struct Op {
  LayerId layer;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  OpParams params;
};

// What an operation keeps per sequence between steps. The block manager, the plan and `inspect`
// know only this.
struct LayerState {
  // kPagedKv: keys and values per token, divided over tensor-parallel ranks by heads. kLatent: one
  // row per token that every tensor-parallel rank keeps whole. kRecurrent: nothing per token,
  // `sequence_bytes` per sequence, divided by heads.
  enum class Kind : uint8_t { kPagedKv, kLatent, kRecurrent };
  Kind kind = Kind::kPagedKv;
  LayerId layer;
  int64_t key_width = 0;       // elements per token: kv_heads * head_dim
  int64_t value_width = 0;     // kv_heads * value_dim
  int64_t window = 0;          // tokens that are ever read again; 0: all
  int64_t heads = 0;           // that tensor parallelism divides; 0: not stated
  int64_t sequence_bytes = 0;  // kept per sequence whatever its length; as a serving system holds
                               // it (states in float32, rows of convolutions at 16 bits)
};

enum class LayerKind : uint8_t { kEmbedding, kDecoder, kHead };

struct Layer {
  std::string name;  // "embedding", "layer 3", "head"
  LayerKind kind = LayerKind::kDecoder;
  int32_t first_op = 0;  // operations [first_op, last_op)
  int32_t last_op = 0;
};

// One term of the training loss: `weight` times the mean cross-entropy of the logits with the ids
// that follow. Row i is compared with the target of row i + shift of its sequence (rows that have
// none do not count).
struct LossTerm {
  std::string name;  // "main", "exit 3", "next 1"
  ValueId logits;
  float weight = 1.0F;
  int32_t shift = 0;
};

// Immutable once built. Cheap to move, costly to copy. Thread-safe for reading.
struct Graph {
  std::vector<Value> values;
  std::vector<WeightTensor> tensors;
  std::vector<Op> ops;
  std::vector<Layer> layers;
  std::vector<LayerState> states;
  ValueId tokens;                // the input
  ValueId logits;                // the output [selected rows, vocabulary]
  std::vector<LossTerm> losses;  // that of the output first, then those of auxiliary heads

  const Value& value(ValueId id) const { return values[static_cast<size_t>(id.value())]; }

  const WeightTensor& tensor(TensorId id) const { return tensors[static_cast<size_t>(id.value())]; }

  int32_t num_layers() const { return static_cast<int32_t>(layers.size()); }
};

// Tensors that an operation reads, in a fixed order.
std::vector<TensorId> TensorsOf(const Op& op);

// How every latent attention of the graph is computed: a property of a run, not of its batches.
void SetLatentAttention(Graph& graph, bool absorbed);

// Name of the operation's kind: "linear", "attention".
std::string_view OpName(const Op& op);

// The graph without what its logits do not depend on: auxiliary heads and their layers. Ids of
// values, tensors, operations, layers and states are numbered anew. O(operations).
Graph WithoutAuxiliaryHeads(const Graph& graph);

// Builds a graph step by step; the checks come at the end, in Build.
// A layer piece returns the value that it wrote, so that a family reads like its formula.
class GraphBuilder {
 public:
  GraphBuilder();

  ValueId tokens() const { return graph_.tokens; }

  // The operations that follow belong to this layer.
  void BeginLayer(LayerKind kind, std::string name);

  // The same name and shape give the same tensor (tied weights); another shape, or a vector that is
  // also a matrix (which an optimizer would decay here and not there), is an error that names both
  // layers. Matrices have two dimensions, vectors one to four.
  TensorId Tensor(std::string name, std::vector<int64_t> shape, TensorRole role,
                  bool routed_expert = false, bool replicated = false);

  TensorId Matrix(std::string name, int64_t outputs, int64_t inputs) {
    return Tensor(std::move(name), {outputs, inputs}, TensorRole::kMatrix);
  }

  TensorId Vector(std::string name, int64_t size) {
    return Tensor(std::move(name), {size}, TensorRole::kVector);
  }

  ValueId Embed(TensorId table, float scale, std::string name, int32_t shift = 0);
  ValueId RmsNorm(ValueId x, const RmsNormOp& params, std::string name);
  std::vector<ValueId> Linear(ValueId x, const LinearOp& params,
                              const std::vector<std::string>& names);
  std::vector<ValueId> Split(ValueId x, const SplitOp& params,
                             const std::vector<std::string>& names);
  ValueId Rope(ValueId x, const RopeOp& params, std::string name);
  // Adds the layer's state by itself: params.state is set here.
  ValueId Attention(ValueId q, ValueId k, ValueId v, AttentionOp params, std::string name);
  // The next three add the layer's state by themselves, too.
  ValueId LatentAttention(ValueId q, ValueId latent, ValueId key, LatentAttentionOp params,
                          std::string name);
  std::vector<ValueId> ShortConv(const std::vector<ValueId>& inputs, ShortConvOp params,
                                 const std::vector<std::string>& names);
  ValueId DeltaAttention(const std::vector<ValueId>& qkvfb, DeltaAttentionOp params,
                         std::string name);
  ValueId Gated(ValueId gate, ValueId up, const GatedOp& params, std::string name);
  ValueId Act(ValueId x, const ActivationOp& params, std::string name);
  // `router`: what the router reads, if not x.
  ValueId Moe(ValueId x, const MoeOp& params, std::string name, ValueId router = ValueId());
  ValueId Add(ValueId a, ValueId b, std::string name);
  ValueId Scale(ValueId x, float factor, std::string name);
  ValueId SoftCap(ValueId x, float cap, std::string name);
  ValueId Concat(const std::vector<ValueId>& parts, std::string name);
  ValueId DepthRead(const std::vector<ValueId>& sources, const DepthReadOp& params,
                    std::string name);
  ValueId StreamWeights(ValueId streams, const StreamWeightsOp& params, std::string name);
  ValueId StreamRead(ValueId streams, ValueId weights, int64_t count, std::string name);
  ValueId StreamWrite(ValueId streams, ValueId weights, ValueId y, int64_t count, std::string name);
  ValueId SelectRows(ValueId x, std::string name);

  // A term of the loss beside that of the output.
  void AddLoss(LossTerm term) { losses_.push_back(std::move(term)); }

  // Adds `state` to the current layer by itself: params.state is set here. `outputs` are names and
  // widths. The token ids may be among the inputs.
  std::vector<ValueId> Counted(const std::vector<ValueId>& inputs, CountedOp params,
                               std::optional<LayerState> state,
                               const std::vector<std::pair<std::string, int64_t>>& outputs);

  // Width of a value; 0 for one that nobody has written yet.
  int64_t width(ValueId id) const {
    return id.valid() && id.value() < std::ssize(graph_.values) ? graph_.value(id).width : 0;
  }

  // Checks the whole graph and gives it away: widths and shapes agree, values are written before
  // they are read, layers are in order, no tensor name has two shapes and no value name stands
  // twice, the first layer is the embedding and the last one the head, the logits are written.
  // Errors: kInvalidArgument naming layer and operation; the first mistake that was made.
  Result<Graph> Build(ValueId logits) &&;

 private:
  ValueId NewValue(std::string name, int64_t width);
  void AddOp(std::vector<ValueId> inputs, std::vector<ValueId> outputs, OpParams params);
  // Records the first mistake; later ones often follow from it.
  void Fail(std::string_view op, std::string_view what);
  bool CheckRead(std::string_view op, ValueId id);
  int64_t CheckStreams(std::string_view op, ValueId streams, int64_t count);
  void CheckLosses(ValueId logits);
  void NameLaterRead();
  bool CheckTensor(std::string_view op, TensorId id, std::initializer_list<int64_t> shape);

  Graph graph_;
  std::unordered_map<std::string, TensorId> tensor_ids_;
  std::vector<size_t> tensor_layers_;  // per tensor: the layer that uses it first
  std::vector<LossTerm> losses_;
  std::optional<Error> first_error_;

  // The first mistake, where it is a read of a value that nobody had written yet.
  struct LaterRead {
    ValueId value;
    ValueId last;  // of those that were there
    LayerId layer;
    std::string op;
  };

  std::optional<LaterRead> later_read_;
};

}  // namespace penstock::model
