#include <algorithm>
#include <cmath>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/training_delta.h"

// One copy of this file per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/training_delta_kernel.cc"
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

constexpr int64_t kRows = kDeltaChunk;
constexpr int64_t kPairs = kRows * (kRows - 1) / 2;
constexpr bool kWide = HWY_TARGET == HWY_AVX3;
// Vectors of the chunk's positions side by side.
constexpr int kColumnVectors = static_cast<int>(kRows / HWY_LANES(float));

// The working set of one head and chunk. [rows] are kRows x padded, [across] are padded x kRows
// (positions side by side), [matrix] are dim x padded.
struct Work : RowShape {
  const float* state;  // matrix: in front of the chunk
  float* gradient;     // matrix: of the state behind the chunk, turned into that in front
  const float* error;  // rows: w
  float *k, *q, *decays, *u, *dout, *du;    // rows; du becomes dw
  float *kd, *qd, *kt;                      // rows
  float* factors;                           // rows: exp g
  float* behind;                            // rows: decay from position i to the chunk's end
  float *dk, *dq, *dg;                      // rows
  float *across_u, *across_do, *across_dw;  // across
  float *across_dkd, *across_dqd, *across_dkt, *row_dkd, *row_dqd, *row_dkt;
  float* exps;  // kPairs x padded: E_ij of j < i
  float* a;     // kRows x kRows: A_ij
  float* p;     // P_ij
  float* da;    // [j][i]
  float* dp;    // [j][i]
  float* sums;  // padded: per key column, of gradient * state
  float beta[kRows], q_scale[kRows], k_scale[kRows];
};

HWY_INLINE int64_t PairAt(int64_t i, int64_t j) {
  return i * (i - 1) / 2 + j;
}

// to [columns][kRows] = from [kRows][padded], transposed.
void Across(const RowShape& s, const float* from, float* to) {
  for (int64_t c = 0; c < s.padded; c += 16) {
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t j = 0; j < 16; ++j) {
        to[(c + j) * kRows + i] = from[i * s.padded + c + j];
      }
    }
  }
}

// And back.
void Along(const RowShape& s, const float* from, float* to) {
  for (int64_t c = 0; c < s.padded; c += 16) {
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t j = 0; j < 16; ++j) {
        to[i * s.padded + c + j] = from[(c + j) * kRows + i];
      }
    }
  }
}

// Normalized keys (and queries), decays of `count` positions; zeros behind them, where the decay
// stays.
void Prepare(const DeltaBackHead& h, Tensor k, Tensor f, Tensor b, int64_t first, int64_t count,
             Work& w) {
  const int64_t column = h.head * w.dim;
  for (int64_t i = 0; i < kRows; ++i) {
    const int64_t row = h.segment->first_row + first + i;
    float* decay = w.decays + i * w.padded;
    if (i >= count) {
      std::copy_n(decay - w.padded, w.padded, decay);
      std::fill_n(w.factors + i * w.padded, w.padded, 1.0F);
      std::fill_n(w.k + i * w.padded, w.padded, 0.0F);
      w.beta[i] = 0;
      continue;
    }
    w.k_scale[i] = Normalize(w, k.Row<float>(row).data() + column, 1.0F, w.k + i * w.padded);
    AddDecay(w, *h.params, h.head, f.Row<float>(row).data() + column,
             i == 0 ? nullptr : decay - w.padded, decay, w.factors + i * w.padded);
    w.beta[i] = 1.0F / (1.0F + std::exp(-b.Row<float>(row)[static_cast<size_t>(h.head)]));
  }
}

void PrepareQueries(const DeltaBackHead& h, Tensor q, Tensor dout, int64_t first, int64_t count,
                    Work& w) {
  const int64_t column = h.head * w.dim;
  const float factor = 1.0F / std::sqrt(static_cast<float>(w.dim));
  for (int64_t i = 0; i < kRows; ++i) {
    const int64_t row = h.segment->first_row + first + i;
    float* to = w.dout + i * w.padded;
    std::fill_n(to, w.padded, 0.0F);
    if (i >= count) {
      std::fill_n(w.q + i * w.padded, w.padded, 0.0F);
      continue;
    }
    w.q_scale[i] = Normalize(w, q.Row<float>(row).data() + column, factor, w.q + i * w.padded);
    std::copy_n(dout.Row<float>(row).data() + column, w.dim, to);
  }
}

