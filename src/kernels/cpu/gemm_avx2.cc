// Micro kernels for AVX2. A strip of 16 sums is two vectors.

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/gemm.h"

HWY_PUSH_ATTRIBUTES("avx2,fma,f16c")

namespace penstock::kernels {
namespace avx2 {
namespace {

struct F {
  __m256 v[2];
};

struct I {
  __m256i v[2];
};

// Lanes [begin, begin + 8) below `valid`.
inline __m256i Valid(int64_t valid, int begin) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const auto left = static_cast<int32_t>(std::clamp<int64_t>(valid - begin, 0, 8));
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(left), lane);
}

inline void StoreFloats(float* out, int64_t valid, F f) {
  if (valid >= kStrip) {
    _mm256_storeu_ps(out, f.v[0]);
    _mm256_storeu_ps(out + 8, f.v[1]);
  } else {
    _mm256_maskstore_ps(out, Valid(valid, 0), f.v[0]);
    _mm256_maskstore_ps(out + 8, Valid(valid, 8), f.v[1]);
  }
}

inline F LoadFloats(const float* p, int64_t valid) {
  if (valid >= kStrip) {
    return {{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}};
  }
  return {{_mm256_maskload_ps(p, Valid(valid, 0)), _mm256_maskload_ps(p + 8, Valid(valid, 8))}};
}

inline F Bias(const GemmArgs& args, int64_t row, int64_t column) {
  return args.bias == nullptr
             ? F{{_mm256_setzero_ps(), _mm256_setzero_ps()}}
             : LoadFloats(args.bias + row * args.bias_stride + column, args.columns - column);
}

inline int32_t Word(const std::byte* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

inline __m256 BroadcastFloat(const std::byte* p) {
  return _mm256_castsi256_ps(_mm256_set1_epi32(Word(p)));
}

inline __m256i LoadInts(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

struct FloatSums {
  using Acc = F;
  static constexpr bool kWide = false;
  static constexpr int kRows[5] = {0, 6, 3, 0, 1};

  static Acc Zero() { return {{_mm256_setzero_ps(), _mm256_setzero_ps()}}; }

  static Acc LoadState(const float* p) { return LoadFloats(p, kStrip); }

  static void StoreState(float* p, Acc acc) { StoreFloats(p, kStrip, acc); }

  static F Finish(Acc acc, const GemmArgs& args, int64_t row, int64_t column) {
    const F bias = Bias(args, row, column);
    return {{_mm256_add_ps(acc.v[0], bias.v[0]), _mm256_add_ps(acc.v[1], bias.v[1])}};
  }
};

struct OpF32 : FloatSums {
  using W = F;
  using A = __m256;
  static constexpr int64_t kWordBytes = 64;
  static constexpr int64_t kActivationBytes = 4;
  static constexpr bool kStripOuter = false;

  static W LoadW(const std::byte* group, int64_t strip, int64_t /*width*/) {
    return LoadFloats(reinterpret_cast<const float*>(group + strip * kWordBytes), kStrip);
  }

  static A LoadA(const std::byte* a) { return BroadcastFloat(a); }

  static void Dot(Acc& acc, A a, const W& w) {
    acc.v[0] = _mm256_fmadd_ps(a, w.v[0], acc.v[0]);
    acc.v[1] = _mm256_fmadd_ps(a, w.v[1], acc.v[1]);
  }
};

// bf16 weights are widened in registers; the activations are float32 that were rounded to bf16.
struct OpBf16 : FloatSums {
  struct W {
    F even;
    F odd;
  };

  struct A {
    __m256 even;
    __m256 odd;
  };

  static constexpr int64_t kWordBytes = 64;
  static constexpr int64_t kActivationBytes = 8;
  static constexpr bool kStripOuter = false;
  static constexpr int kRows[5] = {0, 4, 2, 0, 1};

  static W LoadW(const std::byte* group, int64_t strip, int64_t /*width*/) {
    W w;
    const __m256i high = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000U));
    PENSTOCK_UNROLL
    for (int h = 0; h < 2; ++h) {
      const __m256i pair = LoadInts(group + strip * kWordBytes + h * 32);
      w.even.v[h] = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
      w.odd.v[h] = _mm256_castsi256_ps(_mm256_and_si256(pair, high));
    }
    return w;
  }

  static A LoadA(const std::byte* a) { return {BroadcastFloat(a), BroadcastFloat(a + 4)}; }

  static void Dot(Acc& acc, const A& a, const W& w) {
    PENSTOCK_UNROLL
    for (int h = 0; h < 2; ++h) {
      acc.v[h] = _mm256_fmadd_ps(a.even, w.even.v[h], acc.v[h]);
      acc.v[h] = _mm256_fmadd_ps(a.odd, w.odd.v[h], acc.v[h]);
    }
  }
};

// 8-bit products without saturation: |w| (unsigned) times x with the sign of w; a pair is at most
// 2 x 127 x 127 = 32,258, which 16 bits hold.
struct OpInt8 {
  using Acc = I;

