// `export`: a checkpoint as a folder in Hugging Face layout, which transformers and `run` load.

#pragma once

#include <string>

#include "base/result.h"

namespace penstock::train {

struct ExportOutcome {
  std::string checkpoint;  // the step's folder
  int64_t step = 0;
  int64_t tensors = 0;
  int64_t bytes = 0;  // of the weights written
};

// `checkpoint` is a step's folder, or the folder of a run: then its newest whole checkpoint. Writes
// config.json, the tokenizer's files and model.safetensors (float32, or bf16 rounded to nearest)
// into `folder`, which is made; files of these names are replaced. Errors: kNotFound, kCorruptData
// naming the damaged file, kInvalidArgument (cannot be written, with the reason).
Result<ExportOutcome> ExportCheckpoint(const std::string& checkpoint, const std::string& folder,
                                       bool bf16);

}  // namespace penstock::train
