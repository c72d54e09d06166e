#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/units.h"
#include "trace/picture.h"

namespace penstock::trace {
namespace {

using schedule::OpKind;
using schedule::Schedule;

constexpr int kLabelWidth = 9;  // "rank 12  "
constexpr int kMostColumnsPerCell = 12;

// 256-colour codes per kind and shade (Okabe and Ito's palette, nearest terminal colours).
struct CellColour {
  int background[2];
  int foreground[2];
};

CellColour ColourOf(OpKind kind) {
  switch (kind) {
    case OpKind::kForward:
      return {{25, 117}, {231, 16}};
    case OpKind::kBackward:
      return {{166, 216}, {231, 16}};
    case OpKind::kBackwardInput:
      return {{214, 222}, {16, 16}};
    case OpKind::kBackwardWeight:
      return {{29, 115}, {231, 16}};
    case OpKind::kRecompute:
      return {{132, 182}, {231, 16}};
    case OpKind::kOptimizer:
      return {{227, 229}, {16, 16}};
    default:
      return {{244, 250}, {231, 16}};
  }
}

constexpr std::pair<OpKind, const char*> kMeanings[] = {
    {OpKind::kForward, "forward"},
    {OpKind::kBackward, "backward"},
    {OpKind::kBackwardInput, "input gradient"},
    {OpKind::kBackwardWeight, "weight gradient"},
    {OpKind::kRecompute, "recompute"},
    {OpKind::kOptimizer, "optimizer"}};

class GridDrawer {
 public:
  GridDrawer(const Timeline& timeline, const Schedule* schedule, const GridOptions& options)
      : timeline_(timeline),
        schedule_(schedule),
        options_(options),
        columns_(std::max(20, options.width) - kLabelWidth) {}

  std::string Draw() {
    Scale();
    std::string out = Ruler();
    for (size_t r = 0; r < timeline_.ranks.size(); ++r)
      out += Row(r);
    if (options_.colour)
      out += Legend();
    if (to_s_ < length_s_ - 1e-9 * length_s_ || from_s_ > 0) {
      out += fmt::format("{} to {} of {}", FormatSeconds(from_s_), FormatSeconds(to_s_),
                         FormatSeconds(length_s_));
      if (to_s_ < length_s_ - 1e-9 * length_s_)
        out += fmt::format("; go on with --from {:.6g}", to_s_);
      out += "\n";
    }
    return out;
  }

 private:
  bool Shaded() const {
    return schedule_ != nullptr &&
           (schedule_->chunks() > 1 || schedule_->placement.num_directions() > 1);
  }

  static std::string NumberOf(const Slice& slice) {
    return slice.action.micro_batch.valid() ? fmt::format("{}", slice.action.micro_batch.value())
                                            : std::string();
  }

  bool Has(OpKind kind) const {
    for (const RankTimeline& rank : timeline_.ranks) {
      for (const Slice& slice : rank.slices) {
        if (slice.action.kind == kind)
          return true;
      }
    }
    return false;
  }

  // What the colours of the kinds in the picture mean, and their shades, in lines that fit.
  std::string Legend() const {
    std::string out;
    size_t column = 0;
    const auto add = [&](const std::string& text, size_t width) {
      constexpr size_t kGap = 2;
      const bool fits = column + kGap + width <= static_cast<size_t>(std::max(20, options_.width));
      if (column > 0)
        out += fits ? std::string(kGap, ' ') : "\n";
      column = (column > 0 && fits ? column + kGap : 0) + width;
      out += text;
    };
    for (const auto& [kind, meaning] : kMeanings) {
      if (!Has(kind))
        continue;
      const CellColour colour = ColourOf(kind);
      const std::string_view name = schedule::OpKindText(kind);
      add(fmt::format("\x1b[48;5;{};38;5;{}m {} \x1b[0m {}", colour.background[0],
                      colour.foreground[0], name, meaning),
          name.size() + 3 + std::string_view(meaning).size());
    }
    if (Shaded()) {
      const std::string shades = schedule_->placement.num_directions() > 1 ? "paler: second copy"
                                 : schedule_->chunks() > 2 ? "paler: every other chunk"
                                                           : "paler: second chunk";
      add(shades, shades.size());
    }
    return out.empty() ? out : out + "\n";
  }

