// PyTorch's CSV, in.

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "schedule/text/parts.h"

namespace penstock::schedule {
namespace {

constexpr std::string_view kOverlap = "OVERLAP_F_B";

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t'))
    text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
    text.remove_suffix(1);
  return text;
}

std::string_view Unquote(std::string_view cell) {
  if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"')
    return Trim(cell.substr(1, cell.size() - 2));
  return cell;
}

bool IsPytorchKind(OpKind kind) {
  return kind != OpKind::kIdle && kind != OpKind::kRecompute && kind != OpKind::kRelease &&
         kind != OpKind::kOptimizer && kind != OpKind::kBarrier;
}

class CsvReader {
 public:
  CsvReader(std::string_view text, const std::string& source, TextPlace* place)
      : text_(text), source_(source), place_(place) {}

  Result<ScheduleText> Run() {
    old_ = text_.find("BW") != std::string_view::npos;
    while (!text_.empty()) {
      const size_t end = text_.find('\n');
      const std::string_view line = text_.substr(0, end);
      text_.remove_prefix(end == std::string_view::npos ? text_.size() : end + 1);
      ++row_;
      PENSTOCK_TRY(ReadRow(Trim(line)));
    }
    rows_.resize(rows_written_);
    if (rows_.empty())
      return Fail(0, "no actions", "one row of cells per rank");
    if (rows_.size() > static_cast<size_t>(kMaxStages)) {
      return Fail(0, fmt::format("{} rows", rows_.size()), fmt::format("at most {}", kMaxStages));
    }
    if (old_ || LooksOld())
      TranslateOld();
    return Finish();
  }

 private:
  Error Fail(int column, std::string_view got, std::string_view wanted) {
    return TextError("csv", source_, row_, column, got, wanted, place_);
  }

  Result<> ReadRow(std::string_view line) {
    std::vector<Action> program;
    size_t blank = 0;  // idle cells since the last action
    int column = 0;
    bool more = !line.empty();
    while (more) {
      const size_t end = line.find(',');
      const std::string_view raw = Trim(line.substr(0, end));
      more = end != std::string_view::npos;
      if (more)
        line.remove_prefix(end + 1);
      ++column;
      const std::string_view cell = Unquote(raw);
      if (more || !raw.empty())
        rows_written_ = rows_.size() + 1;
      if (cell.empty()) {
        ++blank;
        continue;
      }
      cells_ += static_cast<int64_t>(blank) + 1;
      if (cells_ > kMostCells)
        return Fail(column, "too many cells", fmt::format("at most {} in all rows", kMostCells));
      program.insert(program.end(), blank, Action());
      blank = 0;
      PENSTOCK_TRY(ReadCell(cell, column, program));
    }
    rows_.push_back(std::move(program));
    return {};
  }

  Result<> ReadCell(std::string_view cell, int column, std::vector<Action>& program) {
    if (cell[0] != '(')
      return ReadAction(cell, column, false, program);
    const size_t close = cell.find(')');
    if (close == std::string_view::npos || cell.substr(close + 1) != kOverlap) {
      return Fail(column, Shown(cell), "(action;action)OVERLAP_F_B");
    }
    std::string_view inside = cell.substr(1, close - 1);
    bool joined = false;
    while (true) {
      const size_t end = inside.find(';');
      PENSTOCK_TRY(ReadAction(Trim(inside.substr(0, end)), column, joined, program));
      joined = true;
      if (end == std::string_view::npos)
        return {};
      inside.remove_prefix(end + 1);
    }
  }

  Result<> ReadAction(std::string_view cell, int column, bool joined,
                      std::vector<Action>& program) {
    std::string without_w;
    bool full = false;
    std::string_view text = cell;
    const size_t bw = cell.find("BW");
    if (bw != std::string_view::npos) {
      without_w = std::string(cell.substr(0, bw + 1)) + std::string(cell.substr(bw + 2));
      text = without_w;
      full = true;
    }
    auto action = ParseAction(text);
    const bool fits = action.ok() && IsPytorchKind(action.value().kind) &&
                      action.value().slice == 0 && action.value().peer_stage < 0 &&
                      (!full || action.value().kind == OpKind::kBackward);
    if (!fits) {
      return Fail(column, Shown(cell),
                  "<stage><type><micro-batch> with type F, I, B, W, BW, SEND_F, RECV_F, SEND_B, "
                  "RECV_B, UNSHARD, RESHARD, "
                  "REDUCE_GRAD, WAIT_SEND_F, WAIT_SEND_B or WAIT_REDUCE_GRAD, or "
                  "(action;action)OVERLAP_F_B");
    }
    Action& a = action.value();
    if (old_ && a.kind == OpKind::kBackward && !full)
      a.kind = OpKind::kBackwardInput;
    a.joined = joined;
    program.push_back(a);
    return {};
  }

  // Without any I and BW: old where most B have a W of the same stage and micro-batch.
  bool LooksOld() const {
    std::vector<std::pair<int, int>> full;
    std::vector<std::pair<int, int>> weights;
    for (const auto& program : rows_) {
      for (const Action& a : program) {
        if (a.kind == OpKind::kBackwardInput)
          return false;
        if (a.kind == OpKind::kBackward)
          full.emplace_back(a.stage.value(), a.micro_batch.value());
        if (a.kind == OpKind::kBackwardWeight)
          weights.emplace_back(a.stage.value(), a.micro_batch.value());
      }
    }
    if (full.empty() || weights.empty())
      return false;
    std::sort(weights.begin(), weights.end());
    const auto both = std::count_if(full.begin(), full.end(), [&](const auto& key) {
      return std::binary_search(weights.begin(), weights.end(), key);
    });
    return 2 * both > static_cast<std::ptrdiff_t>(full.size());
  }

