// Kimi delta attention of the CPU device, in chunks of 16 positions that begin at multiples of 16.
//
// A slot holds, per head, the state S [dim keys, dim values] as it was at the beginning of the
// present chunk, the running sum G of the decay since then, and for the positions j of the chunk
// that have passed the update u_j and the normalized key with the decay since its position,
// k~_j = k_j E_ij, where E_ij = exp(G_i - G_j) per key column, i the newest position. One position
// on, k~_j is multiplied by exp g_i: a product of factors below one, so that nothing overflows or
// cancels at any decay.
//   u_i = beta_i (v_i - (k_i exp G_i)^T S - sum over j < i of (sum_c k_ic k~_jc) u_j)
//   o_i = (q_i exp G_i)^T S + sum over j <= i of (sum_c q_ic k~_jc) u_j
// and after the chunk's last position S = diag(exp G) S + sum over j of k~_j u_j^T.
// (Yang et al., Gated Delta Networks, arXiv 2412.06464; Kimi Linear, arXiv 2510.26692. The
// triangular system is solved by substitution.)
//
// Bits. What a position computes has one order of sums and depends on positions only, so one row at
// a time (decoding) and many (prefill) give the same. Decoding reads S once per token and writes it
// once per chunk.

#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace penstock::kernels {

inline constexpr int64_t kDeltaChunk = 16;

// Floats of one head in a slot: S, then G, then k~ and u of each position of a chunk: what a
// position reads lies together.
inline int64_t DeltaHeadFloats(int64_t dim) {
  const int64_t padded = (dim + 15) / 16 * 16;
  return padded * (dim + 1 + 2 * kDeltaChunk);
}

// Scratch floats of one thread.
int64_t DeltaScratchFloats(int64_t dim);

// One head of the rows of one sequence.
struct DeltaHead {
  const DeltaParams* params = nullptr;
  int64_t head = 0;
  const SequenceRows* sequence = nullptr;
  float* state = nullptr;  // DeltaHeadFloats(dim)
  // What the same thread takes next, or null: a lone row fetches it meanwhile, so that decoding
  // waits for memory at no head but the first.
  const float* next_state = nullptr;
};

void RunDeltaHead(const DeltaHead& head, Tensor q, Tensor k, Tensor v, Tensor f, Tensor b,
                  Tensor out, float* scratch);

}  // namespace penstock::kernels
