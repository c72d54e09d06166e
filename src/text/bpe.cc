#include "text/bpe.h"

#include <algorithm>
#include <array>
#include <bit>

#include "text/utf8.h"

namespace penstock::text {
namespace {

// (left id, right id) -> rank and id of the result. Open addressing; built once.
class MergeTable {
 public:
  struct Entry {
    uint64_t key = UINT64_MAX;
    uint32_t rank = 0;
    int32_t id = -1;
  };

  void Reserve(size_t count) { entries_.assign(std::bit_ceil(2 * count + 2), Entry{}); }

  void Put(int32_t left, int32_t right, uint32_t rank, int32_t id) {
    Entry& entry = entries_[Slot(Key(left, right))];
    entry = {Key(left, right), rank, id};
  }

  // Null where the pair does not merge.
  const Entry* Find(int32_t left, int32_t right) const {
    const Entry& entry = entries_[Slot(Key(left, right))];
    return entry.id >= 0 ? &entry : nullptr;
  }

 private:
  static uint64_t Key(int32_t left, int32_t right) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) |
           static_cast<uint32_t>(right);
  }

  size_t Slot(uint64_t key) const {
    const size_t mask = entries_.size() - 1;
    uint64_t hash = key * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 32;
    size_t slot = hash & mask;
    while (entries_[slot].id >= 0 && entries_[slot].key != key) {
      slot = (slot + 1) & mask;
    }
    return slot;
  }

  std::vector<Entry> entries_;
};

using Symbol = ModelScratch::Symbol;

class Bpe : public Model {
 public:
  Bpe(const Vocabulary& vocabulary, MergeTable merges, const BpeOptions& options)
      : vocabulary_(vocabulary), merges_(std::move(merges)), options_(options) {
    for (int b = 0; b < 256; ++b) {
      byte_ids_[b] =
          options.byte_fallback ? vocabulary.Find(ByteTokenName(static_cast<uint8_t>(b))) : -1;
    }
    for (size_t c = 0; c < short_ids_.size(); ++c) {
      std::string text;
      AppendUtf8(text, static_cast<char32_t>(c));
      short_ids_[c] = vocabulary.Find(text);
    }
  }

  void Encode(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& ids,
              size_t& lost) const override {
    if (options_.whole_pieces) {
      if (const int32_t id = vocabulary_.Find(piece); id >= 0) {
        ids.push_back(id);
        return;
      }
    }
    std::vector<Symbol>& symbols = scratch.symbols;
    symbols.clear();
    lost += Split(piece, symbols);
    if (symbols.size() > kShort) {
      scratch.work += MergeLong(symbols, scratch.queue);
    } else {
      scratch.work += MergeShort(symbols);
    }
    for (int32_t at = symbols.empty() ? -1 : 0; at >= 0; at = symbols[at].next) {
      ids.push_back(symbols[at].id);
    }
  }

 private:
  // Up to this many symbols a scan for the best pair beats the queue.
  static constexpr size_t kShort = 24;

