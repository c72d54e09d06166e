#include "kernels/cpu/cpu_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/activations.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/depth_ops.h"
#include "kernels/cpu/vector_ops.h"

namespace penstock::kernels {
namespace {

const PackedMatrix& Packed(const Matrix& matrix) {
  return static_cast<const PackedMatrix&>(matrix);
}

const float* Floats(Tensor vector) {
  return vector.empty() ? nullptr : vector.Row<float>(0).data();
}

}  // namespace

std::string_view WeightTypeName(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return "f32";
    case WeightType::kBF16:
      return "bf16";
    case WeightType::kInt8:
      return "int8";
    case WeightType::kInt4:
      return "int4";
  }
  return "";
}

namespace {

const GemmKernels& KernelsFor(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return GemmKernelsAvx2();
    case Isa::kAvx512Vnni:
      return GemmKernelsAvx512Vnni();
    case Isa::kAvx512:
    case Isa::kAmx:
      break;
  }
  return GemmKernelsAvx512();
}

}  // namespace

CpuDevice::CpuDevice(Isa isa, const CpuOptions& options)
    : isa_(isa),
      kernels_(KernelsFor(isa)),
      pool_(options.threads, options.pin ? options.cores : std::vector<int>()) {}

std::string CpuDevice::Description() const {
  const char* extras = isa_ >= Isa::kAvx512 ? " (bf16, vnni)" : "";
  return fmt::format("cpu {}{}, {} thread{}", InstructionSet(), extras, pool_.threads(),
                     pool_.threads() == 1 ? "" : "s");
}

std::string CpuDevice::InstructionSet() const {
  return std::string(IsaName(isa_));
}

Result<std::unique_ptr<Matrix>> CpuDevice::LoadMatrix(std::span<const MatrixSource* const> parts,
                                                      WeightType type, MemoryAccount& account) {
  PENSTOCK_TRY_ASSIGN(std::unique_ptr<Matrix> matrix,
                      PackedMatrix::Load(parts, type, pool_, account));
  return matrix;
}

int64_t CpuDevice::MatrixBytes(int64_t rows, int64_t columns, WeightType type, DType source) const {
  const bool int4 = type == WeightType::kInt4;
  return PackedShape{rows, columns, type, int4 && source == DType::kQ4_1,
                     int4 && source == DType::kMXFP4}
      .bytes();
}

void CpuDevice::Embed(const Matrix& table, std::span<const int32_t> ids, float scale, Tensor out) {
  const PackedMatrix& matrix = Packed(table);
  OverRows(out, 1, [&](RowRange range) {
    for (int64_t r = range.begin; r < range.end; ++r) {
      matrix.DequantizeRow(ids[static_cast<size_t>(r)], scale, out.Row<float>(r));
    }
  });
}

int64_t CpuDevice::LinearWorkspaceBytes(int64_t /*outputs*/, int64_t inputs, WeightType type,
                                        int64_t rows) const {
  return LayoutOf(PackedShape{1, inputs, type, false}, rows, kernels_).bytes();
}

// Brings the activations into `a` as `args` then says, and picks the kernel.
GemmFunction CpuDevice::PrepareActivations(const PackedMatrix& matrix,
                                           const ActivationLayout& layout, Tensor x, std::byte* a,
                                           GemmArgs& args) {
  args.a = a;
  args.row_stride = layout.row_stride;
  args.block_stride = layout.block_stride();
  args.block_groups = layout.block_groups;
  switch (matrix.type()) {
    case WeightType::kF32:
      if (layout.packed) {
        OverRows(x, 1, [&](RowRange range) { CopyRows(x, layout, a, range); });
      } else {
        args.a = reinterpret_cast<const std::byte*>(x.Row<float>(0).data());
        args.row_stride = x.row_stride() * 4;
      }
      return kernels_.f32;
    case WeightType::kBF16:
      OverRows(x, 1,
               [&](RowRange range) { RoundRowsBf16(x, kernels_.bf16_as_f32, layout, a, range); });
      return kernels_.bf16;
    case WeightType::kInt8: {
      auto* scales = reinterpret_cast<float*>(a + layout.blocks * layout.block_stride());
      OverRows(x, 1, [&](RowRange range) {
        QuantizeRowsInt8(x, kernels_.int8_offset, layout, a, scales, range);
      });
      args.row_scale = scales;
      args.scale = matrix.scales();
      args.row_sum128 = matrix.row_sum128();
      return kernels_.int8;
    }
    case WeightType::kInt4:
      OverRows(x, 1, [&](RowRange range) {
        QuantizeRowsInt4(x, matrix.shape().minima, layout, a, range);
      });
      if (matrix.shape().mx) {
        return kernels_.int4_mx;
      }
      return matrix.shape().minima ? kernels_.int4_min : kernels_.int4;
  }
  return nullptr;
}