// kd, kt and the decays to the chunk's end, and with `queries` qd.
void Decayed(const Work& w, bool queries) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t c = 0; c < w.padded; c += lanes) {
    VF behind = hn::Set(d, 1.0F);
    for (int64_t i = kRows - 1; i >= 0; --i) {
      const int64_t at = i * w.padded + c;
      const VF e = ExpNonPositive(d, hn::LoadU(d, w.decays + at));
      const VF key = hn::LoadU(d, w.k + at);
      hn::StoreU(hn::Mul(key, e), d, w.kd + at);
      hn::StoreU(hn::Mul(key, behind), d, w.kt + at);
      hn::StoreU(behind, d, w.behind + at);
      behind = hn::Mul(behind, hn::LoadU(d, w.factors + at));
      if (queries) {
        hn::StoreU(hn::Mul(hn::LoadU(d, w.q + at), e), d, w.qd + at);
      }
    }
  }
}

// A, and with `queries` P and the decays of all pairs. A decay is the product of its steps': the
// difference of two running sums has lost the last digits of a mild step behind strong ones.
void PairProducts(const Work& w, bool queries) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < kRows; ++i) {
    const float* factor = w.factors + i * w.padded;
    for (int64_t j = 0; j <= i; ++j) {
      if (i == j && !queries) {
        continue;
      }
      float* decay = w.exps + PairAt(i, j) * w.padded;
      VF sum_a = hn::Zero(d);
      VF sum_p = hn::Zero(d);
      for (int64_t c = 0; c < w.padded; c += lanes) {
        VF key = hn::LoadU(d, w.k + j * w.padded + c);
        if (i != j) {
          VF e = hn::LoadU(d, factor + c);
          if (j + 1 < i) {
            e = hn::Mul(e, hn::LoadU(d, w.exps + PairAt(i - 1, j) * w.padded + c));
          }
          hn::StoreU(e, d, decay + c);
          key = hn::Mul(key, e);
        }
        sum_a = hn::MulAdd(hn::LoadU(d, w.k + i * w.padded + c), key, sum_a);
        if (queries) {
          sum_p = hn::MulAdd(hn::LoadU(d, w.q + i * w.padded + c), key, sum_p);
        }
      }
      w.a[i * kRows + j] = hn::GetLane(hn::SumOfLanes(d, sum_a));
      w.p[i * kRows + j] = hn::GetLane(hn::SumOfLanes(d, sum_p));
    }
  }
}

// out[r] = x[r]^T m for kR rows [r, r + kR), columns [c, c + kV vectors), ascending keys.
template <int kR, int kV>
HWY_INLINE void RowsTimesMatrix(const RowShape& s, const float* x, const float* m, int64_t r,
                                int64_t c, float* out) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  VF sum[kR][kV];
  PENSTOCK_UNROLL
  for (int i = 0; i < kR; ++i) {
    PENSTOCK_UNROLL
    for (int v = 0; v < kV; ++v) {
      sum[i][v] = hn::Zero(d);
    }
  }
  for (int64_t key = 0; key < s.dim; ++key) {
    VF row[kV];
    PENSTOCK_UNROLL
    for (int v = 0; v < kV; ++v) {
      row[v] = hn::LoadU(d, m + key * s.padded + c + v * lanes);
    }
    PENSTOCK_UNROLL
    for (int i = 0; i < kR; ++i) {
      const VF by = hn::Set(d, x[(r + i) * s.padded + key]);
      PENSTOCK_UNROLL
      for (int v = 0; v < kV; ++v) {
        sum[i][v] = hn::MulAdd(by, row[v], sum[i][v]);
      }
    }
  }
  PENSTOCK_UNROLL
  for (int i = 0; i < kR; ++i) {
    PENSTOCK_UNROLL
    for (int v = 0; v < kV; ++v) {
      hn::StoreU(sum[i][v], d, out + (r + i) * s.padded + c + v * lanes);
    }
  }
}

