#include "train/dataset.h"

#include <algorithm>
#include <deque>

#include "base/rng.h"
#include "train/permutation.h"

namespace penstock::train {
namespace {

constexpr size_t kOpenSequences = 64;         // that a part may still be put into
constexpr uint64_t kShuffleKey = 0x73687566;  // apart from other uses of the seed

// Sequences that are being filled, in the order in which they were begun.
class Packer {
 public:
  explicit Packer(int64_t capacity) : capacity_(capacity) {}

  int64_t Room() const { return open_.empty() ? 0 : capacity_ - open_.back().rows; }

  // Into the first open sequence with room for it, or a new one.
  void Put(const Part& part) {
    for (Open& open : open_) {
      if (open.rows + part.rows <= capacity_) {
        Add(open, part);
        return;
      }
    }
    open_.push_back({});
    Add(open_.back(), part);
    if (open_.size() > kOpenSequences) {
      open_.pop_front();
    }
  }

  const std::vector<std::vector<Part>>& sequences() const { return sequences_; }

 private:
  struct Open {
    size_t sequence = SIZE_MAX;
    int64_t rows = 0;
  };

  void Add(Open& open, const Part& part) {
    if (open.sequence == SIZE_MAX) {
      open.sequence = sequences_.size();
      sequences_.emplace_back();
    }
    sequences_[open.sequence].push_back(part);
    open.rows += part.rows;
  }

  int64_t capacity_;
  std::deque<Open> open_;
  std::vector<std::vector<Part>> sequences_;
};

}  // namespace

int64_t Dataset::CountedIn(const Part& part) const {
  const auto marks =
      counts_.subspan(static_cast<size_t>(part.first) + 1, static_cast<size_t>(part.rows));
  return std::count(marks.begin(), marks.end(), uint8_t{1});
}

void Dataset::Build(const DataSection& data, bool chat) {
  const int64_t capacity = data.sequence_tokens;
  Packer packer(data.pack ? capacity : 0);
  const auto put = [&](const Part& part) {
    if (CountedIn(part) == 0) {
      return;
    }
    if (data.pack) {
      packer.Put(part);
      return;
    }
    parts_.push_back(part);
    starts_.push_back(static_cast<int64_t>(parts_.size()));
  };
  for (size_t d = 0; d + 1 < documents_.size(); ++d) {
    Part rest{documents_[d], documents_[d + 1] - documents_[d] - 1};
    if (chat && rest.rows > capacity) {
      rest.rows = capacity;
      ++cut_off_;
    }
    while (rest.rows > 0) {
      int64_t rows = std::min(rest.rows, capacity);
      if (data.pack && data.format == DataFormat::kText && packer.Room() > 0) {
        rows = std::min(rows, packer.Room());
      }
      put({rest.first, rows});
      rest.first += rows;
      rest.rows -= rows;
    }
  }
  for (const std::vector<Part>& sequence : packer.sequences()) {
    parts_.insert(parts_.end(), sequence.begin(), sequence.end());
    starts_.push_back(static_cast<int64_t>(parts_.size()));
  }
  for (int64_t s = 0; s < count(); ++s) {
    int64_t rows = 0;
    for (const Part& part : Parts(s)) {
      rows += part.rows;
    }
    longest_ = std::max(longest_, rows);
  }
}

Result<Dataset> Dataset::Create(const Corpus& corpus, const DataSection& data, uint64_t seed,
                                int64_t vocabulary) {
  Dataset dataset;
  dataset.tokens_ = corpus.tokens();
  dataset.counts_ = corpus.counts();
  dataset.documents_ = corpus.starts();
  dataset.seed_ = seed;
  const auto largest = std::max_element(dataset.tokens_.begin(), dataset.tokens_.end());
  if (largest != dataset.tokens_.end() && *largest >= vocabulary) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[train.dataset] the tokenizer gives the id {}, but the model has {} rows of "
                     "embedding, wanted a tokenizer that fits the model (data.tokenizer)",
                     *largest, vocabulary);
  }
  dataset.Build(data, data.format == DataFormat::kChat);
  const int64_t count = dataset.count();
  if (count == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[train.dataset] {}: no token counts as a target, wanted a text of at least "
                     "two tokens{}",
                     fmt::join(data.paths, ", "),
                     data.format == DataFormat::kChat
                         ? ", with an answer of the assistant within data.sequence_tokens"
                         : "");
  }
  const int64_t validation =
      data.validation <= 0
          ? 0
          : std::max<int64_t>(1,
                              static_cast<int64_t>(data.validation * static_cast<double>(count)));
  dataset.training_ = count - validation;
  if (dataset.training_ < 1) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[train.dataset] {}: {} sequence{} of {} tokens, of which the validation share "
        "of {} leaves none to train on, wanted more text, a shorter "
        "data.sequence_tokens or data.validation = 0",
        fmt::join(data.paths, ", "), count, count == 1 ? "" : "s", data.sequence_tokens,
        data.validation);
  }
  return dataset;
}

