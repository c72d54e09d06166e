// The steps of a training run one by one.

#pragma once

#include <vector>

#include "trace/timeline.h"

namespace penstock::trace {

// One timeline per optimizer step, ascending: its slices, the waits before each of them, its
// messages. Its window is from its first start to its last end on any rank. Empty for a timeline
// without backward actions (those of serving lie over each other). O(slices).
std::vector<Timeline> StepsOf(const Timeline& timeline);

// The step in the middle by length (of two the shorter one). REQUIRES: some.
const Timeline& MedianStep(const std::vector<Timeline>& steps);

// The number that the slices of one step carry; 0 without slices.
int StepNumber(const Timeline& step);

}  // namespace penstock::trace
