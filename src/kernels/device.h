// Device: everything that a stage executor asks of the hardware. One object per rank; callers hand
// in tensors and never touch elements.
//
// Numbers: activations are float32. Every operation gives the same bits for a row whatever other
// rows are in the batch and whatever the number of threads: each output has one order of reduction.
// A matrix product rounds its inputs as the weight type says:
//   kF32   nothing is rounded
//   kBF16  weights and inputs are rounded to bf16 (nearest, ties to even), sums are float32
//   kInt8  weights per output channel, inputs per token (symmetric), exact integer sums
//   kInt4  the file's 4-bit blocks of 32 as they are (q4_0, q4_1 with minima, mxfp4), inputs in 8
//   bits per block of 32 columns
// Not thread-safe: one thread calls, the device uses its own pool inside.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/matrix_source.h"
#include "tensor/memory.h"
#include "tensor/tensor.h"

namespace penstock::kernels {

enum class WeightType : uint8_t { kF32, kBF16, kInt8, kInt4 };
// kSitu is a gated unit with two parameters (SituParams) and no function of one value.
enum class Activation : uint8_t { kSilu, kGeluTanh, kGelu, kRelu, kReluSquared, kSigmoid, kSitu };

std::string_view WeightTypeName(WeightType type);

// A weight matrix packed for this device, made by Device::LoadMatrix. Rows are output features.
class Matrix {
 public:
  virtual ~Matrix() = default;
  virtual int64_t rows() const = 0;
  virtual int64_t columns() const = 0;
  virtual WeightType type() const = 0;
  virtual int64_t bytes() const = 0;  // what it took from the account
};

// What one operation keeps of its sequences between steps, in blocks that are addressed by global
// ids.
class StateCache {
 public:
  virtual ~StateCache() = default;
};

// The keys and values of one attention layer: pages of `block_tokens` tokens.
class KvCache : public StateCache {};

// One latent row and one shared key per token, in pages likewise (multi-head latent attention).
class LatentCache : public StateCache {};

struct KvCacheSpec {
  int64_t blocks = 0;
  int64_t block_tokens = 32;  // 1 to 256; multiples of 16 waste nothing
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t value_dim = 0;
  DType type = DType::kBF16;  // kBF16 or kF32
};

struct LatentCacheSpec {
  int64_t blocks = 0;
  int64_t block_tokens = 32;  // 1 to 256
  int64_t latent = 0;
  int64_t rope = 0;
  DType type = DType::kBF16;  // kBF16 or kF32
};

// A state of fixed size per sequence; a sequence's block table has one entry, its slot. A
// sequence's first row (position 0) starts from zeros whatever the slot holds.
class SlotCache : public StateCache {};

// Consecutive rows of one sequence in the batch.
struct SequenceRows {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_position = 0;       // position of the first row; rows are consecutive positions
  std::span<const int32_t> blocks;  // block table: position p lies in blocks[p / block_tokens];
                                    // blocks that fell out of the window hold -1
  bool long_rope = false;           // LongRoPE's choice for this sequence
};

struct AttentionParams {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t value_dim = 0;
  float scale = 1.0F;
  float soft_cap = 0.0F;
  int64_t window = 0;
};

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434). Per head the query is [nope | rope];
// keys and values are [k | v] = expand c with the cached latent row c, and a second part of the key
// that all heads share. Absorbed: the query goes through the keys' half of `expand` instead, scores
// are taken with c itself, and the weighted sum of c goes through the values' half. The two agree
// up to rounding; which one is used is a property of the model as loaded, never of the batch.
struct LatentAttentionParams {
  int64_t heads = 0;
  int64_t nope = 0;
  int64_t rope = 0;
  int64_t value_dim = 0;
  int64_t latent = 0;
  float scale = 1.0F;
  bool absorbed = true;
  Tensor expand_rows;              // absorbed: [heads * (nope + value_dim), latent] float32
  const Matrix* expand = nullptr;  // else: the same, packed
};

