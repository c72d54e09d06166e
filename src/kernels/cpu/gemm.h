// Products of activations with packed weights: out = x W^T + bias, on one core, for a range of
// output features. The caller deals ranges to threads.
//
// Packed layout. 16 output features are a strip (one AVX-512 vector of 32-bit sums), 4 strips a
// panel; the last panel may have fewer. A panel is one stream of groups along the columns: for
// each group, the words of its strips one after the other.
//   f32   a group is 1 column;   a word holds 16 x f32                       64 bytes
//   bf16  a group is 2 columns;  16 x (2 bf16)                               64
//   int8  a group is 4 columns;  16 x (4 int8)                               64
//   int4  a group is 32 columns: first, per strip, 4 x 64 bytes: byte [i][lane * 4 + j] holds
//         column 4 i + j in the low and column 16 + 4 i + j in the high 4 bits; then, per strip,
//         16 f16 scales; then, if the type has them, per strip 16 f16 minima   288 or 320
//         Microscaling (MXFP4): 4 bits are an E2M1 number, and instead of scales per strip 16
//         E8M0 exponents of 8 bits                                             272
// Rows and columns beyond the matrix are zero. The layout is also that of AMX's B tiles (16 groups
// of a strip are a tile).
//
// Bits. Each output is one accumulator, summed over ascending groups, whatever the number of rows
// and the range; partial sums are kept between blocks of groups.

#pragma once

#include <cstddef>
#include <cstdint>

// Before a loop of constant length whose variables must live in registers, at every -O level.
#if defined(__clang__)
#define PENSTOCK_UNROLL _Pragma("clang loop unroll(full)")
#else
#define PENSTOCK_UNROLL _Pragma("GCC unroll 16")
#endif

namespace penstock::kernels {

inline constexpr int64_t kStrip = 16;
inline constexpr int64_t kPanelStrips = 4;
inline constexpr int64_t kInt4Block = 32;
// Up to this many rows the activations are one block: all rows pass the weights together.
inline constexpr int64_t kFewRows = 6;
// Groups of a block of activations beyond that: the weights of a block of a panel (48 KB) are
// passed by all rows while they are near. Not a power of two, so that rows spread over the cache's
// sets.
inline constexpr int64_t kBlockGroups = 192;
inline constexpr int64_t kInt4BlockGroups = 48;
// Bytes of the activations of one int4 block: 32 int8, a float scale, and a word that is the sum
// of the integers times -8 (scale only) or their float sum times the scale (with minima).
inline constexpr int64_t kInt4ActivationBytes = 40;
// Twice the E2M1 number of each 4 bits, plus 12, so that none is below zero: 0, 0.5, 1, 1.5, 2, 3,
// 4, 6 and their negatives (OCP Microscaling Formats, version 1.0).
inline constexpr uint8_t kTwiceE2M1Plus12[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                 12, 11, 10, 9,  8,  6,  4,  0};
inline constexpr int32_t kE2M1Offset = 12;

// What int4 blocks have beside their digits.
enum class Int4Scales { kOnly, kMinima, kMx };

// -12 times the sum of integers of which `word` is -8 times: what E2M1's offset adds too much.
inline int32_t MxOffset(int32_t word) {
  return word / 2 * 3;
}

// Activations lie in blocks of groups, so that what a pass over the rows touches is contiguous: row
// r of block b begins at a + b * block_stride + r * row_stride.
struct GemmArgs {
  const std::byte* a = nullptr;
  int64_t row_stride = 0;    // bytes
  int64_t block_stride = 0;  // bytes
  int64_t block_groups = 0;  // at least `groups` if there is one block
  int64_t rows = 0;
  const std::byte* w = nullptr;  // panels
  int64_t groups = 0;
  // Only groups [first_group, first_group + some_groups), which are all that `a` holds; 0: all.
  int64_t first_group = 0;
  int64_t some_groups = 0;
  int64_t columns = 0;                  // output features
  const float* row_scale = nullptr;     // int8: per activation row
  const float* scale = nullptr;         // int8: per output feature, padded to strips
  const int32_t* row_sum128 = nullptr;  // int8: 128 x sum of the weights, per output feature
  // Or none. Row r of the result is added to bias + r * bias_stride: 0 is one vector for all rows;
  // `out` with its own stride accumulates.
  const float* bias = nullptr;
  int64_t bias_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;  // elements
};

// Computes the output features of strips [begin, end).
using GemmFunction = void (*)(const GemmArgs& args, int64_t strip_begin, int64_t strip_end);

struct GemmKernels {
  GemmFunction f32;
  GemmFunction bf16;
  GemmFunction int8;
  GemmFunction int4;      // scales
  GemmFunction int4_min;  // scales and minima
  GemmFunction int4_mx;   // MXFP4
  bool int8_offset;       // int8 activations are stored as unsigned, plus 128
  bool bf16_as_f32;       // bf16 activations are stored as rounded float32
};

const GemmKernels& GemmKernelsAvx2();
const GemmKernels& GemmKernelsAvx512();
// Without BF16: bf16 weights are widened, activations are rounded float32. Other bits, the same
// rounding of inputs.
const GemmKernels& GemmKernelsAvx512Vnni();

}  // namespace penstock::kernels