void TimesMatrix(const RowShape& s, const float* x, const float* m, float* out) {
  constexpr int kR = kWide ? 4 : 2;
  const auto lanes = static_cast<int64_t>(hn::Lanes(DF()));
  int64_t c = 0;
  for (; c + 4 * lanes <= s.padded; c += 4 * lanes) {
    for (int64_t r = 0; r < kRows; r += kR) {
      RowsTimesMatrix<kR, 4>(s, x, m, r, c, out);
    }
  }
  for (; c < s.padded; c += lanes) {
    for (int64_t r = 0; r < kRows; r += 4) {
      RowsTimesMatrix<4, 1>(s, x, m, r, c, out);
    }
  }
}

// out[key][positions] = sum over columns of m[key][column] x[column][positions], for kK keys; and
// the same of x2 into out2, unless kBoth is false.
template <int kK, bool kBoth>
HWY_INLINE void MatrixTimesAcross(const RowShape& s, const float* m, const float* x,
                                  const float* x2, int64_t key, float* out, float* out2) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  VF sum[kK][kColumnVectors];
  VF sum2[kK][kColumnVectors];
  PENSTOCK_UNROLL
  for (int i = 0; i < kK; ++i) {
    PENSTOCK_UNROLL
    for (int v = 0; v < kColumnVectors; ++v) {
      sum[i][v] = hn::Zero(d);
      sum2[i][v] = hn::Zero(d);
    }
  }
  for (int64_t c = 0; c < s.dim; ++c) {
    VF a[kColumnVectors];
    VF b[kColumnVectors];
    PENSTOCK_UNROLL
    for (int v = 0; v < kColumnVectors; ++v) {
      a[v] = hn::LoadU(d, x + c * kRows + v * lanes);
      if constexpr (kBoth) {
        b[v] = hn::LoadU(d, x2 + c * kRows + v * lanes);
      }
    }
    PENSTOCK_UNROLL
    for (int i = 0; i < kK; ++i) {
      const VF by = hn::Set(d, m[(key + i) * s.padded + c]);
      PENSTOCK_UNROLL
      for (int v = 0; v < kColumnVectors; ++v) {
        sum[i][v] = hn::MulAdd(by, a[v], sum[i][v]);
        if constexpr (kBoth) {
          sum2[i][v] = hn::MulAdd(by, b[v], sum2[i][v]);
        }
      }
    }
  }
  PENSTOCK_UNROLL
  for (int i = 0; i < kK; ++i) {
    PENSTOCK_UNROLL
    for (int v = 0; v < kColumnVectors; ++v) {
      hn::StoreU(sum[i][v], d, out + (key + i) * kRows + v * lanes);
      if constexpr (kBoth) {
        hn::StoreU(sum2[i][v], d, out2 + (key + i) * kRows + v * lanes);
      }
    }
  }
}

template <bool kBoth>
void MatrixTimes(const RowShape& s, const float* m, const float* x, const float* x2, float* out,
                 float* out2) {
  constexpr int kK = kWide ? 8 : 2;
  int64_t key = 0;
  for (; key + kK <= s.dim; key += kK) {
    MatrixTimesAcross<kK, kBoth>(s, m, x, x2, key, out, out2);
  }
  for (; key < s.dim; ++key) {
    MatrixTimesAcross<1, kBoth>(s, m, x, x2, key, out, out2);
  }
  std::fill(out + s.dim * kRows, out + s.padded * kRows, 0.0F);
  if constexpr (kBoth) {
    std::fill(out2 + s.dim * kRows, out2 + s.padded * kRows, 0.0F);
  }
}

