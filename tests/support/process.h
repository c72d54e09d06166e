// Runs the built binary as a user does, for tests of whole commands.

#pragma once

#include <string>
#include <vector>

namespace penstock::testing {

// What a command did. `status` is its exit status, 128 + N when signal N ended it.
struct Finished {
  int status = -1;
  std::string out;  // standard output
  std::string err;  // standard error
};

// Runs `command` (the first word is found in PATH unless it has a slash) without a shell, with
// `input` as its standard input, and waits for its end. Extra environment is "NAME=value" each.
Finished RunCommand(const std::vector<std::string>& command, const std::string& input = "",
                    const std::vector<std::string>& environment = {});

// RunCommand with this build's `penstock` in front.
Finished RunPenstock(std::vector<std::string> arguments, const std::string& input = "",
                     const std::vector<std::string>& environment = {});

// The path of this build's `penstock`.
std::string PenstockPath();

// The command in one line, for messages.
std::string Describe(const std::vector<std::string>& command);

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

}  // namespace penstock::testing
