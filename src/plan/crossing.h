// What it costs a pipeline that more than one vector per token crosses its boundaries: attention
// residuals, skips, residual streams. The same layout is priced with what a plain residual sends.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/context.h"

namespace penstock::plan {

// Over one level of links, as if all hops went over it.
struct CrossingOverLink {
  std::string link;
  double bandwidth = 0;  // bytes/s per device and direction
  double slowdown = 0;   // of a step (training) or a decode lap, as a share of the plain one
};

struct CrossingCost {
  std::string what;              // "attention residuals"
  int64_t stages = 0;            // of the layout that was priced
  double largest_hop_bytes = 0;  // per token at 16 bits
  double extra_hop_bytes = 0;    // per token, over all hops, beyond a plain residual
  double held_bytes = 0;         // per token: the most that a rank keeps of other ranks' values
  std::vector<CrossingOverLink> links;  // innermost first
};

// Nothing for a model with a plain residual, or a layout without stages.
std::optional<CrossingCost> PriceCrossing(const Context& context, const Layout& layout);

// "attention residuals cost this pipeline 3.1 % of step time at 400 Gbit/s (scale-out), 0.2 % at
// 3.6 Tbit/s (NVLink): up to 65.5 kB per token and hop instead of 8.2 kB."
std::string CrossingText(const CrossingCost& cost);

}  // namespace penstock::plan
