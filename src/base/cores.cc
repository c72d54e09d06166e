#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

namespace penstock {
namespace {

// Cores that a control group grants (v2: cpu.max; v1: the quota files); infinity without a limit.
double ControlGroupCores() {
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  std::string quota;
  double period = 0;
  if (std::ifstream max("/sys/fs/cgroup/cpu.max"); max >> quota >> period) {
    return quota == "max" || period <= 0 ? kNoLimit : std::atof(quota.c_str()) / period;
  }
  double limit = 0;
  std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (v1_quota >> limit && v1_period >> period && limit > 0 && period > 0) {
    return limit / period;
  }
  return kNoLimit;
}

}  // namespace

int UsableCores() {
  cpu_set_t set;
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    cores = CPU_COUNT(&set);
  }
  const double granted = ControlGroupCores();
  if (granted < cores) {
    cores = static_cast<int>(std::ceil(granted));
  }
  return std::max(1, cores);
}

}  // namespace penstock
