#include "plan/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/markup.h"

namespace penstock::plan {
namespace {

constexpr double kWidth = 640;
constexpr double kHeight = 340;
constexpr double kLeft = 78;
constexpr double kRight = 16;
constexpr double kTop = 16;
constexpr double kBottom = 74;

std::string Open(const std::string& title, const std::string& kind) {
  return fmt::format(
      "<figure data-plot=\"{}\"><figcaption>{}</figcaption><svg viewBox=\"0 0 {} {}\" role=\"img\" "
      "aria-label=\"{}\">",
      kind, EscapeMarkup(title), kWidth, kHeight, EscapeMarkup(title));
}

std::string Text(double x, double y, const char* anchor, const std::string& text,
                 const char* css = "t") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\" text-anchor=\"{}\">{}</text>", x,
                     y, css, anchor, EscapeMarkup(text));
}

std::string Rule(double x1, double y1, double x2, double y2, const char* css) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>",
                     x1, y1, x2, y2, css);
}

std::string Legend(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string out;
  double x = kLeft;
  for (const auto& [css, name] : entries) {
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"10\" height=\"10\" class=\"{}\"/>",
                       x, kHeight - 18, css);
    out += Text(x + 15, kHeight - 9, "start", name);
    x += 26 + 6.6 * static_cast<double>(name.size());
  }
  return out;
}

// 1, 2 or 5 times a power of ten, at least `value` / 5.
double NiceStep(double value) {
  const double power = std::pow(10, std::floor(std::log10(std::max(value, 1e-300) / 5)));
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    if (power * factor * 5 >= value) {
      return power * factor;
    }
  }
  return power * 10;
}

struct LogAxis {
  double low = 1;
  double high = 10;
  double from = 0;
  double to = 1;

  double At(double value) const {
    const double share = std::log(std::max(value, low) / low) / std::log(high / low);
    return from + (to - from) * std::clamp(share, 0.0, 1.0);
  }
};

LogAxis MakeAxis(double low, double high, double from, double to) {
  if (!(low > 0) || !(high > 0)) {
    low = 1;
    high = 10;
  }
  return {low / 1.15, std::max(high * 1.15, low * 1.5), from, to};
}

// 1, 2 and 5 of each decade where there are few, else decades.
std::vector<double> LogTicks(const LogAxis& axis) {
  std::vector<double> ticks;
  const double decades = std::log10(axis.high / axis.low);
  const std::vector<double> factors = decades > 3 ? std::vector<double>{1}
                                      : decades > 1
                                          ? std::vector<double>{1, 2, 5}
                                          : std::vector<double>{1, 1.5, 2, 2.5, 3, 4, 5, 6, 8};
  for (double power = std::pow(10, std::floor(std::log10(axis.low))); power <= axis.high;
       power *= 10) {
    for (const double factor : factors) {
      const double tick = power * factor;
      if (tick >= axis.low && tick <= axis.high) {
        ticks.push_back(tick);
      }
    }
  }
  return ticks;
}

std::string LogFrame(const LogAxis& x, const LogAxis& y, const std::string& x_title,
                     const std::string& y_title, const Format& format_x, const Format& format_y) {
  std::string out;
  for (const double tick : LogTicks(x)) {
    out += Rule(x.At(tick), kTop, x.At(tick), kHeight - kBottom, "g");
    out += Text(x.At(tick), kHeight - kBottom + 15, "middle", format_x(tick));
  }
  for (const double tick : LogTicks(y)) {
    out += Rule(kLeft, y.At(tick), kWidth - kRight, y.At(tick), "g");
    out += Text(kLeft - 6, y.At(tick) + 4, "end", format_y(tick));
  }
  out += Text((kLeft + kWidth - kRight) / 2, kHeight - kBottom + 34, "middle", x_title);
  out += fmt::format(
      "<text class=\"t\" text-anchor=\"middle\" transform=\"translate(14 {:.1f}) rotate(-90)\">{}"
      "</text>",
      (kTop + kHeight - kBottom) / 2, EscapeMarkup(y_title));
  return out;
}

}  // namespace

