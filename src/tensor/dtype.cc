#include "tensor/dtype.h"

#include <array>

#include "base/check.h"

namespace penstock {
namespace {

constexpr std::array<DTypeTraits, 20> kTraits = {{
    {"f32", 1, 4, false},     {"f16", 1, 2, false},     {"bf16", 1, 2, false},
    {"f64", 1, 8, false},     {"i8", 1, 1, false},      {"u8", 1, 1, false},
    {"i16", 1, 2, false},     {"i32", 1, 4, false},     {"i64", 1, 8, false},
    {"q4_0", 32, 18, true},   {"q4_1", 32, 20, true},   {"q5_0", 32, 22, true},
    {"q5_1", 32, 24, true},   {"q8_0", 32, 34, true},   {"q2_k", 256, 84, true},
    {"q3_k", 256, 110, true}, {"q4_k", 256, 144, true}, {"q5_k", 256, 176, true},
    {"q6_k", 256, 210, true}, {"mxfp4", 32, 17, true},
}};
static_assert(kTraits.size() == static_cast<size_t>(DType::kMXFP4) + 1);

}  // namespace

const DTypeTraits& Traits(DType type) {
  return kTraits[static_cast<size_t>(type)];
}

int64_t RowBytes(DType type, int64_t elements) {
  const DTypeTraits& traits = Traits(type);
  PENSTOCK_DCHECK(elements % traits.block_elements == 0, "a row holds whole blocks");
  return elements / traits.block_elements * traits.block_bytes;
}

}  // namespace penstock
