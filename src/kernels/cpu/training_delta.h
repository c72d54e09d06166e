// Backward of Kimi delta attention on the CPU, chunk by chunk as the forward pass
// (cpu/delta_attention.h), one head of one sequence at a time.
//
// With the forward pass of a chunk of n positions, S in front of it and S' behind it,
//   kd_i = k_i exp G_i, qd_i = q_i exp G_i, kt_i = k_i exp(G_n - G_i), E_ij = exp(G_i - G_j)
//   A_ij = sum_c k_ic k_jc E_ijc,  P_ij = sum_c q_ic k_jc E_ijc
//   w_i = v_i - kd_i^T S - sum over j < i of A_ij u_j,  u_i = beta_i w_i
//   o_i = qd_i^T S + sum over j <= i of P_ij u_j,  S' = diag(exp G_n) S + sum_j kt_j u_j^T
// and gradients do_i, dS' given:
//   du_i = sum over j >= i of P_ji do_j + dS'^T kt_i - sum over j > i of A_ji dw_j (last i first)
//   dw_i = beta_i du_i = dv_i,  dbeta_i = du_i . w_i
//   dA_ij = -dw_i . u_j,  dP_ij = do_i . u_j,  dkd_i = -S dw_i,  dqd_i = S do_i,  dkt_i = dS' u_i
//   dS = diag(exp G_n) dS' + sum_i (qd_i do_i^T - kd_i dw_i^T)
// A decay g_l has a part in every product of a position behind it with one in front of it; its
// gradient is their sum, without the differences of large terms that sums over G would make.
// In front of the chunks, a pass over the sequence keeps S at each of their beginnings, and w.

#pragma once

#include <cstdint>

#include "kernels/cpu/delta_attention.h"
#include "kernels/training.h"

namespace penstock::kernels {

// Scratch floats of one head of a sequence of `rows` positions.
int64_t DeltaBackScratchFloats(int64_t dim, int64_t rows);

struct DeltaBackHead {
  const DeltaParams* params = nullptr;
  int64_t head = 0;
  const Segment* segment = nullptr;
};

// Adds to the head's share of gradients.sums. `rate_sum` [1] gets the gradient of a_log added.
void RunDeltaBackHead(const DeltaBackHead& head, Tensor q, Tensor k, Tensor v, Tensor f, Tensor b,
                      Tensor dout, const DeltaGradients& gradients, double* rate_sum,
                      float* scratch);

}  // namespace penstock::kernels
