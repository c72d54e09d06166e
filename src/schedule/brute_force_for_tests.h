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

struct Problem {
  int ranks = 1, stages = 1, micro_batches = 1, slices = 1;
  std::function<int(int stage, int micro_batch)> rank_of;
  std::vector<std::vector<std::vector<std::string>>> rows;  // rank, cell, parts
  bool lowered = false;
  char transport = 'c';  // p(osted), b(uffered), c(redits), r(endezvous)
  int credits = 1;
  double limit = -1;  // shares; negative: none
  int chunks = 1;
};

struct Cell {
  int rank, at;  // at: running number of the part on its rank
  int stage = -1, micro_batch = -1, slice = 0;
  std::string op;
};

inline Cell Read(const std::string& text, int rank, int at) {
  Cell c{rank, at, -1, -1, 0, ""};
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
  return c;
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
    if (!first
             .emplace(Name{all[i].op, all[i].stage, all[i].micro_batch, all[i].slice},
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
    messages = messages || c.op.size() > 4;
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
  std::map<std::tuple<bool, int, int, int>, std::pair<std::vector<int>, std::vector<int>>> edges;
  for (int r = 0; r < p.ranks; ++r) {
    for (const int i : order[static_cast<size_t>(r)]) {
      const Cell& c = all[static_cast<size_t>(i)];
      if (c.op.size() <= 4)
        continue;
      const bool send = c.op.substr(0, 4) == "SEND";
      const bool forward = c.op.back() == 'F';
      const int peer = c.stage + ((send == forward) ? 1 : -1);
      const int other = find((send ? "RECV_" : "SEND_") + std::string(1, c.op.back()), peer,
                             c.micro_batch, c.slice);
      if (other < 0 || all[static_cast<size_t>(other)].rank == c.rank ||
          find(c.op, c.stage, c.micro_batch, c.slice) != i)
        continue;
      if (p.transport == 'r' && !send)
        same[static_cast<size_t>(i)] = other;
      const int low = std::min(c.stage, peer);
      auto& edge = edges[{forward, low, send ? r : all[static_cast<size_t>(other)].rank,
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