int64_t Dataset::Shuffled(int64_t cursor) const {
  const int64_t epoch = cursor / training_;
  const uint64_t key = MixKey(MixKey(seed_, kShuffleKey), static_cast<uint64_t>(epoch));
  const Permutation permutation(static_cast<uint64_t>(training_), key);
  return static_cast<int64_t>(permutation(static_cast<uint64_t>(cursor % training_)));
}

std::span<const Part> Dataset::Parts(int64_t sequence) const {
  const int64_t begin = starts_[static_cast<size_t>(sequence)];
  const int64_t end = starts_[static_cast<size_t>(sequence) + 1];
  return std::span(parts_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

void Dataset::Append(int64_t sequence, runtime::MicroBatchData& out) const {
  for (const Part& part : Parts(sequence)) {
    for (int64_t i = part.first; i < part.first + part.rows; ++i) {
      const auto at = static_cast<size_t>(i);
      out.tokens.push_back(tokens_[at]);
      out.targets.push_back(counts_[at + 1] != 0 ? tokens_[at + 1] : -1);
    }
    out.sequences.push_back({part.rows, 0});
  }
}

StepBatch Dataset::Step(const PipelineSection& pipeline, int64_t step, int64_t replica,
                        int32_t shifts) const {
  StepBatch batch;
  batch.counted_later.resize(static_cast<size_t>(shifts));
  const int64_t all = pipeline.micro_batches * pipeline.replicas;
  const int64_t cursor = (step - 1) * all * pipeline.micro_batch;
  for (int64_t g = 0; g < all; ++g) {
    const bool mine = g / pipeline.micro_batches == replica;
    runtime::MicroBatchData data;
    data.key = static_cast<uint32_t>(g);
    for (int64_t s = 0; s < pipeline.micro_batch; ++s) {
      const int64_t sequence = Shuffled(cursor + g * pipeline.micro_batch + s);
      for (const Part& part : Parts(sequence)) {
        batch.counted += CountedIn(part);
        batch.rows += part.rows;
        for (int64_t shift = 1; shift <= std::min<int64_t>(shifts, part.rows - 1); ++shift) {
          batch.counted_later[static_cast<size_t>(shift) - 1] +=
              CountedIn({part.first + shift, part.rows - shift});
        }
      }
      if (mine) {
        Append(sequence, data);
      }
    }
    if (mine) {
      batch.micro_batches.push_back(std::move(data));
    }
  }
  return batch;
}

std::vector<runtime::MicroBatchData> Dataset::InOrder(bool validation, int64_t begin, int64_t end,
                                                      int64_t micro_batch) const {
  const int64_t offset = validation ? training_ : 0;
  std::vector<runtime::MicroBatchData> result;
  for (int64_t s = begin; s < end; ++s) {
    if ((s - begin) % micro_batch == 0) {
      result.emplace_back();
      result.back().key = static_cast<uint32_t>(result.size() - 1);
    }
    Append(offset + s, result.back());
  }
  return result;
}

}  // namespace penstock::train
