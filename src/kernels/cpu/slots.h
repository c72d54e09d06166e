// States of fixed size per sequence: an array of slots.

#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace penstock::kernels {

class CpuSlotCache final : public SlotCache {
 public:
  CpuSlotCache(int64_t slots, int64_t slot_bytes, Buffer buffer)
      : slots_(slots), slot_bytes_(slot_bytes), buffer_(std::move(buffer)) {}

  // The slot of a sequence, 64-byte aligned.
  float* Slot(const SequenceRows& sequence) {
    PENSTOCK_CHECK(
        !sequence.blocks.empty() && sequence.blocks[0] >= 0 && sequence.blocks[0] < slots_,
        "the sequence has a slot");
    return reinterpret_cast<float*>(buffer_.data() + sequence.blocks[0] * slot_bytes_);
  }

  int64_t slot_bytes() const { return slot_bytes_; }

 private:
  int64_t slots_;
  int64_t slot_bytes_;
  Buffer buffer_;
};

}  // namespace penstock::kernels