// to = keep[key] * from + sum over i of x_i[key] y_i (and - x2_i[key] y2_i) for keys [key, key +
// kK), columns [c, c + kV vectors).
template <int kK, int kV, bool kBoth>
HWY_INLINE void UpdateBlock(const RowShape& s, const float* keep, const float* from, const float* x,
                            const float* y, const float* x2, const float* y2, int64_t key,
                            int64_t c, float* to) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  VF sum[kK][kV];
  PENSTOCK_UNROLL
  for (int i = 0; i < kK; ++i) {
    const VF by = hn::Set(d, keep[key + i]);
    PENSTOCK_UNROLL
    for (int v = 0; v < kV; ++v) {
      sum[i][v] = hn::Mul(by, hn::LoadU(d, from + (key + i) * s.padded + c + v * lanes));
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    VF row[kV];
    PENSTOCK_UNROLL
    for (int v = 0; v < kV; ++v) {
      row[v] = hn::LoadU(d, y + r * s.padded + c + v * lanes);
    }
    PENSTOCK_UNROLL
    for (int i = 0; i < kK; ++i) {
      const VF by = hn::Set(d, x[r * s.padded + key + i]);
      PENSTOCK_UNROLL
      for (int v = 0; v < kV; ++v) {
        sum[i][v] = hn::MulAdd(by, row[v], sum[i][v]);
      }
    }
    if constexpr (kBoth) {
      PENSTOCK_UNROLL
      for (int v = 0; v < kV; ++v) {
        row[v] = hn::LoadU(d, y2 + r * s.padded + c + v * lanes);
      }
      PENSTOCK_UNROLL
      for (int i = 0; i < kK; ++i) {
        const VF by = hn::Set(d, x2[r * s.padded + key + i]);
        PENSTOCK_UNROLL
        for (int v = 0; v < kV; ++v) {
          sum[i][v] = hn::NegMulAdd(by, row[v], sum[i][v]);
        }
      }
    }
  }
  PENSTOCK_UNROLL
  for (int i = 0; i < kK; ++i) {
    PENSTOCK_UNROLL
    for (int v = 0; v < kV; ++v) {
      hn::StoreU(sum[i][v], d, to + (key + i) * s.padded + c + v * lanes);
    }
  }
}

template <bool kBoth>
void UpdateMatrix(const RowShape& s, const float* keep, const float* from, const float* x,
                  const float* y, const float* x2, const float* y2, float* to) {
  constexpr int kK = kWide ? 4 : 2;
  const auto lanes = static_cast<int64_t>(hn::Lanes(DF()));
  int64_t key = 0;
  for (; key + kK <= s.dim; key += kK) {
    int64_t c = 0;
    for (; c + 4 * lanes <= s.padded; c += 4 * lanes) {
      UpdateBlock<kK, 4, kBoth>(s, keep, from, x, y, x2, y2, key, c, to);
    }
    for (; c < s.padded; c += lanes) {
      UpdateBlock<kK, 1, kBoth>(s, keep, from, x, y, x2, y2, key, c, to);
    }
  }
  for (; key < s.dim; ++key) {
    for (int64_t c = 0; c < s.padded; c += lanes) {
      UpdateBlock<1, 1, kBoth>(s, keep, from, x, y, x2, y2, key, c, to);
    }
  }
}

// exp of the chunk's whole decay, per key column.
HWY_INLINE void Keep(const Work& w, float* keep) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t c = 0; c < w.padded; c += lanes) {
    hn::StoreU(ExpNonPositive(d, hn::LoadU(d, w.decays + (kRows - 1) * w.padded + c)), d, keep + c);
  }
}

// sum[0, padded) += factor * x
HWY_INLINE void AddScaled(const RowShape& s, float factor, const float* x, float* sum) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF by = hn::Set(d, factor);
  for (int64_t c = 0; c < s.padded; c += lanes) {
    hn::StoreU(hn::MulAdd(by, hn::LoadU(d, x + c), hn::LoadU(d, sum + c)), d, sum + c);
  }
}

HWY_INLINE void Scaled(const RowShape& s, float factor, const float* x, float* to) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t c = 0; c < s.padded; c += lanes) {
    hn::StoreU(hn::Mul(hn::Set(d, factor), hn::LoadU(d, x + c)), d, to + c);
  }
}

