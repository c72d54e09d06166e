#include "support/process.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace penstock::testing {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void Redirect(const std::string& path, int flags, int descriptor) {
  const int file = open(path.c_str(), flags, 0600);
  if (file < 0 || dup2(file, descriptor) < 0) {
    _exit(127);
  }
  close(file);
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "penstock-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    std::abort();
  }
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Finished RunCommand(const std::vector<std::string>& command, const std::string& input,
                    const std::vector<std::string>& environment) {
  // Through files, so that a large output never blocks the child.
  const TemporaryFolder work;
  const std::string in = work.path() + "/in";
  const std::string out = work.path() + "/out";
  const std::string err = work.path() + "/err";
  std::ofstream(in, std::ios::binary) << input;
  std::vector<char*> arguments;
  for (const std::string& word : command) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    Redirect(in, O_RDONLY, STDIN_FILENO);
    Redirect(out, O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO);
    Redirect(err, O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
    for (const std::string& entry : environment) {
      putenv(const_cast<char*>(entry.c_str()));
    }
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  Finished done;
  done.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  done.out = ReadAll(out);
  done.err = ReadAll(err);
  return done;
}

std::string PenstockPath() {
  return std::string(PENSTOCK_BINARY_DIR) + "/penstock";
}

Finished RunPenstock(std::vector<std::string> arguments, const std::string& input,
                     const std::vector<std::string>& environment) {
  arguments.insert(arguments.begin(), PenstockPath());
  return RunCommand(arguments, input, environment);
}

std::string Describe(const std::vector<std::string>& command) {
  std::string line;
  for (const std::string& word : command) {
    line += line.empty() ? word : " " + word;
  }
  return line;
}

}  // namespace penstock::testing
