// The log of a run: one JSON object per line and step.

#pragma once

#include <cstdio>
#include <string>

#include "base/json_reader.h"
#include "base/result.h"

namespace penstock::train {

class TrainLog {
 public:
  TrainLog() = default;
  ~TrainLog();
  TrainLog(const TrainLog&) = delete;
  TrainLog& operator=(const TrainLog&) = delete;

  // Keeps the lines of steps up to `step` that are there (0: none) and goes on behind them. A line
  // that cannot be read, and all behind it, is cut off. Errors: kInvalidArgument (cannot be
  // written).
  Result<> Open(const std::string& path, int64_t step);

  // Nothing without Open. Each line is on its way to the disk when it returns. Errors as Open.
  Result<> Write(const Json& line);

 private:
  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace penstock::train
