#include <algorithm>
#include <cmath>

#include "kernels/cpu/delta_attention.h"
#include "kernels/cpu/gemm.h"

// One copy of this file per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/delta_kernel.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();

namespace penstock::kernels {
namespace HWY_NAMESPACE {

#include "kernels/cpu/math_inl.h"
// After math_inl.h.
#include "kernels/cpu/delta_inl.h"

// With 512 bits there are registers for more rows at a time, and a lone row (decoding) passes the
// state once, whole rows of it.
inline constexpr int kPairRows = HWY_TARGET == HWY_AVX3 ? 2 : 1;
inline constexpr int kVectors = 4;
inline constexpr int kLoneVectors = HWY_TARGET == HWY_AVX3 ? 8 : 4;

// Fetches what the next head will read, a few cache lines whenever it is asked.
class Ahead {
 public:
  // The state of a head, and the first `count` rows of the three tables behind it.
  void Begin(const RowShape& s, const float* state, int64_t count) {
    const float* tables = state + s.dim * s.padded;
    ranges_[0] = {reinterpret_cast<const char*>(state), reinterpret_cast<const char*>(tables)};
    for (int t = 0; t < 3; ++t) {
      const float* rows = tables + t * kDeltaChunk * s.padded;
      ranges_[1 + t] = {reinterpret_cast<const char*>(rows),
                        reinterpret_cast<const char*>(rows + count * s.padded)};
    }
    range_ = 0;
    // What the other parts of a row leave for its products with the state.
    const int64_t lines = (s.dim + 3 * count) * s.padded / 16;
    const int64_t others = 5 * kPartLines + (count + 1) * s.padded / 16 * kPairLines;
    key_lines_ = static_cast<int>(std::max<int64_t>(1, (lines - others + s.dim - 1) / s.dim));
  }

  // Lines to take per key of the state's products.
  int key_lines() const { return key_lines_; }

  // Per pair and vector, and in each of five other parts: so many that memory is never idle.
  static constexpr int kPairLines = 6;
  static constexpr int kPartLines = 40;

  HWY_INLINE void Take(int lines) {
    for (; lines > 0 && range_ < 4; --lines) {
      Range& range = ranges_[range_];
      if (range.next >= range.end) {
        ++range_;
        continue;
      }
      __builtin_prefetch(range.next, 0, 2);
      range.next += 64;
    }
  }

 private:
  struct Range {
    const char* next = nullptr;
    const char* end = nullptr;
  };

  Range ranges_[4];
  int range_ = 4;  // nothing
  int key_lines_ = 0;
};

// The working set of one head and chunk. Rows are `padded` floats, the rest of a row is zero.
struct Work : RowShape {
  float* state;      // [dim, padded]
  float* keys;       // [chunk, padded]
  float* updates;    // [chunk, padded]
  float* decays;     // [chunk, padded]: running sums
  float* queries;    // [chunk, padded], of this call's rows
  float* k_decayed;  // [chunk, padded]: k exp G
  float* q_decayed;  // [chunk, padded]
  float* k_state;    // [chunk, padded]: products of these with the state
  float* q_state;    // [chunk, padded]
  float* row;        // [padded]
  Ahead* ahead;
};

// k_state[r] = k_decayed[r]^T S and q_state[r] likewise for kRows rows, columns [c, c + kV
// vectors), ascending keys.
template <int kRows, int kV, bool kAhead = false>
HWY_INLINE void StateProducts(const Work& w, int64_t r, int64_t c) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  VF sk[kRows][kV];
  VF sq[kRows][kV];
  PENSTOCK_UNROLL
  for (int i = 0; i < kRows; ++i) {
    PENSTOCK_UNROLL
    for (int v = 0; v < kV; ++v) {
      sk[i][v] = hn::Zero(d);
      sq[i][v] = hn::Zero(d);
    }
  }
  [[maybe_unused]] const int ahead_lines = kAhead ? w.ahead->key_lines() : 0;
  for (int64_t key = 0; key < w.dim; ++key) {
    if constexpr (kAhead) {
      w.ahead->Take(ahead_lines);
    }
    VF s[kV];
    PENSTOCK_UNROLL
    for (int v = 0; v < kV; ++v) {
      s[v] = hn::LoadU(d, w.state + key * w.padded + c + v * lanes);
    }
    PENSTOCK_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const VF k = hn::Set(d, w.k_decayed[(r + i) * w.padded + key]);
      const VF q = hn::Set(d, w.q_decayed[(r + i) * w.padded + key]);
      PENSTOCK_UNROLL
      for (int v = 0; v < kV; ++v) {
        sk[i][v] = hn::MulAdd(k, s[v], sk[i][v]);
        sq[i][v] = hn::MulAdd(q, s[v], sq[i][v]);
      }
    }
  }
  PENSTOCK_UNROLL
  for (int i = 0; i < kRows; ++i) {
    PENSTOCK_UNROLL
    for (int v = 0; v < kV; ++v) {
      hn::StoreU(sk[i][v], d, w.k_state + (r + i) * w.padded + c + v * lanes);
      hn::StoreU(sq[i][v], d, w.q_state + (r + i) * w.padded + c + v * lanes);
    }
  }
}

