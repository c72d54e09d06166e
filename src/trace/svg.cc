#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/markup.h"
#include "base/units.h"
#include "trace/picture.h"

namespace penstock::trace {
namespace {

using schedule::OpKind;
using schedule::Schedule;

constexpr int64_t kMostSlices = 100'000;
constexpr double kLeft = 62;   // rank names
constexpr double kRight = 58;  // peaks
constexpr double kRowHeight = 21;
constexpr double kCurveHeight = 15;
constexpr double kRowGap = 7;
constexpr double kTop = 46;
constexpr double kMostWidth = 16000;
constexpr int kShades = 4;
constexpr double kDigit = 5.7;        // width of one
constexpr double kSmallLetter = 4.9;  // mean width in the legend
constexpr double kMostCell = 30;
constexpr size_t kMostHops = 40;
constexpr double kHopRow = 13;
constexpr double kHopBar = 220;

// Okabe and Ito's colour-blind-safe palette; shades of a kind are mixed towards white (or, in the
// dark, towards black).
struct KindStyle {
  OpKind kind;
  const char* css;
  const char* meaning;
  std::array<int, 3> rgb;
  bool dark_text;
};

constexpr std::array<KindStyle, 6> kStyles = {{
    {OpKind::kForward, "F", "F forward", {0, 114, 178}, false},
    {OpKind::kBackward, "B", "B backward", {213, 94, 0}, false},
    {OpKind::kBackwardInput, "I", "I input gradient", {230, 159, 0}, true},
    {OpKind::kBackwardWeight, "W", "W weight gradient", {0, 140, 105}, false},
    {OpKind::kRecompute, "R", "R recompute", {204, 121, 167}, true},
    {OpKind::kOptimizer, "O", "optimizer", {240, 228, 66}, true},
}};

const KindStyle* StyleOf(OpKind kind) {
  for (const KindStyle& style : kStyles) {
    if (style.kind == kind)
      return &style;
  }
  return nullptr;
}

// At most two digits after the point.
std::string Short(double value) {
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.')
    text.pop_back();
  return text;
}

std::string Mixed(const std::array<int, 3>& rgb, int towards, double part) {
  auto mix = [&](int value) {
    return static_cast<int>(std::lround(value + (towards - value) * part));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(rgb[0]), mix(rgb[1]), mix(rgb[2]));
}

std::string StyleSheet() {
  std::string css =
      "text{font:11px Helvetica,Arial,sans-serif;fill:#1a1a1a}\n"
      ".bg{fill:#fff}.row{fill:#f2f2f2}.hatch{stroke:#c9c9c9}\n"
      ".n{text-anchor:middle;font-size:10px}.s{font-size:9px}.r{text-anchor:end}\n"
      ".t{font-size:13px;font-weight:bold}\n"
      ".curve{fill:#8a8a8a;fill-opacity:.35;stroke:#5a5a5a;stroke-width:1}\n"
      ".axis{stroke:#777;stroke-width:1}.x{fill:#999}\n";
  std::string dark =
      "text{fill:#e8e8e8}.bg{fill:#15171a}.row{fill:#24272c}.hatch{stroke:#474c54}\n"
      ".curve{fill:#b0b0b0;stroke:#c8c8c8}.axis{stroke:#999}\n";
  for (const KindStyle& style : kStyles) {
    for (int shade = 0; shade < kShades; ++shade) {
      const double part = shade == 0 ? 0 : 0.28 + 0.17 * shade;
      css += fmt::format(".{}{}{{fill:{}}}", style.css, shade, Mixed(style.rgb, 255, part));
      css += fmt::format(".n{}{}{{fill:{}}}", style.css, shade,
                         style.dark_text || shade > 0 ? "#111" : "#fff");
      dark += fmt::format(".{}{}{{fill:{}}}", style.css, shade,
                          Mixed(style.rgb, 0, 0.1 + 0.19 * shade));
      dark += fmt::format(".n{}{}{{fill:{}}}", style.css, shade,
                          style.dark_text && shade < 2 ? "#111" : "#fff");
    }
    css += "\n";
  }
  return css + "@media (prefers-color-scheme: dark){\n" + dark + "}\n";
}

class SvgDrawer {
 public:
  SvgDrawer(const Timeline& timeline, const Schedule* schedule, const SvgOptions& options)
      : timeline_(timeline), schedule_(schedule), options_(options) {}

