// One self-contained page: the verdict and its plots as SVG of our own, light and dark, without
// network or scripts.

#pragma once

#include <string>

#include "plan/report.h"

namespace penstock::plan {

// Under 2 MB. Every number of the plots is priced as the plans are. Elements that tests read carry
// data attributes: data-verdict, data-capacity-bytes, data-stages.
std::string AnswerHtml(const Context& context, const Answer& answer);

}  // namespace penstock::plan