// The same for whatever columns are left, a vector at a time.
HWY_INLINE void StateProductsTail(const Work& w, int64_t r, int64_t c) {
  const DF d;
  VF sk = hn::Zero(d);
  VF sq = hn::Zero(d);
  for (int64_t key = 0; key < w.dim; ++key) {
    const VF s = hn::LoadU(d, w.state + key * w.padded + c);
    sk = hn::MulAdd(hn::Set(d, w.k_decayed[r * w.padded + key]), s, sk);
    sq = hn::MulAdd(hn::Set(d, w.q_decayed[r * w.padded + key]), s, sq);
  }
  hn::StoreU(sk, d, w.k_state + r * w.padded + c);
  hn::StoreU(sq, d, w.q_state + r * w.padded + c);
}

// Rows [begin, end) of the chunk.
HWY_INLINE void AllStateProducts(const Work& w, int64_t begin, int64_t end) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(DF()));
  int64_t c = 0;
  if (end - begin == 1) {
    for (; c + kLoneVectors * lanes <= w.padded; c += kLoneVectors * lanes) {
      StateProducts<1, kLoneVectors, true>(w, begin, c);
    }
  }
  for (; c + kVectors * lanes <= w.padded; c += kVectors * lanes) {
    int64_t r = begin;
    for (; r + kPairRows <= end; r += kPairRows) {
      StateProducts<kPairRows, kVectors>(w, r, c);
    }
    for (; r < end; ++r) {
      StateProducts<1, kVectors>(w, r, c);
    }
  }
  for (; c < w.padded; c += lanes) {
    for (int64_t r = begin; r < end; ++r) {
      StateProductsTail(w, r, c);
    }
  }
}

struct Pair {
  float key;    // sum over c of k_ic k_jc exp(G_ic - G_jc)
  float query;  // sum over c of q_ic k_jc exp(G_ic - G_jc)
};

HWY_INLINE Pair Products(const Work& w, int64_t i, int64_t j) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  VF sk = hn::Zero(d);
  VF sq = hn::Zero(d);
  for (int64_t c = 0; c < w.padded; c += lanes) {
    w.ahead->Take(Ahead::kPairLines);
    VF kj = hn::LoadU(d, w.keys + j * w.padded + c);
    if (i != j) {
      kj = hn::Mul(kj, ExpNonPositive(d, hn::Sub(hn::LoadU(d, w.decays + i * w.padded + c),
                                                 hn::LoadU(d, w.decays + j * w.padded + c))));
    }
    sk = hn::MulAdd(hn::LoadU(d, w.keys + i * w.padded + c), kj, sk);
    sq = hn::MulAdd(hn::LoadU(d, w.queries + i * w.padded + c), kj, sq);
  }
  return {hn::GetLane(hn::SumOfLanes(d, sk)), hn::GetLane(hn::SumOfLanes(d, sq))};
}

// sum[0, padded) += factor * x
HWY_INLINE void AddScaled(const Work& w, float factor, const float* x, float* sum) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF by = hn::Set(d, factor);
  for (int64_t c = 0; c < w.padded; c += lanes) {
    hn::StoreU(hn::MulAdd(by, hn::LoadU(d, x + c), hn::LoadU(d, sum + c)), d, sum + c);
  }
}

// Update and result of row i, after those before it.
HWY_INLINE void FinishRow(const Work& w, int64_t i, const float* v, float beta, float* out) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  float* update = w.updates + i * w.padded;
  float* result = w.row;
  for (int64_t c = 0; c < w.padded; c += lanes) {
    const VF value = LoadFirst(d, v + c, Filled(w, c));
    hn::StoreU(hn::Sub(value, hn::LoadU(d, w.k_state + i * w.padded + c)), d, update + c);
    hn::StoreU(hn::LoadU(d, w.q_state + i * w.padded + c), d, result + c);
  }
  for (int64_t j = 0; j < i; ++j) {
    const Pair pair = Products(w, i, j);
    AddScaled(w, -pair.key, w.updates + j * w.padded, update);
    AddScaled(w, pair.query, w.updates + j * w.padded, result);
  }
  const VF scale = hn::Set(d, beta);
  for (int64_t c = 0; c < w.padded; c += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, update + c), scale), d, update + c);
  }
  AddScaled(w, Products(w, i, i).query, update, result);
  std::copy_n(result, w.dim, out);
}

