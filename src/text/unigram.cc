#include "text/unigram.h"

#include <algorithm>
#include <array>

#include "text/prefix_trie.h"
#include "text/utf8.h"

namespace penstock::text {
namespace {

constexpr double kUnknownPenalty = 10.0;

class Unigram : public Model {
 public:
  Unigram(const Vocabulary& vocabulary, std::vector<double> scores, const std::vector<bool>& usable,
          int32_t unknown_id, bool byte_fallback)
      : vocabulary_(vocabulary), scores_(std::move(scores)), unknown_id_(unknown_id) {
    std::vector<std::pair<std::string_view, int32_t>> strings;
    double lowest = 0;
    bool any = false;
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
      if (!vocabulary.Has(id) || !usable[id]) {
        continue;
      }
      strings.emplace_back(vocabulary.Text(id), id);
      lowest = any ? std::min(lowest, scores_[id]) : scores_[id];
      any = true;
    }
    trie_ = PrefixTrie::Build(std::move(strings));
    unknown_score_ = lowest - kUnknownPenalty;
    for (int b = 0; b < 256; ++b) {
      byte_ids_[b] = byte_fallback ? vocabulary.Find(ByteTokenName(static_cast<uint8_t>(b))) : -1;
    }
  }

  void Encode(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& ids,
              size_t& lost) const override {
    std::vector<ModelScratch::Node>& nodes = scratch.nodes;
    scratch.work += FillLattice(piece, nodes);
    const size_t first_id = ids.size();
    // Backwards; runs of uncovered characters are joined.
    size_t end = piece.size();
    while (end > 0) {
      size_t begin = static_cast<size_t>(nodes[end].begin);
      const int32_t id = nodes[end].id;
      if (id == kUncovered || id == unknown_id_) {
        while (begin > 0 && (nodes[begin].id == kUncovered || nodes[begin].id == unknown_id_)) {
          begin = static_cast<size_t>(nodes[begin].begin);
        }
        EmitBackwards(piece.substr(begin, end - begin), ids, lost);
      } else {
        ids.push_back(id);
      }
      end = begin;
    }
    std::reverse(ids.begin() + static_cast<std::ptrdiff_t>(first_id), ids.end());
  }

 private:
  static constexpr int32_t kUncovered = -2;

  // Gives the bytes that were looked at.
  size_t FillLattice(std::string_view piece, std::vector<ModelScratch::Node>& nodes) const {
    size_t looked = 0;
    nodes.assign(piece.size() + 1, {});
    for (size_t begin = 0; begin < piece.size();) {
      const size_t character = SequenceLength(piece[begin]);
      const double so_far = nodes[begin].score;
      bool covered = false;
      const auto offer = [&](size_t length, double score, int32_t id) {
        ModelScratch::Node& node = nodes[begin + length];
        if (node.begin < 0 || so_far + score > node.score) {
          node = {so_far + score, id, static_cast<int64_t>(begin)};
        }
      };
      looked += trie_.ForEachPrefix(piece.substr(begin), [&](size_t length, int32_t id) {
        offer(length, scores_[id], id);
        covered |= length == character;
      });
      if (!covered) {
        offer(character, unknown_score_, kUncovered);
      }
      begin += character;
    }
    return looked;
  }

  void EmitBackwards(std::string_view text, std::vector<int32_t>& ids, size_t& lost) const {
    if (const int32_t id = vocabulary_.Find(text); id >= 0) {
      ids.push_back(id);
      return;
    }
    const bool has_bytes = std::all_of(text.begin(), text.end(), [this](char b) {
      return byte_ids_[static_cast<uint8_t>(b)] >= 0;
    });
    if (has_bytes) {
      for (auto b = text.rbegin(); b != text.rend(); ++b) {
        ids.push_back(byte_ids_[static_cast<uint8_t>(*b)]);
      }
    } else if (unknown_id_ >= 0) {
      ids.push_back(unknown_id_);
    } else {
      for (size_t at = 0; at < text.size(); at += SequenceLength(text[at])) {
        ++lost;
      }
    }
  }

  const Vocabulary& vocabulary_;
  const std::vector<double> scores_;
  const int32_t unknown_id_;
  PrefixTrie trie_;
  double unknown_score_ = 0;
  std::array<int32_t, 256> byte_ids_{};
};

}  // namespace

std::unique_ptr<Model> MakeUnigram(const Vocabulary& vocabulary, std::vector<double> scores,
                                   const std::vector<bool>& usable, int32_t unknown_id,
                                   bool byte_fallback) {
  PENSTOCK_CHECK(
      scores.size() == static_cast<size_t>(vocabulary.size()) && usable.size() == scores.size(),
      "one score and one flag per id");
  return std::make_unique<Unigram>(vocabulary, std::move(scores), usable, unknown_id,
                                   byte_fallback);
}

}  // namespace penstock::text
