// Messages beside the result: notes, warnings and progress. Libraries hand them to a sink; only
// cli/ installs one that prints.

#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>

namespace penstock {

enum class LogLevel { kDebug, kNote, kWarning };

using LogSink = std::function<void(LogLevel, const std::string&)>;

// Replaces the sink (default: nothing). Thread-safe; the sink is called under a lock.
void SetLogSink(LogSink sink);

void LogMessage(LogLevel level, const std::string& message);

template <class... Args>
void LogNote(fmt::format_string<Args...> format, Args&&... args) {
  LogMessage(LogLevel::kNote, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  LogMessage(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace penstock
