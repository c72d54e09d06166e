#include "base/log.h"

#include <mutex>

namespace penstock {
namespace {

struct SinkState {
  std::mutex mutex;
  LogSink sink;
};

SinkState& State() {
  static SinkState state;
  return state;
}

}  // namespace

void SetLogSink(LogSink sink) {
  SinkState& state = State();
  const std::lock_guard lock(state.mutex);
  state.sink = std::move(sink);
}

void LogMessage(LogLevel level, const std::string& message) {
  SinkState& state = State();
  const std::lock_guard lock(state.mutex);
  if (state.sink) {
    state.sink(level, message);
  }
}

}  // namespace penstock