HWY_INLINE float DotRow(const RowShape& s, const float* x, const float* y) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  VF sum = hn::Zero(d);
  for (int64_t c = 0; c < s.padded; c += lanes) {
    sum = hn::MulAdd(hn::LoadU(d, x + c), hn::LoadU(d, y + c), sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// The forward pass of one chunk: w into `error`, and the state behind it into `next` unless that is
// null.
void ForwardChunk(const DeltaBackHead& h, Tensor v, int64_t first, int64_t count, const Work& w,
                  float* error, float* next) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  Decayed(w, false);
  PairProducts(w, false);
  TimesMatrix(w, w.kd, w.state, w.du);
  for (int64_t i = 0; i < kRows; ++i) {
    float* row = error + i * w.padded;
    if (i >= count) {
      std::fill_n(row, w.padded, 0.0F);
      std::fill_n(w.u + i * w.padded, w.padded, 0.0F);
      continue;
    }
    const float* value = v.Row<float>(h.segment->first_row + first + i).data() + h.head * w.dim;
    for (int64_t c = 0; c < w.padded; c += lanes) {
      hn::StoreU(
          hn::Sub(LoadFirst(d, value + c, Filled(w, c)), hn::LoadU(d, w.du + i * w.padded + c)), d,
          row + c);
    }
    for (int64_t j = 0; j < i; ++j) {
      AddScaled(w, -w.a[i * kRows + j], w.u + j * w.padded, row);
    }
    Scaled(w, w.beta[i], row, w.u + i * w.padded);
  }
  if (next != nullptr) {
    Keep(w, w.sums);
    UpdateMatrix<false>(w, w.sums, w.state, w.kt, w.u, nullptr, nullptr, next);
  }
}

// du, then dw in its place, last position first; dbeta.
void UpdatesBack(const Work& w, float* dbeta) {
  TimesMatrix(w, w.kt, w.gradient, w.du);
  for (int64_t i = kRows - 1; i >= 0; --i) {
    float* row = w.du + i * w.padded;
    for (int64_t j = i; j < kRows; ++j) {
      AddScaled(w, w.p[j * kRows + i], w.dout + j * w.padded, row);
    }
    for (int64_t j = i + 1; j < kRows; ++j) {
      AddScaled(w, -w.a[j * kRows + i], w.du + j * w.padded, row);
    }
    dbeta[i] = DotRow(w, row, w.error + i * w.padded);
    Scaled(w, w.beta[i], row, row);
  }
}

// da[j][i] = -dw_i . u_j and dp[j][i] = do_i . u_j.
void PairsBack(const Work& w) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t j = 0; j < kRows; j += 4) {
    for (int v = 0; v < kColumnVectors; ++v) {
      VF sum_a[4];
      VF sum_p[4];
      PENSTOCK_UNROLL
      for (int t = 0; t < 4; ++t) {
        sum_a[t] = hn::Zero(d);
        sum_p[t] = hn::Zero(d);
      }
      for (int64_t c = 0; c < w.dim; ++c) {
        const VF dw = hn::LoadU(d, w.across_dw + c * kRows + v * lanes);
        const VF dout = hn::LoadU(d, w.across_do + c * kRows + v * lanes);
        PENSTOCK_UNROLL
        for (int t = 0; t < 4; ++t) {
          const VF u = hn::Set(d, w.across_u[c * kRows + j + t]);
          sum_a[t] = hn::NegMulAdd(dw, u, sum_a[t]);
          sum_p[t] = hn::MulAdd(dout, u, sum_p[t]);
        }
      }
      PENSTOCK_UNROLL
      for (int t = 0; t < 4; ++t) {
        hn::StoreU(sum_a[t], d, w.da + (j + t) * kRows + v * lanes);
        hn::StoreU(sum_p[t], d, w.dp + (j + t) * kRows + v * lanes);
      }
    }
  }
}

