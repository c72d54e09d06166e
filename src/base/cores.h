// How many cores this process may use, for whoever shares them out or decides whether waiting may
// spin.

#pragma once

namespace penstock {

// Cores in the affinity mask of the calling thread, at most what the control group grants (rounded
// up), at least 1. Reads system files: some microseconds. Thread-safe.
int UsableCores();

}  // namespace penstock
