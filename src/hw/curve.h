// A measured curve: straight between its points.

#pragma once

#include <vector>

#include "base/result.h"

namespace penstock::hw {

struct CurvePoint {
  double x = 0;
  double y = 0;
};

// y over x, linear between the points, or linear over log x for efficiencies. Cheap to copy.
class Curve {
 public:
  enum class Scale { kLinear, kLogX };

  Curve() = default;

  // One value for every x.
  explicit Curve(double constant) : points_{{1, constant}} {}

  // `points` in ascending x. Errors: kInvalidArgument (none, x not ascending or not positive on a
  // logarithmic scale) naming `where`.
  static Result<Curve> Make(std::vector<CurvePoint> points, Scale scale, const std::string& where);

  bool empty() const { return points_.empty(); }

  // Value at x. Left of the first point its y; right of the last point its y on a logarithmic
  // scale, and the last piece continued on a linear one. O(log n). REQUIRES: !empty().
  double At(double x) const;

  const std::vector<CurvePoint>& points() const { return points_; }

 private:
  std::vector<CurvePoint> points_;
  Scale scale_ = Scale::kLogX;
};

}  // namespace penstock::hw