void CpuDevice::Linear(const Matrix& weight, Tensor x, Tensor bias, Tensor out, Tensor workspace) {
  const PackedMatrix& matrix = Packed(weight);
  const PackedShape& shape = matrix.shape();
  const ActivationLayout layout = LayoutOf(shape, x.rows(), kernels_);
  PENSTOCK_CHECK(
      x.columns() == shape.columns && out.columns() == shape.rows && x.rows() == out.rows(),
      "shapes of a product agree");
  PENSTOCK_CHECK(!layout.packed || workspace.bytes() >= layout.bytes(),
                 "the workspace is large enough");
  if (x.rows() == 0) {
    return;
  }
  GemmArgs args;
  args.rows = x.rows();
  args.w = matrix.panels();
  args.groups = shape.groups();
  args.columns = shape.rows;
  args.bias = Floats(bias);
  args.out = out.Row<float>(0).data();
  args.out_stride = out.row_stride();
  std::byte* a = layout.packed ? workspace.Bytes().data() : nullptr;
  const GemmFunction gemm = PrepareActivations(matrix, layout, x, a, args);
  const bool serial = x.rows() * shape.rows * shape.columns < 16 * kSerialElements;
  pool_.Split(shape.strips(), serial, [&](int64_t begin, int64_t end) { gemm(args, begin, end); });
}

void CpuDevice::RmsNorm(Tensor x, Tensor weight, float epsilon, bool add_one, int64_t group,
                        Tensor out) {
  const int64_t columns = group == 0 ? x.columns() : group;
  PENSTOCK_CHECK(x.columns() % columns == 0 && weight.columns() == columns,
                 "groups fill the row, and the weight has a group's columns");
  OverRows(out, 1, [&](RowRange range) {
    RmsNormRows(x, Floats(weight), epsilon, add_one, columns, out, range);
  });
}

void CpuDevice::Rope(Tensor x, const RopeParams& params, std::span<const SequenceRows> sequences,
                     Tensor out) {
  PENSTOCK_CHECK(x.columns() == params.heads * params.head_dim, "columns are heads");
  const RopeTables::Table table = rope_tables_.Get(params, sequences, x.rows(), pool_);
  OverRows(out, 1, [&](RowRange range) { RopeRows(x, params, table.cos, table.sin, out, range); });
}

void CpuDevice::Gated(Activation activation, Tensor gate, Tensor up, Tensor out) {
  OverRows(out, 4, [&](RowRange range) { GatedRows(activation, gate, up, out, range); });
}

void CpuDevice::Situ(const SituParams& params, Tensor gate, Tensor up, Tensor out) {
  OverRows(out, 8, [&](RowRange range) { SituRows(params, gate, up, out, range); });
}

void CpuDevice::Act(Activation activation, Tensor x, Tensor out) {
  OverRows(out, 4, [&](RowRange range) { ActRows(activation, x, out, range); });
}

void CpuDevice::Add(Tensor a, Tensor b, Tensor out) {
  OverRows(out, 1, [&](RowRange range) { AddRows(a, b, out, range); });
}

void CpuDevice::Scale(Tensor x, float factor, Tensor out) {
  OverRows(out, 1, [&](RowRange range) { ScaleRows(x, factor, out, range); });
}

void CpuDevice::SoftCap(Tensor x, float cap, Tensor out) {
  OverRows(out, 4, [&](RowRange range) { SoftCapRows(x, cap, out, range); });
}

void CpuDevice::DepthRead(std::span<const Tensor> sources, Tensor query, Tensor key_norm,
                          float epsilon, Tensor out) {
  PENSTOCK_CHECK(!sources.empty() && query.columns() == out.columns(),
                 "there is a source, and the query is as wide as the output");
  for (const Tensor& source : sources) {
    PENSTOCK_CHECK(source.rows() == out.rows() && source.columns() == out.columns(),
                   "sources have the shape of the output");
  }
  OverRows(out, 2 * std::ssize(sources), [&](RowRange range) {
    DepthReadRows(sources, Floats(query), Floats(key_norm), epsilon, out, range);
  });
}

