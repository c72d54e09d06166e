// Runs the built binary as a user does, for tests of whole commands.

#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::testing {

// What a command did. `status` is its exit status, 128 + N when signal N ended it.
struct Finished {
  int status = -1;
  std::string out;  // standard output
  std::string err;  // standard error
};

// A fresh folder under the system's temporary one, removed with all that it holds.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A command that runs beside the test. Destroying it kills the command if it still runs.
class Running {
 public:
  // The first word of `command` is found in PATH unless it has a slash; no shell. Extra environment
  // is "NAME=value" each.
  explicit Running(const std::vector<std::string>& command, const std::string& input = "",
                   const std::vector<std::string>& environment = {});
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  pid_t pid() const { return pid_; }

  // Processes that it started and that still run.
  std::vector<pid_t> Children() const;

  void Signal(int signal) const;

  // What it has printed so far.
  std::string Output() const;
  std::string Errors() const;

  // True once at least `bytes` are on its standard output; false when that took longer, or it ended
  // with less.
  bool WaitForOutput(size_t bytes, double seconds);

  // Waits for its end at most so long; nothing if it still runs.
  std::optional<Finished> Wait(double seconds);

 private:
  bool Poll();

  TemporaryFolder work_;  // output goes through files, so that a large one never blocks the child
  pid_t pid_ = -1;
  std::optional<int> status_;
};

// Runs `command` and waits for its end.
Finished RunCommand(const std::vector<std::string>& command, const std::string& input = "",
                    const std::vector<std::string>& environment = {});

// RunCommand with this build's `penstock` in front.
Finished RunPenstock(std::vector<std::string> arguments, const std::string& input = "",
                     const std::vector<std::string>& environment = {});

// `arguments` behind this build's `penstock`; with `ranks` > 0 under mpirun.
std::vector<std::string> PenstockCommand(const std::vector<std::string>& arguments, int ranks = 0);

// The path of this build's `penstock`.
std::string PenstockPath();

// The command in one line, for messages.
std::string Describe(const std::vector<std::string>& command);

}  // namespace penstock::testing
