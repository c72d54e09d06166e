// Micro kernels for AVX-512 with VNNI, and with BF16 or without. Only intrinsics name instructions
// of BF16: the compiler makes none of its own.

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/gemm.h"

HWY_PUSH_ATTRIBUTES("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")

namespace penstock::kernels {
namespace avx512 {
namespace {

inline __mmask16 Valid(int64_t valid) {
  return valid >= kStrip ? 0xffff : static_cast<__mmask16>((1U << valid) - 1);
}

inline void StoreFloats(float* out, int64_t valid, __m512 v) {
  _mm512_mask_storeu_ps(out, Valid(valid), v);
}

inline __m512 Bias(const GemmArgs& args, int64_t row, int64_t column) {
  return args.bias == nullptr ? _mm512_setzero_ps()
                              : _mm512_maskz_loadu_ps(Valid(args.columns - column),
                                                      args.bias + row * args.bias_stride + column);
}

inline int32_t Word(const std::byte* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

// What the float operations share: the state is the sum, and the end adds the bias.
struct FloatSums {
  using Acc = __m512;
  static constexpr bool kWide = true;

  static Acc Zero() { return _mm512_setzero_ps(); }

  static Acc LoadState(const float* p) { return _mm512_load_ps(p); }

  static void StoreState(float* p, Acc acc) { _mm512_store_ps(p, acc); }

  static __m512 Finish(Acc acc, const GemmArgs& args, int64_t row, int64_t column) {
    return _mm512_add_ps(acc, Bias(args, row, column));
  }
};

struct OpF32 : FloatSums {
  using W = __m512;
  using A = __m512;
  static constexpr int64_t kWordBytes = 64;
  static constexpr int64_t kActivationBytes = 4;
  static constexpr bool kStripOuter = false;
  static constexpr int kRows[5] = {0, 6, 6, 6, 6};

  static W LoadW(const std::byte* group, int64_t strip, int64_t /*width*/) {
    return _mm512_loadu_ps(group + strip * kWordBytes);
  }

  static A LoadA(const std::byte* a) { return _mm512_castsi512_ps(_mm512_set1_epi32(Word(a))); }

  static void Dot(Acc& acc, A a, W w) { acc = _mm512_fmadd_ps(a, w, acc); }
};

struct OpBf16 : FloatSums {
  using W = __m512i;
  using A = __m512i;
  static constexpr int64_t kWordBytes = 64;
  static constexpr int64_t kActivationBytes = 4;
  static constexpr bool kStripOuter = false;
  static constexpr int kRows[5] = {0, 6, 6, 6, 6};

  static W LoadW(const std::byte* group, int64_t strip, int64_t /*width*/) {
    return _mm512_loadu_si512(group + strip * kWordBytes);
  }

  static A LoadA(const std::byte* a) { return _mm512_set1_epi32(Word(a)); }

  static void Dot(Acc& acc, A a, W w) {
    acc = _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(w));
  }
};

// For processors without BF16: weights are widened in registers; the activations are float32 that
// were rounded to bf16.
struct OpWideBf16 : FloatSums {
  struct W {
    __m512 even;
    __m512 odd;
  };

  struct A {
    __m512 even;
    __m512 odd;
  };

  static constexpr int64_t kWordBytes = 64;
  static constexpr int64_t kActivationBytes = 8;
  static constexpr bool kStripOuter = false;
  static constexpr int kRows[5] = {0, 4, 4, 4, 4};

  static W LoadW(const std::byte* group, int64_t strip, int64_t /*width*/) {
    const __m512i pair = _mm512_loadu_si512(group + strip * kWordBytes);
    const __m512i high = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000U));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(pair, high))};
  }

  static A LoadA(const std::byte* a) {
    return {_mm512_castsi512_ps(_mm512_set1_epi32(Word(a))),
            _mm512_castsi512_ps(_mm512_set1_epi32(Word(a + 4)))};
  }

  static void Dot(Acc& acc, const A& a, const W& w) {
    acc = _mm512_fmadd_ps(a.even, w.even, acc);
    acc = _mm512_fmadd_ps(a.odd, w.odd, acc);
  }
};

struct OpInt8 {
  using Acc = __m512i;
  using W = __m512i;
  using A = __m512i;
  static constexpr bool kWide = true;
  static constexpr int64_t kWordBytes = 64;
  static constexpr int64_t kActivationBytes = 4;
  static constexpr bool kStripOuter = false;
  static constexpr int kRows[5] = {0, 6, 6, 6, 6};

  static Acc Zero() { return _mm512_setzero_si512(); }

  static W LoadW(const std::byte* group, int64_t strip, int64_t /*width*/) {
    return _mm512_loadu_si512(group + strip * kWordBytes);
  }

  static A LoadA(const std::byte* a) { return _mm512_set1_epi32(Word(a)); }

