// Plain loops, compiled once per instruction set: the compiler vectorizes them, Highway picks at
// run time.

#include "weights/dequantize.h"

#include <bit>
#include <cstring>

#include "base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weights/dequantize.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();

namespace penstock::weights {
namespace HWY_NAMESPACE {
namespace {

static_assert(std::endian::native == std::endian::little,
              "files are little-endian and read in place");

constexpr int kSuperBlock = 256;  // elements of a K block

template <class T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

inline uint8_t U8(const std::byte* from) {
  return static_cast<uint8_t>(*from);
}

// All ones where `condition` holds: selects by masks vectorize, branches do not.
inline uint32_t Mask(bool condition) {
  return 0U - static_cast<uint32_t>(condition);
}

// Subnormals are m * 2^-24, exact in float32.
inline float HalfBits(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffU;
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t special = (112U << 23) & Mask(magnitude >= 0x7c00U);
  const uint32_t normal = (magnitude << 13) + (112U << 23) + special;
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24F);
  const uint32_t small = Mask(magnitude < 0x400U);
  return std::bit_cast<float>(sign | (subnormal & small) | (normal & ~small));
}

inline float LoadHalf(const std::byte* from) {
  return HalfBits(Load<uint16_t>(from));
}

// One function per format: `count` blocks.

void F32(const std::byte* HWY_RESTRICT in, int64_t count, float* HWY_RESTRICT out) {
  std::memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
}

void F16(const std::byte* HWY_RESTRICT in, int64_t count, float* HWY_RESTRICT out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = HalfBits(Load<uint16_t>(in + 2 * i));
  }
}

void Bf16(const std::byte* HWY_RESTRICT in, int64_t count, float* HWY_RESTRICT out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = std::bit_cast<float>(static_cast<uint32_t>(Load<uint16_t>(in + 2 * i)) << 16);
  }
}

void F64(const std::byte* HWY_RESTRICT in, int64_t count, float* HWY_RESTRICT out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(Load<double>(in + 8 * i));
  }
}

// d:f16, 16 bytes. Low nibbles are elements 0..15, high ones 16..31; value = d * (q - 8).
void Q4_0(const std::byte* HWY_RESTRICT in, int64_t count, float* HWY_RESTRICT out) {
  for (int64_t block = 0; block < count; ++block, in += 18, out += 32) {
    const float d = LoadHalf(in);
    for (int i = 0; i < 16; ++i) {
      const int q = U8(in + 2 + i);
      out[i] = d * static_cast<float>((q & 15) - 8);
      out[i + 16] = d * static_cast<float>((q >> 4) - 8);
    }
  }
}

// d:f16, m:f16, 16 bytes; value = d * q + m.
void Q4_1(const std::byte* HWY_RESTRICT in, int64_t count, float* HWY_RESTRICT out) {
  for (int64_t block = 0; block < count; ++block, in += 20, out += 32) {
    const float d = LoadHalf(in);
    const float m = LoadHalf(in + 2);
    for (int i = 0; i < 16; ++i) {
      const int q = U8(in + 4 + i);
      out[i] = d * static_cast<float>(q & 15) + m;
      out[i + 16] = d * static_cast<float>(q >> 4) + m;
    }
  }
}

