// Megatron-LM's pipeline-layout strings (--pipeline-model-parallel-layout): which layers each stage
// has.

#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock::schedule {

struct LayoutStage {
  int rank = 0;   // stage i is on rank i mod p,
  int chunk = 0;  // as its chunk i / p
  bool embedding = false;
  std::vector<int> decoder_layers;  // numbered from 0 over the whole model
  int mtp_layers = 0;               // multi-token-prediction layers
  bool loss = false;
};

// E embedding, t decoder layer, m multi-token-prediction layer, L loss, | stage break, x*n and
// (...)*n repetition, commas mean nothing, empty stages are legal: `Et*3|(tt|)*29,m|L` for 16
// ranks. Errors: kInvalidArgument with the column: unknown letters, nested or unclosed groups, a
// group without *n, not exactly one E that comes first in the first stage and one L that comes last
// in the last, t after m, m on several stages, a number of stages that `ranks` does not divide,
// more than kMaxStages stages or a million layers. Cost linear in the length of the result.
Result<std::vector<LayoutStage>> ParseLayout(std::string_view text, int ranks);

}  // namespace penstock::schedule