  // Activations are unsigned: value + 128. The sums may wrap; the difference at the end does not.
  static void Dot(Acc& acc, A a, W w) { acc = _mm512_dpbusd_epi32(acc, a, w); }

  static Acc LoadState(const float* p) { return _mm512_load_si512(p); }

  static void StoreState(float* p, Acc acc) { _mm512_store_si512(p, acc); }

  static __m512 Finish(Acc acc, const GemmArgs& args, int64_t row, int64_t column) {
    const __m512i sum = _mm512_sub_epi32(acc, _mm512_loadu_si512(args.row_sum128 + column));
    const __m512 scale =
        _mm512_mul_ps(_mm512_set1_ps(args.row_scale[row]), _mm512_loadu_ps(args.scale + column));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, Bias(args, row, column));
  }
};

template <Int4Scales kScales>
struct OpInt4 : FloatSums {
  struct W {
    __m512i q[8];
    __m512 scale;
    __m512 minimum;
  };

  using A = const std::byte*;
  static constexpr bool kMinima = kScales == Int4Scales::kMinima;
  static constexpr bool kMx = kScales == Int4Scales::kMx;
  static constexpr int64_t kWordBytes = kMx ? 272 : kMinima ? 320 : 288;
  static constexpr int64_t kActivationBytes = kInt4ActivationBytes;
  static constexpr bool kStripOuter = true;
  static constexpr bool kFewRegisters = false;
  static constexpr int kRows[5] = {0, 4, 4, 4, 4};

  static __m512 Halves(const std::byte* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }

  // Half of the power of two that an E8M0 byte names: the digits are doubled.
  static __m512 Exponents(const std::byte* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23);
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0.5F));
  }

  static __m512i Digits(__m512i q) {
    if constexpr (kMx) {
      return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(
                                     reinterpret_cast<const __m128i*>(kTwiceE2M1Plus12))),
                                 q);
    }
    return q;
  }

  static W LoadW(const std::byte* group, int64_t strip, int64_t width) {
    W w;
    const __m512i low = _mm512_set1_epi8(15);
    PENSTOCK_UNROLL
    for (int i = 0; i < 4; ++i) {
      const __m512i q = _mm512_loadu_si512(group + strip * 256 + i * 64);
      w.q[i] = Digits(_mm512_and_si512(q, low));
      w.q[4 + i] = Digits(_mm512_and_si512(_mm512_srli_epi16(q, 4), low));
    }
    w.scale = kMx ? Exponents(group + width * 256 + strip * kStrip)
                  : Halves(group + width * 256 + strip * 32);
    if constexpr (kMinima) {
      w.minimum = Halves(group + width * 288 + strip * 32);
    }
    return w;
  }

  static A LoadA(const std::byte* a) { return a; }

  static void Dot(Acc& acc, A a, const W& w) {
    __m512i sum = kMinima ? _mm512_setzero_si512()
                          : _mm512_set1_epi32(kMx ? MxOffset(Word(a + 36)) : Word(a + 36));
    PENSTOCK_UNROLL
    for (int i = 0; i < 8; ++i) {
      sum = _mm512_dpbusd_epi32(sum, w.q[i], _mm512_set1_epi32(Word(a + 4 * i)));
    }
    const __m512 x_scale = _mm512_castsi512_ps(_mm512_set1_epi32(Word(a + 32)));
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(x_scale, w.scale), acc);
    if constexpr (kMinima) {
      const __m512 x_sum = _mm512_castsi512_ps(_mm512_set1_epi32(Word(a + 36)));
      acc = _mm512_fmadd_ps(x_sum, w.minimum, acc);
    }
  }
};

#include "kernels/cpu/gemm_inl.h"

}  // namespace
}  // namespace avx512

const GemmKernels& GemmKernelsAvx512() {
  static constexpr GemmKernels kKernels = {
      avx512::Gemm<avx512::OpF32>,
      avx512::Gemm<avx512::OpBf16>,
      avx512::Gemm<avx512::OpInt8>,
      avx512::Gemm<avx512::OpInt4<Int4Scales::kOnly>>,
      avx512::Gemm<avx512::OpInt4<Int4Scales::kMinima>>,
      avx512::Gemm<avx512::OpInt4<Int4Scales::kMx>>,
      true,
      false,
  };
  return kKernels;
}

const GemmKernels& GemmKernelsAvx512Vnni() {
  static constexpr GemmKernels kKernels = {
      avx512::Gemm<avx512::OpF32>,
      avx512::Gemm<avx512::OpWideBf16>,
      avx512::Gemm<avx512::OpInt8>,
      avx512::Gemm<avx512::OpInt4<Int4Scales::kOnly>>,
      avx512::Gemm<avx512::OpInt4<Int4Scales::kMinima>>,
      avx512::Gemm<avx512::OpInt4<Int4Scales::kMx>>,
      true,
      true,
  };
  return kKernels;
}

}  // namespace penstock::kernels

HWY_POP_ATTRIBUTES
