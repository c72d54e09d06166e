#include "kernels/cpu/training_pack.h"

#include <algorithm>
#include <bit>
#include <cstring>

// One copy of this file per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/training_pack.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();

namespace penstock::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DU = hn::ScalableTag<uint32_t>;
using VU = hn::Vec<DU>;
#if HWY_TARGET != HWY_SCALAR
using DU64 = hn::Repartition<uint64_t, DU>;
#endif

// The first n <= lanes numbers at p as bits; none where p is null.
HWY_INLINE VU LoadBits(DU d, const float* p, int64_t n) {
  const auto* bits = reinterpret_cast<const uint32_t*>(p);
  if (n >= static_cast<int64_t>(hn::Lanes(d))) {
    return hn::LoadU(d, bits);
  }
  return n <= 0 ? hn::Zero(d) : hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(n)), d, bits);
}

// Rounded to bf16, in the upper halves. NaN stays NaN.
HWY_INLINE VU Rounded(DU d, VU bits) {
  const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
  const VU rounded = hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7fff)));
  const VU quiet = hn::Or(bits, hn::Set(d, 0x00400000));
  const auto nan = hn::Gt(hn::And(bits, hn::Set(d, 0x7fffffff)), hn::Set(d, 0x7f800000));
  return hn::And(hn::IfThenElse(nan, quiet, rounded), hn::Set(d, 0xffff0000U));
}

// Words of numbers that follow each other in a row; n numbers are left.
template <WeightType kType>
HWY_INLINE VU RowWords(DU d, const float* p, int64_t n) {
  if constexpr (kType == WeightType::kF32) {
    return LoadBits(d, p, n);
  } else {
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    const VU low = Rounded(d, LoadBits(d, p, n));
    const VU high = Rounded(d, LoadBits(d, p + std::min(lanes, n), n - lanes));
#if HWY_TARGET == HWY_SCALAR
    return hn::Or(hn::ShiftRight<16>(low), high);
#else
    return hn::Or(hn::ShiftRight<16>(hn::ConcatEven(d, high, low)), hn::ConcatOdd(d, high, low));
#endif
  }
}

// Words of two rows (bf16).
HWY_INLINE VU PairWords(DU d, const float* even, const float* odd, int64_t n) {
  const VU low = Rounded(d, LoadBits(d, even, even == nullptr ? 0 : n));
  const VU high = Rounded(d, LoadBits(d, odd, odd == nullptr ? 0 : n));
  return hn::Or(hn::ShiftRight<16>(low), high);
}

// Four vectors as rows of a matrix: the four rows' words of column c go to to + c * stride, for
// c < n.
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void StoreColumns(DU d, const VU (&rows)[4], std::byte* to, int64_t stride, int64_t n) {
  (void)stride;
  for (int64_t i = 0; n > 0 && i < 4; ++i) {
    hn::StoreU(rows[i], d, reinterpret_cast<uint32_t*>(to) + i);
  }
}
#else
HWY_INLINE void StoreColumns(DU d, const VU (&rows)[4], std::byte* to, int64_t stride, int64_t n) {
  const DU64 d64;
  const auto wide = [&](VU v) HWY_ATTR { return hn::BitCast(d64, v); };
  const auto t0 = wide(hn::InterleaveLower(d, rows[0], rows[1]));
  const auto t1 = wide(hn::InterleaveLower(d, rows[2], rows[3]));
  const auto u0 = wide(hn::InterleaveUpper(d, rows[0], rows[1]));
  const auto u1 = wide(hn::InterleaveUpper(d, rows[2], rows[3]));
  HWY_ALIGN uint32_t columns[4][HWY_MAX_BYTES / 4];
  hn::Store(hn::BitCast(d, hn::InterleaveLower(d64, t0, t1)), d, columns[0]);
  hn::Store(hn::BitCast(d, hn::InterleaveUpper(d64, t0, t1)), d, columns[1]);
  hn::Store(hn::BitCast(d, hn::InterleaveLower(d64, u0, u1)), d, columns[2]);
  hn::Store(hn::BitCast(d, hn::InterleaveUpper(d64, u0, u1)), d, columns[3]);
  if (n >= static_cast<int64_t>(hn::Lanes(d))) {
    for (size_t c = 0; c < hn::Lanes(d); ++c, to += stride) {
      std::memcpy(to, columns[c % 4] + c / 4 * 4, 16);
    }
    return;
  }
  for (int64_t c = 0; c < n; ++c, to += stride) {
    std::memcpy(to, columns[c % 4] + c / 4 * 4, 16);
  }
}

#endif

// Word 0 of a row's lane, and the distance between groups in bytes.
struct Lane {
  std::byte* first;
  int64_t stride;
};

HWY_INLINE Lane LaneOf(const PackedShape& shape, int64_t row, std::byte* panels) {
  const int64_t strip = row / kStrip;
  const int64_t panel = strip / kPanelStrips;
  const int64_t width = std::min(kPanelStrips, shape.strips() - panel * kPanelStrips);
  std::byte* first = panels + panel * kPanelStrips * shape.groups() * 64 +
                     (strip - panel * kPanelStrips) * 64 + row % kStrip * 4;
  return {first, width * 64};
}