  Result<std::string> Draw() {
    from_s_ = timeline_.begin_s + std::max(0.0, options_.from_s);
    to_s_ = options_.to_s < 0 ? timeline_.end_s
                              : std::min(timeline_.end_s, timeline_.begin_s + options_.to_s);
    PENSTOCK_TRY(CheckWindow(timeline_, options_.from_s, options_.to_s, "svg"));
    if (!(to_s_ > from_s_)) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[trace.svg] nothing takes any time, wanted actions that do");
    }
    PENSTOCK_TRY(Scale());
    const std::string legend = Legend();
    row_step_ = kRowHeight + kRowGap + (options_.memory ? kCurveHeight : 0);
    const double rows = row_step_ * static_cast<double>(timeline_.ranks.size());
    const double bottom = kTop + rows + 18;
    const double notes_end = bottom + 22 + 15 * static_cast<double>(options_.notes.size());
    const double height = notes_end + ChartHeight();
    const double full =
        std::max({kLeft + width_ + kRight, legend_end_ + 8, options_.hops.empty() ? 430.0 : 560.0});
    out_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "viewBox=\"0 0 {0:.0f} {1:.0f}\" role=\"img\">\n<title>{2}</title>\n<style>\n{3}</style>\n"
        "<defs><pattern id=\"idle\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
        "patternTransform=\"rotate(45)\"><rect class=\"row\" width=\"6\" height=\"6\"/>"
        "<line class=\"hatch\" x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\"/></pattern></defs>\n"
        "<rect class=\"bg\" width=\"100%\" height=\"100%\"/>\n"
        "<text class=\"t\" x=\"8\" y=\"18\">{2}</text>\n",
        full, height, EscapeMarkup(options_.title.empty() ? timeline_.name : options_.title),
        StyleSheet());
    out_ += legend;
    FindTops();
    for (size_t r = 0; r < timeline_.ranks.size(); ++r)
      Row(r);
    Axis(kTop + rows);
    for (size_t i = 0; i < options_.notes.size(); ++i) {
      out_ +=
          fmt::format("<text class=\"s\" x=\"8\" y=\"{:.1f}\">{}</text>\n",
                      bottom + 20 + 15 * static_cast<double>(i), EscapeMarkup(options_.notes[i]));
    }
    Chart(notes_end);
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  Result<> Scale() {
    std::vector<double> durations_s;
    int64_t count = 0;
    size_t label = 1;
    for (const RankTimeline& rank : timeline_.ranks) {
      for (const Slice& slice : rank.slices) {
        if (!Visible(slice))
          continue;
        ++count;
        used_ |= uint32_t{1} << static_cast<int>(slice.action.kind);
        label = std::max(label, NumberOf(slice).size());
        const double duration_s = slice.end_s - slice.start_s;
        if (duration_s > 1e-6 * (to_s_ - from_s_) && IsWork(slice.action.kind))
          durations_s.push_back(duration_s);
      }
    }
    if (count > kMostSlices) {
      return MakeError(
          ErrorCode::kInvalidArgument,
          "[trace.svg] {} actions, wanted at most {}: draw a part with --from and --to", count,
          kMostSlices);
    }
    const double shortest_s = ShortCell(durations_s, to_s_ - from_s_);
    // As wide as the longest number wants, within reason.
    const double cell =
        std::max(options_.cell_width, std::min(kMostCell, kDigit * static_cast<double>(label) + 3));
    width_ = std::max(1.0, cell) * (to_s_ - from_s_) / shortest_s;
    width_ = std::min(width_, kMostWidth);
    per_s_ = width_ / (to_s_ - from_s_);
    return {};
  }