// dk, dq, dg of what leads through the states in front of and behind the chunk. `keep`: exp G_n;
// `sums` holds, per key column, the gradient of keep.
void StatesBack(const Work& w, const float* keep) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t c = 0; c < w.padded; c += lanes) {
    // Of later positions on the state in front: they pass every decay up to theirs.
    VF run = hn::Mul(hn::LoadU(d, keep + c), hn::LoadU(d, w.sums + c));
    for (int64_t i = kRows - 1; i >= 0; --i) {
      const int64_t at = i * w.padded + c;
      const VF g = hn::LoadU(d, w.decays + at);
      const VF e = ExpNonPositive(d, g);
      const VF dkd = hn::Neg(hn::LoadU(d, w.row_dkd + at));
      const VF dqd = hn::LoadU(d, w.row_dqd + at);
      const VF dkt = hn::LoadU(d, w.row_dkt + at);
      const VF behind = hn::LoadU(d, w.behind + at);
      hn::StoreU(hn::Mul(dqd, e), d, w.dq + at);
      hn::StoreU(hn::MulAdd(dkt, behind, hn::Mul(dkd, e)), d, w.dk + at);
      run = hn::MulAdd(dkd, hn::LoadU(d, w.kd + at), run);
      run = hn::MulAdd(dqd, hn::LoadU(d, w.qd + at), run);
      hn::StoreU(run, d, w.dg + at);
    }
    // Of the state behind on earlier positions: those pass every decay after theirs.
    run = hn::Zero(d);
    for (int64_t i = 0; i < kRows; ++i) {
      const int64_t at = i * w.padded + c;
      hn::StoreU(hn::Add(hn::LoadU(d, w.dg + at), run), d, w.dg + at);
      run = hn::MulAdd(hn::LoadU(d, w.row_dkt + at), hn::LoadU(d, w.kt + at), run);
    }
  }
}

// dk, dq, dg of products inside the chunk are added.
void InsideBack(const Work& w) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t c = 0; c < w.padded; c += lanes) {
    for (int64_t j = 0; j < kRows; ++j) {
      const int64_t at_j = j * w.padded + c;
      const VF key = hn::LoadU(d, w.k + at_j);
      VF dkey = hn::LoadU(d, w.dk + at_j);
      VF run = hn::Zero(d);
      for (int64_t i = kRows - 1; i > j; --i) {
        const int64_t at = i * w.padded + c;
        const VF e = hn::LoadU(d, w.exps + PairAt(i, j) * w.padded + c);
        const VF by_a = hn::Mul(hn::Set(d, w.da[j * kRows + i]), e);
        const VF by_p = hn::Mul(hn::Set(d, w.dp[j * kRows + i]), e);
        hn::StoreU(hn::MulAdd(by_a, key, hn::LoadU(d, w.dk + at)), d, w.dk + at);
        hn::StoreU(hn::MulAdd(by_p, key, hn::LoadU(d, w.dq + at)), d, w.dq + at);
        const VF term =
            hn::MulAdd(by_a, hn::LoadU(d, w.k + at), hn::Mul(by_p, hn::LoadU(d, w.q + at)));
        dkey = hn::Add(dkey, term);
        run = hn::MulAdd(term, key, run);
        hn::StoreU(hn::Add(hn::LoadU(d, w.dg + at), run), d, w.dg + at);
      }
      const VF same = hn::Set(d, w.dp[j * kRows + j]);
      hn::StoreU(hn::MulAdd(same, key, hn::LoadU(d, w.dq + at_j)), d, w.dq + at_j);
      hn::StoreU(hn::MulAdd(same, hn::LoadU(d, w.q + at_j), dkey), d, w.dk + at_j);
    }
  }
}

HWY_INLINE void PutFirst(DF d, bool accumulate, VF value, float* to, int64_t n) {
  if (accumulate) {
    value = hn::Add(LoadFirst(d, to, n), value);
  }
  hn::BlendedStore(value, hn::FirstN(d, static_cast<size_t>(n)), d, to);
}

// dx (+)= gradient of factor * x / |x|, of which `scaled` is the value and `scale` 1 / |x|.
HWY_INLINE void NormalizeBack(const RowShape& s, const float* gradient, const float* scaled,
                              float factor, float scale, bool accumulate, float* dx) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  // x / |x| = scaled / factor
  const float dot = DotRow(s, gradient, scaled) / (factor * factor);
  const VF by = hn::Set(d, factor * scale);
  const VF along = hn::Set(d, dot);
  for (int64_t c = 0; c < s.padded; c += lanes) {
    const int64_t n = Filled(s, c);
    const VF across = hn::NegMulAdd(hn::LoadU(d, scaled + c), along, hn::LoadU(d, gradient + c));
    PutFirst(d, accumulate, hn::Mul(by, across), dx + c, n);
  }
}

