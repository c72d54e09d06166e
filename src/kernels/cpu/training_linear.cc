// The three products of a trainable matrix. All run the packed kernels of cpu/gemm.h.

#include <algorithm>

#include "kernels/cpu/training_device.h"
#include "kernels/cpu/training_pack.h"

namespace penstock::kernels {
namespace {

// Outputs whose gradients are made from one packed piece of dy^T: with 512 rows of bf16 its blocks
// fill half of the second-level cache. A multiple of the tiles' rows.
constexpr int64_t kPieceOutputs = 240;

// Rows of activations that are packed at a time: those of a pass of the kernels.
constexpr int64_t kPieceRows = 512;

// Groups that the gradient of the input sums before it adds them to the result: 32 blocks. So the
// head's gradients, as wide as the vocabulary, are packed by pieces that fit the last cache.
constexpr int64_t kBackwardGroups = 32 * kBlockGroups;

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
  const int64_t piece = std::min(rows, kPieceRows);
  const int64_t forward = LayoutOf(PackedShape{1, inputs, packed, false}, piece, kernels_).bytes();
  const int64_t most = kBackwardGroups * PackedShape{1, 1, packed, false}.group_columns();
  const PackedShape wide{1, std::min(outputs, most), packed, false};
  const int64_t backward = LayoutOf(wide, piece, kernels_).bytes();
  const int64_t weight = LayoutOfWeight(inputs, rows, type, kernels_, pool_.threads()).bytes;
  return std::max({forward, backward, weight});
}

void CpuTraining::Product(const PackedShape& shape, const std::byte* panels, Tensor x,
                          const float* bias, int64_t bias_stride, int64_t most_groups, Tensor out,
                          Tensor workspace) {
  PENSTOCK_CHECK(
      x.columns() == shape.columns && out.columns() == shape.rows && x.rows() == out.rows(),
      "shapes of a product agree");
  const bool f32 = shape.type == WeightType::kF32;
  const GemmFunction gemm = f32 ? kernels_.f32 : kernels_.bf16;
  const int64_t all_groups = shape.groups();
  for (int64_t row = 0; row < x.rows(); row += kPieceRows) {
    const int64_t rows = std::min(kPieceRows, x.rows() - row);
    const bool serial = rows * shape.rows * shape.columns < 16 * CpuDevice::kSerialElements;
    for (int64_t group = 0; group < all_groups; group += most_groups) {
      const int64_t column = group * shape.group_columns();
      const PackedShape part{shape.rows,
                             std::min(shape.columns - column, most_groups * shape.group_columns()),
                             shape.type, false};
      const ActivationLayout layout = LayoutOf(part, rows, kernels_);
      const Tensor in = x.Rows(row, rows).Columns(column, part.columns);
      GemmArgs args;
      args.rows = rows;
      args.w = panels;
      args.groups = all_groups;
      args.first_group = group;
      args.some_groups = part.groups();
      args.columns = shape.rows;
      args.out = out.Row<float>(row).data();
      args.out_stride = out.row_stride();
      args.bias = group > 0 ? args.out : bias == nullptr ? nullptr : bias + row * bias_stride;
      args.bias_stride = group > 0 ? args.out_stride : bias_stride;
      args.block_groups = layout.block_groups;
      PackActivations(in, layout, f32, workspace, args);
      pool_.Split(shape.strips(), serial,
                  [&](int64_t begin, int64_t end) { gemm(args, begin, end); });
    }
  }
}

void CpuTraining::PackActivations(Tensor x, const ActivationLayout& layout, bool f32,
                                  Tensor workspace, GemmArgs& args) {
  args.block_stride = layout.block_stride();
  args.row_stride = layout.row_stride;
  if (!layout.packed) {
    args.a = reinterpret_cast<const std::byte*>(x.Row<float>(0).data());
    args.row_stride = x.row_stride() * 4;
    return;
  }
  PENSTOCK_CHECK(workspace.bytes() >= layout.bytes(), "the workspace is large enough");
  std::byte* a = workspace.Bytes().data();
  args.a = a;
  OverRows(x, 1, [&](RowRange range) {
    if (f32) {
      CopyRows(x, layout, a, range);
    } else {
      RoundRowsBf16(x, kernels_.bf16_as_f32, layout, a, range);
    }
  });
}

void CpuTraining::LinearForward(const TrainMatrix& w, Tensor x, Tensor bias, Tensor out,
                                Tensor workspace) {
  const auto& matrix = static_cast<const CpuTrainMatrix&>(w);
  const float* added = bias.empty() ? nullptr : bias.Row<float>(0).data();
  Product(matrix.forward(), matrix.forward_panels(), x, added, 0, matrix.forward().groups(), out,
          workspace);
}

void CpuTraining::LinearBackwardInput(const TrainMatrix& w, Tensor dy, bool accumulate, Tensor dx,
                                      Tensor workspace) {
  const auto& matrix = static_cast<const CpuTrainMatrix&>(w);
  const float* added = accumulate && dx.rows() > 0 ? dx.Row<float>(0).data() : nullptr;
  Product(matrix.backward(), matrix.backward_panels(), dy, added, dx.row_stride(), kBackwardGroups,
          dx, workspace);
}

void CpuTraining::LinearBackwardWeight(ProductType type, Tensor dy, Tensor x, bool accumulate,
                                       Tensor dw, Tensor workspace) {
  const int64_t rows = x.rows();
  const int64_t outputs = dy.columns();
  const int64_t inputs = x.columns();
  PENSTOCK_CHECK(dy.rows() == rows && dw.rows() == outputs && dw.columns() == inputs,
                 "shapes of a product agree");
  const WeightLayout layout = LayoutOfWeight(inputs, rows, type, kernels_, pool_.threads());
  PENSTOCK_CHECK(workspace.bytes() >= layout.bytes, "the workspace is large enough");
  if (rows == 0) {
    if (!accumulate) {
      Fill(dw, 0.0F);
    }
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
      args.bias = accumulate ? args.out : nullptr;
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
