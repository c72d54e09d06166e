// A trie over byte strings for "which of these strings begin here", walked byte by byte.
//
// Built once from (string, value) pairs; immutable and thread-safe afterwards. Memory is linear in
// the bytes of the strings.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::text {

class PrefixTrie {
 public:
  PrefixTrie() { roots_.fill(-1); }

  // Values must not be negative; a string given twice keeps its first value. Empty strings are left
  // out.
  static PrefixTrie Build(std::vector<std::pair<std::string_view, int32_t>> strings) {
    PrefixTrie trie;
    std::stable_sort(strings.begin(), strings.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });

    // Sorted strings make the children of each node contiguous when nodes are laid out level by
    // level.
    struct Range {
      size_t begin, end, depth;
      int32_t node;
    };

    std::vector<Range> queue;
    size_t start = 0;
    while (start < strings.size() && strings[start].first.empty()) {
      ++start;
    }
    trie.AddChildren(strings, start, strings.size(), 0,
                     [&](size_t begin, size_t end, int32_t node) {
                       trie.roots_[trie.nodes_[node].byte] = node;
                       queue.push_back({begin, end, 1, node});
                     });
    for (size_t head = 0; head < queue.size(); ++head) {
      const Range range = queue[head];
      size_t begin = range.begin;
      while (begin < range.end && strings[begin].first.size() == range.depth) {
        if (trie.nodes_[range.node].value < 0) {
          trie.nodes_[range.node].value = strings[begin].second;
        }
        ++begin;
      }
      trie.nodes_[range.node].first_child = static_cast<int32_t>(trie.nodes_.size());
      uint16_t children = 0;
      trie.AddChildren(strings, begin, range.end, range.depth,
                       [&](size_t child_begin, size_t child_end, int32_t node) {
                         ++children;
                         queue.push_back({child_begin, child_end, range.depth + 1, node});
                       });
      trie.nodes_[range.node].children = children;
    }
    return trie;
  }

  // Calls found(length, value) for each string that `text` begins with, shortest first. Gives the
  // bytes that were looked at, at most those of the longest string.
  template <class Found>
  size_t ForEachPrefix(std::string_view text, Found found) const {
    if (text.empty()) {
      return 0;
    }
    int32_t at = roots_[static_cast<uint8_t>(text[0])];
    size_t length = 1;
    for (; at >= 0; ++length) {
      if (nodes_[at].value >= 0) {
        found(length, nodes_[at].value);
      }
      if (length == text.size()) {
        break;
      }
      at = Child(nodes_[at], static_cast<uint8_t>(text[length]));
    }
    return length;
  }

  bool empty() const { return nodes_.empty(); }

  // Whether any string starts with this byte.
  bool Begins(char byte) const { return roots_[static_cast<uint8_t>(byte)] >= 0; }

 private:
  struct Node {
    int32_t value = -1;
    int32_t first_child = 0;
    uint16_t children = 0;
    uint8_t byte = 0;
  };

  // Appends one node per different byte at `depth` of strings[begin, end), all longer than `depth`.
  template <class Added>
  void AddChildren(const std::vector<std::pair<std::string_view, int32_t>>& strings, size_t begin,
                   size_t end, size_t depth, Added added) {
    while (begin < end) {
      const char byte = strings[begin].first[depth];
      size_t next = begin + 1;
      while (next < end && strings[next].first[depth] == byte) {
        ++next;
      }
      Node node;
      node.byte = static_cast<uint8_t>(byte);
      nodes_.push_back(node);
      added(begin, next, static_cast<int32_t>(nodes_.size() - 1));
      begin = next;
    }
  }

  int32_t Child(const Node& node, uint8_t byte) const {
    const auto begin = nodes_.begin() + node.first_child;
    const auto end = begin + node.children;
    const auto at = std::lower_bound(begin, end, byte,
                                     [](const Node& child, uint8_t b) { return child.byte < b; });
    return at != end && at->byte == byte ? static_cast<int32_t>(at - nodes_.begin()) : -1;
  }

  std::array<int32_t, 256> roots_{};
  std::vector<Node> nodes_;
};

}  // namespace penstock::text