std::string DrawStackedBars(const StackedBars& plot) {
  std::vector<double> totals(plot.labels.size(), 0);
  for (const Series& s : plot.series) {
    for (size_t i = 0; i < totals.size(); ++i) {
      totals[i] += s.values[i];
    }
  }
  double most = plot.limit;
  for (const double t : totals) {
    most = std::max(most, t);
  }
  most = std::max(most * 1.05, 1e-30);
  const double height = kHeight - kTop - kBottom;
  const auto y_at = [&](double v) { return kTop + height * (1 - v / most); };
  std::string out = Open(plot.title, "memory");
  for (double tick = 0; tick <= most; tick += NiceStep(most)) {
    out += Rule(kLeft, y_at(tick), kWidth - kRight, y_at(tick), "g");
    out += Text(kLeft - 6, y_at(tick) + 4, "end", plot.format(tick));
  }
  const double slot = (kWidth - kLeft - kRight) / static_cast<double>(plot.labels.size());
  for (size_t i = 0; i < plot.labels.size(); ++i) {
    const double x = kLeft + slot * (static_cast<double>(i) + 0.2);
    double base = 0;
    for (const Series& s : plot.series) {
      if (s.values[i] > 0) {
        out += fmt::format(
            "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.2f}\" "
            "class=\"{}\"><title>{}, "
            "{}: {}</title></rect>",
            x, y_at(base + s.values[i]), slot * 0.6, y_at(base) - y_at(base + s.values[i]),
            s.css_class, EscapeMarkup(plot.labels[i]), EscapeMarkup(s.name),
            plot.format(s.values[i]));
      }
      base += s.values[i];
    }
    out += Text(x + slot * 0.3, kHeight - kBottom + 15, "middle", plot.labels[i]);
  }
  if (plot.limit > 0) {
    out += Rule(kLeft, y_at(plot.limit), kWidth - kRight, y_at(plot.limit), "limit");
    out += Text(kWidth - kRight - 4, y_at(plot.limit) - 5, "end", plot.limit_name, "t strong");
  }
  out += Text((kLeft + kWidth - kRight) / 2, kHeight - kBottom + 34, "middle", plot.x_title);
  std::vector<std::pair<std::string, std::string>> legend;
  for (const Series& s : plot.series) {
    legend.emplace_back(s.css_class, s.name);
  }
  return out + Legend(legend) + "</svg></figure>\n";
}

std::string DrawLines(const LinePlot& plot) {
  double x_low = 1e300, x_high = 0, y_low = 1e300, y_high = 0;
  for (const Line& line : plot.lines) {
    for (size_t i = 0; i < line.x.size(); ++i) {
      x_low = std::min(x_low, line.x[i]);
      x_high = std::max(x_high, line.x[i]);
      if (line.y[i] > 0) {
        y_low = std::min(y_low, line.y[i]);
        y_high = std::max(y_high, line.y[i]);
      }
    }
  }
  y_low = std::max(y_low, y_high * 1e-4);
  const LogAxis x = MakeAxis(x_low, x_high, kLeft, kWidth - kRight);
  const LogAxis y = MakeAxis(y_low, y_high, kHeight - kBottom, kTop);
  std::string out = Open(plot.title, "step") +
                    LogFrame(x, y, plot.x_title, plot.y_title, plot.format_x, plot.format_y);
  if (plot.mark_x > 0) {
    out += Rule(x.At(plot.mark_x), kTop, x.At(plot.mark_x), kHeight - kBottom, "limit");
    out += Text(x.At(plot.mark_x) - 4, kTop + 12, "end", plot.mark_name, "t strong");
  }
  std::vector<std::pair<std::string, std::string>> legend;
  for (const Line& line : plot.lines) {
    std::string path;
    for (size_t i = 0; i < line.x.size(); ++i) {
      if (line.y[i] > 0) {
        path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x.At(line.x[i]),
                            y.At(line.y[i]));
      }
    }
    out += fmt::format("<path d=\"{}\" class=\"line {}\"/>", path, line.css_class);
    legend.emplace_back(line.css_class, line.name);
  }
  return out + Legend(legend) + "</svg></figure>\n";
}

std::string DrawPoints(const PointPlot& plot) {
  double x_low = 1e300, x_high = 0, y_low = 1e300, y_high = 0;
  for (const Point& p : plot.points) {
    x_low = std::min(x_low, p.x);
    x_high = std::max(x_high, p.x);
    y_low = std::min(y_low, p.y);
    y_high = std::max(y_high, p.y);
  }
  const LogAxis x = MakeAxis(x_low, x_high, kLeft, kWidth - kRight);
  const LogAxis y = MakeAxis(y_low, y_high, kHeight - kBottom, kTop);
  std::string out = Open(plot.title, "pareto") +
                    LogFrame(x, y, plot.x_title, plot.y_title, plot.format_x, plot.format_y);
  for (const Point& p : plot.points) {
    out += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" class=\"{}{}\"><title>{}</title></circle>",
        x.At(p.x), y.At(p.y), p.best ? 7 : 4, p.css_class, p.best ? " best" : "",
        EscapeMarkup(p.label));
  }
  return out + Legend(plot.legend) + "</svg></figure>\n";
}

}  // namespace penstock::plan