// df (+)=, the sums of dt_bias += and, returned, the share of a_log of one position.
HWY_INLINE float DecayBack(const RowShape& s, const DeltaParams& params, int64_t head,
                           const float* f, const float* dg, bool accumulate, float* df,
                           float* bias_sums) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF rate = hn::Set(d, RateOf(params, head));
  const VF one = hn::Set(d, 1.0F);
  const float* bias = params.dt_bias.Row<float>(0).data() + head * s.dim;
  VF sum = hn::Zero(d);
  for (int64_t c = 0; c < s.padded; c += lanes) {
    const int64_t n = Filled(s, c);
    const VF z = hn::Add(LoadFirst(d, f + c, n), LoadFirst(d, bias + c, n));
    VF slope;    // dg/dz
    VF by_rate;  // dg/da_log
    if (params.bounded) {
      // s (1 - s) without the difference, which would cancel where the decay is strongest.
      const VF e = ExpNonPositive(d, hn::Neg(hn::Abs(hn::Mul(rate, z))));
      const VF sum_e = hn::Add(one, e);
      slope =
          hn::Mul(hn::Mul(hn::Set(d, params.lower_bound), rate), hn::Div(e, hn::Mul(sum_e, sum_e)));
      by_rate = hn::Mul(slope, z);
    } else {
      slope = hn::Neg(hn::Mul(rate, Sigmoid(d, z)));
      by_rate = DecayOf(d, params, rate, z);
    }
    const VF g = LoadFirst(d, dg + c, n);
    const VF dz = hn::Mul(g, slope);
    sum = hn::MulAdd(g, by_rate, sum);
    PutFirst(d, accumulate, dz, df + c, n);
    PutFirst(d, true, dz, bias_sums + c, n);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

void WriteRows(const DeltaBackHead& h, Tensor f, int64_t first, int64_t count, const Work& w,
               const float* dbeta, const DeltaGradients& to, double* rate_sum) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t column = h.head * w.dim;
  const float factor = 1.0F / std::sqrt(static_cast<float>(w.dim));
  for (int64_t i = count - 1; i >= 0; --i) {
    const int64_t row = h.segment->first_row + first + i;
    const int64_t place = i * w.padded;
    const auto at = [&](Tensor t) { return t.Row<float>(row).data() + column; };
    NormalizeBack(w, w.dq + place, w.q + place, factor, w.q_scale[i], to.accumulate_q, at(to.q));
    NormalizeBack(w, w.dk + place, w.k + place, 1.0F, w.k_scale[i], to.accumulate_k, at(to.k));
    for (int64_t c = 0; c < w.padded; c += lanes) {
      PutFirst(d, to.accumulate_v, hn::LoadU(d, w.du + place + c), at(to.v) + c, Filled(w, c));
    }
    *rate_sum += static_cast<double>(DecayBack(w, *h.params, h.head, at(f), w.dg + place,
                                               to.accumulate_f, at(to.f), to.sums.data() + column));
    float& db = to.b.Row<float>(row)[static_cast<size_t>(h.head)];
    const float term = dbeta[i] * w.beta[i] * (1.0F - w.beta[i]);
    db = to.accumulate_b ? db + term : term;
  }
}

// Places the working set; what is left is behind the returned pointer.
float* MakeWork(int64_t dim, float* scratch, Work& w) {
  static_cast<RowShape&>(w) = ShapeOf(dim);
  const auto take = [&](int64_t floats) {
    float* at = scratch;
    scratch += floats;
    return at;
  };
  const int64_t rows = kRows * w.padded;
  for (float** p :
       {&w.k,        &w.q,         &w.decays,    &w.u,          &w.dout,       &w.du,
        &w.kd,       &w.qd,        &w.kt,        &w.dk,         &w.dq,         &w.dg,
        &w.across_u, &w.across_do, &w.across_dw, &w.across_dkd, &w.across_dqd, &w.across_dkt,
        &w.row_dkd,  &w.row_dqd,   &w.row_dkt,   &w.factors,    &w.behind}) {
    *p = take(rows);
  }
  w.exps = take(kPairs * w.padded);
  for (float** p : {&w.a, &w.p, &w.da, &w.dp}) {
    *p = take(kRows * kRows);
  }
  w.sums = take(w.padded);
  w.gradient = take(w.dim * w.padded);
  return scratch;
}