  bool Visible(const Slice& slice) const {
    return slice.end_s > from_s_ && slice.start_s < to_s_ && slice.end_s > slice.start_s;
  }

  double X(double at_s) const {
    return kLeft + (std::clamp(at_s, from_s_, to_s_) - from_s_) * per_s_;
  }

  // Says what shades of a colour are; "" where there is one.
  std::string_view ShadeMeaning() const {
    if (schedule_ == nullptr)
      return "";
    if (schedule_->placement.num_directions() > 1)
      return "other shade: second copy";
    return schedule_->chunks() > 1 ? "other shades: later chunks" : "";
  }

  std::string Legend() {
    std::string out;
    double x = kLeft;
    auto entry = [&](std::string_view mark, double mark_width, std::string_view text) {
      out += fmt::format("<{} x=\"{:.1f}\"/><text class=\"s\" x=\"{:.1f}\" y=\"36\">{}</text>\n",
                         mark, x, x + mark_width + 4, text);
      x += mark_width + 4 + kSmallLetter * static_cast<double>(text.size()) + 10;
    };
    for (const KindStyle& style : kStyles) {
      if ((used_ >> static_cast<int>(style.kind) & 1) != 0) {
        entry(fmt::format(R"(rect class="{}0" y="27" width="11" height="11")", style.css), 11,
              style.meaning);
      }
    }
    entry(R"x(rect fill="url(#idle)" y="27" width="11" height="11")x", 11, "idle");
    if (options_.memory)
      entry(R"x(rect class="curve" y="31" width="14" height="7")x", 14, "saved activations");
    if (const std::string_view shades = ShadeMeaning(); !shades.empty()) {
      out += fmt::format("<text class=\"s\" x=\"{:.1f}\" y=\"36\">{}</text>\n", x, shades);
      x += kSmallLetter * static_cast<double>(shades.size()) + 10;
    }
    legend_end_ = x - 10;
    return out;
  }

  const Counter* ActivationsOf(const RankTimeline& rank) const {
    for (const Counter& counter : rank.counters) {
      if (counter.name == "activations")
        return &counter;
    }
    return nullptr;
  }

  void FindTops() {
    for (const RankTimeline& rank : timeline_.ranks) {
      if (const Counter* counter = ActivationsOf(rank)) {
        for (const Counter::Sample& sample : counter->samples)
          top_ = std::max(top_, sample.value);
      }
    }
  }

  void Row(size_t r) {
    const RankTimeline& rank = timeline_.ranks[r];
    const double y = kTop + row_step_ * static_cast<double>(r);
    out_ += fmt::format(
        "<text class=\"r\" x=\"{:.0f}\" y=\"{:.1f}\">{}</text>\n"
        "<rect fill=\"url(#idle)\" x=\"{:.0f}\" y=\"{:.1f}\" width=\"{:.2f}\" "
        "height=\"{:.0f}\"/>\n",
        kLeft - 8, y + 15, EscapeMarkup(rank.name.empty() ? fmt::format("rank {}", r) : rank.name),
        kLeft, y, width_, kRowHeight);
    for (const Slice& slice : rank.slices) {
      if (Visible(slice))
        Cell(slice, y);
    }
    if (options_.memory)
      Curve(rank, y + kRowHeight + 1);
  }

  void Cell(const Slice& slice, double y) {
    const double x = X(slice.start_s);
    const double w = X(slice.end_s) - x;
    const KindStyle* style = StyleOf(slice.action.kind);
    const int shade = std::min(ShadeOf(slice, schedule_), kShades - 1);
    const std::string css = style == nullptr ? "x" : fmt::format("{}{}", style->css, shade);
    const double gap = w > 6 ? 0.8 : 0;
    out_ += fmt::format(
        R"(<rect class="{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>)", css,
        Short(x), Short(y), Short(std::max(0.3, w - gap)), kRowHeight, EscapeMarkup(TextOf(slice)));
    out_ += Number(slice, css, x, y, w - gap) + "\n";
  }

  std::string TextOf(const Slice& slice) const {
    return schedule_ == nullptr ? schedule::ActionText(slice.action)
                                : schedule::ActionText(slice.action, schedule_->edges);
  }

  std::string NumberOf(const Slice& slice) const {
    if (!slice.action.micro_batch.valid())
      return "";
    std::string text = fmt::format("{}", slice.action.micro_batch.value());
    if (schedule_ != nullptr && schedule_->slices > 1)
      text += fmt::format(".{}", slice.action.slice);
    return text;
  }

  // The micro-batch, where there is room.
  std::string Number(const Slice& slice, const std::string& css, double x, double y,
                     double width) const {
    const std::string text = NumberOf(slice);
    if (text.empty() || width < kDigit * static_cast<double>(text.size()) + 1.5)
      return "";
    return fmt::format(R"(<text class="n n{}" x="{}" y="{}">{}</text>)", css, Short(x + width / 2),
                       Short(y + 14.5), text);
  }

  void Curve(const RankTimeline& rank, double y) {
    const Counter* counter = ActivationsOf(rank);
    if (counter == nullptr || top_ <= 0)
      return;
    const double base = y + kCurveHeight - 1;
    const double scale = (kCurveHeight - 3) / top_;
    const auto& samples = counter->samples;
    auto sample = std::find_if(samples.begin(), samples.end(),
                               [this](const auto& one) { return one.at_s > from_s_; });
    double value = sample == samples.begin() ? 0 : std::prev(sample)->value;
    double peak = value;
    std::string path =
        fmt::format("M{0:.2f} {1:.1f}L{0:.2f} {2:.1f}", X(from_s_), base, base - value * scale);
    for (; sample != samples.end() && sample->at_s <= to_s_; ++sample) {
      path += fmt::format("L{0:.2f} {1:.1f}L{0:.2f} {2:.1f}", X(sample->at_s), base - value * scale,
                          base - sample->value * scale);
      value = sample->value;
      peak = std::max(peak, value);
    }
    path += fmt::format("L{0:.2f} {1:.1f}L{0:.2f} {2:.1f}Z", X(to_s_), base - value * scale, base);
    const std::string label =
        counter->unit == "bytes" ? FormatBytes(peak) : fmt::format("{:.4g} M", peak);
    out_ += fmt::format(
        "<path class=\"curve\" d=\"{}\"/><text class=\"s\" x=\"{:.1f}\" y=\"{:.1f}\">"
        "{}</text>\n",
        path, kLeft + width_ + 5, base - 1, label);
  }

  void Axis(double y) {
    const double span_s = to_s_ - from_s_;
    const double most_marks = std::clamp(width_ / 70, 1.0, 40.0);
    double step_s = std::pow(10, std::floor(std::log10(span_s / most_marks)));
    for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
      if (span_s / (step_s * factor) <= most_marks) {
        step_s *= factor;
        break;
      }
    }
    out_ += fmt::format(
        "<line class=\"axis\" x1=\"{0:.0f}\" y1=\"{1:.1f}\" x2=\"{2:.2f}\" y2=\"{1:.1f}\"/>\n",
        kLeft, y, kLeft + width_);
    for (double at_s = std::ceil((from_s_ - timeline_.begin_s) / step_s) * step_s;
         at_s <= to_s_ - timeline_.begin_s + 1e-9 * span_s; at_s += step_s) {
      const double x = X(timeline_.begin_s + at_s);
      out_ += fmt::format(
          "<line class=\"axis\" x1=\"{0:.2f}\" y1=\"{1:.1f}\" x2=\"{0:.2f}\" y2=\"{2:.1f}\"/>"
          "<text class=\"s n\" x=\"{0:.2f}\" y=\"{3:.1f}\">{4}</text>\n",
          x, y, y + 4, y + 14, AxisSeconds(at_s));
    }
  }

  bool HoldsValues() const {
    return std::any_of(options_.held_per_rank.begin(), options_.held_per_rank.end(),
                       [](int64_t bytes) { return bytes > 0; });
  }

  double ChartHeight() const {
    if (options_.hops.empty()) {
      return 0;
    }
    const size_t hops = std::min(options_.hops.size(), kMostHops);
    const size_t ranks = HoldsValues() ? std::min(options_.held_per_rank.size(), kMostHops) : 0;
    return 24 + 2 * kHopRow * static_cast<double>(hops) +
           (ranks == 0 ? 0 : 20 + kHopRow * static_cast<double>(ranks));
  }

  // One bar with its figure; `most` is the longest bar's.
  void Bar(double y, const char* css, int64_t bytes, int64_t most) {
    const double width =
        most > 0 ? kHopBar * static_cast<double>(bytes) / static_cast<double>(most) : 0;
    out_ += fmt::format(
        "<rect class=\"{}\" x=\"170\" y=\"{:.1f}\" width=\"{}\" height=\"{:.0f}\"/>"
        "<text class=\"s\" x=\"{}\" y=\"{:.1f}\"{}>{}</text>\n",
        css, y, Short(std::max(0.5, width)), kHopRow - 3, Short(176 + width), y + 8.5,
        bytes == most ? " font-weight=\"bold\"" : "", FormatBytes(static_cast<double>(bytes)));
  }

  void Chart(double y) {
    if (options_.hops.empty()) {
      return;
    }
    std::vector<size_t> shown(options_.hops.size());
    std::iota(shown.begin(), shown.end(), size_t{0});
    int64_t most = 0;
    for (const HopBytes& hop : options_.hops) {
      most = std::max({most, hop.forward, hop.backward});
    }
    if (shown.size() > kMostHops) {
      std::stable_sort(shown.begin(), shown.end(), [this](size_t a, size_t b) {
        const HopBytes& x = options_.hops[a];
        const HopBytes& z = options_.hops[b];
        return std::max(x.forward, x.backward) > std::max(z.forward, z.backward);
      });
      shown.resize(kMostHops);
      std::sort(shown.begin(), shown.end());
    }
    out_ += fmt::format(
        "<text class=\"s\" x=\"8\" y=\"{:.1f}\">bytes per hop of one micro-batch, forward and "
        "backward{}</text>\n",
        y + 10,
        shown.size() < options_.hops.size()
            ? fmt::format(" (the fullest {} of {})", shown.size(), options_.hops.size())
            : "");
    y += 20;
    for (const size_t i : shown) {
      const HopBytes& hop = options_.hops[i];
      out_ += fmt::format("<text class=\"s\" x=\"8\" y=\"{:.1f}\">{}</text>\n", y + 8.5,
                          EscapeMarkup(hop.name));
      Bar(y, "F0", hop.forward, most);
      Bar(y + kHopRow - 2, "B0", hop.backward, most);
      y += 2 * kHopRow;
    }
    if (HoldsValues()) {
      HeldValues(y);
    }
  }

  void HeldValues(double y) {
    const int64_t most =
        *std::max_element(options_.held_per_rank.begin(), options_.held_per_rank.end());
    out_ += fmt::format(
        "<text class=\"s\" x=\"8\" y=\"{:.1f}\">most bytes of earlier layers' values held at "
        "once</text>\n",
        y + 10);
    y += 18;
    for (size_t r = 0; r < std::min(options_.held_per_rank.size(), kMostHops); ++r) {
      out_ += fmt::format("<text class=\"s\" x=\"8\" y=\"{:.1f}\">rank {}</text>\n", y + 8.5, r);
      Bar(y, "curve", options_.held_per_rank[r], most);
      y += kHopRow;
    }
  }

  const Timeline& timeline_;
  const Schedule* schedule_;
  const SvgOptions& options_;
  std::string out_;
  double from_s_ = 0;
  double to_s_ = 0;
  double width_ = 0;
  double per_s_ = 1;
  double row_step_ = 0;
  double top_ = 0;
  double legend_end_ = 0;
  uint32_t used_ = 0;
};

}  // namespace

Result<std::string> Svg(const Timeline& timeline, const Schedule* schedule,
                        const SvgOptions& options) {
  return SvgDrawer(timeline, schedule, options).Draw();
}

}  // namespace penstock::trace
