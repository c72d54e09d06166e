// Matrices that no file holds as they are: computed row by row from one or two stored ones.

#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "tensor/matrix_source.h"

namespace penstock::weights {

// 4-bit weights as Kimi K3's checkpoint keeps them (OCP microscaling, MXFP4): `packed` [rows,
// columns / 2] bytes, the even column in the low half, each half an E2M1 number; `scales` [rows,
// columns / 32] bytes, E8M0. RawRow gives GGUF's blocks of the same numbers and stays valid until
// the same thread's next call. REQUIRES: both plain u8, columns a multiple of 32.
std::unique_ptr<MatrixSource> MakeMxfp4Source(std::string name,
                                              std::unique_ptr<MatrixSource> packed,
                                              std::unique_ptr<MatrixSource> scales);

// kv_b_proj [heads * (nope + value), latent] of a GGUF file that holds it in two: `keys` [heads *
// latent, nope], each head transposed, and `values` [heads * value, latent].
std::unique_ptr<MatrixSource> MakeSplitKeyValueSource(std::string name, int64_t heads,
                                                      std::unique_ptr<MatrixSource> keys,
                                                      std::unique_ptr<MatrixSource> values);

// log(-x) of each element (GGUF's ssm_a is -exp(A_log)). Errors of ReadRows: kCorruptData for an
// element that is not negative.
std::unique_ptr<MatrixSource> MakeLogOfNegativeSource(std::unique_ptr<MatrixSource> inner);

}  // namespace penstock::weights