  // One symbol per character (or per byte token); returns the characters dropped.
  size_t Split(std::string_view piece, std::vector<Symbol>& symbols) const {
    size_t lost = 0;
    bool unknown_open = false;  // an unknown token waits for what follows it
    const auto add = [&symbols](int32_t id) {
      const auto at = static_cast<int32_t>(symbols.size());
      symbols.push_back({id, at - 1, -1, 0, 1});
    };
    for (size_t at = 0; at < piece.size();) {
      const size_t start = at;
      const char32_t c = NextCodePoint(piece, at);
      const std::string_view text = piece.substr(start, at - start);
      const int32_t id = c < short_ids_.size() ? short_ids_[c] : vocabulary_.Find(text);
      if (id >= 0) {
        if (unknown_open) {
          add(options_.unknown_id);
          unknown_open = false;
        }
        add(id);
      } else if (HasBytes(text)) {
        for (const char b : text) {
          add(byte_ids_[static_cast<uint8_t>(b)]);
        }
      } else if (options_.unknown_id >= 0) {
        if (unknown_open && !options_.fuse_unknown) {
          add(options_.unknown_id);
        }
        unknown_open = true;
      } else {
        ++lost;
      }
    }
    if (unknown_open) {
      add(options_.unknown_id);
    }
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      symbols[i].next = static_cast<int32_t>(i + 1);
    }
    return lost;
  }

  bool HasBytes(std::string_view text) const {
    return options_.byte_fallback && std::all_of(text.begin(), text.end(), [this](char b) {
             return byte_ids_[static_cast<uint8_t>(b)] >= 0;
           });
  }

  // Joins the symbol at `at` with its right neighbour.
  static void Join(std::vector<Symbol>& symbols, int32_t at, int32_t id) {
    Symbol& left = symbols[at];
    Symbol& right = symbols[left.next];
    left.id = id;
    left.next = right.next;
    right.length = 0;
    if (left.next >= 0) {
      symbols[left.next].previous = at;
    }
  }

  // Gives the pairs that were looked at.
  size_t MergeShort(std::vector<Symbol>& symbols) const {
    // Merges of each symbol with its right neighbour.
    std::array<const MergeTable::Entry*, kShort> found{};
    const auto refresh = [&](int32_t at) {
      const int32_t next = symbols[at].next;
      found[at] = next >= 0 ? merges_.Find(symbols[at].id, symbols[next].id) : nullptr;
    };
    for (size_t i = 0; i < symbols.size(); ++i) {
      refresh(static_cast<int32_t>(i));
    }
    size_t looked = symbols.size();
    while (true) {
      int32_t best = -1;
      for (int32_t at = symbols.empty() ? -1 : 0; at >= 0; at = symbols[at].next) {
        ++looked;
        if (found[at] != nullptr && (best < 0 || found[at]->rank < found[best]->rank)) {
          best = at;
        }
      }
      if (best < 0) {
        return looked;
      }
      Join(symbols, best, found[best]->id);
      refresh(best);
      if (symbols[best].previous >= 0) {
        refresh(symbols[best].previous);
      }
    }
  }

  // Gives the pairs that were looked at.
  size_t MergeLong(std::vector<Symbol>& symbols, MergeQueue& queue) const {
    size_t looked = 0;
    // How the pair at `at` merges, or null.
    const auto look = [&](int32_t at) -> const MergeTable::Entry* {
      const int32_t next = at >= 0 ? symbols[at].next : -1;
      ++looked;
      return next >= 0 ? merges_.Find(symbols[at].id, symbols[next].id) : nullptr;
    };
    queue.Clear();
    const auto push = [&](int32_t at) {
      if (const MergeTable::Entry* entry = look(at); entry != nullptr) {
        queue.Push(entry->rank, {at, entry->id, 0});
      }
    };
    for (size_t i = 0; i < symbols.size(); ++i) {
      push(static_cast<int32_t>(i));
    }
    MergeCandidate candidate;
    while (queue.Pop(candidate)) {
      // The pair may have changed since; then its entry is stale.
      const bool merged_away = symbols[candidate.at].length == 0;
      const MergeTable::Entry* entry = merged_away ? nullptr : look(candidate.at);
      if (entry == nullptr || entry->id != candidate.id) {
        continue;
      }
      Join(symbols, candidate.at, candidate.id);
      push(symbols[candidate.at].previous);
      push(candidate.at);
    }
    return looked;
  }

  const Vocabulary& vocabulary_;
  const MergeTable merges_;
  const BpeOptions options_;
  std::array<int32_t, 256> byte_ids_{};
  std::array<int32_t, 0x800> short_ids_{};
};

}  // namespace

Result<std::unique_ptr<Model>> MakeBpe(
    const Vocabulary& vocabulary, const std::vector<std::pair<std::string, std::string>>& merges,
    const BpeOptions& options, const std::string& source) {
  MergeTable table;
  table.Reserve(merges.size());
  std::string joined;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    joined = left + right;
    const int32_t left_id = vocabulary.Find(left);
    const int32_t right_id = vocabulary.Find(right);
    const int32_t id = vocabulary.Find(joined);
    if (left.empty() || right.empty() || left_id < 0 || right_id < 0 || id < 0) {
      const std::string& missing = left.empty() || left_id < 0     ? left
                                   : right.empty() || right_id < 0 ? right
                                                                   : joined;
      return MakeError(ErrorCode::kCorruptData,
                       "[text.bpe] {}: merge {} (\"{}\" \"{}\"): \"{}\" is not in the vocabulary, "
                       "wanted both parts and the result there",
                       source, rank, left, right, missing);
    }
    table.Put(left_id, right_id, static_cast<uint32_t>(rank), id);
  }
  return std::unique_ptr<Model>(std::make_unique<Bpe>(vocabulary, std::move(table), options));
}

}  // namespace penstock::text