// 4 rows of one strip, or 16 that are one: a cache line of the image is written at one time.
template <WeightType kType>
HWY_INLINE void ForwardQuads(const float* in, int64_t row_stride, int64_t columns, int64_t quads,
                             int64_t groups, Lane lane) {
  const DU d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t kGroup = kType == WeightType::kF32 ? 1 : 2;
  for (int64_t c = 0, g = 0; c < columns; c += lanes * kGroup, g += lanes) {
    const int64_t left = columns - c;
    for (int64_t q = 0; q < quads; ++q) {
      const float* from = in + 4 * q * row_stride + c;
      const VU words[4] = {RowWords<kType>(d, from, left),
                           RowWords<kType>(d, from + row_stride, left),
                           RowWords<kType>(d, from + 2 * row_stride, left),
                           RowWords<kType>(d, from + 3 * row_stride, left)};
      StoreColumns(d, words, lane.first + g * lane.stride + 16 * q, lane.stride, groups - g);
    }
  }
}

template <WeightType kType>
HWY_INLINE void ForwardOne(const float* in, int64_t columns, int64_t groups, Lane lane) {
  const DU d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t kGroup = kType == WeightType::kF32 ? 1 : 2;
  for (int64_t c = 0, g = 0; c < columns; c += lanes * kGroup, g += lanes) {
    HWY_ALIGN uint32_t words[HWY_MAX_BYTES / 4];
    hn::Store(RowWords<kType>(d, in + c, columns - c), d, words);
    for (int64_t i = 0; i < std::min(lanes, groups - g); ++i) {
      std::memcpy(lane.first + (g + i) * lane.stride, words + i, 4);
    }
  }
}

template <WeightType kType>
void ForwardRows(Tensor source, const PackedShape& shape, int64_t first_row, std::byte* panels,
                 RowRange rows) {
  for (int64_t r = rows.begin; r < rows.end;) {
    const auto begins = [&](int64_t run) {
      return (first_row + r) % run == 0 && r + run <= rows.end;
    };
    const int64_t run = begins(kStrip) ? kStrip : begins(4) ? 4 : 1;
    const Lane lane = LaneOf(shape, first_row + r, panels);
    const float* in = source.Row<float>(r).data();
    if (run == 1) {
      ForwardOne<kType>(in, source.columns(), shape.groups(), lane);
    } else {
      ForwardQuads<kType>(in, source.row_stride(), source.columns(), run / 4, shape.groups(), lane);
    }
    r += run;
  }
}

// The words of one group for all output features: `word(c, n)` gives those of columns [c, c + n).
template <class Word>
HWY_INLINE void StoreGroup(const PackedShape& shape, int64_t group, std::byte* panels,
                           const Word& word) {
  const DU d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t s = 0; s < shape.strips(); ++s) {
    const Lane lane = LaneOf(shape, s * kStrip, panels);
    auto* to = reinterpret_cast<uint32_t*>(lane.first + group * lane.stride);
    for (int64_t i = 0; i < kStrip; i += lanes) {
      const int64_t c = s * kStrip + i;
      hn::StoreU(word(c, shape.rows - c), d, to + i);
    }
  }
}

// One of the two rows of a group of bf16; the other half of the words stays.
void StoreHalfGroup(const PackedShape& shape, int64_t row, const float* in, std::byte* panels) {
  for (int64_t c = 0; c < shape.rows; ++c) {
    const Lane lane = LaneOf(shape, c, panels);
    const auto bits = std::bit_cast<uint32_t>(in[c]);
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    const uint32_t rounded = nan ? bits | 0x00400000 : bits + 0x7fff + ((bits >> 16) & 1);
    const auto half = static_cast<uint16_t>(rounded >> 16);
    std::memcpy(lane.first + row / 2 * lane.stride + row % 2 * 2, &half, 2);
  }
}

void BackwardF32(Tensor source, const PackedShape& shape, int64_t first_row, std::byte* panels,
                 RowRange rows) {
  const DU d;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* in = source.Row<float>(r).data();
    StoreGroup(shape, first_row + r, panels, [&](int64_t c, int64_t n) HWY_ATTR {
      return n <= 0 ? hn::Zero(d) : LoadBits(d, in + c, n);
    });
  }
}