void BackChunk(const DeltaBackHead& h, Tensor f, int64_t first, int64_t count, const Work& w,
               float* keep, const DeltaGradients& to, double* rate_sum) {
  for (int64_t i = 0; i < kRows; ++i) {
    Scaled(w, w.beta[i], w.error + i * w.padded, w.u + i * w.padded);
  }
  Decayed(w, true);
  PairProducts(w, true);
  float dbeta[kRows];
  UpdatesBack(w, dbeta);
  Across(w, w.u, w.across_u);
  Across(w, w.dout, w.across_do);
  Across(w, w.du, w.across_dw);
  PairsBack(w);
  MatrixTimes<true>(w, w.state, w.across_dw, w.across_do, w.across_dkd, w.across_dqd);
  MatrixTimes<false>(w, w.gradient, w.across_u, nullptr, w.across_dkt, nullptr);
  Along(w, w.across_dkd, w.row_dkd);
  Along(w, w.across_dqd, w.row_dqd);
  Along(w, w.across_dkt, w.row_dkt);
  std::fill_n(w.sums, w.padded, 0.0F);
  for (int64_t key = 0; key < w.dim; ++key) {
    w.sums[key] = DotRow(w, w.gradient + key * w.padded, w.state + key * w.padded);
  }
  Keep(w, keep);
  StatesBack(w, keep);
  InsideBack(w);
  UpdateMatrix<true>(w, keep, w.gradient, w.qd, w.dout, w.kd, w.du, w.gradient);
  WriteRows(h, f, first, count, w, dbeta, to, rate_sum);
}

void HeadBack(const DeltaBackHead& h, Tensor q, Tensor k, Tensor v, Tensor f, Tensor b, Tensor dout,
              const DeltaGradients& to, double* rate_sum, float* scratch) {
  Work w;
  float* keep = MakeWork(h.params->dim, scratch, w);
  const int64_t rows = h.segment->rows;
  const int64_t chunks = (rows + kRows - 1) / kRows;
  const int64_t size = w.dim * w.padded;
  float* errors = keep + w.padded;                     // [chunks] rows
  float* states = errors + chunks * kRows * w.padded;  // [chunks] matrices
  std::fill_n(states, size, 0.0F);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t first = chunk * kRows;
    const int64_t count = std::min(kRows, rows - first);
    w.state = states + chunk * size;
    Prepare(h, k, f, b, first, count, w);
    ForwardChunk(h, v, first, count, w, errors + first * w.padded,
                 chunk + 1 < chunks ? states + (chunk + 1) * size : nullptr);
  }
  std::fill_n(w.gradient, size, 0.0F);
  for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
    const int64_t first = chunk * kRows;
    const int64_t count = std::min(kRows, rows - first);
    w.state = states + chunk * size;
    w.error = errors + first * w.padded;
    if (chunk + 1 < chunks) {
      Prepare(h, k, f, b, first, count, w);
    }
    PrepareQueries(h, q, dout, first, count, w);
    BackChunk(h, f, first, count, w, keep, to, rate_sum);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace penstock::kernels

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace penstock::kernels {

HWY_EXPORT(HeadBack);

int64_t DeltaBackScratchFloats(int64_t dim, int64_t rows) {
  const int64_t padded = (dim + 15) / 16 * 16;
  const int64_t chunks = (rows + kDeltaChunk - 1) / kDeltaChunk;
  const int64_t tiles = 23 + (kDeltaChunk - 1) / 2 + 1;  // rows of the working set, exps rounded up
  return tiles * kDeltaChunk * padded + 4 * kDeltaChunk * kDeltaChunk + 2 * padded + dim * padded +
         chunks * padded * (kDeltaChunk + dim);
}

void RunDeltaBackHead(const DeltaBackHead& head, Tensor q, Tensor k, Tensor v, Tensor f, Tensor b,
                      Tensor dout, const DeltaGradients& gradients, double* rate_sum,
                      float* scratch) {
  HWY_DYNAMIC_DISPATCH(HeadBack)(head, q, k, v, f, b, dout, gradients, rate_sum, scratch);
}

}  // namespace penstock::kernels

#endif  // HWY_ONCE