// y[t][c] = act(sum over j of weight[c][j] x[t - taps + 1 + j][c]), zeros before the sequence.
struct ShortConvParams {
  int64_t taps = 0;
  Activation activation = Activation::kSilu;
  std::span<const Tensor> weights;  // per part: width x taps elements, float32, taps adjacent
};

// Kimi delta attention; see model::DeltaAttentionOp for the formulas.
struct DeltaParams {
  int64_t heads = 0;
  int64_t dim = 0;
  bool bounded = false;
  float lower_bound = -5.0F;
  Tensor a_log;    // [1, heads]
  Tensor dt_bias;  // [1, heads * dim]
};

// situ(gate, up) = beta tanh(gate / beta) sigmoid(gate) * linear_beta tanh(up / linear_beta), or *
// up where linear_beta is 0.
struct SituParams {
  float beta = 1.0F;
  float linear_beta = 0.0F;
};

struct RopeParams {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
  bool interleaved = false;
  std::span<const float> inverse_frequencies;
  std::span<const float> long_inverse_frequencies;
  float scale = 1.0F;
  float long_scale = 1.0F;
  int64_t offset = 0;  // columns [offset, offset + rotary_dim) of each head are rotated
};

struct MoeParams {
  bool sigmoid = false;  // else softmax over all experts
  bool normalize = false;
  int64_t chosen = 0;
  float weight_scale = 1.0F;
  Activation activation = Activation::kSilu;
  SituParams situ;  // for kSitu
  // Grouped choice: experts come from the `chosen_groups` best of `groups` equal runs; a run's
  // score is the sum of its two best biased scores. 1: no groups.
  int64_t groups = 1;
  int64_t chosen_groups = 1;
  Tensor router_input;                     // what the router reads; empty: x itself
  Tensor router;                           // [experts, its columns] float32
  Tensor router_bias;                      // [1, experts] float32, or empty
  std::span<const Matrix* const> gate_up;  // per expert [2 * ffn, width]: gate rows, then up rows
  std::span<const Matrix* const> down;     // per expert [width, ffn]
};

// Coefficients of n streams side by side (hyper-connections), see Device::StreamWeights.
struct StreamParams {
  int64_t streams = 0;  // 1 to 16
  Tensor base;          // [streams, streams + 2]
  Tensor mix;           // [streams + 2, width], or empty: the coefficients are `base`
  Tensor norm;          // [1, width]
  Tensor scale;         // [1, 2]
  float epsilon = 1e-6F;
};

class Device {
 public:
  virtual ~Device() = default;

  // "cpu avx512 (bf16, vnni), 2 threads".
  virtual std::string Description() const = 0;
  // Instruction set that decides the bits: "avx2", "avx512_vnni", "avx512".
  virtual std::string InstructionSet() const = 0;

  // ---- Weights ----

  // Packs the rows of `parts`, one after the other, as one matrix. Reads each part by rows, a
  // bounded piece at a time, and drops its pages. kInt4 REQUIRES parts of types q4_0 or q4_1 (if
  // any is q4_1, all are stored with minima), or all of mxfp4. Errors: kOutOfMemory; those of
  // MatrixSource::ReadRows (NaN names the tensor).
  virtual Result<std::unique_ptr<Matrix>> LoadMatrix(std::span<const MatrixSource* const> parts,
                                                     WeightType type, MemoryAccount& account) = 0;
  // Bytes that LoadMatrix takes from the account, exactly. `source` matters for kInt4: kQ4_1 if any
  // part is, kMXFP4 if they are.
  virtual int64_t MatrixBytes(int64_t rows, int64_t columns, WeightType type,
                              DType source) const = 0;

  // ---- Operations. Tensors are float32 [rows, columns] unless said otherwise; `out` may be `x`
  // where marked (in place). ----