void CpuDevice::StreamWeights(const StreamParams& params, Tensor x, Tensor out) {
  const int64_t n = params.streams;
  PENSTOCK_CHECK(n >= 1 && n <= kMaxDepthStreams && x.columns() % n == 0 &&
                     out.columns() == n * (n + 2) && params.base.columns() == n + 2,
                 "streams divide the columns, and have coefficients");
  OverRows(x, 4, [&](RowRange range) { StreamWeightsRows(params, x, out, range); });
}

void CpuDevice::StreamRead(int64_t streams, Tensor x, Tensor c, Tensor out) {
  PENSTOCK_CHECK(x.columns() == streams * out.columns() && c.columns() == streams * (streams + 2),
                 "the streams are as wide as the output");
  OverRows(x, 1, [&](RowRange range) { StreamReadRows(streams, x, c, out, range); });
}

void CpuDevice::StreamWrite(int64_t streams, Tensor x, Tensor c, Tensor y, Tensor out) {
  PENSTOCK_CHECK(x.columns() == streams * y.columns() && out.columns() == x.columns() &&
                     c.columns() == streams * (streams + 2),
                 "the streams are as wide as the output of the sublayer");
  OverRows(x, 2 * streams, [&](RowRange range) { StreamWriteRows(streams, x, c, y, out, range); });
}

void CpuDevice::GatherRows(Tensor x, std::span<const int32_t> rows, Tensor out) {
  OverRows(out, 1, [&](RowRange range) {
    for (int64_t r = range.begin; r < range.end; ++r) {
      const std::span<const float> from = x.Row<float>(rows[static_cast<size_t>(r)]);
      std::ranges::copy(from, out.Row<float>(r).begin());
    }
  });
}

Result<std::unique_ptr<KvCache>> CpuDevice::CreateKvCache(const KvCacheSpec& spec,
                                                          MemoryAccount& account) {
  PENSTOCK_CHECK(spec.type == DType::kBF16 || spec.type == DType::kF32, "keys are bf16 or f32");
  PENSTOCK_CHECK(spec.block_tokens >= 1 && spec.block_tokens <= kMaxBlockTokens,
                 "a block holds 1 to 256 tokens");
  PENSTOCK_TRY_ASSIGN(Buffer buffer,
                      Buffer::Allocate(account, MemoryCategory::kKv, CpuKvCache::Bytes(spec)));
  return std::unique_ptr<KvCache>(new CpuKvCache(spec, std::move(buffer)));
}

int64_t CpuDevice::KvCacheBytes(const KvCacheSpec& spec) const {
  return CpuKvCache::Bytes(spec);
}

int64_t CpuDevice::AttentionWorkspaceBytes(const AttentionParams& params, int64_t /*rows*/) const {
  return pool_.threads() * AttentionScratchFloats(params) * 4;
}

void CpuDevice::Attention(KvCache& cache, const AttentionParams& params,
                          std::span<const SequenceRows> sequences, Tensor q, Tensor k, Tensor v,
                          Tensor out, Tensor workspace) {
  auto& pages = static_cast<CpuKvCache&>(cache);
  PENSTOCK_CHECK(params.kv_heads == pages.spec().kv_heads &&
                     params.head_dim == pages.spec().head_dim &&
                     params.value_dim == pages.spec().value_dim,
                 "the cache has the layer's heads");
  PENSTOCK_CHECK(params.heads % params.kv_heads == 0, "heads share keys evenly");
  PENSTOCK_CHECK(workspace.bytes() >= AttentionWorkspaceBytes(params, q.rows()),
                 "the workspace is large enough");
  Attend(pages, params, sequences, q, k, v, out, reinterpret_cast<float*>(workspace.Bytes().data()),
         pool_);
}

int64_t CpuDevice::FirstNonFiniteRow(Tensor x) const {
  return FirstNonFinite(x, {0, x.rows()});
}

Result<std::unique_ptr<Device>> CreateCpuDevice(const CpuOptions& options) {
  if (options.threads < 1) {
    return MakeError(ErrorCode::kInvalidArgument, "[kernels.cpu] {} threads, wanted at least 1",
                     options.threads);
  }
  const char* cap = std::getenv("PENSTOCK_MAX_ISA");
  PENSTOCK_TRY_ASSIGN(const Isa best, DetectIsa(cap == nullptr ? "" : cap));
  const Isa isa = KernelIsa(best);
  CapHighway(isa);
  return std::unique_ptr<Device>(new CpuDevice(isa, options));
}

}  // namespace penstock::kernels
