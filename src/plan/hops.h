// What crosses between the stages of a layout, when more than the hidden vector does.

#pragma once

#include <functional>
#include <vector>

#include "cost/cost_model.h"
#include "plan/context.h"
#include "schedule/schedule.h"

namespace penstock::plan {

// In elements per row. Entry s is of the hop from stage s - 1 to stage s; 0 for s = 0 and between
// stages of one rank.
struct HopWidths {
  std::vector<double> forward;   // what the receiving rank lacks and reads
  std::vector<double> backward;  // gradients of all that crosses: they travel with the chain
  // By rank: what reads of the rank's stages need of earlier layers' values (attention residuals),
  // kept for each micro-batch in flight, each once.
  std::vector<double> kept;

  double largest() const;
};

// In training: each rank gets a value once, from the stage that read it last. In inference every
// boundary hands on all that crosses it. REQUIRES: layout.cut is set.
HopWidths HopsOf(const cost::ModelProfile& model, const Layout& layout, Mode mode);

// The values that this cut hands to stages beyond the next one, or to several, as edges of a
// schedule: those that training adds by itself. `rows` of one micro-batch, 16 bits a number.
// REQUIRES: layout.cut is set.
std::vector<schedule::Edge> EdgesOf(const cost::ModelProfile& model, const Layout& layout,
                                    double rows);

// The same layers with a residual of one vector: what a pipeline would send then. Times and
// parameters of the layers stay as they are.
cost::ModelProfile WithPlainResidual(const cost::ModelProfile& model);

// Between neighbours of the pipeline: the share of messages of up to `bytes` that nothing hides.
cost::LinkCost HopLink(const Context& context, const Layout& layout, double bytes);

// Bytes that cross each boundary per row, at 16 bits; empty where all boundaries are alike.
std::vector<double> CrossingBytes(const cost::ModelProfile& model);

// The plan cut again and priced by `price`, or as it was where that refuses it or all boundaries
// are alike.
void Recut(const cost::ModelProfile& model, Plan& plan, const std::function<bool(Plan&)>& price);

}  // namespace penstock::plan
