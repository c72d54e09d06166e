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
inline constexpr int kFoldRows = HWY_TARGET == HWY_AVX3 ? 4 : 2;
inline constexpr int kVectors = 4;
inline constexpr int kLoneVectors = HWY_TARGET == HWY_AVX3 ? 8 : 4;

// Fetches what the next head will read, a few cache lines whenever it is asked.
class Ahead {
 public:
  // The state of a head and, behind it, its decay and the first `count` rows of its keys and
  // updates.
  void Begin(const RowShape& s, const float* state, int64_t count) {
    next_ = reinterpret_cast<const char*>(state);
    end_ = reinterpret_cast<const char*>(state + (s.dim + 1 + 2 * count) * s.padded);
  }

  // So many lines in each part of a row, that memory is seldom idle: per key of the state's
  // products, per pair and vector, per key and block of columns of a fold, and in five other parts.
  static constexpr int kKeyLines = 8;
  static constexpr int kPairLines = 1;
  static constexpr int kFoldLines = 4;
  static constexpr int kPartLines = 16;

  // May fetch a little beyond the end.
  template <int kLines>
  HWY_INLINE void Take() {
    if (next_ < end_) {
      PENSTOCK_UNROLL
      for (int line = 0; line < kLines; ++line) {
        __builtin_prefetch(next_ + 64 * line, 0, 3);
      }
      next_ += 64 * kLines;
    }
  }

 private:
  const char* next_ = nullptr;
  const char* end_ = nullptr;
};

// The working set of one head and chunk. Rows are `padded` floats, the rest of a row is zero.
struct Work : RowShape {
  float* state;    // [dim, padded]
  float* decay;    // [padded]: running sum, of the newest position
  float* keys;     // [chunk, padded], `stride` apart: with the decay from their position on
  float* updates;  // [chunk, padded], likewise, between the keys
  int64_t stride;
  float* queries;    // [chunk, padded], of this call's rows
  float* factors;    // [chunk, padded]: exp g, of this call's rows
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
  for (int64_t key = 0; key < w.dim; ++key) {
    if constexpr (kAhead) {
      w.ahead->Take<Ahead::kKeyLines>();
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

// Of the row i with those before it and with itself, for j <= i:
// key[j] = sum over c of k_ic k~_jc, query[j] = sum over c of q_ic k~_jc, where k~_j is k_j with
// the decay from position j to i.
struct Pairs {
  float key[kDeltaChunk];
  float query[kDeltaChunk];
};

// Takes the keys before row i one position on, and multiplies.
HWY_INLINE void PairProducts(const Work& w, int64_t i, Pairs& pairs) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const float* key = w.keys + i * w.stride;
  const float* query = w.queries + i * w.padded;
  const float* factor = w.factors + i * w.padded;
  for (int64_t j = 0; j <= i; ++j) {
    float* other = w.keys + j * w.stride;
    VF sk = hn::Zero(d);
    VF sq = hn::Zero(d);
    for (int64_t c = 0; c < w.padded; c += lanes) {
      w.ahead->Take<Ahead::kPairLines>();
      VF kj = hn::LoadU(d, other + c);
      if (j < i) {
        kj = hn::Mul(kj, hn::LoadU(d, factor + c));
        hn::StoreU(kj, d, other + c);
      }
      sk = hn::MulAdd(hn::LoadU(d, key + c), kj, sk);
      sq = hn::MulAdd(hn::LoadU(d, query + c), kj, sq);
    }
    pairs.key[j] = hn::GetLane(hn::SumOfLanes(d, sk));
    pairs.query[j] = hn::GetLane(hn::SumOfLanes(d, sq));
  }
}

// Update and result of row i, columns [c, c + kV vectors), after the rows before it.
template <int kV>
HWY_INLINE void FinishColumns(const Work& w, int64_t i, const Pairs& pairs, const float* v,
                              float beta, int64_t c) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  VF update[kV];
  VF result[kV];
  PENSTOCK_UNROLL
  for (int t = 0; t < kV; ++t) {
    const int64_t at = c + t * lanes;
    const VF value = LoadFirst(d, v + at, Filled(w, at));
    update[t] = hn::Sub(value, hn::LoadU(d, w.k_state + i * w.padded + at));
    result[t] = hn::LoadU(d, w.q_state + i * w.padded + at);
  }
  for (int64_t j = 0; j < i; ++j) {
    const VF by_key = hn::Set(d, pairs.key[j]);
    const VF by_query = hn::Set(d, pairs.query[j]);
    PENSTOCK_UNROLL
    for (int t = 0; t < kV; ++t) {
      const VF u = hn::LoadU(d, w.updates + j * w.stride + c + t * lanes);
      update[t] = hn::NegMulAdd(by_key, u, update[t]);
      result[t] = hn::MulAdd(by_query, u, result[t]);
    }
  }
  const VF scale = hn::Set(d, beta);
  const VF by_query = hn::Set(d, pairs.query[i]);
  PENSTOCK_UNROLL
  for (int t = 0; t < kV; ++t) {
    const VF u = hn::Mul(update[t], scale);
    hn::StoreU(u, d, w.updates + i * w.stride + c + t * lanes);
    hn::StoreU(hn::MulAdd(by_query, u, result[t]), d, w.row + c + t * lanes);
  }
}

HWY_INLINE void FinishRow(const Work& w, int64_t i, const float* v, float beta, float* out) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(DF()));
  Pairs pairs;
  PairProducts(w, i, pairs);
  int64_t c = 0;
  for (; c + kVectors * lanes <= w.padded; c += kVectors * lanes) {
    FinishColumns<kVectors>(w, i, pairs, v, beta, c);
  }
  for (; c < w.padded; c += lanes) {
    FinishColumns<1>(w, i, pairs, v, beta, c);
  }
  std::copy_n(w.row, w.dim, out);
}

