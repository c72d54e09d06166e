// A rank's weights and moments: where they come from, and as what they are written.

#pragma once

#include <vector>

#include "train/checkpoint_writer.h"
#include "train/optimizer.h"
#include "train/setup.h"

namespace penstock::train {

// Random start: matrices and embeddings normal with the configuration's `initializer_range` (0.02),
// norms 1 (0 where 1 is added), coefficients of residual streams, short convolutions and decays as
// published, all other vectors 0. Each element is a function of the seed, the tensor's name and its
// place.
void FillRandom(const TrainSetup& setup, runtime::TrainRank& rank);

// Masters out of a checkpoint. Errors: those of Checkpoint::Weight.
Result<> LoadWeights(const Checkpoint& checkpoint, runtime::TrainRank& rank);
Result<> LoadMoments(const Checkpoint& checkpoint, runtime::TrainRank& rank,
                     RankOptimizer& optimizer);

// Files that this channel rank writes of a checkpoint: its share of the weights, and its moments.
// Views of what training changes.
std::vector<CheckpointPart> PartsToWrite(const TrainSetup& setup, int32_t channel_rank,
                                         runtime::TrainRank& rank, RankOptimizer& optimizer);

// Channel ranks that write anything.
std::vector<int32_t> WritingRanks(const TrainSetup& setup);

// Everything in a checkpoint beside the tensors, made once: config.json, tokenizer files,
// generation_config.json, the index of the weights. Names and texts. Errors: those of
// TokenizerJsonFromGguf.
Result<std::vector<std::pair<std::string, std::string>>> SmallFiles(const TrainSetup& setup);

}  // namespace penstock::train