  void TranslateOld() {
    if (old_)
      return;  // done while reading
    old_ = true;
    for (auto& program : rows_) {
      for (Action& a : program) {
        if (a.kind == OpKind::kBackward)
          a.kind = OpKind::kBackwardInput;
      }
    }
  }

  Result<ScheduleText> Finish() {
    ScheduleText out;
    Schedule& s = out.schedule;
    int stages = 0;
    bool waits = false;
    s.forward_only = true;
    for (const auto& program : rows_) {
      for (const Action& a : program) {
        stages = std::max(stages, a.stage.value() + 1);
        const bool counts = IsCompute(a.kind) || IsMessage(a.kind);
        if (counts)
          s.micro_batches = std::max(s.micro_batches, a.micro_batch.value() + 1);
        s.lowered = s.lowered || IsMessage(a.kind);
        s.forward_only = s.forward_only && !IsBackward(a.kind);
        waits = waits || a.kind == OpKind::kWaitSendForward ||
                a.kind == OpKind::kWaitSendBackward || a.kind == OpKind::kWaitReduceGrad;
      }
    }
    if (stages == 0 || s.micro_batches == 0)
      return Fail(0, "no computation", "at least one F");
    out.dialect = old_ ? Dialect::kBw : waits ? Dialect::kWait : Dialect::kPlain;
    s.name = StemOf(source_);
    s.placement = InferPlacement(rows_, stages, s.micro_batches);
    s.ranks = std::move(rows_);
    return out;
  }

  std::string_view text_;
  const std::string& source_;
  TextPlace* place_;
  int row_ = 0;
  bool old_ = false;
  int64_t cells_ = 0;
  size_t rows_written_ =
      0;  // up to the last that is no blank line left over at the end of the file
  std::vector<std::vector<Action>> rows_;
};

// How often a stage's computations of one half of the micro-batches appear on each row; the row
// with the most is its rank.
class Votes {
 public:
  // Rows come in ascending order.
  void Add(int row) {
    if (counts_.empty() || counts_.back().first != row)
      counts_.emplace_back(row, 0);
    ++counts_.back().second;
  }

  int Winner() const { return Best(counts_); }

  static int WinnerOfBoth(const Votes& a, const Votes& b) {
    Counts all = a.counts_;
    all.insert(all.end(), b.counts_.begin(), b.counts_.end());
    std::sort(all.begin(), all.end());
    Counts merged;
    for (const auto& [row, count] : all) {
      if (merged.empty() || merged.back().first != row)
        merged.emplace_back(row, 0);
      merged.back().second += count;
    }
    return Best(merged);
  }

 private:
  using Counts = std::vector<std::pair<int, int64_t>>;

  static int Best(const Counts& counts) {  // -1: none
    int best = -1;
    int64_t most = 0;
    for (const auto& [row, count] : counts) {
      if (count > most) {
        best = row;
        most = count;
      }
    }
    return best;
  }

  Counts counts_;
};

}  // namespace

Placement InferPlacement(const std::vector<std::vector<Action>>& rows, int stages,
                         int micro_batches) {
  const int split = (micro_batches + 1) / 2;
  std::vector<Votes> halves[2];
  for (auto& half : halves)
    half.resize(static_cast<size_t>(stages));
  for (size_t r = 0; r < rows.size(); ++r) {
    for (const Action& a : rows[r]) {
      if (IsCompute(a.kind))
        halves[a.micro_batch.value() >= split][static_cast<size_t>(a.stage.value())].Add(
            static_cast<int>(r));
    }
  }
  const auto ranks = static_cast<int>(rows.size());
  std::vector<RankId> map[2];
  int both = 0;
  int differ = 0;
  for (int s = 0; s < stages; ++s) {
    const auto at = static_cast<size_t>(s);
    const int winner[2] = {halves[0][at].Winner(), halves[1][at].Winner()};
    if (winner[0] >= 0 && winner[1] >= 0) {
      ++both;
      differ += winner[0] != winner[1];
    }
    for (int d = 0; d < 2; ++d) {
      const int rank = winner[d] >= 0 ? winner[d] : winner[1 - d] >= 0 ? winner[1 - d] : s % ranks;
      map[d].emplace_back(rank);
    }
  }
  const bool mirrored = differ > 0 && 2 * differ >= both - 1;
  if (!mirrored) {
    for (int s = 0; s < stages; ++s) {
      const auto at = static_cast<size_t>(s);
      const int winner = Votes::WinnerOfBoth(halves[0][at], halves[1][at]);
      if (winner >= 0)
        map[0][at] = RankId(winner);
    }
    map[1].clear();
  }
  auto placement = Placement::FromMap(ranks, std::move(map[0]), std::move(map[1]));
  PENSTOCK_CHECK(placement.ok(), "rows and stages are in range");
  return std::move(placement).value();
}

Result<ScheduleText> ParseCsv(std::string_view text, const std::string& source, TextPlace* place) {
  return CsvReader(text, source, place).Run();
}

}  // namespace penstock::schedule