// Keys [key, key + kK), columns [c, c + kV vectors) of the state behind a whole chunk: decayed,
// then the chunk's positions ascending.
template <int kK, int kV>
HWY_INLINE void FoldBlock(const Work& w, int64_t key, int64_t c) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  VF sum[kK][kV];
  PENSTOCK_UNROLL
  for (int i = 0; i < kK; ++i) {
    const VF keep = hn::Set(d, w.row[key + i]);
    PENSTOCK_UNROLL
    for (int v = 0; v < kV; ++v) {
      sum[i][v] = hn::Mul(keep, hn::LoadU(d, w.state + (key + i) * w.padded + c + v * lanes));
    }
  }
  for (int64_t j = 0; j < kDeltaChunk; ++j) {
    VF update[kV];
    PENSTOCK_UNROLL
    for (int v = 0; v < kV; ++v) {
      update[v] = hn::LoadU(d, w.updates + j * w.stride + c + v * lanes);
    }
    PENSTOCK_UNROLL
    for (int i = 0; i < kK; ++i) {
      const VF by = hn::Set(d, w.keys[j * w.stride + key + i]);
      PENSTOCK_UNROLL
      for (int v = 0; v < kV; ++v) {
        sum[i][v] = hn::MulAdd(by, update[v], sum[i][v]);
      }
    }
  }
  PENSTOCK_UNROLL
  for (int i = 0; i < kK; ++i) {
    PENSTOCK_UNROLL
    for (int v = 0; v < kV; ++v) {
      hn::StoreU(sum[i][v], d, w.state + (key + i) * w.padded + c + v * lanes);
    }
  }
}

template <int kK>
HWY_INLINE void FoldKeys(const Work& w, int64_t key) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(DF()));
  int64_t c = 0;
  for (; c + kVectors * lanes <= w.padded; c += kVectors * lanes) {
    w.ahead->Take<kK * Ahead::kFoldLines>();
    FoldBlock<kK, kVectors>(w, key, c);
  }
  for (; c < w.padded; c += lanes) {
    FoldBlock<kK, 1>(w, key, c);
  }
}

// The state behind a whole chunk, whose keys have the decay up to its end.
HWY_INLINE void Fold(const Work& w) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t c = 0; c < w.padded; c += lanes) {
    hn::StoreU(ExpNonPositive(d, hn::LoadU(d, w.decay + c)), d, w.row + c);
  }
  int64_t key = 0;
  for (; key + kFoldRows <= w.dim; key += kFoldRows) {
    FoldKeys<kFoldRows>(w, key);
  }
  for (; key < w.dim; ++key) {
    FoldKeys<1>(w, key);
  }
}

// The running decay of the newest position, its factor, and key and query with the decay since the
// chunk's beginning.
HWY_INLINE void DecayRow(const Work& w, const DeltaParams& params, int64_t head, const float* f,
                         int64_t i) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t place = i * w.padded;
  AddDecay(w, params, head, f, i == 0 ? nullptr : w.decay, w.decay, w.factors + place);
  for (int64_t c = 0; c < w.padded; c += lanes) {
    const VF e = ExpNonPositive(d, hn::LoadU(d, w.decay + c));
    hn::StoreU(hn::Mul(hn::LoadU(d, w.keys + i * w.stride + c), e), d, w.k_decayed + place + c);
    hn::StoreU(hn::Mul(hn::LoadU(d, w.queries + place + c), e), d, w.q_decayed + place + c);
  }
}

Work MakeWork(const DeltaHead& head, float* scratch) {
  Work w;
  static_cast<RowShape&>(w) = ShapeOf(head.params->dim);
  const int64_t rows = kDeltaChunk * w.padded;
  w.state = head.state;
  w.decay = w.state + w.dim * w.padded;
  w.keys = w.decay + w.padded;
  w.updates = w.keys + w.padded;
  w.stride = 2 * w.padded;
  w.queries = scratch;
  w.factors = scratch + rows;
  w.k_decayed = scratch + 2 * rows;
  w.q_decayed = scratch + 3 * rows;
  w.k_state = scratch + 4 * rows;
  w.q_state = scratch + 5 * rows;
  w.row = scratch + 6 * rows;
  return w;
}

void Head(const DeltaHead& head, Tensor q, Tensor k, Tensor v, Tensor f, Tensor b, Tensor out,
          float* scratch) {
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
      ahead.Take<Ahead::kPartLines>();
      Normalize(w, at(q, row), query_scale, w.queries + place);
      ahead.Take<Ahead::kPartLines>();
      Normalize(w, at(k, row), 1.0F, w.keys + i * w.stride);
      ahead.Take<2 * Ahead::kPartLines>();
      DecayRow(w, params, head.head, at(f, row), i);
    }
    AllStateProducts(w, begin, end);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = r + i - begin;
      ahead.Take<Ahead::kPartLines>();
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
  return padded * (6 * kDeltaChunk + 1);
}

void RunDeltaHead(const DeltaHead& head, Tensor q, Tensor k, Tensor v, Tensor f, Tensor b,
                  Tensor out, float* scratch) {
  HWY_DYNAMIC_DISPATCH(Head)(head, q, k, v, f, b, out, scratch);
}

}  // namespace penstock::kernels

#endif  // HWY_ONCE
