// Small plots as SVG: stacked bars, lines over logarithmic axes, points. Colours are CSS variables
// of the page.

#pragma once

#include <functional>
#include <string>
#include <vector>

namespace penstock::plan {

using Format = std::function<std::string(double)>;

struct Series {
  std::string name;
  std::string css_class;  // "s1" ... "s6"
  std::vector<double> values;
};

struct StackedBars {
  std::string title;
  std::string x_title;
  std::vector<std::string> labels;
  std::vector<Series> series;  // one value per label, bottom first
  double limit = 0;            // a line across; 0: none
  std::string limit_name;
  Format format;
};

std::string DrawStackedBars(const StackedBars& plot);

struct Line {
  std::string name;
  std::string css_class;
  std::vector<double> x, y;
};

struct LinePlot {
  std::string title;
  std::string x_title;
  std::string y_title;
  std::vector<Line> lines;  // both axes logarithmic
  double mark_x = 0;        // a vertical line; 0: none
  std::string mark_name;
  Format format_x, format_y;
};

std::string DrawLines(const LinePlot& plot);

struct Point {
  double x = 0;
  double y = 0;
  std::string css_class;
  std::string label;  // shown on hover
  bool best = false;
};

struct PointPlot {
  std::string title;
  std::string x_title;
  std::string y_title;
  std::vector<Point> points;                                // both axes logarithmic
  std::vector<std::pair<std::string, std::string>> legend;  // class, name
  Format format_x, format_y;
};

std::string DrawPoints(const PointPlot& plot);

}  // namespace penstock::plan