  struct W {
    __m256i word[2];
    __m256i magnitude[2];
  };

  using A = __m256i;
  static constexpr bool kWide = false;
  static constexpr int64_t kWordBytes = 64;
  static constexpr int64_t kActivationBytes = 4;
  static constexpr bool kStripOuter = false;
  static constexpr int kRows[5] = {0, 4, 2, 0, 1};

  static Acc Zero() { return {{_mm256_setzero_si256(), _mm256_setzero_si256()}}; }

  static W LoadW(const std::byte* group, int64_t strip, int64_t /*width*/) {
    W w;
    PENSTOCK_UNROLL
    for (int h = 0; h < 2; ++h) {
      w.word[h] = LoadInts(group + strip * kWordBytes + h * 32);
      w.magnitude[h] = _mm256_abs_epi8(w.word[h]);
    }
    return w;
  }

  static A LoadA(const std::byte* a) { return _mm256_set1_epi32(Word(a)); }

  static void Dot(Acc& acc, A a, const W& w) {
    const __m256i ones = _mm256_set1_epi16(1);
    PENSTOCK_UNROLL
    for (int h = 0; h < 2; ++h) {
      const __m256i pairs = _mm256_maddubs_epi16(w.magnitude[h], _mm256_sign_epi8(a, w.word[h]));
      acc.v[h] = _mm256_add_epi32(acc.v[h], _mm256_madd_epi16(pairs, ones));
    }
  }

  static Acc LoadState(const float* p) {
    const F f = LoadFloats(p, kStrip);
    return {{_mm256_castps_si256(f.v[0]), _mm256_castps_si256(f.v[1])}};
  }

  static void StoreState(float* p, Acc acc) {
    StoreFloats(p, kStrip, {{_mm256_castsi256_ps(acc.v[0]), _mm256_castsi256_ps(acc.v[1])}});
  }

  static F Finish(Acc acc, const GemmArgs& args, int64_t row, int64_t column) {
    const F bias = Bias(args, row, column);
    const __m256 row_scale = _mm256_set1_ps(args.row_scale[row]);
    F out;
    PENSTOCK_UNROLL
    for (int h = 0; h < 2; ++h) {
      const __m256 scale = _mm256_mul_ps(row_scale, _mm256_loadu_ps(args.scale + column + h * 8));
      out.v[h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc.v[h]), scale, bias.v[h]);
    }
    return out;
  }
};

// 4-bit weights are unsigned and below 16, so 8 pairs of products fit 16 bits: 8 x 2 x 15 x 127 =
// 30,480. Those of MXFP4 are at most 24, and 4 pairs do: 4 x 2 x 24 x 127 = 24,384.
template <Int4Scales kScales>
struct OpInt4 : FloatSums {
  struct W {
    __m256i q[8][2];
    F scale;
    F minimum;
  };

  using A = const std::byte*;
  static constexpr bool kMinima = kScales == Int4Scales::kMinima;
  static constexpr bool kMx = kScales == Int4Scales::kMx;
  static constexpr int64_t kWordBytes = kMx ? 272 : kMinima ? 320 : 288;
  static constexpr int64_t kActivationBytes = kInt4ActivationBytes;
  static constexpr bool kStripOuter = true;
  static constexpr bool kFewRegisters = true;
  static constexpr int kRows[5] = {0, 4, 2, 0, 1};

  static F Halves(const std::byte* p) {
    const auto* words = reinterpret_cast<const __m128i*>(p);
    return {{_mm256_cvtph_ps(_mm_loadu_si128(words)), _mm256_cvtph_ps(_mm_loadu_si128(words + 1))}};
  }

