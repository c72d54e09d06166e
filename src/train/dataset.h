// Which tokens a step trains on: documents packed into sequences, sequences shuffled by a
// counter-based permutation of each epoch, dealt to micro-batches.
//
// A sequence is one or more parts of documents, at most `sequence_tokens` rows together. Row i of a
// part is a token, its target the token after it in the same document; so a document of n tokens
// has n - 1 rows, and nothing is learnt or seen across documents. With packing, parts are laid side
// by side in the order of the text: a text's parts fill sequences to the last row, lines of JSONL
// are kept whole where they fit a sequence (of those longer than one, a text goes on in the next
// sequence, a conversation is cut off). Without it, each part is a sequence, and sequences have
// different lengths. There are no padding rows.
//
// Everything is a function of the configuration, the corpus and the step: the data cursor of a
// checkpoint is the number of sequences that were taken.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "runtime/train_rank.h"
#include "train/config.h"
#include "train/corpus.h"

namespace penstock::train {

// Rows of one document: row i is token first + i, its target token first + i + 1.
struct Part {
  int64_t first = 0;
  int64_t rows = 0;

  friend bool operator==(const Part&, const Part&) = default;
};

struct StepBatch {
  std::vector<runtime::MicroBatchData> micro_batches;  // of one replica
  int64_t counted = 0;                                 // in the whole step, all replicas
  std::vector<int64_t> counted_later;  // the same at shifts 1, 2, ... of the targets
  int64_t rows = 0;                    // in the whole step
};

// Immutable, thread-safe. Holds views of the corpus, which must outlive it.
class Dataset {
 public:
  // Errors: kInvalidArgument (no target counts in any sequence; the validation share leaves
  // nothing to train on; an id beyond the model's vocabulary).
  static Result<Dataset> Create(const Corpus& corpus, const DataSection& data, uint64_t seed,
                                int64_t vocabulary);

  int64_t sequences() const { return training_; }  // of one epoch

  int64_t validation_sequences() const { return count() - training_; }

  int64_t cut_off() const { return cut_off_; }  // conversations longer than a sequence

  int64_t longest() const { return longest_; }  // rows of the longest sequence

  // The sequence that the run takes as number `cursor`: epoch cursor / sequences().
  int64_t Shuffled(int64_t cursor) const;

  std::span<const Part> Parts(int64_t sequence) const;

  // Step 1, 2, ...: replica r has micro-batches [r m, (r + 1) m) of the step, each of micro_batch
  // sequences in the order in which they are taken.
  StepBatch Step(const PipelineSection& pipeline, int64_t step, int64_t replica,
                 int32_t shifts = 0) const;

  // Micro-batches that cover sequences [begin, end) of the training or the validation part once,
  // without shuffling.
  std::vector<runtime::MicroBatchData> InOrder(bool validation, int64_t begin, int64_t end,
                                               int64_t micro_batch) const;

 private:
  int64_t count() const { return static_cast<int64_t>(starts_.size()) - 1; }

  void Build(const DataSection& data, bool chat);
  int64_t CountedIn(const Part& part) const;
  void Append(int64_t sequence, runtime::MicroBatchData& out) const;

  std::span<const int32_t> tokens_;
  std::span<const uint8_t> counts_;
  std::span<const int64_t> documents_;
  std::vector<Part> parts_;
  std::vector<int64_t> starts_ = {0};  // parts of sequence s: [starts_[s], starts_[s + 1])
  uint64_t seed_ = 0;
  int64_t training_ = 0;
  int64_t cut_off_ = 0;
  int64_t longest_ = 0;
};

}  // namespace penstock::train
