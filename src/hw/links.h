// Seconds of messages and collectives over the links of a system.
//
// A group is `devices` of them, `stride` apart: tensor-parallel ranks are neighbours (stride 1),
// data-parallel ranks stand tp x pp apart. It uses the innermost level that joins all of them;
// where a group spans several levels with more than one device in each inner domain, collectives go
// level by level.
//
// Formulas: ring, (n-1)/n of the bytes over the bandwidth (Thakur, Rabenseifner, Gropp 2005); the
// latency grows with the logarithm of n, as measured with NCCL on A100 and H100.

#pragma once

#include "hw/system.h"

namespace penstock::hw {

struct Group {
  int64_t devices = 1;
  int64_t stride = 1;

  // Devices between the first and the last, both counted.
  int64_t extent() const { return (devices - 1) * stride + 1; }
};

// One message of `bytes` between two devices that are `distance` apart. 0 for distance 0.
double MessageSeconds(const System& system, int64_t distance, double bytes);

// Every device ends with the sum of all copies of `bytes`. 0 for one device.
double AllReduceSeconds(const System& system, const Group& group, double bytes);

// Every device ends with all parts; `bytes` is the whole. Also the time of a reduce-scatter.
double AllGatherSeconds(const System& system, const Group& group, double bytes);

// Every device sends `bytes` in all, an equal share to each (its own stays). 0 for one device.
double AllToAllSeconds(const System& system, const Group& group, double bytes);

}  // namespace penstock::hw
