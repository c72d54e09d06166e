// The constants whose change would turn the verdict, and the values at which they do.

#pragma once

#include <string>
#include <vector>

#include "plan/search.h"

namespace penstock::plan {

struct Sensitivity {
  std::string constant;
  std::string unit;
  double value = 0;
  double flips_at = 0;
  std::string then;  // what would be best there
};

// Of each constant the nearest value, up to 16 times either way, at which the best plan changes
// between with and without stages; nearest first. `result` must have a plan.
//
// The best layouts of `result` are priced under the changed constant; the whole search is repeated
// just before and just behind the value that this gives, and its best layouts join the others until
// both agree. After a number of layouts (seconds) constants that are left are not said.
std::vector<Sensitivity> FindSensitivity(const Context& context, const SearchOptions& options,
                                         const SearchResult& result);

// One line: "memory per device: 85.52 GB now; at 116.3 GB no pipelining (tp 8, dp 2)".
std::string SensitivityText(const Sensitivity& s);

}  // namespace penstock::plan
