// What would make a plan that does not fit fit: narrower weights on the same devices, or more
// devices of the same kind.

#pragma once

#include <string>
#include <vector>

#include "plan/search.h"

namespace penstock::plan {

// One sentence each, empty where nothing was found. `nearest` is the layout that came closest, from
// which the number of devices is guessed. Cost: a closed-form search per precision, and about a
// dozen, or a second's worth of layouts, for the number of devices.
std::vector<std::string> WouldFit(const Context& context, const SearchOptions& options,
                                  const Rejected& nearest);

}  // namespace penstock::plan