  std::string LabelOf(const Slice& slice) const {
    std::string label;
    const schedule::Action& action = slice.action;
    if (!options_.colour && Shaded() && action.stage.valid())
      label = fmt::format("{}", action.stage.value());
    label += schedule::OpKindText(action.kind);
    if (action.micro_batch.valid())
      label += fmt::format("{}", action.micro_batch.value());
    if (action.slice > 0 || (schedule_ != nullptr && schedule_->slices > 1))
      label += fmt::format(".{}", action.slice);
    return label;
  }

  // Chooses seconds per column.
  void Scale() {
    length_s_ = timeline_.end_s - timeline_.begin_s;
    from_s_ = std::clamp(options_.from_s, 0.0, std::max(0.0, length_s_));
    std::vector<double> durations_s;
    size_t label = 1;
    size_t number = 1;
    for (const RankTimeline& rank : timeline_.ranks) {
      for (const Slice& slice : rank.slices) {
        const double duration_s = slice.end_s - slice.start_s;
        if (duration_s <= 1e-9 * length_s_ || !IsWork(slice.action.kind))
          continue;
        durations_s.push_back(duration_s);
        label = std::max(label, LabelOf(slice).size());
        number = std::max(number, NumberOf(slice).size());
      }
    }
    double shortest_s = ShortCell(durations_s, length_s_);
    if (!(shortest_s < length_s_))
      shortest_s = std::max(length_s_, 1e-12);
    // The least and the most columns that the shortest action may get: a gap after its number.
    const size_t needed = (options_.colour ? number : label) + 1;
    const auto least = static_cast<double>(std::min<size_t>(needed, 6));
    const double most = std::min<double>(static_cast<double>(label) + 1, kMostColumnsPerCell);
    double until_s = options_.to_s < 0 ? length_s_ : std::min(options_.to_s, length_s_);
    until_s = std::max(until_s, from_s_);
    double per_cell = shortest_s * columns_ / std::max(until_s - from_s_, 1e-12);
    if (options_.to_s < 0)
      per_cell = std::max(per_cell, least);
    per_cell = std::min(per_cell, most);
    if (per_cell >= 1)
      per_cell = std::floor(per_cell);
    column_s_ = shortest_s / per_cell;
    to_s_ = std::min(until_s, from_s_ + column_s_ * columns_);
    columns_ =
        std::min(columns_, static_cast<int>(std::ceil((to_s_ - from_s_) / column_s_ - 1e-6)));
  }

  int ColumnOf(double at_s) const {
    const double column = (at_s - timeline_.begin_s - from_s_) / column_s_;
    return static_cast<int>(std::clamp(std::round(column), -1.0, columns_ + 1.0));
  }

  std::string Ruler() const {
    std::string ruler(static_cast<size_t>(columns_ + kLabelWidth), ' ');
    // A mark every 1, 2 or 5 times a power of ten seconds, at least 12 columns apart.
    const double least_s = 12 * column_s_;
    double step_s = std::pow(10, std::floor(std::log10(least_s)));
    for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
      if (step_s * factor >= least_s * (1 - 1e-9)) {
        step_s *= factor;
        break;
      }
    }
    for (double at_s = std::ceil(from_s_ / step_s - 1e-9) * step_s; at_s < to_s_; at_s += step_s) {
      const auto c = static_cast<int>(std::lround((at_s - from_s_) / column_s_));
      const std::string mark = "|" + AxisSeconds(at_s);
      for (size_t i = 0; i < mark.size() && c + static_cast<int>(i) < columns_; ++i)
        ruler[static_cast<size_t>(kLabelWidth + c) + i] = mark[i];
    }
    ruler.erase(ruler.find_last_not_of(' ') + 1);
    return ruler + "\n";
  }