  // out[i] = table row ids[i] * scale, dequantized.
  virtual void Embed(const Matrix& table, std::span<const int32_t> ids, float scale,
                     Tensor out) = 0;
  // Scratch bytes that Linear needs for up to `rows` rows of a matrix [outputs, inputs] of this
  // type. Known before anything is loaded.
  virtual int64_t LinearWorkspaceBytes(int64_t outputs, int64_t inputs, WeightType type,
                                       int64_t rows) const = 0;
  // out [rows, weight.rows()] = x weight^T + bias. bias: [1, weight.rows()] float32 or empty.
  // workspace: at least LinearWorkspaceBytes.
  virtual void Linear(const Matrix& weight, Tensor x, Tensor bias, Tensor out,
                      Tensor workspace) = 0;
  // Groups of `group` columns are normalized apart (0: the whole row). weight [1, group or
  // columns]. In place allowed.
  virtual void RmsNorm(Tensor x, Tensor weight, float epsilon, bool add_one, int64_t group,
                       Tensor out) = 0;
  // In place allowed.
  virtual void Rope(Tensor x, const RopeParams& params, std::span<const SequenceRows> sequences,
                    Tensor out) = 0;
  // out = act(gate) * up. In place (gate or up) allowed.
  virtual void Gated(Activation activation, Tensor gate, Tensor up, Tensor out) = 0;
  // In place (gate or up) allowed.
  virtual void Situ(const SituParams& params, Tensor gate, Tensor up, Tensor out) = 0;
  virtual void Act(Activation activation, Tensor x, Tensor out) = 0;
  virtual void Add(Tensor a, Tensor b, Tensor out) = 0;
  virtual void Scale(Tensor x, float factor, Tensor out) = 0;
  virtual void SoftCap(Tensor x, float cap, Tensor out) = 0;
  // Attention over depth: per row, out = sum over the sources s_j of a_j s_j, a = softmax over j of
  // the sum over columns of query * key_norm * s_j / sqrt(mean(s_j^2) + epsilon). Sources (at least
  // one) have the shape of `out`; query [1, columns]; key_norm [1, columns] or empty. `out` is none
  // of the sources. Source: arXiv 2603.15031.
  virtual void DepthRead(std::span<const Tensor> sources, Tensor query, Tensor key_norm,
                         float epsilon, Tensor out) = 0;
  // Multi-stream residuals (arXiv 2409.19606): x [rows, streams * width], stream k in columns from
  // k * width; coefficients c [rows, streams * (streams + 2)], those of stream k from column
  // k * (streams + 2). Source: the paper, with the dynamic part's columns in one matrix.
  // out (coefficients) = base + scale * tanh(mix (norm * x_k / sqrt(mean(x_k^2) + epsilon))), scale
  // [0] for columns 0 to streams, [1] for the last one.
  virtual void StreamWeights(const StreamParams& params, Tensor x, Tensor out) = 0;
  // out [rows, width] = sum over k of c_k0 x_k, k ascending.
  virtual void StreamRead(int64_t streams, Tensor x, Tensor c, Tensor out) = 0;
  // out_j = sum over k of c_k,j+1 x_k, k ascending, + c_j,streams+1 y. out is not x.
  virtual void StreamWrite(int64_t streams, Tensor x, Tensor c, Tensor y, Tensor out) = 0;
  // out[i] = x[rows[i]]
  virtual void GatherRows(Tensor x, std::span<const int32_t> rows, Tensor out) = 0;

  // ---- Attention over paged keys and values ----

