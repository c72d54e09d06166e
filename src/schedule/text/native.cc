// The native form: a header of `key value` lines, then one block of cells per rank.

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "base/units.h"
#include "schedule/text/parts.h"

namespace penstock::schedule {
namespace {

constexpr int kVersion = 1;
constexpr size_t kCellsPerLine = 8;
constexpr size_t kMostWords = size_t{1} << 24;  // of a line
constexpr std::array<std::string_view, 11> kKeys = {"name",          "ranks", "stages", "chunks",
                                                    "micro-batches", "steps", "slices", "placement",
                                                    "units",         "flags", "edge"};

std::optional<int64_t> Number(std::string_view word, int64_t low, int64_t high) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (word.empty() || error != std::errc() || end != word.data() + word.size() || value < low ||
      value > high)
    return std::nullopt;
  return value;
}

bool IsName(std::string_view text) {
  constexpr size_t kLongest = 128;
  return !text.empty() && text.size() <= kLongest &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-' || c == '/' || c == '.';
         });
}

class NativeReader {
 public:
  NativeReader(std::string_view text, const std::string& source, TextPlace* place)
      : text_(text), source_(source), place_(place) {}

  Result<ScheduleText> Run() {
    while (NextLine()) {
      if (words_.empty())
        continue;
      if (words_.size() > kMostWords)
        return FailLine(fmt::format("at most {} words in a line", kMostWords));
      if (row_of_version_ == 0) {
        PENSTOCK_TRY(ReadVersion());
      } else if (words_[0] == "rank") {
        PENSTOCK_TRY(ReadRank());
      } else if (in_ranks_) {
        PENSTOCK_TRY(ReadCells());
      } else {
        PENSTOCK_TRY(ReadHeader());
      }
    }
    if (!in_ranks_)
      PENSTOCK_TRY(FinishHeader());
    Schedule& s = out_.schedule;
    s.forward_only = true;
    for (const auto& program : s.ranks) {
      for (const Action& a : program) {
        s.forward_only = s.forward_only && !IsBackward(a.kind);
        s.lowered = s.lowered || IsMessage(a.kind);
      }
    }
    return std::move(out_);
  }

 private:
  Error Fail(std::string_view word, std::string_view wanted) {
    const bool inside = word.data() >= line_.data() && word.data() <= line_.data() + line_.size();
    const int column = inside ? static_cast<int>(word.data() - line_.data()) + 1 : 0;
    return TextError("native", source_, row_, column, Shown(word), wanted, place_);
  }

  Error FailLine(std::string_view wanted) { return Fail(line_, wanted); }

  // Splits the next line into words without its comment; false at the end.
  bool NextLine() {
    if (text_.empty())
      return false;
    const size_t end = text_.find('\n');
    line_ = text_.substr(0, end);
    text_.remove_prefix(end == std::string_view::npos ? text_.size() : end + 1);
    ++row_;
    words_.clear();
    const std::string_view body = line_.substr(0, line_.find('#'));
    size_t at = 0;
    while (true) {
      at = body.find_first_not_of(" \t\r", at);
      if (at == std::string_view::npos)
        return true;
      const size_t stop = std::min(body.find_first_of(" \t\r", at), body.size());
      words_.push_back(body.substr(at, stop - at));
      if (words_.size() > kMostWords)
        return true;
      at = stop;
    }
  }

  Result<> ReadVersion() {
    row_of_version_ = row_;
    if (words_.size() != 2 || words_[0] != kNativeMagic || !Number(words_[1], kVersion, kVersion)) {
      return FailLine(fmt::format("'{} {}'", kNativeMagic, kVersion));
    }
    return {};
  }