  std::string Row(size_t r) const {
    const RankTimeline& rank = timeline_.ranks[r];
    std::string name = rank.name.empty() ? fmt::format("rank {}", r) : rank.name;
    name.resize(static_cast<size_t>(kLabelWidth), ' ');
    std::string out = name;
    int column = 0;
    bool odd = false;
    for (const Slice& slice : rank.slices) {
      const int first = std::max(column, ColumnOf(slice.start_s));
      const int last = std::min(columns_, ColumnOf(slice.end_s));
      if (last <= first || last <= 0)
        continue;
      Idle(out, first - column);
      odd = !odd;
      Cell(out, slice, last - first, odd);
      column = last;
    }
    Idle(out, columns_ - column);
    if (!options_.colour)
      out.erase(out.find_last_not_of(' ') + 1);
    return out + "\n";
  }

  void Idle(std::string& out, int count) const {
    if (count <= 0)
      return;
    if (options_.colour)
      out += "\x1b[38;5;244m";
    out.append(static_cast<size_t>(count), '.');
    if (options_.colour)
      out += "\x1b[0m";
  }

  void Cell(std::string& out, const Slice& slice, int width, bool odd) const {
    const auto room = static_cast<size_t>(width);
    std::string text = LabelOf(slice);
    if (options_.colour) {
      if (text.size() >= room)  // the colour says the kind; neighbours must not run together
        text = NumberOf(slice);
      if (text.size() > room)
        text.clear();
      text.resize(room, ' ');
      const CellColour colour = ColourOf(slice.action.kind);
      const int shade = ShadeOf(slice, schedule_) % 2;
      // Neighbours of one kind are told apart by weight.
      out += fmt::format("\x1b[48;5;{};38;5;{}{}m{}\x1b[0m", colour.background[shade],
                         colour.foreground[shade], odd ? ";1" : "", text);
      return;
    }
    if (text.size() + 1 > room) {
      // Kind and as much of the rest as fits, then a gap.
      text = text.substr(0, room > 1 ? room - 1 : 1);
    }
    text.resize(std::max<size_t>(room > 1 ? room - 1 : 1, 1), '-');
    if (room > 1)
      text += ' ';
    out += text;
  }

  const Timeline& timeline_;
  const Schedule* schedule_;
  GridOptions options_;
  int columns_;
  double length_s_ = 0;
  double from_s_ = 0;
  double to_s_ = 0;
  double column_s_ = 1;
};

}  // namespace

int ShadeOf(const Slice& slice, const Schedule* schedule) {
  if (schedule == nullptr || !slice.action.stage.valid() ||
      slice.action.stage.value() >= schedule->num_stages()) {
    return 0;
  }
  if (schedule->placement.num_directions() > 1) {
    return slice.action.micro_batch.valid() ? schedule->DirectionOf(slice.action.micro_batch) : 0;
  }
  return schedule->placement.ChunkOf(slice.action.stage);
}

double ShortCell(std::vector<double> durations_s, double otherwise_s) {
  if (durations_s.empty())
    return otherwise_s;
  const auto tenth = durations_s.begin() + static_cast<std::ptrdiff_t>(durations_s.size() / 10);
  std::nth_element(durations_s.begin(), tenth, durations_s.end());
  return *tenth;
}

Result<> CheckWindow(const Timeline& timeline, double from_s, double to_s, std::string_view part) {
  const double length_s = timeline.end_s - timeline.begin_s;
  const bool whole = from_s <= 0 && to_s < 0;
  if (whole || (from_s < length_s && (to_s < 0 || to_s > from_s)))
    return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "[trace.{}] nothing from {:g} s to {}, wanted a part of the {:g} s there are",
                   part, from_s, to_s < 0 ? std::string("the end") : fmt::format("{:g} s", to_s),
                   length_s);
}

std::string AxisSeconds(double seconds) {
  if (seconds == 0)
    return "0";
  std::string text = FormatSeconds(seconds);
  const size_t space = text.find(' ');
  if (text.find('.') < space) {
    const size_t last = text.find_last_not_of('0', space - 1);
    text.erase(text[last] == '.' ? last : last + 1, space - (text[last] == '.' ? last : last + 1));
  }
  return text;
}

Result<std::string> TextGrid(const Timeline& timeline, const Schedule* schedule,
                             const GridOptions& options) {
  PENSTOCK_TRY(CheckWindow(timeline, options.from_s, options.to_s, "grid"));
  return GridDrawer(timeline, schedule, options).Draw();
}

}  // namespace penstock::trace
