// What this processor can do, and what of it the kernels may use.

#pragma once

#include <string_view>

#include "base/result.h"

namespace penstock::kernels {

// Instruction sets in rising order. Each decides the bits of results.
enum class Isa { kAvx2, kAvx512Vnni, kAvx512, kAmx };

// "avx2", "avx512_vnni", "avx512", "amx".
std::string_view IsaName(Isa isa);

// The best set of this processor up to the cap `max_isa` ("" for none, else one of the names).
// kAvx512 needs F, BW, DQ, VL, VNNI and BF16 (Cooper Lake, Sapphire Rapids, Zen 4 and later),
// kAvx512Vnni the same without BF16 (Cascade Lake, Ice Lake); anything less counts as AVX2. kAmx:
// tiles with int8 and bf16, granted by the system. Errors: kInvalidArgument for an unknown cap;
// kUnsupported without AVX2, FMA and F16C.
Result<Isa> DetectIsa(std::string_view max_isa);

// Caps the run-time dispatch of Highway at `isa`, for the whole process: all kernels of one process
// use one set.
void CapHighway(Isa isa);

}  // namespace penstock::kernels
