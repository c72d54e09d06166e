// Row-wise backward operations of the CPU, vectorized with Highway's run-time dispatch.
//
// Each takes a range of rows or of columns, the share of one thread. An element's result depends on
// the arguments only, never on the range it lies in.

#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/vector_ops.h"
#include "kernels/device.h"
#include "kernels/training.h"
#include "tensor/tensor.h"

namespace penstock::kernels {

void RmsNormBackwardRows(Tensor x, const float* weight, float epsilon, bool add_one, int64_t group,
                         Tensor dy, bool accumulate, Tensor dx, RowRange rows);
// inverse[row * groups + g] = 1 / sqrt(mean of squares + epsilon).
void InverseNormRows(Tensor x, float epsilon, int64_t group, float* inverse, RowRange rows);
// dweight[c] += sum over rows and groups, ascending, of dy * x * inverse, for columns of a group.
void RmsNormWeightColumns(Tensor x, const float* inverse, int64_t group, Tensor dy, float* dweight,
                          RowRange columns);
void RopeBackwardRows(Tensor dy, const RopeParams& params, const float* cos, const float* sin,
                      bool accumulate, Tensor dx, RowRange rows);
void GatedBackwardRows(Activation activation, Tensor gate, Tensor up, Tensor dy,
                       bool accumulate_gate, Tensor dgate, bool accumulate_up, Tensor dup,
                       RowRange rows);
void ActBackwardRows(Activation activation, Tensor x, Tensor dy, bool accumulate, Tensor dx,
                     RowRange rows);
void ScaleIntoRows(Tensor dy, float factor, bool accumulate, Tensor dx, RowRange rows);
void SoftCapBackwardRows(Tensor x, float cap, Tensor dy, bool accumulate, Tensor dx, RowRange rows);
// dx[target[i]] += dy[i] * factor for columns [columns.begin, columns.end), i ascending.
void AddRowsAt(Tensor dy, std::span<const int32_t> target, float factor, Tensor dx,
               RowRange columns);
// out[c] += sum over x's rows, ascending.
void ColumnSums(Tensor x, float* out, RowRange columns);
// out (+)= x * mask / (1 - rate).
void DropoutRows(Tensor x, const DropoutKey& key, float rate, bool accumulate, Tensor out,
                 RowRange rows);
void FillRows(Tensor x, float value, RowRange rows);
// Sum over i of a[i] b[i] in one order that depends on n alone.
float DotOf(const float* a, const float* b, int64_t n);

// ---- Loss ----

void CrossEntropyRows(Tensor logits, std::span<const int32_t> targets, std::span<double> nll,
                      Tensor lse, RowRange rows);
void CrossEntropyBackwardRows(Tensor logits, std::span<const int32_t> targets, Tensor lse,
                              float factor, Tensor dlogits, RowRange rows);

// ---- Optimizer ----

// Sum of squares of n numbers in float64.
double SumOfSquaresOf(const float* x, int64_t n);

// What one step of AdamW multiplies with.
struct AdamWFactors {
  float gradient;
  float decay;  // 1 - lr * weight_decay
  float beta1;
  float beta2;
  float keep1;  // 1 - beta1
  float keep2;
  float step;          // lr / (1 - beta1^step)
  float inverse_root;  // 1 / sqrt(1 - beta2^step)
  float epsilon;
};

AdamWFactors FactorsOf(const AdamWParams& params);
void AdamWRows(const AdamWFactors& params, Tensor g, Tensor w, Tensor m, Tensor v, RowRange rows);

}  // namespace penstock::kernels
