// The three products of a trainable matrix. All run the packed kernels of cpu/gemm.h.

#include <algorithm>

#include "kernels/cpu/training_device.h"
#include "kernels/cpu/training_pack.h"

namespace penstock::kernels {
namespace {

// Outputs whose gradients are made from one packed piece of dy^T: with 512 rows of bf16 its blocks
// fill half of the second-level cache. A multiple of the tiles' rows.
constexpr int64_t kPieceOutputs = 240;

// Scratch of dy^T x: x packed for all, then a piece of dy^T for each thread.
struct WeightLayout {
  PackedShape shape;  // of x: its columns are output features
  ActivationLayout piece;
  int64_t piece_bytes = 0;
  int64_t bytes = 0;
};

WeightLayout LayoutOfWeight(int64_t inputs, int64_t rows, ProductType type,
                            const GemmKernels& kernels, int threads) {
  WeightLayout layout;
  layout.shape = {inputs, rows, PackedType(type), false};
  layout.piece = LayoutOf(layout.shape, kPieceOutputs, kernels);
  layout.piece_bytes = (layout.piece.bytes() + 63) / 64 * 64;
  layout.bytes = layout.shape.panel_bytes() + threads * layout.piece_bytes;
  return layout;
}

}  // namespace

int64_t CpuTraining::TrainMatrixBytes(int64_t rows, int64_t columns, ProductType type) const {
  return CpuTrainMatrix::Bytes(rows, columns, type);
}

Result<std::unique_ptr<TrainMatrix>> CpuTraining::CreateMatrix(int64_t rows, int64_t columns,
                                                               ProductType type,
                                                               MemoryAccount& account) {
  PENSTOCK_TRY_ASSIGN(std::unique_ptr<TrainMatrix> matrix,
                      CpuTrainMatrix::Create(rows, columns, type, pool_, account));
  return matrix;
}

void CpuTraining::Repack(TrainMatrix& matrix, Tensor master, int64_t first_row) {
  static_cast<CpuTrainMatrix&>(matrix).Repack(master, first_row, pool_);
}

int64_t CpuTraining::ProductWorkspaceBytes(int64_t outputs, int64_t inputs, ProductType type,
                                           int64_t rows) const {
  const WeightType packed = PackedType(type);
  const int64_t forward = LayoutOf(PackedShape{1, inputs, packed, false}, rows, kernels_).bytes();
  const int64_t backward = LayoutOf(PackedShape{1, outputs, packed, false}, rows, kernels_).bytes();
  const int64_t weight = LayoutOfWeight(inputs, rows, type, kernels_, pool_.threads()).bytes;
  return std::max({forward, backward, weight});
}

void CpuTraining::Product(const PackedShape& shape, const std::byte* panels, Tensor x,
                          const float* bias, int64_t bias_stride, Tensor out, Tensor workspace) {
  const ActivationLayout layout = LayoutOf(shape, x.rows(), kernels_);
  PENSTOCK_CHECK(
      x.columns() == shape.columns && out.columns() == shape.rows && x.rows() == out.rows(),
      "shapes of a product agree");
  PENSTOCK_CHECK(!layout.packed || workspace.bytes() >= layout.bytes(),
                 "the workspace is large enough");
  if (x.rows() == 0) {
    return;
  }
  const bool f32 = shape.type == WeightType::kF32;
  GemmArgs args;
  args.rows = x.rows();
  args.w = panels;
  args.groups = shape.groups();
  args.columns = shape.rows;
  args.bias = bias;
  args.bias_stride = bias_stride;
  args.out = out.Row<float>(0).data();
  args.out_stride = out.row_stride();
  args.block_groups = layout.block_groups;
  args.block_stride = layout.block_stride();
  args.row_stride = layout.row_stride;
  if (layout.packed) {
    std::byte* a = workspace.Bytes().data();
    args.a = a;
    OverRows(x, 1, [&](RowRange range) {
      if (f32) {
        CopyRows(x, layout, a, range);
      } else {
        RoundRowsBf16(x, kernels_.bf16_as_f32, layout, a, range);
      }
    });
  } else {
    args.a = reinterpret_cast<const std::byte*>(x.Row<float>(0).data());
    args.row_stride = x.row_stride() * 4;
  }
  const GemmFunction gemm = f32 ? kernels_.f32 : kernels_.bf16;
  const bool serial = x.rows() * shape.rows * shape.columns < 16 * CpuDevice::kSerialElements;
  pool_.Split(shape.strips(), serial, [&](int64_t begin, int64_t end) { gemm(args, begin, end); });
}

void CpuTraining::LinearForward(const TrainMatrix& w, Tensor x, Tensor bias, Tensor out,
                                Tensor workspace) {
  const auto& matrix = static_cast<const CpuTrainMatrix&>(w);
  const float* added = bias.empty() ? nullptr : bias.Row<float>(0).data();
  Product(matrix.forward(), matrix.forward_panels(), x, added, 0, out, workspace);
}

void CpuTraining::LinearBackwardInput(const TrainMatrix& w, Tensor dy, bool accumulate, Tensor dx,
                                      Tensor workspace) {
  const auto& matrix = static_cast<const CpuTrainMatrix&>(w);
  const float* added = accumulate && dx.rows() > 0 ? dx.Row<float>(0).data() : nullptr;
  Product(matrix.backward(), matrix.backward_panels(), dy, added, dx.row_stride(), dx, workspace);
}

void CpuTraining::LinearBackwardWeight(ProductType type, Tensor dy, Tensor x, Tensor dw,
                                       Tensor workspace) {
  const int64_t rows = x.rows();
  const int64_t outputs = dy.columns();
  const int64_t inputs = x.columns();
  PENSTOCK_CHECK(dy.rows() == rows && dw.rows() == outputs && dw.columns() == inputs,
                 "shapes of a product agree");
  const WeightLayout layout = LayoutOfWeight(inputs, rows, type, kernels_, pool_.threads());
  PENSTOCK_CHECK(workspace.bytes() >= layout.bytes, "the workspace is large enough");
  if (rows == 0) {
    return;
  }
  std::byte* panels = workspace.Bytes().data();
  std::byte* pieces = panels + layout.shape.panel_bytes();
  const bool serial = rows * outputs * inputs < 16 * CpuDevice::kSerialElements;
  // Pairs of rows stay with one thread.
  pool_.Split((rows + 1) / 2, serial, [&](int64_t begin, int64_t end) {
    PackBackward(x, layout.shape, 0, panels, {begin * 2, std::min(rows, end * 2)});
  });
  const bool as_f32 = type == ProductType::kBF16 && kernels_.bf16_as_f32;
  const GemmFunction gemm = type == ProductType::kF32 ? kernels_.f32 : kernels_.bf16;
  const auto share = [&](int thread, int64_t begin, int64_t end) {
    std::byte* piece = pieces + thread * layout.piece_bytes;
    for (int64_t o = begin; o < end; o += kPieceOutputs) {
      const int64_t count = std::min(kPieceOutputs, end - o);
      PackTransposed(dy, layout.shape.type, as_f32, layout.piece, piece, {o, o + count});
      GemmArgs args;
      args.a = piece;
      args.row_stride = layout.piece.row_stride;
      args.block_stride = layout.piece.block_stride();
      args.block_groups = layout.piece.block_groups;
      args.rows = count;
      args.w = panels;
      args.groups = layout.shape.groups();
      args.columns = inputs;
      args.out = dw.Row<float>(o).data();
      args.out_stride = dw.row_stride();
      args.bias = args.out;
      args.bias_stride = args.out_stride;
      gemm(args, 0, layout.shape.strips());
    }
  };
  if (serial) {
    share(0, 0, outputs);
    return;
  }
  pool_.Run([&](int thread) {
    const int threads = pool_.threads();
    share(thread, outputs * thread / threads, outputs * (thread + 1) / threads);
  });
}

}  // namespace penstock::kernels
