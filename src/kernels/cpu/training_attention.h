// Attention of training: causal, block-diagonal over segments, blocked so that scores never leave
// the cache (Dao et al., FlashAttention, 2022; Dao, FlashAttention-2, 2023).
//
// Keys are taken in blocks of 64 from the segment's first key on, queries in blocks of 64 rows.
// Forward: a query passes its blocks in ascending order with the running maximum and sum of the
// online softmax (Milakov and Gimelshein, 2018); a block that is masked for a query leaves it
// unchanged. So a row's result depends on its own keys only.
// Backward: weights are made again from the saved log-sum; dq of a row sums over ascending blocks
// of keys; dk and dv of one head sum over ascending blocks of queries, and are then added to the
// result by ascending heads.

#pragma once

#include <cstdint>

#include "kernels/device.h"
#include "kernels/training.h"
#include "tensor/tensor.h"

namespace penstock::kernels {

inline constexpr int64_t kAttentionBlock = 64;

struct AttentionTensors {
  Tensor q;
  Tensor k;
  Tensor v;
  Tensor out;
  Tensor lse;
  Tensor dout;  // backward only
  Tensor dq;
};

// Blocks of keys [begin, end) that queries [row, row + rows) of a segment see.
struct KeyBlocks {
  int64_t begin = 0;
  int64_t end = 0;
};

KeyBlocks VisibleBlocks(const AttentionParams& params, const Segment& segment, int64_t row,
                        int64_t rows);

// Scratch of one thread, in floats; `keys`: the most keys of a segment.
class AttentionScratch {
 public:
  AttentionScratch(const AttentionParams& params, int64_t keys, float* memory);

  // The gradients of one head of a segment: keys from the segment's first on.
  float* dk() const { return dk_; }  // [keys, head_dim]

  float* dv() const { return dv_; }  // [keys, value_dim]

  float* keys() const { return keys_; }  // per block [head_dim][64]

  float* values() const { return values_; }  // per block [value_dim][64]

  float* scores() const { return scores_; }  // [64][64]

  float* slopes() const { return slopes_; }  // [64][64]

  float* sums() const { return sums_; }  // [64, value_dim padded to 16]

  static int64_t Floats(const AttentionParams& params, int64_t keys);

  // Whether block `block` of the keys of (segment, kv_head) lies in keys(); says so from now on.
  bool MarkPacked(int64_t segment, int64_t kv_head, int64_t block);
  void Forget();

 private:
  float* keys_;
  float* values_;
  float* dk_;
  float* dv_;
  float* scores_;
  float* slopes_;
  float* sums_;
  int64_t* packed_;  // per block: which (segment, kv_head), or -1
  int64_t blocks_;
};

// Queries [row, row + rows) of a segment, for one head. REQUIRES: rows <= kAttentionBlock.
struct QueryBlock {
  int64_t segment = 0;  // its index
  int64_t head = 0;
  int64_t row = 0;
  int64_t rows = 0;
};

void AttendBlockForward(const AttentionParams& params, const Segment& segment,
                        const QueryBlock& queries, const AttentionTensors& tensors,
                        AttentionScratch& scratch);

// All queries of one head of a segment: writes dq, and dk and dv of the head into the scratch.
void AttendHeadBackward(const AttentionParams& params, const Segment& segment, int64_t head,
                        const AttentionTensors& tensors, AttentionScratch& scratch);

}  // namespace penstock::kernels
