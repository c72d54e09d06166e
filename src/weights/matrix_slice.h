// MatrixSource over a run of rows of one stored tensor.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tensor/matrix_source.h"
#include "weights/stored_tensor.h"

namespace penstock::weights {

struct MatrixSlice {
  std::string name;  // canonical
  std::shared_ptr<const FileBytes> file;
  DType type = DType::kF32;
  uint64_t offset = 0;  // of row 0, from the start of the file
  int64_t rows = 0;
  int64_t columns = 0;
  // Not 0: rows are stored in GGUF's order of the Llama kind, where a head's rows are paired (0,
  // h/2, 1, h/2 + 1, ...); canonical row t * h/2 + j of a head of h rows is stored as row 2 j + t.
  // A vector of `rows` elements is permuted by elements.
  int64_t permuted_head_rows = 0;
  bool minus_one = false;  // stored as 1 + w
};

// REQUIRES: the slice lies inside its file; CanDequantize(type); columns hold whole blocks; a
// permuted head has an even number of rows that divides them all. ReadRows undoes permutation and
// offset; RawRow undoes the permutation of rows only.
std::unique_ptr<MatrixSource> MakeMatrixSource(MatrixSlice slice);

}  // namespace penstock::weights
