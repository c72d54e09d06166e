// A second opinion on schedules, for tests only: works on the text of the cells, knows no type of
// this folder, and decides deadlock by looking for a cycle in the graph of all that must happen
// before what, not by running anything. Quadratic and proud of it.

#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace penstock::brute {

// A value that `from` makes and later stages read.
struct LongValue {
  std::string name;
  int from = 0;
  std::set<int> readers;
};

struct Problem {
  int ranks = 1, stages = 1, micro_batches = 1, slices = 1;
  std::function<int(int stage, int micro_batch)> rank_of;
  std::vector<std::vector<std::vector<std::string>>> rows;  // rank, cell, parts
  bool lowered = false;
  char transport = 'c';  // p(osted), b(uffered), c(redits), r(endezvous)
  int credits = 1;
  double limit = -1;  // shares; negative: none
  int chunks = 1;
  std::vector<LongValue> long_values;
};

struct Cell {
  int rank, at;  // at: running number of the part on its rank
  int stage = -1, micro_batch = -1, slice = 0;
  std::string op;
  std::string value;  // of a message or FREE; empty: the chain's
  int peer = -1;      // of a message with '>'
};

inline Cell Read(const std::string& text, int rank, int at) {
  Cell c{rank, at, -1, -1, 0, "", "", -1};
  size_t i = 0;
  auto number = [&] {
    int n = 0;
    while (i < text.size() && isdigit(static_cast<unsigned char>(text[i])))
      n = 10 * n + (text[i++] - '0');
    return n;
  };
  c.stage = number();
  while (i < text.size() && (isupper(static_cast<unsigned char>(text[i])) || text[i] == '_'))
    c.op += text[i++];
  c.micro_batch = number();
  if (i < text.size() && text[i] == '.') {
    ++i;
    c.slice = number();
  }
  if (i < text.size() && text[i] == ':') {
    while (++i < text.size() && text[i] != '>')
      c.value += text[i];
  }
  if (i < text.size() && text[i] == '>') {
    ++i;
    c.peer = number();
  }
  return c;
}

inline bool IsMessage(const Cell& c) {
  return c.op.substr(0, 5) == "SEND_" || c.op.substr(0, 5) == "RECV_";
}

inline int PeerOf(const Cell& message) {
  if (message.peer >= 0)
    return message.peer;
  const bool up = message.op == "SEND_F" || message.op == "RECV_B";
  return message.stage + (up ? 1 : -1);
}

// What tells messages of one stage and micro-batch apart.
inline std::string FullName(const Cell& c) {
  return c.value.empty() ? c.op : c.op + ':' + c.value + '>' + std::to_string(PeerOf(c));
}

inline Cell OtherEnd(const Cell& message) {
  Cell other = message;
  other.op = (message.op[0] == 'S' ? "RECV_" : "SEND_") + std::string(1, message.op.back());
  other.stage = PeerOf(message);
  other.peer = message.stage;
  return other;
}

// Kinds of fault in what ranks hold of long values, each rank's cells one after the other.
inline void LongValueFaults(const Problem& p, const std::vector<Cell>& all,
                            const std::vector<std::vector<int>>& order, bool messages,
                            std::set<std::string>& faults) {
  for (const auto& mine : order) {
    for (const LongValue& value : p.long_values) {
      for (int j = 0; j < p.micro_batches; ++j) {
        for (int k = 0; k < p.slices; ++k) {
          bool here = false;
          bool gone = false;
          for (size_t n = 0; n < mine.size(); ++n) {
            const Cell& c = all[static_cast<size_t>(mine[n])];
            if (c.micro_batch != j || c.slice != k)
              continue;
            const bool compute = c.op.size() == 1;
            const bool names_it = c.value == value.name;
            const bool reads =
                (compute && value.readers.count(c.stage) > 0) || (names_it && c.op == "SEND_F");
            if (reads && gone)
              faults.insert("order");
            if (reads && !here && !gone && messages) {
              bool later = false;
              for (size_t m = n + 1; m < mine.size(); ++m) {
                const Cell& d = all[static_cast<size_t>(mine[m])];
                later = later || (d.micro_batch == j && d.slice == k &&
                                  ((d.op == "RECV_F" && d.value == value.name) ||
                                   (d.op == "F" && d.stage == value.from)));
              }
              faults.insert(later ? "order" : "missing");
              here = true;
            }
            if ((c.op == "F" && c.stage == value.from) || (names_it && c.op == "RECV_F")) {
              here = true;
              gone = false;
            }
            if (names_it && c.op == "FREE") {
              if (gone)
                faults.insert("duplicate");
              else if (!here && messages)
                faults.insert("order");
              here = false;
              gone = true;
            }
          }
        }
      }
    }
  }
}

