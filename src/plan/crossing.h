// What it costs a pipeline that more than one vector per token crosses its boundaries: attention
// residuals, skips, residual streams. The same layout, schedule and layers are simulated twice,
// once with what a plain residual sends; what the layers themselves take more is not counted, since
// one device pays it too.

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
  double step_s = 0;     // simulated: a step (training) or a decode lap
  double plain_s = 0;

  double slowdown() const { return plain_s > 0 ? step_s / plain_s - 1 : 0; }
};

struct CrossingCost {
  std::string what;              // "attention residuals"
  int64_t stages = 0;            // of the layout that was priced
  double largest_hop_bytes = 0;  // per token at 16 bits
  double extra_hop_bytes = 0;    // per token, over all hops, beyond a plain residual
  double held_bytes = 0;  // per token: the most that crosses a boundary beyond a plain residual
  double rank_bytes = 0;  // the most that a rank's memory holds more for it
  double plain_cut_bytes =
      0;  // per token, over all hops: what the cut by work alone would send more
  std::vector<CrossingOverLink> links;  // innermost first
};

// Nothing for a model with a plain residual, or a layout without stages.
std::optional<CrossingCost> PriceCrossing(const Context& context, const Layout& layout);

// "Attention residuals cost this pipeline 3.1 % of step time at 400 Gbit/s (InfiniBand), 0.2 %
// at 3.6 Tbit/s (NVLink): up to 57.34 kB per token and hop beyond a plain residual, and 1.2 GB more
// on a rank."
std::string CrossingText(const CrossingCost& cost);

}  // namespace penstock::plan