// The state behind a whole chunk.
HWY_INLINE void Fold(const Work& w) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const float* last = w.decays + (kDeltaChunk - 1) * w.padded;
  // k_decayed and q_decayed are free now: keys with the decay that is left, and exp(G) itself.
  float* weights = w.k_decayed;
  float* keep = w.q_decayed;
  for (int64_t c = 0; c < w.padded; c += lanes) {
    const VF end = hn::LoadU(d, last + c);
    hn::StoreU(ExpNonPositive(d, end), d, keep + c);
    for (int64_t j = 0; j < kDeltaChunk; ++j) {
      const VF e = ExpNonPositive(d, hn::Sub(end, hn::LoadU(d, w.decays + j * w.padded + c)));
      hn::StoreU(hn::Mul(hn::LoadU(d, w.keys + j * w.padded + c), e), d,
                 weights + j * w.padded + c);
    }
  }
  for (int64_t key = 0; key < w.dim; ++key) {
    float* row = w.state + key * w.padded;
    for (int64_t c = 0; c < w.padded; c += lanes) {
      VF s = hn::Mul(hn::LoadU(d, row + c), hn::Set(d, keep[key]));
      PENSTOCK_UNROLL
      for (int64_t j = 0; j < kDeltaChunk; ++j) {
        s = hn::MulAdd(hn::Set(d, weights[j * w.padded + key]),
                       hn::LoadU(d, w.updates + j * w.padded + c), s);
      }
      hn::StoreU(s, d, row + c);
    }
  }
}

Work MakeWork(const DeltaHead& head, float* scratch) {
  Work w;
  static_cast<RowShape&>(w) = ShapeOf(head.params->dim);
  const int64_t rows = kDeltaChunk * w.padded;
  w.state = head.state;
  w.keys = w.state + w.dim * w.padded;
  w.updates = w.keys + rows;
  w.decays = w.updates + rows;
  w.queries = scratch;
  w.k_decayed = scratch + rows;
  w.q_decayed = scratch + 2 * rows;
  w.k_state = scratch + 3 * rows;
  w.q_state = scratch + 4 * rows;
  w.row = scratch + 5 * rows;
  return w;
}

void Head(const DeltaHead& head, Tensor q, Tensor k, Tensor v, Tensor f, Tensor b, Tensor out,
          float* scratch) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const DeltaParams& params = *head.params;
  const SequenceRows& sequence = *head.sequence;
  Work w = MakeWork(head, scratch);
  Ahead ahead;
  w.ahead = &ahead;
  if (sequence.rows == 1 && head.next_state != nullptr) {
    ahead.Begin(w, head.next_state, sequence.first_position % kDeltaChunk);
  }
  const int64_t column = head.head * w.dim;
  const auto at = [&](Tensor t, int64_t r) {
    return t.Row<float>(sequence.first_row + r).data() + column;
  };
  if (sequence.first_position == 0) {
    std::fill_n(w.state, w.dim * w.padded, 0.0F);
  }
  const float query_scale = 1.0F / std::sqrt(static_cast<float>(w.dim));
  int64_t r = 0;
  while (r < sequence.rows) {
    const int64_t begin = (sequence.first_position + r) % kDeltaChunk;
    const int64_t end = std::min(kDeltaChunk, begin + sequence.rows - r);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = r + i - begin;
      const int64_t place = i * w.padded;
      ahead.Take(Ahead::kPartLines);
      Normalize(w, at(q, row), query_scale, w.queries + place);
      ahead.Take(Ahead::kPartLines);
      Normalize(w, at(k, row), 1.0F, w.keys + place);
      AddDecay(w, params, head.head, at(f, row), i == 0 ? nullptr : w.decays + place - w.padded,
               w.decays + place);
      ahead.Take(2 * Ahead::kPartLines);
      for (int64_t c = 0; c < w.padded; c += lanes) {
        const VF e = ExpNonPositive(d, hn::LoadU(d, w.decays + place + c));
        hn::StoreU(hn::Mul(hn::LoadU(d, w.keys + place + c), e), d, w.k_decayed + place + c);
        hn::StoreU(hn::Mul(hn::LoadU(d, w.queries + place + c), e), d, w.q_decayed + place + c);
      }
    }
    AllStateProducts(w, begin, end);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = r + i - begin;
      ahead.Take(Ahead::kPartLines);
      const float raw = b.Row<float>(sequence.first_row + row)[static_cast<size_t>(head.head)];
      const float beta = 1.0F / (1.0F + std::exp(-raw));
      FinishRow(w, i, at(v, row), beta, at(out, row));
    }
    if (end == kDeltaChunk) {
      Fold(w);
    }
    r += end - begin;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace penstock::kernels

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace penstock::kernels {

HWY_EXPORT(Head);

int64_t DeltaScratchFloats(int64_t dim) {
  const int64_t padded = (dim + 15) / 16 * 16;
  return padded * (5 * kDeltaChunk + 1);
}

void RunDeltaHead(const DeltaHead& head, Tensor q, Tensor k, Tensor v, Tensor f, Tensor b,
                  Tensor out, float* scratch) {
  HWY_DYNAMIC_DISPATCH(Head)(head, q, k, v, f, b, out, scratch);
}

}  // namespace penstock::kernels

#endif  // HWY_ONCE
