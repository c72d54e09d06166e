#include "kernels/cpu/short_conv.h"

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/slots.h"

namespace penstock::kernels {

Result<std::unique_ptr<SlotCache>> CpuDevice::CreateSlots(int64_t slots, int64_t slot_bytes,
                                                          MemoryAccount& account) {
  PENSTOCK_CHECK(slot_bytes % 64 == 0, "slots are whole cache lines");
  PENSTOCK_TRY_ASSIGN(Buffer buffer, Buffer::Allocate(account, MemoryCategory::kKv,
                                                      SlotCacheBytes(slots, slot_bytes)));
  return std::unique_ptr<SlotCache>(new CpuSlotCache(slots, slot_bytes, std::move(buffer)));
}

int64_t CpuDevice::SlotCacheBytes(int64_t slots, int64_t slot_bytes) const {
  return slots * slot_bytes;
}

int64_t CpuDevice::ShortConvSlotBytes(int64_t width, int64_t taps) const {
  return (width * (taps - 1) * 4 + 63) / 64 * 64;
}

void CpuDevice::ShortConv(SlotCache& cache, const ShortConvParams& params,
                          std::span<const SequenceRows> sequences, std::span<const Tensor> x,
                          std::span<const Tensor> out) {
  PENSTOCK_CHECK(x.size() == out.size() && x.size() == params.weights.size(),
                 "each part has weights and a result");
  auto& slots = static_cast<CpuSlotCache&>(cache);
  for (const SequenceRows& sequence : sequences) {
    float* tail = slots.Slot(sequence);
    for (size_t i = 0; i < x.size(); ++i) {
      const int64_t width = x[i].columns();
      const ConvRows conv{params.taps, params.activation,
                          reinterpret_cast<const float*>(params.weights[i].Bytes().data()), tail,
                          sequence.first_position == 0};
      const Tensor rows = x[i].Rows(sequence.first_row, sequence.rows);
      const Tensor to = out[i].Rows(sequence.first_row, sequence.rows);
      // Whole cache lines of columns per thread.
      const int64_t lines = (width + 15) / 16;
      pool_.Split(lines, sequence.rows * width * params.taps < kSerialElements,
                  [&](int64_t begin, int64_t end) {
                    ConvolveColumns(conv, rows, to, begin * 16, std::min(width, end * 16));
                  });
      tail += width * (params.taps - 1);
    }
  }
}

}  // namespace penstock::kernels
