// Long work says that it gets on, to whoever on this thread wants to hear: a rank whose peers wait
// for it, a line on a terminal.

#pragma once

#include <functional>

namespace penstock {

// Calls what the innermost ProgressScope of this thread was given; nothing where there is none.
// Call it every few megabytes or milliseconds.
void Progress();

// While it lives, Progress() on this thread calls `heard`.
class ProgressScope {
 public:
  explicit ProgressScope(std::function<void()> heard);
  ~ProgressScope();
  ProgressScope(const ProgressScope&) = delete;
  ProgressScope& operator=(const ProgressScope&) = delete;

 private:
  std::function<void()> heard_;
  std::function<void()>* outer_;
};

}  // namespace penstock
