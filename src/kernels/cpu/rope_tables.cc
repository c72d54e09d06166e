#include "kernels/cpu/rope_tables.h"

#include <algorithm>
#include <cmath>

namespace penstock::kernels {

bool RopeTables::Matches(const Entry& entry, const RopeParams& params,
                         std::span<const SequenceRows> sequences) {
  const size_t shorts = params.inverse_frequencies.size();
  const auto same_runs = [&] {
    return std::equal(entry.runs.begin(), entry.runs.end(), sequences.begin(), sequences.end(),
                      [](const Run& run, const SequenceRows& s) {
                        return run == Run{s.first_row, s.rows, s.first_position, s.long_rope};
                      });
  };
  return entry.half == params.rotary_dim / 2 && entry.scale == params.scale &&
         entry.long_scale == params.long_scale && same_runs() &&
         entry.frequencies.size() == shorts + params.long_inverse_frequencies.size() &&
         std::equal(params.inverse_frequencies.begin(), params.inverse_frequencies.end(),
                    entry.frequencies.begin()) &&
         std::equal(params.long_inverse_frequencies.begin(), params.long_inverse_frequencies.end(),
                    entry.frequencies.begin() + static_cast<std::ptrdiff_t>(shorts));
}

void RopeTables::Fill(Entry& entry, const RopeParams& params,
                      std::span<const SequenceRows> sequences, int64_t rows, ThreadPool& pool) {
  entry.half = params.rotary_dim / 2;
  entry.scale = params.scale;
  entry.long_scale = params.long_scale;
  entry.frequencies.assign(params.inverse_frequencies.begin(), params.inverse_frequencies.end());
  entry.frequencies.insert(entry.frequencies.end(), params.long_inverse_frequencies.begin(),
                           params.long_inverse_frequencies.end());
  entry.runs.clear();
  entry.cos.resize(static_cast<size_t>(rows * entry.half));
  entry.sin.resize(static_cast<size_t>(rows * entry.half));
  for (const SequenceRows& s : sequences) {
    entry.runs.push_back({s.first_row, s.rows, s.first_position, s.long_rope});
    const std::span<const float> frequencies =
        s.long_rope ? params.long_inverse_frequencies : params.inverse_frequencies;
    const float scale = s.long_rope ? params.long_scale : params.scale;
    PENSTOCK_CHECK(static_cast<int64_t>(frequencies.size()) == entry.half,
                   "a frequency per pair of columns");
    pool.Split(s.rows, s.rows * entry.half < 1024, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const auto position = static_cast<float>(s.first_position + r);
        const int64_t at = (s.first_row + r) * entry.half;
        for (int64_t i = 0; i < entry.half; ++i) {
          const double angle = position * frequencies[static_cast<size_t>(i)];
          entry.cos[static_cast<size_t>(at + i)] = static_cast<float>(std::cos(angle)) * scale;
          entry.sin[static_cast<size_t>(at + i)] = static_cast<float>(std::sin(angle)) * scale;
        }
      }
    });
  }
}

RopeTables::Table RopeTables::Get(const RopeParams& params, std::span<const SequenceRows> sequences,
                                  int64_t rows, ThreadPool& pool) {
  for (const Entry& entry : entries_) {
    if (Matches(entry, params, sequences)) {
      return {entry.cos.data(), entry.sin.data()};
    }
  }
  Entry& entry = entries_[oldest_];
  oldest_ = (oldest_ + 1) % entries_.size();
  Fill(entry, params, sequences, rows, pool);
  return {entry.cos.data(), entry.sin.data()};
}

}  // namespace penstock::kernels