  // Half of the powers of two that E8M0 bytes name: the digits are doubled.
  static F Exponents(const std::byte* p) {
    F out;
    PENSTOCK_UNROLL
    for (int h = 0; h < 2; ++h) {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + h * 8));
      const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23);
      out.v[h] = _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0.5F));
    }
    return out;
  }

  static F Scales(const std::byte* group, int64_t strip, int64_t width) {
    if constexpr (kMx) {
      return Exponents(group + width * 256 + strip * kStrip);
    }
    return Halves(group + width * 256 + strip * 32);
  }

  static __m256i Digits(__m256i q) {
    if constexpr (kMx) {
      return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(
                                     reinterpret_cast<const __m128i*>(kTwiceE2M1Plus12))),
                                 q);
    }
    return q;
  }

  static W LoadW(const std::byte* group, int64_t strip, int64_t width) {
    W w;
    const __m256i low = _mm256_set1_epi8(15);
    PENSTOCK_UNROLL
    for (int i = 0; i < 4; ++i) {
      PENSTOCK_UNROLL
      for (int h = 0; h < 2; ++h) {
        const __m256i q = LoadInts(group + strip * 256 + i * 64 + h * 32);
        w.q[i][h] = Digits(_mm256_and_si256(q, low));
        w.q[4 + i][h] = Digits(_mm256_and_si256(_mm256_srli_epi16(q, 4), low));
      }
    }
    w.scale = Scales(group, strip, width);
    if constexpr (kMinima) {
      w.minimum = Halves(group + width * 288 + strip * 32);
    }
    return w;
  }

  static A LoadA(const std::byte* a) { return a; }

  // Half h of a strip: the sum of a block's products becomes part of the output.
  static void Add(Acc& acc, int h, __m256i pairs, __m256i more, A a, const F& scale,
                  const F& minimum) {
    const __m256i one = _mm256_set1_epi16(1);
    __m256i sum = _mm256_madd_epi16(pairs, one);
    if constexpr (kMx) {
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(more, one));
    }
    if constexpr (!kMinima) {
      const int32_t word = Word(a + 36);
      sum = _mm256_add_epi32(sum, _mm256_set1_epi32(kMx ? MxOffset(word) : word));
    }
    acc.v[h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum),
                               _mm256_mul_ps(BroadcastFloat(a + 32), scale.v[h]), acc.v[h]);
    if constexpr (kMinima) {
      acc.v[h] = _mm256_fmadd_ps(BroadcastFloat(a + 36), minimum.v[h], acc.v[h]);
    }
  }

  static __m256i Products(__m256i q, A a, int i) {
    return _mm256_maddubs_epi16(q, _mm256_set1_epi32(Word(a + 4 * i)));
  }

  static void Dot(Acc& acc, A a, const W& w) {
    PENSTOCK_UNROLL
    for (int h = 0; h < 2; ++h) {
      __m256i pairs = _mm256_setzero_si256();
      __m256i more = pairs;
      PENSTOCK_UNROLL
      for (int i = 0; i < 4; ++i) {
        pairs = _mm256_add_epi16(pairs, Products(w.q[i][h], a, i));
        more = _mm256_add_epi16(more, Products(w.q[4 + i][h], a, 4 + i));
      }
      if constexpr (!kMx) {
        pairs = _mm256_add_epi16(pairs, more);
      }
      Add(acc, h, pairs, more, a, w.scale, w.minimum);
    }
  }

  // One row: each word is unpacked, used and forgotten. Integers, so the order of the sum is free.
  static void DotOnce(Acc& acc, A a, const std::byte* group, int64_t strip, int64_t width) {
    const __m256i low = _mm256_set1_epi8(15);
    const F scale = Scales(group, strip, width);
    F minimum{};
    if constexpr (kMinima) {
      minimum = Halves(group + width * 288 + strip * 32);
    }
    PENSTOCK_UNROLL
    for (int h = 0; h < 2; ++h) {
      __m256i pairs = _mm256_setzero_si256();
      __m256i more = pairs;
      PENSTOCK_UNROLL
      for (int i = 0; i < 4; ++i) {
        const __m256i q = LoadInts(group + strip * 256 + i * 64 + h * 32);
        const __m256i first = Digits(_mm256_and_si256(q, low));
        const __m256i second = Digits(_mm256_and_si256(_mm256_srli_epi16(q, 4), low));
        pairs = _mm256_add_epi16(pairs, Products(first, a, i));
        __m256i& to = kMx ? more : pairs;
        to = _mm256_add_epi16(to, Products(second, a, 4 + i));
      }
      Add(acc, h, pairs, more, a, scale, minimum);
    }
  }
};

#include "kernels/cpu/gemm_inl.h"

}  // namespace
}  // namespace avx2

const GemmKernels& GemmKernelsAvx2() {
  static constexpr GemmKernels kKernels = {
      avx2::Gemm<avx2::OpF32>,
      avx2::Gemm<avx2::OpBf16>,
      avx2::Gemm<avx2::OpInt8>,
      avx2::Gemm<avx2::OpInt4<Int4Scales::kOnly>>,
      avx2::Gemm<avx2::OpInt4<Int4Scales::kMinima>>,
      avx2::Gemm<avx2::OpInt4<Int4Scales::kMx>>,
      false,
      true,
  };
  return kKernels;
}

}  // namespace penstock::kernels

HWY_POP_ATTRIBUTES