  Result<> ReadHeader() {
    const std::string_view key = words_[0];
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
      const std::string near = NearestName(key, kKeys);
      return Fail(key, fmt::format("one of {}, or rank{}", fmt::join(kKeys, ", "),
                                   near.empty() ? "" : "\ndid you mean " + near + "?"));
    }
    if (key == "edge")
      return ReadEdge();
    const auto bit = uint32_t{1} << (std::find(kKeys.begin(), kKeys.end(), key) - kKeys.begin());
    if ((seen_ & bit) != 0)
      return Fail(key, "each key once");
    seen_ |= bit;
    if (words_.size() < 2)
      return FailLine("a value after the key");
    if (key == "flags")
      return ReadFlags();
    if (key == "placement") {
      placement_row_ = row_;
      for (size_t i = 1; i < words_.size(); ++i)
        placement_words_.emplace_back(words_[i]);
      return {};
    }
    if (words_.size() != 2)
      return Fail(words_[2], "one value");
    if (key == "name") {
      if (!IsName(words_[1]))
        return Fail(words_[1], "letters, digits, '_', '-', '/' and '.', at most 128");
      out_.schedule.name = std::string(words_[1]);
      return {};
    }
    if (key == "units") {
      if (words_[1] != "slots")
        return Fail(words_[1], "slots");
      return {};
    }
    return ReadCount(key);
  }

  Result<> ReadCount(std::string_view key) {
    const bool wide = key == "micro-batches" || key == "steps";
    const int64_t high = wide ? 0x7ffffffe : key == "slices" ? 65535 : kMaxStages;
    const auto value = Number(words_[1], 1, high);
    if (!value)
      return Fail(words_[1], fmt::format("a number from 1 to {}", high));
    const int number = static_cast<int>(*value);
    if (key == "ranks")
      ranks_ = number;
    if (key == "stages")
      stages_ = number;
    if (key == "chunks")
      chunks_ = number;
    if (key == "micro-batches")
      out_.schedule.micro_batches = number;
    if (key == "steps")
      out_.schedule.steps = number;
    if (key == "slices")
      out_.schedule.slices = number;
    return {};
  }

  Result<> ReadFlags() {
    for (size_t i = 1; i < words_.size(); ++i) {
      if (words_[i] == "lowered") {
        out_.schedule.lowered = true;
      } else if (words_[i] == "ring") {
        out_.schedule.ring = true;
      } else {
        return Fail(words_[i], "lowered or ring");
      }
    }
    return {};
  }

  // edge NAME value|tied FROM -> TO... [bytes N]
  Result<> ReadEdge() {
    constexpr size_t kFirstTo = 5;
    if (words_.size() <= kFirstTo || words_[4] != "->")
      return FailLine("edge NAME value|tied FROM -> TO... [bytes N]");
    Edge edge;
    if (!IsName(words_[1]))
      return Fail(words_[1], "letters, digits, '_', '-', '/' and '.', at most 128");
    edge.name = std::string(words_[1]);
    if (words_[2] != "value" && words_[2] != "tied")
      return Fail(words_[2], "value or tied");
    edge.kind = words_[2] == "tied" ? EdgeKind::kTied : EdgeKind::kValue;
    const auto from = Number(words_[3], 0, kMaxStages - 1);
    if (!from)
      return Fail(words_[3], "a stage");
    edge.from = StageId(static_cast<int32_t>(*from));
    size_t i = kFirstTo;
    for (; i < words_.size() && words_[i] != "bytes"; ++i) {
      const auto to = Number(words_[i], 0, kMaxStages - 1);
      if (!to)
        return Fail(words_[i], "a stage");
      edge.to.emplace_back(static_cast<int32_t>(*to));
    }
    if (i < words_.size()) {
      constexpr int64_t kMostBytes = int64_t{1} << 40;  // sums over millions of messages fit
      const auto bytes =
          i + 2 == words_.size() ? Number(words_[i + 1], 0, kMostBytes) : std::nullopt;
      if (!bytes)
        return Fail(words_[i], fmt::format("'bytes' and a number up to {} at the end", kMostBytes));
      edge.bytes = *bytes;
    }
    if (edge.to.empty())
      return FailLine("edge NAME value|tied FROM -> TO... [bytes N]");
    constexpr size_t kMostEdges = 4096;
    if (out_.schedule.edges.size() >= kMostEdges)
      return FailLine("at most 4096 edges");
    out_.schedule.edges.push_back(std::move(edge));
    return {};
  }

  Result<> FinishHeader() {
    in_ranks_ = true;
    Schedule& s = out_.schedule;
    if (row_of_version_ == 0)
      return FailLine(fmt::format("'{} {}'", kNativeMagic, kVersion));
    if (ranks_ == 0 || s.micro_batches == 0)
      return FailLine("ranks and micro-batches in the header before the first rank");
    if (s.name.empty())
      s.name = StemOf(source_);
    row_of_header_end_ = row_;
    PENSTOCK_TRY(ReadPlacement());
    if (stages_ != 0 && stages_ != s.num_stages())
      return HeaderFault(fmt::format("stages {}", stages_),
                         fmt::format("{} as placed", s.num_stages()));
    if (chunks_ != 0 && chunks_ != s.chunks())
      return HeaderFault(fmt::format("chunks {}", chunks_),
                         fmt::format("{} as placed", s.chunks()));
    return {};
  }

  Error HeaderFault(std::string_view got, std::string_view wanted) {
    return TextError("native", source_, placement_row_ > 0 ? placement_row_ : row_, 0, got, wanted,
                     place_);
  }

  Result<> ReadPlacement() {
    const std::string kind = placement_words_.empty() ? "loop" : placement_words_[0];
    if (kind == "custom")
      return ReadCustom();
    if (placement_words_.size() > 1)
      return HeaderFault(placement_words_[1], fmt::format("nothing after placement {}", kind));
    const int fallback = kind == "v" ? 2 : 1;
    int chunks = fallback;
    if (chunks_ != 0) {
      chunks = chunks_;
    } else if (stages_ != 0 && stages_ % ranks_ == 0) {
      chunks = stages_ / ranks_;
    }
    if (int64_t{ranks_} * chunks > kMaxStages)
      return HeaderFault(fmt::format("{} ranks x {} chunks", ranks_, chunks),
                         fmt::format("at most {} stages", kMaxStages));
    if (kind == "loop") {
      out_.schedule.placement = Placement::Loop(ranks_, chunks);
    } else if (kind == "v" && chunks == 2) {
      out_.schedule.placement = Placement::V(ranks_);
    } else if (kind == "wave") {
      out_.schedule.placement = Placement::Wave(ranks_, chunks);
    } else if (kind == "mirrored" && chunks == 1) {
      out_.schedule.placement = Placement::Mirrored(ranks_);
    } else {
      return HeaderFault(fmt::format("placement {} with {} chunks", kind, chunks),
                         "loop, v (2 chunks), wave, mirrored (1) or custom RANK...");
    }
    return {};
  }

  // custom R0 R1 ... [/ R0 R1 ...]
  Result<> ReadCustom() {
    std::vector<RankId> maps[2];
    int d = 0;
    for (size_t i = 1; i < placement_words_.size(); ++i) {
      if (placement_words_[i] == "/" && d == 0) {
        d = 1;
        continue;
      }
      const auto rank = Number(placement_words_[i], 0, ranks_ - 1);
      if (!rank)
        return HeaderFault(placement_words_[i], fmt::format("a rank from 0 to {}", ranks_ - 1));
      maps[d].emplace_back(static_cast<int32_t>(*rank));
    }
    auto placement = Placement::FromMap(ranks_, std::move(maps[0]), std::move(maps[1]));
    if (!placement.ok())
      return HeaderFault("this placement", placement.error().message);
    out_.schedule.placement = std::move(placement).value();
    return {};
  }

  Result<> ReadRank() {
    if (!in_ranks_)
      PENSTOCK_TRY(FinishHeader());
    auto& ranks = out_.schedule.ranks;
    if (words_.size() != 2 || !Number(words_[1], static_cast<int64_t>(ranks.size()),
                                      static_cast<int64_t>(ranks.size()))) {
      return FailLine(fmt::format("'rank {}'", ranks.size()));
    }
    ranks.emplace_back();
    return {};
  }

  Result<> ReadCells() {
    auto& program = out_.schedule.ranks.back();
    for (const std::string_view word : words_) {
      if (word[0] != '(') {
        PENSTOCK_TRY(ReadAction(word, false, program));
        continue;
      }
      if (word.back() != ')')
        return Fail(word, "(action;action)");
      std::string_view inside = word.substr(1, word.size() - 2);
      bool joined = false;
      while (true) {
        const size_t end = inside.find(';');
        PENSTOCK_TRY(ReadAction(inside.substr(0, end), joined, program));
        joined = true;
        if (end == std::string_view::npos)
          break;
        inside.remove_prefix(end + 1);
      }
    }
    return {};
  }

  Result<> ReadAction(std::string_view word, bool joined, std::vector<Action>& program) {
    auto action = ParseAction(word, out_.schedule.edges);
    if (!action.ok()) {
      const std::string& message = action.error().message;
      const size_t wanted = message.rfind(", wanted ");
      return Fail(word, wanted == std::string::npos ? message : message.substr(wanted + 9));
    }
    if (++cells_ > kMostCells)
      return Fail(word, fmt::format("at most {} cells in all ranks", kMostCells));
    action.value().joined = joined;
    program.push_back(action.value());
    return {};
  }

  std::string_view text_;
  const std::string& source_;
  TextPlace* place_;
  std::string_view line_;
  std::vector<std::string_view> words_;
  int row_ = 0;
  int row_of_version_ = 0;
  int row_of_header_end_ = 0;
  bool in_ranks_ = false;
  int64_t cells_ = 0;
  uint32_t seen_ = 0;
  int ranks_ = 0;
  int stages_ = 0;
  int chunks_ = 0;
  int placement_row_ = 0;
  std::vector<std::string> placement_words_;
  ScheduleText out_;
};

