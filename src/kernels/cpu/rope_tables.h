// Cosines and sines of the rows of a batch, kept from layer to layer.

#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/pool.h"
#include "kernels/device.h"

namespace penstock::kernels {

// The layers of one step rotate the same positions by the same frequencies, so the last few tables
// are kept. Not thread-safe.
class RopeTables {
 public:
  struct Table {
    const float* cos = nullptr;  // [rows, rotary_dim / 2], times the scale of params
    const float* sin = nullptr;
  };

  // Angles are float32(position) * inverse frequency in float32; their cosines and sines are
  // correct to float32. Valid until the next call.
  Table Get(const RopeParams& params, std::span<const SequenceRows> sequences, int64_t rows,
            ThreadPool& pool);

 private:
  struct Run {
    int64_t first_row = 0;
    int64_t rows = 0;
    int64_t first_position = 0;
    bool long_rope = false;
    bool operator==(const Run&) const = default;
  };

  struct Entry {
    std::vector<Run> runs;
    std::vector<float> frequencies;  // short, then long
    float scale = 0;
    float long_scale = 0;
    int64_t half = 0;
    std::vector<float> cos;
    std::vector<float> sin;
  };

  static bool Matches(const Entry& entry, const RopeParams& params,
                      std::span<const SequenceRows> sequences);
  static void Fill(Entry& entry, const RopeParams& params, std::span<const SequenceRows> sequences,
                   int64_t rows, ThreadPool& pool);

  // Two sets of frequencies (local and global layers), for the batch before and this one.
  std::array<Entry, 4> entries_;
  size_t oldest_ = 0;
};

}  // namespace penstock::kernels
