#include "text/score_bpe.h"

#include <algorithm>
#include <array>
#include <bit>

#include "text/utf8.h"

namespace penstock::text {
namespace {

using Symbol = ModelScratch::Symbol;

// Ascending in the order of falling scores. REQUIRES: not NaN.
uint32_t ScoreOrder(float score) {
  const auto bits = std::bit_cast<uint32_t>(score == 0 ? 0.0F : score);
  const uint32_t ascending = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return ~ascending;
}

class ScoreBpe : public Model {
 public:
  ScoreBpe(const Vocabulary& vocabulary, std::vector<float> scores, std::vector<bool> mergeable,
           int32_t unknown_id)
      : vocabulary_(vocabulary),
        scores_(std::move(scores)),
        mergeable_(std::move(mergeable)),
        unknown_id_(unknown_id) {
    for (int b = 0; b < 256; ++b) {
      byte_ids_[b] = vocabulary.Find(ByteTokenName(static_cast<uint8_t>(b)));
    }
  }

  void Encode(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& ids,
              size_t& lost) const override {
    std::vector<Symbol>& symbols = scratch.symbols;
    symbols.clear();
    for (size_t at = 0; at < piece.size();) {
      const size_t length = SequenceLength(piece[at]);
      const auto index = static_cast<int32_t>(symbols.size());
      symbols.push_back(
          {-1, index - 1, index + 1, static_cast<uint32_t>(at), static_cast<uint32_t>(length)});
      at += length;
    }
    symbols.back().next = -1;
    scratch.work += MergeAll(piece, symbols, scratch.queue);
    for (int32_t at = 0; at >= 0; at = symbols[at].next) {
      const Symbol& symbol = symbols[at];
      Emit(piece.substr(symbol.begin, symbol.length), ids, lost);
    }
  }

 private:
  // Gives the candidates looked at and the bytes of those looked up.
  size_t MergeAll(std::string_view piece, std::vector<Symbol>& symbols, MergeQueue& queue) const {
    queue.Clear();
    size_t work = 0;
    const auto push = [&](int32_t at) {
      if (at < 0 || symbols[at].next < 0) {
        return;
      }
      const uint32_t length = symbols[at].length + symbols[symbols[at].next].length;
      work += length;
      const int32_t id = vocabulary_.Find(piece.substr(symbols[at].begin, length));
      if (id >= 0 && mergeable_[id]) {
        queue.Push(ScoreOrder(scores_[id]), {at, id, length});
      }
    };
    for (size_t i = 0; i < symbols.size(); ++i) {
      push(static_cast<int32_t>(i));
    }
    MergeCandidate candidate;
    while (queue.Pop(candidate)) {
      ++work;
      Symbol& left = symbols[candidate.at];
      // Stale: one of the two was joined to something else meanwhile.
      if (left.length == 0 || left.next < 0 ||
          left.length + symbols[left.next].length != candidate.length) {
        continue;
      }
      symbols[left.next].length = 0;
      left.length = candidate.length;
      left.next = symbols[left.next].next;
      if (left.next >= 0) {
        symbols[left.next].previous = candidate.at;
      }
      push(left.previous);
      push(candidate.at);
    }
    return work;
  }

  void Emit(std::string_view text, std::vector<int32_t>& ids, size_t& lost) const {
    if (const int32_t id = vocabulary_.Find(text); id >= 0) {
      ids.push_back(id);
      return;
    }
    const bool has_bytes = std::all_of(text.begin(), text.end(), [this](char b) {
      return byte_ids_[static_cast<uint8_t>(b)] >= 0;
    });
    if (has_bytes) {
      for (const char b : text) {
        ids.push_back(byte_ids_[static_cast<uint8_t>(b)]);
      }
    } else if (unknown_id_ >= 0) {
      ids.push_back(unknown_id_);
    } else {
      ++lost;
    }
  }

  const Vocabulary& vocabulary_;
  const std::vector<float> scores_;
  const std::vector<bool> mergeable_;
  const int32_t unknown_id_;
  std::array<int32_t, 256> byte_ids_{};
};

}  // namespace

std::unique_ptr<Model> MakeScoreBpe(const Vocabulary& vocabulary, std::vector<float> scores,
                                    std::vector<bool> mergeable, int32_t unknown_id) {
  PENSTOCK_CHECK(
      scores.size() == static_cast<size_t>(vocabulary.size()) && mergeable.size() == scores.size(),
      "one score and one flag per id");
  return std::make_unique<ScoreBpe>(vocabulary, std::move(scores), std::move(mergeable),
                                    unknown_id);
}

}  // namespace penstock::text