  virtual Result<std::unique_ptr<KvCache>> CreateKvCache(const KvCacheSpec& spec,
                                                         MemoryAccount& account) = 0;
  virtual int64_t KvCacheBytes(const KvCacheSpec& spec) const = 0;
  virtual int64_t AttentionWorkspaceBytes(const AttentionParams& params, int64_t rows) const = 0;
  // Writes k [rows, kv_heads * head_dim] and v [rows, kv_heads * value_dim] at their positions,
  // then out [rows, heads * value_dim] = attention of q [rows, heads * head_dim]. Never holds the
  // score matrix. Blocks of other sequences are not touched.
  virtual void Attention(KvCache& cache, const AttentionParams& params,
                         std::span<const SequenceRows> sequences, Tensor q, Tensor k, Tensor v,
                         Tensor out, Tensor workspace) = 0;

  virtual Result<std::unique_ptr<LatentCache>> CreateLatentCache(const LatentCacheSpec& spec,
                                                                 MemoryAccount& account) = 0;
  virtual int64_t LatentCacheBytes(const LatentCacheSpec& spec) const = 0;
  // `type`: how `expand` is held where the params are not absorbed.
  virtual int64_t LatentAttentionWorkspaceBytes(const LatentAttentionParams& params,
                                                WeightType type, int64_t rows) const = 0;
  // Writes latent [rows, latent] and key [rows, rope] at their positions, then out [rows, heads *
  // value_dim] = causal attention of q [rows, heads * (nope + rope)].
  virtual void LatentAttention(LatentCache& cache, const LatentAttentionParams& params,
                               std::span<const SequenceRows> sequences, Tensor q, Tensor latent,
                               Tensor key, Tensor out, Tensor workspace) = 0;

  // ---- State of fixed size per sequence ----

  virtual Result<std::unique_ptr<SlotCache>> CreateSlots(int64_t slots, int64_t slot_bytes,
                                                         MemoryAccount& account) = 0;
  virtual int64_t SlotCacheBytes(int64_t slots, int64_t slot_bytes) const = 0;
  // Bytes of a slot of ShortConv whose inputs have `width` columns together.
  virtual int64_t ShortConvSlotBytes(int64_t width, int64_t taps) const = 0;
  // Each part alone; `out` is none of `x`.
  virtual void ShortConv(SlotCache& cache, const ShortConvParams& params,
                         std::span<const SequenceRows> sequences, std::span<const Tensor> x,
                         std::span<const Tensor> out) = 0;
  virtual int64_t DeltaSlotBytes(int64_t heads, int64_t dim) const = 0;
  virtual int64_t DeltaWorkspaceBytes(const DeltaParams& params) const = 0;
  // q, k, v, f, out [rows, heads * dim]; b [rows, heads]. out may be any of them but b.
  virtual void DeltaAttention(SlotCache& cache, const DeltaParams& params,
                              std::span<const SequenceRows> sequences, Tensor q, Tensor k, Tensor v,
                              Tensor f, Tensor b, Tensor out, Tensor workspace) = 0;

  // ---- Mixture of experts ----

  // For up to `rows` rows; `ffn` is the width inside an expert. Known before anything is loaded.
  virtual int64_t MoeWorkspaceBytes(int64_t experts, int64_t chosen, int64_t width, int64_t ffn,
                                    WeightType type, int64_t rows) const = 0;
  virtual void Moe(const MoeParams& params, Tensor x, Tensor out, Tensor workspace) = 0;

  // ---- Results ----

  // Index of the first row with a NaN or infinity, or -1.
  virtual int64_t FirstNonFiniteRow(Tensor x) const = 0;
};

struct CpuOptions {
  int threads = 1;
  bool pin = false;  // pin thread i to `cores[i]`; thread 0 is the one that creates the device
  std::vector<int> cores;
};

// The CPU with the best kernels of this machine, capped by the environment variable
// PENSTOCK_MAX_ISA (avx2, avx512_vnni, avx512, amx). Errors: kUnsupported below AVX2;
// kInvalidArgument for an unknown cap.
Result<std::unique_ptr<Device>> CreateCpuDevice(const CpuOptions& options);

// Usable cores of this process (its affinity mask and control group).
int UsableCores();

}  // namespace penstock::kernels
