#include "kernels/cpu/features.h"

#include <cpuid.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cstdint>

namespace penstock::kernels {
namespace {

struct CpuidLeaf {
  uint32_t eax = 0;
  uint32_t ebx = 0;
  uint32_t ecx = 0;
  uint32_t edx = 0;
};

CpuidLeaf Cpuid(uint32_t leaf, uint32_t subleaf) {
  CpuidLeaf r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

bool Bit(uint32_t word, int bit) {
  return ((word >> bit) & 1U) != 0;
}

// XCR0: which register states the system saves.
uint64_t EnabledStates() {
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

}  // namespace

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512Vnni:
      return "avx512_vnni";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
  }
  return "";
}

Isa BestIsa(const CpuFacts& facts, Isa cap) {
  Isa best = Isa::kAvx2;
  if (facts.vnni) {
    best = !facts.bf16 ? Isa::kAvx512Vnni : facts.tiles ? Isa::kAmx : Isa::kAvx512;
  }
  return std::min(best, cap);
}

Isa KernelIsa(Isa isa) {
  return std::min(isa, Isa::kAvx512);
}

Result<Isa> DetectIsa(std::string_view max_isa) {
  Isa cap = Isa::kAmx;
  bool known = max_isa.empty();
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512Vnni, Isa::kAvx512, Isa::kAmx}) {
    if (max_isa == IsaName(isa)) {
      cap = isa;
      known = true;
    }
  }
  if (!known) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[kernels.cpu] PENSTOCK_MAX_ISA is '{}', wanted avx2, avx512_vnni, avx512 or amx", max_isa);
  }

  const CpuidLeaf one = Cpuid(1, 0);
  const CpuidLeaf seven = Cpuid(7, 0);
  const uint64_t states = Bit(one.ecx, 27) ? EnabledStates() : 0;
  const bool fma_f16c = Bit(one.ecx, 12) && Bit(one.ecx, 29);
  if ((states & 0x6) != 0x6 || !Bit(seven.ebx, 5) || !fma_f16c) {
    return MakeError(ErrorCode::kUnsupported,
                     "[kernels.cpu] this processor has no AVX2 with FMA and F16C, wanted at least "
                     "these");
  }
  CpuFacts facts;
  // F, DQ, BW, VL; VNNI.
  facts.vnni = (states & 0xe6) == 0xe6 && Bit(seven.ebx, 16) && Bit(seven.ebx, 17) &&
               Bit(seven.ebx, 30) && Bit(seven.ebx, 31) && Bit(seven.ecx, 11);
  facts.bf16 = Bit(Cpuid(7, 1).eax, 5);
  facts.tiles = (states & 0x60000) == 0x60000 && Bit(seven.edx, 22) && Bit(seven.edx, 24) &&
                Bit(seven.edx, 25);
  return BestIsa(facts, cap);
}

void CapHighway(Isa isa) {
  // In Highway better targets have lower bits.
  hwy::DisableTargets(isa == Isa::kAvx2 ? HWY_AVX2 - 1 : 0);
}

}  // namespace penstock::kernels
