// The CPU as a Device: deals rows and output features to its threads.

#pragma once

#include <memory>
#include <span>
#include <string>

#include "kernels/cpu/activations.h"
#include "kernels/cpu/features.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/latent_attention.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/rope_tables.h"
#include "kernels/cpu/vector_ops.h"
#include "kernels/device.h"

namespace penstock::kernels {

class CpuDevice final : public Device {
 public:
  CpuDevice(Isa isa, const CpuOptions& options);

  std::string Description() const override;
  std::string InstructionSet() const override;

  Result<std::unique_ptr<Matrix>> LoadMatrix(std::span<const MatrixSource* const> parts,
                                             WeightType type, MemoryAccount& account) override;
  int64_t MatrixBytes(int64_t rows, int64_t columns, WeightType type, DType source) const override;

  void Embed(const Matrix& table, std::span<const int32_t> ids, float scale, Tensor out) override;
  int64_t LinearWorkspaceBytes(int64_t outputs, int64_t inputs, WeightType type,
                               int64_t rows) const override;
  void Linear(const Matrix& weight, Tensor x, Tensor bias, Tensor out, Tensor workspace) override;
  void RmsNorm(Tensor x, Tensor weight, float epsilon, bool add_one, int64_t group,
               Tensor out) override;
  void Rope(Tensor x, const RopeParams& params, std::span<const SequenceRows> sequences,
            Tensor out) override;
  void Gated(Activation activation, Tensor gate, Tensor up, Tensor out) override;
  void Situ(const SituParams& params, Tensor gate, Tensor up, Tensor out) override;
  void Act(Activation activation, Tensor x, Tensor out) override;
  void Add(Tensor a, Tensor b, Tensor out) override;
  void Scale(Tensor x, float factor, Tensor out) override;
  void SoftCap(Tensor x, float cap, Tensor out) override;
  void DepthRead(std::span<const Tensor> sources, Tensor query, Tensor key_norm, float epsilon,
                 Tensor out) override;
  void StreamWeights(const StreamParams& params, Tensor x, Tensor out) override;
  void StreamRead(int64_t streams, Tensor x, Tensor c, Tensor out) override;
  void StreamWrite(int64_t streams, Tensor x, Tensor c, Tensor y, Tensor out) override;
  void GatherRows(Tensor x, std::span<const int32_t> rows, Tensor out) override;

  Result<std::unique_ptr<KvCache>> CreateKvCache(const KvCacheSpec& spec,
                                                 MemoryAccount& account) override;
  int64_t KvCacheBytes(const KvCacheSpec& spec) const override;
  int64_t AttentionWorkspaceBytes(const AttentionParams& params, int64_t rows) const override;
  void Attention(KvCache& cache, const AttentionParams& params,
                 std::span<const SequenceRows> sequences, Tensor q, Tensor k, Tensor v, Tensor out,
                 Tensor workspace) override;

  Result<std::unique_ptr<LatentCache>> CreateLatentCache(const LatentCacheSpec& spec,
                                                         MemoryAccount& account) override;
  int64_t LatentCacheBytes(const LatentCacheSpec& spec) const override;
  int64_t LatentAttentionWorkspaceBytes(const LatentAttentionParams& params, WeightType type,
                                        int64_t rows) const override;
  void LatentAttention(LatentCache& cache, const LatentAttentionParams& params,
                       std::span<const SequenceRows> sequences, Tensor q, Tensor latent, Tensor key,
                       Tensor out, Tensor workspace) override;

  Result<std::unique_ptr<SlotCache>> CreateSlots(int64_t slots, int64_t slot_bytes,
                                                 MemoryAccount& account) override;
  int64_t SlotCacheBytes(int64_t slots, int64_t slot_bytes) const override;
  int64_t ShortConvSlotBytes(int64_t width, int64_t taps) const override;
  void ShortConv(SlotCache& cache, const ShortConvParams& params,
                 std::span<const SequenceRows> sequences, std::span<const Tensor> x,
                 std::span<const Tensor> out) override;
  int64_t DeltaSlotBytes(int64_t heads, int64_t dim) const override;
  int64_t DeltaWorkspaceBytes(const DeltaParams& params) const override;
  void DeltaAttention(SlotCache& cache, const DeltaParams& params,
                      std::span<const SequenceRows> sequences, Tensor q, Tensor k, Tensor v,
                      Tensor f, Tensor b, Tensor out, Tensor workspace) override;

  int64_t MoeWorkspaceBytes(int64_t experts, int64_t chosen, int64_t width, int64_t ffn,
                            WeightType type, int64_t rows) const override;
  void Moe(const MoeParams& params, Tensor x, Tensor out, Tensor workspace) override;

  int64_t FirstNonFiniteRow(Tensor x) const override;

  // What training shares with the device.
  ThreadPool& pool() { return pool_; }

  const GemmKernels& kernels() const { return kernels_; }

  RopeTables& rope_tables() { return rope_tables_; }

  static constexpr int64_t kSerialElements = 16384;

 private:
  // body(RowRange) over the rows of `out`, in shares when there is enough work.
  template <class Body>
  void OverRows(Tensor out, int64_t work_per_element, const Body& body) {
    const bool serial = out.rows() * out.columns() * work_per_element < kSerialElements;
    pool_.Split(out.rows(), serial, [&](int64_t begin, int64_t end) {
      body(RowRange{begin, end});
    });
  }

  void AttendAbsorbedRows(CpuLatentCache& cache, const LatentAttentionParams& params,
                          std::span<const SequenceRows> sequences, Tensor q, Tensor out,
                          Tensor workspace);
  void AttendPlainRows(CpuLatentCache& cache, const LatentAttentionParams& params,
                       std::span<const SequenceRows> sequences, Tensor q, Tensor out,
                       Tensor workspace);

  GemmFunction PrepareActivations(const PackedMatrix& matrix, const ActivationLayout& layout,
                                  Tensor x, std::byte* a, GemmArgs& args);

  Isa isa_;
  const GemmKernels& kernels_;
  mutable ThreadPool pool_;
  RopeTables rope_tables_;
};

}  // namespace penstock::kernels
