#include "base/progress.h"

#include <utility>

namespace penstock {
namespace {

thread_local std::function<void()>* innermost = nullptr;

}  // namespace

void Progress() {
  if (innermost != nullptr) {
    (*innermost)();
  }
}

ProgressScope::ProgressScope(std::function<void()> heard)
    : heard_(std::move(heard)), outer_(std::exchange(innermost, &heard_)) {}

ProgressScope::~ProgressScope() {
  innermost = outer_;
}

}  // namespace penstock
