#include "hw/links.h"

#include <algorithm>
#include <cmath>

namespace penstock::hw {
namespace {

double CollectiveLatency(const LinkLevel& level, int64_t devices) {
  if (devices < 2) {
    return 0;
  }
  return level.collective_latency_s +
         level.collective_step_latency_s * (std::log2(static_cast<double>(devices)) - 1);
}

struct Split {
  const LinkLevel* inner = nullptr;  // null: one level does it all
  int64_t inner_devices = 1;         // members in one domain of the inner level
  const LinkLevel* outer = nullptr;
  int64_t outer_devices = 1;
};

// Members that share the largest inner domain, and the level that joins the domains.
Split SplitGroup(const System& system, const Group& group) {
  Split split;
  split.outer = &system.LevelFor(group.extent());
  split.outer_devices = group.devices;
  for (const LinkLevel& level : system.links) {
    if (&level == split.outer) {
      break;
    }
    const int64_t inside = std::min(group.devices, level.span / group.stride);
    if (inside > 1 && group.devices % inside == 0) {
      split.inner = &level;
      split.inner_devices = inside;
      split.outer_devices = group.devices / inside;
    }
  }
  return split;
}

double RingSeconds(const LinkLevel& level, int64_t devices, double bytes, double rounds) {
  if (devices < 2) {
    return 0;
  }
  const auto n = static_cast<double>(devices);
  return CollectiveLatency(level, devices) +
         rounds * (n - 1) / n * bytes / (level.bandwidth * level.collective_efficiency);
}

double AllReduceOnLevel(const LinkLevel& level, int64_t devices, double bytes) {
  if (devices < 2) {
    return 0;
  }
  if (const auto it = level.all_reduce_s.find(devices); it != level.all_reduce_s.end()) {
    return it->second.At(bytes);
  }
  return RingSeconds(level, devices, bytes, 2);
}

}  // namespace

double MessageSeconds(const System& system, int64_t distance, double bytes) {
  if (distance <= 0) {
    return 0;
  }
  const LinkLevel& level = system.LevelFor(distance + 1);
  if (!level.message_s.empty()) {
    return level.message_s.At(bytes);
  }
  return level.latency_s + bytes / level.bandwidth;
}

double AllReduceSeconds(const System& system, const Group& group, double bytes) {
  if (group.devices < 2) {
    return 0;
  }
  const Split split = SplitGroup(system, group);
  if (split.inner == nullptr) {
    return AllReduceOnLevel(*split.outer, split.outer_devices, bytes);
  }
  // Reduce-scatter inside, all-reduce of each device's share between the domains, gather inside.
  return RingSeconds(*split.inner, split.inner_devices, bytes, 2) +
         AllReduceOnLevel(*split.outer, split.outer_devices,
                          bytes / static_cast<double>(split.inner_devices));
}

double AllGatherSeconds(const System& system, const Group& group, double bytes) {
  if (group.devices < 2) {
    return 0;
  }
  const Split split = SplitGroup(system, group);
  double seconds = RingSeconds(*split.outer, split.outer_devices,
                               bytes / static_cast<double>(split.inner_devices), 1);
  if (split.inner != nullptr) {
    seconds += RingSeconds(*split.inner, split.inner_devices, bytes, 1);
  }
  return seconds;
}

double AllToAllSeconds(const System& system, const Group& group, double bytes) {
  if (group.devices < 2) {
    return 0;
  }
  const Split split = SplitGroup(system, group);
  const auto n = static_cast<double>(group.devices);
  const double far = n - static_cast<double>(split.inner == nullptr ? 1 : split.inner_devices);
  const double outer =
      CollectiveLatency(*split.outer, split.outer_devices) +
      far / n * bytes / (split.outer->bandwidth * split.outer->collective_efficiency);
  if (split.inner == nullptr) {
    return outer;
  }
  // Inner and outer traffic use different links at the same time.
  const double inner = RingSeconds(*split.inner, split.inner_devices,
                                   bytes * static_cast<double>(split.inner_devices) / n, 1);
  return std::max(outer, inner);
}

}  // namespace penstock::hw
