#include "hw/curve.h"

#include <algorithm>
#include <cmath>

namespace penstock::hw {

Result<Curve> Curve::Make(std::vector<CurvePoint> points, Scale scale, const std::string& where) {
  if (points.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "[hw.curve] {}: no points, wanted one at least",
                     where);
  }
  for (size_t i = 0; i < points.size(); ++i) {
    const bool ascending = i == 0 || points[i].x > points[i - 1].x;
    if (!ascending || (scale == Scale::kLogX && points[i].x <= 0)) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[hw.curve] {}: point {} at {}, wanted positive and ascending places", where,
                       i + 1, points[i].x);
    }
  }
  Curve curve;
  curve.points_ = std::move(points);
  curve.scale_ = scale;
  return curve;
}

double Curve::At(double x) const {
  PENSTOCK_DCHECK(!points_.empty(), "a curve without points has no value");
  if (x <= points_.front().x || points_.size() == 1) {
    return points_.front().y;
  }
  auto right = std::upper_bound(points_.begin(), points_.end(), x,
                                [](double value, const CurvePoint& p) { return value < p.x; });
  if (right == points_.end()) {
    if (scale_ == Scale::kLogX) {
      return points_.back().y;
    }
    --right;
  }
  const CurvePoint& a = *std::prev(right);
  const CurvePoint& b = *right;
  const double share =
      scale_ == Scale::kLogX ? std::log(x / a.x) / std::log(b.x / a.x) : (x - a.x) / (b.x - a.x);
  return a.y + share * (b.y - a.y);
}

}  // namespace penstock::hw