void BackwardBf16(Tensor source, const PackedShape& shape, int64_t first_row, std::byte* panels,
                  RowRange rows) {
  const DU d;
  int64_t r = rows.begin;
  if ((first_row + r) % 2 != 0 && r < rows.end) {
    StoreHalfGroup(shape, first_row + r, source.Row<float>(r).data(), panels);
    ++r;
  }
  for (; r + 2 <= rows.end; r += 2) {
    const float* even = source.Row<float>(r).data();
    const float* odd = source.Row<float>(r + 1).data();
    StoreGroup(shape, (first_row + r) / 2, panels, [&](int64_t c, int64_t n) HWY_ATTR {
      return n <= 0 ? hn::Zero(d) : PairWords(d, even + c, odd + c, n);
    });
  }
  if (r < rows.end) {
    const float* in = source.Row<float>(r).data();
    if (first_row + r + 1 == shape.columns) {
      StoreGroup(shape, (first_row + r) / 2, panels, [&](int64_t c, int64_t n) HWY_ATTR {
        return n <= 0 ? hn::Zero(d) : PairWords(d, in + c, nullptr, n);
      });
    } else {
      StoreHalfGroup(shape, first_row + r, in, panels);
    }
  }
}

// Word `w` along the source's rows, of columns [c, c + n). kType kF32: one row each.
template <WeightType kType, bool kAsF32>
HWY_INLINE VU DownWords(DU d, Tensor source, int64_t w, int64_t c, int64_t n) {
  const auto row = [&](int64_t r) -> const float* {
    return r < source.rows() ? source.Row<float>(r).data() + c : nullptr;
  };
  if constexpr (kType == WeightType::kF32) {
    const float* p = row(w);
    const VU bits = LoadBits(d, p, p == nullptr ? 0 : n);
    return kAsF32 ? Rounded(d, bits) : bits;
  } else {
    return PairWords(d, row(2 * w), row(2 * w + 1), n);
  }
}

template <WeightType kType, bool kAsF32>
void TransposedWords(Tensor source, const ActivationLayout& layout, int64_t words,
                     int64_t block_words, std::byte* dst, RowRange columns) {
  const DU d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t w = 0; w < words; w += 4) {
    // Blocks hold a multiple of four words, except a last one.
    std::byte* to = dst + w / block_words * layout.block_stride() + w % block_words * 4;
    for (int64_t c = columns.begin; c < columns.end; c += lanes) {
      const int64_t n = std::min(lanes, columns.end - c);
      VU rows[4];
      for (int64_t i = 0; i < 4; ++i) {
        rows[i] = DownWords<kType, kAsF32>(d, source, w + i, c, n);
      }
      std::byte* at = to + (c - columns.begin) * layout.row_stride;
      if (w + 4 <= words) {
        StoreColumns(d, rows, at, layout.row_stride, n);
      } else {
        for (int64_t i = 0; w + i < words; ++i) {
          HWY_ALIGN uint32_t row[HWY_MAX_BYTES / 4];
          hn::Store(rows[i], d, row);
          for (int64_t j = 0; j < n; ++j) {
            std::memcpy(at + j * layout.row_stride + i * 4, row + j, 4);
          }
        }
      }
    }
  }
}

void Forward(Tensor source, const PackedShape& shape, int64_t first_row, std::byte* panels,
             RowRange rows) {
  if (shape.type == WeightType::kF32) {
    ForwardRows<WeightType::kF32>(source, shape, first_row, panels, rows);
  } else {
    ForwardRows<WeightType::kBF16>(source, shape, first_row, panels, rows);
  }
}

void Backward(Tensor source, const PackedShape& shape, int64_t first_row, std::byte* panels,
              RowRange rows) {
  if (shape.type == WeightType::kF32) {
    BackwardF32(source, shape, first_row, panels, rows);
  } else {
    BackwardBf16(source, shape, first_row, panels, rows);
  }
}

void Transposed(Tensor source, WeightType type, bool as_f32, const ActivationLayout& layout,
                std::byte* dst, RowRange columns) {
  const int64_t words = layout.columns;
  const int64_t block = layout.block_columns;
  if (type == WeightType::kF32) {
    TransposedWords<WeightType::kF32, false>(source, layout, words, block, dst, columns);
  } else if (as_f32) {
    TransposedWords<WeightType::kF32, true>(source, layout, words, block, dst, columns);
  } else {
    TransposedWords<WeightType::kBF16, false>(source, layout, words / 2, block / 2, dst, columns);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace penstock::kernels

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace penstock::kernels {

HWY_EXPORT(Forward);
HWY_EXPORT(Backward);
HWY_EXPORT(Transposed);

void PackForward(Tensor source, const PackedShape& shape, int64_t first_row, std::byte* panels,
                 RowRange rows) {
  HWY_DYNAMIC_DISPATCH(Forward)(source, shape, first_row, panels, rows);
}

void PackBackward(Tensor source, const PackedShape& shape, int64_t first_row, std::byte* panels,
                  RowRange rows) {
  HWY_DYNAMIC_DISPATCH(Backward)(source, shape, first_row, panels, rows);
}

void PackTransposed(Tensor source, WeightType type, bool as_f32, const ActivationLayout& layout,
                    std::byte* dst, RowRange columns) {
  HWY_DYNAMIC_DISPATCH(Transposed)(source, type, as_f32, layout, dst, columns);
}

}  // namespace penstock::kernels

#endif  // HWY_ONCE