// Kinds of fault found: a subset of missing, duplicate, order, deadlock, unmatched, range,
// placement, memory.
inline std::set<std::string> Faults(const Problem& p) {
  std::set<std::string> faults;
  std::vector<Cell> all;
  std::vector<std::vector<int>> order(static_cast<size_t>(p.ranks));  // rank -> indices into `all`
  std::vector<std::vector<std::vector<int>>> cells(static_cast<size_t>(p.ranks));
  for (int r = 0; r < p.ranks; ++r) {
    int at = 0;
    for (const auto& parts : p.rows[static_cast<size_t>(r)]) {
      cells[static_cast<size_t>(r)].emplace_back();
      for (const std::string& text : parts) {
        if (text == ".")
          continue;
        const Cell c = Read(text, r, at++);
        if (c.stage >= p.stages || c.micro_batch >= p.micro_batches || c.slice >= p.slices) {
          faults.insert("range");
          continue;
        }
        if (c.peer >= 0 &&
            (c.peer >= p.stages || (c.op == "SEND_F" ? c.peer <= c.stage : c.peer >= c.stage))) {
          faults.insert("range");
          continue;
        }
        const bool up = c.op == "SEND_F" || c.op == "RECV_B";
        const bool down = c.op == "SEND_B" || c.op == "RECV_F";
        if ((up && c.stage + 1 >= p.stages) || (down && c.stage == 0)) {
          faults.insert("range");
          continue;
        }
        if (p.rank_of(c.stage, c.micro_batch) != r) {
          faults.insert("placement");
          continue;
        }
        order[static_cast<size_t>(r)].push_back(static_cast<int>(all.size()));
        cells[static_cast<size_t>(r)].back().push_back(static_cast<int>(all.size()));
        all.push_back(c);
      }
    }
  }
  // Everything by name; the first of each name counts.
  using Name = std::tuple<std::string, int, int, int>;
  std::map<Name, int> first;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].op == "FREE")
      continue;  // LongValueFaults
    if (!first
             .emplace(Name{FullName(all[i]), all[i].stage, all[i].micro_batch, all[i].slice},
                      static_cast<int>(i))
             .second) {
      faults.insert("duplicate");
    }
  }
  auto find = [&](const std::string& op, int s, int j, int k) {
    const auto it = first.find({op, s, j, k});
    return it == first.end() ? -1 : it->second;
  };
  bool backward = false;
  bool messages = p.lowered;
  for (const Cell& c : all) {
    backward = backward || c.op == "B" || c.op == "I" || c.op == "W";
    messages = messages || IsMessage(c);
  }
  auto input = [&](int s, int j, int k) {
    return std::max(find("B", s, j, k), find("I", s, j, k));
  };
  // Edges "a before b". Same rank: position decides at once.
  std::vector<std::set<int>> before(all.size());
  auto need = [&](int a, int b) {
    if (a < 0 || b < 0)
      return;
    if (all[static_cast<size_t>(a)].rank == all[static_cast<size_t>(b)].rank) {
      if (all[static_cast<size_t>(a)].at > all[static_cast<size_t>(b)].at)
        faults.insert("order");
    } else {
      before[static_cast<size_t>(b)].insert(a);
    }
  };
  for (int s = 0; s < p.stages; ++s) {
    for (int j = 0; j < p.micro_batches; ++j) {
      for (int k = 0; k < p.slices; ++k) {
        const int f = find("F", s, j, k), b = find("B", s, j, k), i = find("I", s, j, k),
                  w = find("W", s, j, k);
        const bool placed_elsewhere = faults.count("placement") > 0;
        if (f < 0 && !placed_elsewhere)
          faults.insert("missing");
        if (backward && b < 0 && (i < 0 || w < 0) && !placed_elsewhere)
          faults.insert("missing");
        if (b >= 0 && (i >= 0 || w >= 0))
          faults.insert("duplicate");
        const int g = input(s, j, k);
        need(i, w);
        for (int t = 0; t < p.slices; ++t)
          need(find("F", s, j, t), g);
        if (k > 0)
          need(find("F", s, j, k - 1), f);
        if (k + 1 < p.slices)
          need(input(s, j, k + 1), g);
        const int rank = p.rank_of(s, j);
        if (s > 0) {
          const bool local = p.rank_of(s - 1, j) == rank;
          if (local || !messages) {
            need(find("F", s - 1, j, k), f);
            need(g, input(s - 1, j, k));
          } else {
            const int sf = find("SEND_F", s - 1, j, k), rf = find("RECV_F", s, j, k);
            const int sb = find("SEND_B", s, j, k), rb = find("RECV_B", s - 1, j, k);
            if ((sf < 0) != (rf < 0) || (sb < 0) != (rb < 0))
              faults.insert("unmatched");
            if (f >= 0 && sf < 0 && rf < 0)
              faults.insert("missing");
            if (input(s - 1, j, k) >= 0 && sb < 0 && rb < 0)
              faults.insert("missing");
            need(find("F", s - 1, j, k), sf);
            need(rf, f);
            need(g, sb);
            need(rb, input(s - 1, j, k));
            if (p.transport == 'p') {
              if (rf >= 0)
                need(sf, f);
              if (rb >= 0)
                need(sb, input(s - 1, j, k));
            } else if (p.transport != 'r') {
              need(sf, rf);
              need(sb, rb);
            }
          }
          if (local && (find("SEND_F", s - 1, j, k) >= 0 || find("RECV_F", s, j, k) >= 0 ||
                        find("SEND_B", s, j, k) >= 0 || find("RECV_B", s - 1, j, k) >= 0)) {
            faults.insert("placement");
          }
        }
      }
    }
  }
  for (int r = 0; r < p.ranks; ++r) {
    const auto& mine = order[static_cast<size_t>(r)];
    for (size_t i = 1; i < mine.size(); ++i)
      before[static_cast<size_t>(mine[i])].insert(mine[i - 1]);
  }
  // Credits: the n-th send of an edge needs the (n-K)-th receive of that edge in the receiver's
  // order. Whole pairs only.
  std::vector<int> same(all.size());
  for (size_t i = 0; i < all.size(); ++i)
    same[i] = static_cast<int>(i);
  std::map<std::tuple<bool, std::string, int, int>, std::pair<std::vector<int>, std::vector<int>>>
      edges;
  for (int r = 0; r < p.ranks; ++r) {
    for (const int i : order[static_cast<size_t>(r)]) {
      const Cell& c = all[static_cast<size_t>(i)];
      if (!IsMessage(c))
        continue;
      const bool send = c.op.substr(0, 4) == "SEND";
      const bool forward = c.op.back() == 'F';
      const int peer = PeerOf(c);
      const int other = find(FullName(OtherEnd(c)), peer, c.micro_batch, c.slice);
      if (!c.value.empty() && p.rank_of(peer, c.micro_batch) == c.rank)
        faults.insert("placement");
      else if (!c.value.empty() && other < 0)
        faults.insert("unmatched");
      if (other < 0 || all[static_cast<size_t>(other)].rank == c.rank ||
          find(FullName(c), c.stage, c.micro_batch, c.slice) != i)
        continue;
      if (!c.value.empty() && send && p.transport == 'p')
        need(i, find("F", peer, c.micro_batch, c.slice));
      if (!c.value.empty() && send && p.transport != 'p' && p.transport != 'r')
        need(i, other);
      if (p.transport == 'r' && !send)
        same[static_cast<size_t>(i)] = other;
      const std::string way = c.value + ' ' + std::to_string(std::min(c.stage, peer)) + ' ' +
                              std::to_string(std::max(c.stage, peer));
      auto& edge = edges[{forward, way, send ? r : all[static_cast<size_t>(other)].rank,
                          send ? all[static_cast<size_t>(other)].rank : r}];
      (send ? edge.first : edge.second).push_back(i);
    }
  }
  if (p.transport == 'c') {
    for (const auto& [key, edge] : edges) {
      for (size_t n = static_cast<size_t>(p.credits); n < edge.first.size(); ++n) {
        before[static_cast<size_t>(edge.first[n])].insert(
            edge.second[n - static_cast<size_t>(p.credits)]);
      }
    }
  }
  LongValueFaults(p, all, order, messages, faults);
  // A cycle among the (merged) nodes.
  std::vector<std::set<int>> merged(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    for (const int a : before[i]) {
      if (same[static_cast<size_t>(a)] != same[i])
        merged[static_cast<size_t>(same[i])].insert(same[static_cast<size_t>(a)]);
    }
  }
  std::vector<int> colour(all.size(), 0);
  std::function<bool(int)> cyclic = [&](int i) {
    if (colour[static_cast<size_t>(i)] == 1)
      return true;
    if (colour[static_cast<size_t>(i)] == 2)
      return false;
    colour[static_cast<size_t>(i)] = 1;
    for (const int a : merged[static_cast<size_t>(i)]) {
      if (cyclic(a))
        return true;
    }
    colour[static_cast<size_t>(i)] = 2;
    return false;
  };
  for (size_t i = 0; i < all.size(); ++i) {
    if (cyclic(static_cast<int>(i)))
      faults.insert("deadlock");
  }
  if (p.limit >= 0) {
    for (int r = 0; r < p.ranks; ++r) {
      std::set<std::tuple<int, int, int>> live;
      for (const auto& cell : cells[static_cast<size_t>(r)]) {
        for (const int i : cell) {
          const Cell& c = all[static_cast<size_t>(i)];
          if (c.op == "F" && find("F", c.stage, c.micro_batch, c.slice) == i)
            live.emplace(c.stage, c.micro_batch, c.slice);
        }
        if (static_cast<double>(live.size()) / (p.chunks * p.slices) > p.limit + 1e-9)
          faults.insert("memory");
        for (const int i : cell) {
          const Cell& c = all[static_cast<size_t>(i)];
          if (c.op == "B" || c.op == "W" || (!backward && c.op == "F"))
            live.erase({c.stage, c.micro_batch, c.slice});
        }
      }
    }
  }
  return faults;
}

}  // namespace penstock::brute
