#include "bench/peaks.h"

#include <hwy/base.h>
#include <immintrin.h>

#include <array>

#include "kernels/cpu/features.h"
#include "kernels/cpu/gemm.h"

namespace penstock::bench {
namespace {

constexpr int64_t kRounds = 100000;
constexpr int kChains = 12;
volatile float float_sink;
volatile int32_t int_sink;

}  // namespace

HWY_PUSH_ATTRIBUTES("avx2,fma")

namespace {

void FmaAvx2() {
  __m256 s[kChains];
  const __m256 x = _mm256_set1_ps(1e-9F);
  for (__m256& v : s) {
    v = _mm256_setzero_ps();
  }
  for (int64_t i = 0; i < kRounds; ++i) {
    PENSTOCK_UNROLL
    for (int j = 0; j < kChains; ++j) {
      s[j] = _mm256_fmadd_ps(x, x, s[j]);
    }
  }
  __m256 sum = s[0];
  for (const __m256 v : s) {
    sum = _mm256_add_ps(sum, v);
  }
  float_sink = _mm256_cvtss_f32(sum);
}

}  // namespace

HWY_POP_ATTRIBUTES
HWY_PUSH_ATTRIBUTES("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")

namespace {

void FmaAvx512() {
  __m512 s[kChains];
  const __m512 x = _mm512_set1_ps(1e-9F);
  for (__m512& v : s) {
    v = _mm512_setzero_ps();
  }
  for (int64_t i = 0; i < kRounds; ++i) {
    PENSTOCK_UNROLL
    for (int j = 0; j < kChains; ++j) {
      s[j] = _mm512_fmadd_ps(x, x, s[j]);
    }
  }
  __m512 sum = s[0];
  for (const __m512 v : s) {
    sum = _mm512_add_ps(sum, v);
  }
  float_sink = _mm512_cvtss_f32(sum);
}

void Bf16Avx512() {
  __m512 s[kChains];
  const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3000));
  for (__m512& v : s) {
    v = _mm512_setzero_ps();
  }
  for (int64_t i = 0; i < kRounds; ++i) {
    PENSTOCK_UNROLL
    for (int j = 0; j < kChains; ++j) {
      s[j] = _mm512_dpbf16_ps(s[j], x, x);
    }
  }
  __m512 sum = s[0];
  for (const __m512 v : s) {
    sum = _mm512_add_ps(sum, v);
  }
  float_sink = _mm512_cvtss_f32(sum);
}

void VnniAvx512() {
  __m512i s[kChains];
  const __m512i x = _mm512_set1_epi8(1);
  for (__m512i& v : s) {
    v = _mm512_setzero_si512();
  }
  for (int64_t i = 0; i < kRounds; ++i) {
    PENSTOCK_UNROLL
    for (int j = 0; j < kChains; ++j) {
      s[j] = _mm512_dpbusd_epi32(s[j], x, x);
    }
  }
  __m512i sum = s[0];
  for (const __m512i v : s) {
    sum = _mm512_add_epi32(sum, v);
  }
  int_sink = _mm512_cvtsi512_si32(sum);
}

}  // namespace

HWY_POP_ATTRIBUTES

std::span<const Peak> Peaks() {
  constexpr double kCalls = static_cast<double>(kRounds * kChains);
  static constexpr std::array<Peak, 4> kPeaks = {{{"fma_avx2", kCalls * 16, FmaAvx2},
                                                  {"fma_avx512", kCalls * 32, FmaAvx512},
                                                  {"bf16_avx512", kCalls * 64, Bf16Avx512},
                                                  {"vnni_avx512", kCalls * 128, VnniAvx512}}};
  const auto isa = kernels::DetectIsa("");
  const bool wide = isa.ok() && isa.value() >= kernels::Isa::kAvx512;
  return std::span<const Peak>(kPeaks).first(wide ? 4 : 1);
}

HWY_PUSH_ATTRIBUTES("avx2")

int64_t ReadAll(std::span<const std::byte> bytes) {
  __m256i sums[8];
  for (__m256i& sum : sums) {
    sum = _mm256_setzero_si256();
  }
  for (size_t i = 0; i + 256 <= bytes.size(); i += 256) {
    const auto* vectors = reinterpret_cast<const __m256i*>(bytes.data() + i);
    PENSTOCK_UNROLL
    for (int j = 0; j < 8; ++j) {
      sums[j] = _mm256_xor_si256(sums[j], _mm256_loadu_si256(vectors + j));
    }
  }
  int64_t all = 0;
  for (const __m256i sum : sums) {
    all ^= _mm256_extract_epi64(sum, 0) ^ _mm256_extract_epi64(sum, 3);
  }
  return all;
}

HWY_POP_ATTRIBUTES

}  // namespace penstock::bench
