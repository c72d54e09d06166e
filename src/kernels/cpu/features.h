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
// tiles with int8 and bf16. Errors: kInvalidArgument for an unknown cap;
// kUnsupported without AVX2, FMA and F16C.
Result<Isa> DetectIsa(std::string_view max_isa);

// What decides between the sets above AVX2: processor and system together.
struct CpuFacts {
  bool vnni = false;   // AVX-512 F, BW, DQ, VL and VNNI
  bool bf16 = false;   // AVX-512 BF16
  bool tiles = false;  // AMX with int8 and bf16
};

// The best set that these facts allow, at most `cap`.
Isa BestIsa(const CpuFacts& facts, Isa cap);

// The set whose kernels run where `isa` is the best: with AMX those of kAvx512, since there are
// none for tiles. Results have its bits and bear its name.
Isa KernelIsa(Isa isa);

// Caps the run-time dispatch of Highway at `isa`, for the whole process: all kernels of one process
// use one set.
void CapHighway(Isa isa);

}  // namespace penstock::kernels
