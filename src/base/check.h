// Checks of what the programmer promised. Never used on user input, files or the network: those
// give a Result.

#pragma once

namespace penstock {

// Prints the failed condition with its place to standard error and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const char* message);

}  // namespace penstock

// PENSTOCK_CHECK(condition, "why it must hold"): always active.
#define PENSTOCK_CHECK(condition, message)                              \
  do {                                                                  \
    if (!(condition)) [[unlikely]] {                                    \
      ::penstock::CheckFailed(__FILE__, __LINE__, #condition, message); \
    }                                                                   \
  } while (false)

// As PENSTOCK_CHECK in the presets dev, asan and tsan; nothing in release.
#ifdef PENSTOCK_CHECKS
#define PENSTOCK_DCHECK(condition, message) PENSTOCK_CHECK(condition, message)
#else
#define PENSTOCK_DCHECK(condition, message) \
  do {                                      \
  } while (false && (condition))
#endif
