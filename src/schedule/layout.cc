#include "schedule/layout.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "base/units.h"
#include "schedule/placement.h"

namespace penstock::schedule {
namespace {

constexpr size_t kMostSymbols = 1000000;

Error Wrong(size_t column, std::string_view got, std::string_view wanted) {
  return MakeError(ErrorCode::kInvalidArgument, "[schedule.layout] column {}: got {}, wanted {}",
                   column + 1, got, wanted);
}

bool IsSymbol(char c) {
  return c == 'E' || c == 't' || c == 'm' || c == 'L' || c == '|';
}

std::string Quoted(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? "a control character"
                                                           : fmt::format("'{}'", c);
}

// Writes repetitions out: only E, t, m, L and | are left.
class Expander {
 public:
  explicit Expander(std::string_view text) : text_(text) {}

  Result<std::string> Run() {
    std::string out;
    for (Skip(); at_ < text_.size(); Skip()) {
      std::string unit;
      const size_t start = at_;
      const bool group = text_[at_] == '(';
      if (group) {
        PENSTOCK_TRY_ASSIGN(unit, Group());
      } else if (IsSymbol(text_[at_])) {
        unit = text_[at_++];
      } else {
        return Wrong(at_, Quoted(text_[at_]), "E, t, m, L, | or (");
      }
      size_t count = 1;
      Skip();
      if (at_ < text_.size() && text_[at_] == '*') {
        PENSTOCK_TRY_ASSIGN(count, Count());
      } else if (group) {
        return Wrong(start, "a group without a count", "(...)*n");
      }
      PENSTOCK_TRY(Append(out, unit, count, start));
    }
    return out;
  }

 private:
  void Skip() {
    while (at_ < text_.size() && text_[at_] == ',')
      ++at_;
  }

  static Result<> Append(std::string& out, const std::string& unit, size_t count, size_t column) {
    if (!unit.empty() &&
        count > (kMostSymbols - std::min(kMostSymbols, out.size())) / unit.size()) {
      return Wrong(column, "more than a million layers and stage breaks", "fewer");
    }
    for (size_t i = 0; i < count; ++i)
      out += unit;
    return {};
  }

  // (...) with letters and x*n inside.
  Result<std::string> Group() {
    const size_t open = at_++;
    std::string out;
    bool empty = true;
    for (Skip(); at_ < text_.size() && text_[at_] != ')'; Skip()) {
      if (text_[at_] == '(')
        return Wrong(at_, "a group in a group", "groups that are not nested");
      if (!IsSymbol(text_[at_]))
        return Wrong(at_, Quoted(text_[at_]), "E, t, m, L, | or )");
      const size_t start = at_;
      const std::string unit(1, text_[at_++]);
      empty = false;
      size_t count = 1;
      Skip();
      if (at_ < text_.size() && text_[at_] == '*') {
        PENSTOCK_TRY_ASSIGN(count, Count());
      }
      PENSTOCK_TRY(Append(out, unit, count, start));
    }
    if (at_ >= text_.size())
      return Wrong(open, "'(' that is never closed", ")");
    if (empty)
      return Wrong(open, "an empty group", "letters or | in it");
    ++at_;
    return out;
  }

  Result<size_t> Count() {
    ++at_;
    size_t value = 0;
    const auto [end, error] =
        std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    const auto length = static_cast<size_t>(end - (text_.data() + at_));
    if (length == 0 || error != std::errc() || value > kMostSymbols) {
      return Wrong(at_,
                   length == 0
                       ? "no number after *"
                       : fmt::format("*{}", text_.substr(at_, std::min<size_t>(length, 20))),
                   fmt::format("a count up to {}", kMostSymbols));
    }
    at_ += length;
    return value;
  }

  std::string_view text_;
  size_t at_ = 0;
};

Error Refuse(std::string_view got, std::string_view wanted) {
  return MakeError(ErrorCode::kInvalidArgument, "[schedule.layout] {}, wanted {}", got, wanted);
}

Result<> CheckOrder(const std::string& symbols) {
  const auto embeddings = std::count(symbols.begin(), symbols.end(), 'E');
  const auto losses = std::count(symbols.begin(), symbols.end(), 'L');
  if (embeddings != 1 || symbols.front() != 'E') {
    return Refuse(
        fmt::format("{} E{}", embeddings, embeddings == 1 ? " that does not come first" : ""),
        "one E at the very start");
  }
  if (losses != 1 || symbols.back() != 'L') {
    return Refuse(fmt::format("{} L{}", losses, losses == 1 ? " that does not come last" : ""),
                  "one L at the very end");
  }
  const size_t first_mtp = symbols.find('m');
  if (first_mtp == std::string::npos)
    return {};
  if (symbols.find('t', first_mtp) != std::string::npos)
    return Refuse("t after m", "every m after the last t");
  const size_t last_mtp = symbols.rfind('m');
  if (symbols.substr(first_mtp, last_mtp - first_mtp).find('|') != std::string::npos) {
    return Refuse("m on several stages", "all m on one stage");
  }
  return {};
}

}  // namespace

Result<std::vector<LayoutStage>> ParseLayout(std::string_view text, int ranks) {
  if (ranks < 1 || ranks > kMaxStages)
    return Refuse(Counted(ranks, "rank"), fmt::format("1 to {}", kMaxStages));
  PENSTOCK_TRY_ASSIGN(const std::string symbols, Expander(text).Run());
  if (symbols.empty())
    return Refuse("an empty layout", "E, then decoder layers, then L");
  PENSTOCK_TRY(CheckOrder(symbols));
  const auto stages = std::count(symbols.begin(), symbols.end(), '|') + 1;
  if (stages > kMaxStages || stages % ranks != 0) {
    return Refuse(fmt::format("{} on {}", Counted(stages, "stage"), Counted(ranks, "rank")),
                  fmt::format("a multiple of {} up to {}", ranks, kMaxStages));
  }
  std::vector<LayoutStage> layout(1);
  int decoder = 0;
  for (const char c : symbols) {
    LayoutStage& stage = layout.back();
    if (c == 'E')
      stage.embedding = true;
    if (c == 't')
      stage.decoder_layers.push_back(decoder++);
    if (c == 'm')
      ++stage.mtp_layers;
    if (c == 'L')
      stage.loss = true;
    if (c == '|')
      layout.emplace_back();
  }
  for (size_t i = 0; i < layout.size(); ++i) {
    layout[i].rank = static_cast<int>(i) % ranks;
    layout[i].chunk = static_cast<int>(i) / ranks;
  }
  return layout;
}

}  // namespace penstock::schedule
