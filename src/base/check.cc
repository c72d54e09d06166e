#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace penstock {

void CheckFailed(const char* file, int line, const char* condition, const char* message) {
  std::fprintf(stderr, "penstock: internal check failed: %s (%s) at %s:%d\n", message, condition,
               file, line);
  std::abort();
}

}  // namespace penstock