std::string PlacementLine(const Placement& placement) {
  if (placement.kind() != PlacementKind::kCustom)
    return std::string(PlacementKindText(placement.kind()));
  std::string line = "custom";
  for (int d = 0; d < placement.num_directions(); ++d) {
    if (d == 1)
      line += " /";
    for (int s = 0; s < placement.num_stages(); ++s)
      line += fmt::format(" {}", placement.RankOf(StageId(s), d));
  }
  return line;
}

void AppendCells(std::string& out, const Schedule& s, const std::vector<Action>& program) {
  size_t cells = 0;
  for (size_t i = 0; i < program.size();) {
    size_t next = i + 1;
    while (next < program.size() && program[next].joined)
      ++next;
    out += cells % kCellsPerLine == 0 ? (cells == 0 ? "  " : "\n  ") : " ";
    if (next > i + 1)
      out += '(';
    for (size_t k = i; k < next; ++k) {
      if (k > i)
        out += ';';
      AppendActionText(out, program[k], s.edges);
    }
    if (next > i + 1)
      out += ')';
    ++cells;
    i = next;
  }
  if (cells > 0)
    out += '\n';
}

}  // namespace

Result<ScheduleText> ParseNative(std::string_view text, const std::string& source,
                                 TextPlace* place) {
  return NativeReader(text, source, place).Run();
}

std::string WriteNative(const Schedule& s) {
  std::string out = fmt::format(
      "{} {}\nname {}\nranks {}\nstages {}\nchunks {}\nmicro-batches {}\nsteps {}\nslices "
      "{}\nplacement {}\nunits slots\n",
      kNativeMagic, kVersion, s.name.empty() ? "schedule" : s.name, s.num_ranks(), s.num_stages(),
      s.chunks(), s.micro_batches, s.steps, s.slices, PlacementLine(s.placement));
  if (s.lowered || s.ring)
    out += fmt::format("flags{}{}\n", s.lowered ? " lowered" : "", s.ring ? " ring" : "");
  for (const Edge& edge : s.edges) {
    out += fmt::format("edge {} {} {} ->", edge.name,
                       edge.kind == EdgeKind::kTied ? "tied" : "value", edge.from);
    for (const StageId to : edge.to)
      out += fmt::format(" {}", to);
    out += edge.bytes > 0 ? fmt::format(" bytes {}\n", edge.bytes) : "\n";
  }
  for (size_t r = 0; r < s.ranks.size(); ++r) {
    out += fmt::format("rank {}\n", r);
    AppendCells(out, s, s.ranks[r]);
  }
  return out;
}

}  // namespace penstock::schedule