// e:u8 (scale 2^(e - 127), 255: NaN), 16 bytes of E2M1 numbers in the order of Q4_0.
void Mxfp4(const std::byte* HWY_RESTRICT in, int64_t count, float* HWY_RESTRICT out) {
  constexpr float kValues[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                 -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
  for (int64_t block = 0; block < count; ++block, in += 17, out += 32) {
    const auto e = static_cast<uint32_t>(U8(in));
    // 2^-127 is no normal number.
    const float d = e == 255 ? std::bit_cast<float>(0x7fc00000U)
                             : std::bit_cast<float>(e == 0 ? 0x00400000U : e << 23);
    for (int i = 0; i < 16; ++i) {
      const int q = U8(in + 1 + i);
      out[i] = d * kValues[q & 15];
      out[i + 16] = d * kValues[q >> 4];
    }
  }
}

// d:f16, 32 fifth bits, 16 bytes; value = d * (q - 16).
void Q5_0(const std::byte* HWY_RESTRICT in, int64_t count, float* HWY_RESTRICT out) {
  for (int64_t block = 0; block < count; ++block, in += 22, out += 32) {
    const float d = LoadHalf(in);
    const auto high = Load<uint32_t>(in + 2);
    for (int i = 0; i < 16; ++i) {
      const int q = U8(in + 6 + i);
      const int low_element = (q & 15) | static_cast<int>(((high >> i) & 1U) << 4);
      const int high_element = (q >> 4) | static_cast<int>(((high >> (i + 16)) & 1U) << 4);
      out[i] = d * static_cast<float>(low_element - 16);
      out[i + 16] = d * static_cast<float>(high_element - 16);
    }
  }
}

// d:f16, m:f16, 32 fifth bits, 16 bytes; value = d * q + m.
void Q5_1(const std::byte* HWY_RESTRICT in, int64_t count, float* HWY_RESTRICT out) {
  for (int64_t block = 0; block < count; ++block, in += 24, out += 32) {
    const float d = LoadHalf(in);
    const float m = LoadHalf(in + 2);
    const auto high = Load<uint32_t>(in + 4);
    for (int i = 0; i < 16; ++i) {
      const int q = U8(in + 8 + i);
      const int low_element = (q & 15) | static_cast<int>(((high >> i) & 1U) << 4);
      const int high_element = (q >> 4) | static_cast<int>(((high >> (i + 16)) & 1U) << 4);
      out[i] = d * static_cast<float>(low_element) + m;
      out[i + 16] = d * static_cast<float>(high_element) + m;
    }
  }
}

// d:f16, 32 signed bytes; value = d * q.
void Q8_0(const std::byte* HWY_RESTRICT in, int64_t count, float* HWY_RESTRICT out) {
  for (int64_t block = 0; block < count; ++block, in += 34, out += 32) {
    const float d = LoadHalf(in);
    for (int i = 0; i < 32; ++i) {
      out[i] = static_cast<float>(static_cast<int8_t>(in[2 + i])) * d;
    }
  }
}

// 16 bytes of 4-bit scales and minimums (one pair per 16 elements), 64 bytes of 2-bit q, d:f16,
// dmin:f16. Element 128 * half + 32 * plane + i has bits 2 * plane of byte 32 * half + i; value =
// (d * scale) * q - dmin * minimum.
void Q2_K(const std::byte* HWY_RESTRICT in, int64_t count, float* HWY_RESTRICT out) {
  for (int64_t block = 0; block < count; ++block, in += 84, out += kSuperBlock) {
    const float d = LoadHalf(in + 80);
    const float dmin = LoadHalf(in + 82);
    for (int group = 0; group < 16; ++group) {
      const int packed = U8(in + group);
      const float scale = d * static_cast<float>(packed & 15);
      const float minimum = dmin * static_cast<float>(packed >> 4);
      const int shift = (group / 2 % 4) * 2;
      const std::byte* q = in + 16 + group / 8 * 32 + group % 2 * 16;
      for (int i = 0; i < 16; ++i) {
        out[group * 16 + i] = scale * static_cast<float>((U8(q + i) >> shift) & 3) - minimum;
      }
    }
  }
}

// 32 bytes of third bits, 64 bytes of 2-bit q, 12 bytes of sixteen 6-bit scales, d:f16.
// value = (d * (scale - 32)) * (q - (third bit ? 0 : 4)).
void Q3_K(const std::byte* HWY_RESTRICT in, int64_t count, float* HWY_RESTRICT out) {
  for (int64_t block = 0; block < count; ++block, in += 110, out += kSuperBlock) {
    const float d = LoadHalf(in + 108);
    const std::byte* scales = in + 96;
    for (int group = 0; group < 16; ++group) {
      const int low = group < 8 ? U8(scales + group) & 15 : U8(scales + group - 8) >> 4;
      const int high = (U8(scales + 8 + group % 4) >> (group / 4 * 2)) & 3;
      const float scale = d * static_cast<float>((low | high << 4) - 32);
      const int shift = (group / 2 % 4) * 2;
      const int bit = group / 2;
      const std::byte* q = in + 32 + group / 8 * 32 + group % 2 * 16;
      const std::byte* mask = in + group % 2 * 16;
      for (int i = 0; i < 16; ++i) {
        const int third = (U8(mask + i) >> bit) & 1;
        out[group * 16 + i] =
            scale * static_cast<float>(((U8(q + i) >> shift) & 3) + third * 4 - 4);
      }
    }
  }
}

struct ScaleAndMinimum {
  int scale;
  int minimum;
};

// Eight pairs of 6-bit numbers in 12 bytes: pairs 0..3 in the low six bits of bytes 0..3 and 4..7;
// pairs 4..7 have their low nibbles in bytes 8..11 and their upper two bits on top of bytes 0..7.
inline ScaleAndMinimum UnpackScales(const std::byte* packed, int pair) {
  if (pair < 4) {
    return {U8(packed + pair) & 63, U8(packed + 4 + pair) & 63};
  }
  const int nibbles = U8(packed + 4 + pair);
  return {(nibbles & 15) | (U8(packed + pair - 4) >> 6 << 4),
          (nibbles >> 4) | (U8(packed + pair) >> 6 << 4)};
}

// d:f16, dmin:f16, 12 bytes of scales, 128 bytes of q: each 32 bytes hold 32 elements low, then 32
// high.
void Q4_K(const std::byte* HWY_RESTRICT in, int64_t count, float* HWY_RESTRICT out) {
  for (int64_t block = 0; block < count; ++block, in += 144, out += kSuperBlock) {
    const float d = LoadHalf(in);
    const float dmin = LoadHalf(in + 2);
    for (int group = 0; group < 8; ++group) {
      const ScaleAndMinimum packed = UnpackScales(in + 4, group);
      const float scale = d * static_cast<float>(packed.scale);
      const float minimum = dmin * static_cast<float>(packed.minimum);
      const std::byte* q = in + 16 + group / 2 * 32;
      const int shift = group % 2 * 4;
      for (int i = 0; i < 32; ++i) {
        out[group * 32 + i] = scale * static_cast<float>((U8(q + i) >> shift) & 15) - minimum;
      }
    }
  }
}

// As Q4_K with 32 bytes of fifth bits before q: bit `group` of byte i.
void Q5_K(const std::byte* HWY_RESTRICT in, int64_t count, float* HWY_RESTRICT out) {
  for (int64_t block = 0; block < count; ++block, in += 176, out += kSuperBlock) {
    const float d = LoadHalf(in);
    const float dmin = LoadHalf(in + 2);
    const std::byte* high = in + 16;
    for (int group = 0; group < 8; ++group) {
      const ScaleAndMinimum packed = UnpackScales(in + 4, group);
      const float scale = d * static_cast<float>(packed.scale);
      const float minimum = dmin * static_cast<float>(packed.minimum);
      const std::byte* q = in + 48 + group / 2 * 32;
      const int shift = group % 2 * 4;
      for (int i = 0; i < 32; ++i) {
        const int element = ((U8(q + i) >> shift) & 15) | ((U8(high + i) >> group) & 1) << 4;
        out[group * 32 + i] = scale * static_cast<float>(element) - minimum;
      }
    }
  }
}

// 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales, d:f16; value = (d *
// scale) * (q - 32). Per half of 128 elements: plane p (32 elements) has nibble p / 2 of byte 64 *
// half + 32 * (p % 2) + i.
void Q6_K(const std::byte* HWY_RESTRICT in, int64_t count, float* HWY_RESTRICT out) {
  for (int64_t block = 0; block < count; ++block, in += 210, out += kSuperBlock) {
    const float d = LoadHalf(in + 208);
    for (int group = 0; group < 16; ++group) {
      const float scale = d * static_cast<float>(static_cast<int8_t>(in[192 + group]));
      const int plane = group / 2 % 4;
      const std::byte* low = in + group / 8 * 64 + plane % 2 * 32 + group % 2 * 16;
      const std::byte* high = in + 128 + group / 8 * 32 + group % 2 * 16;
      const int low_shift = plane / 2 * 4;
      const int high_shift = plane * 2;
      for (int i = 0; i < 16; ++i) {
        const int q = ((U8(low + i) >> low_shift) & 15) | ((U8(high + i) >> high_shift) & 3) << 4;
        out[group * 16 + i] = scale * static_cast<float>(q - 32);
      }
    }
  }
}

using BlockFunction = void (*)(const std::byte*, int64_t, float*);

BlockFunction FunctionOf(DType type) {
  switch (type) {
    case DType::kF32:
      return F32;
    case DType::kF16:
      return F16;
    case DType::kBF16:
      return Bf16;
    case DType::kF64:
      return F64;
    case DType::kQ4_0:
      return Q4_0;
    case DType::kQ4_1:
      return Q4_1;
    case DType::kQ5_0:
      return Q5_0;
    case DType::kQ5_1:
      return Q5_1;
    case DType::kQ8_0:
      return Q8_0;
    case DType::kQ2_K:
      return Q2_K;
    case DType::kQ3_K:
      return Q3_K;
    case DType::kQ4_K:
      return Q4_K;
    case DType::kQ5_K:
      return Q5_K;
    case DType::kQ6_K:
      return Q6_K;
    case DType::kMXFP4:
      return Mxfp4;
    case DType::kI8:
    case DType::kU8:
    case DType::kI16:
    case DType::kI32:
    case DType::kI64:
      break;
  }
  return nullptr;
}

void Blocks(DType type, const std::byte* in, int64_t count, float* out) {
  FunctionOf(type)(in, count, out);
}

bool Finite(const float* values, size_t count) {
  uint32_t bad = 0;
  for (size_t i = 0; i < count; ++i) {
    bad |= static_cast<uint32_t>((std::bit_cast<uint32_t>(values[i]) & 0x7f800000U) == 0x7f800000U);
  }
  return bad == 0;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace penstock::weights

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace penstock::weights {
namespace {

HWY_EXPORT(Blocks);
HWY_EXPORT(Finite);

}  // namespace

bool CanDequantize(DType type) {
  return HWY_STATIC_DISPATCH(FunctionOf)(type) != nullptr;
}

const char* DequantizableTypes() {
  return "f32, f16, bf16, f64, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, mxfp4";
}

void DequantizeRow(DType type, std::span<const std::byte> bytes, std::span<float> out) {
  PENSTOCK_CHECK(CanDequantize(type), "a type that can be dequantized");
  const auto elements = static_cast<int64_t>(out.size());
  PENSTOCK_CHECK(elements % Traits(type).block_elements == 0, "whole blocks");
  PENSTOCK_CHECK(static_cast<int64_t>(bytes.size()) == RowBytes(type, elements),
                 "the bytes of this row");
  HWY_DYNAMIC_DISPATCH(Blocks)
  (type, bytes.data(), elements / Traits(type).block_elements, out.data());
}

bool AllFinite(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(Finite)(values.data(), values.size());
}

float HalfToFloat(uint16_t half) {
  return HWY_STATIC_DISPATCH(HalfBits)(half);
}

}  // namespace penstock::weights
#endif  // HWY_ONCE
