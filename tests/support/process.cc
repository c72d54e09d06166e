#include "support/process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

namespace penstock::testing {
namespace {

using Clock = std::chrono::steady_clock;

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

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
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

Running::Running(const std::vector<std::string>& command, const std::string& input,
                 const std::vector<std::string>& environment) {
  const std::string in = work_.path() + "/in";
  const std::string out = work_.path() + "/out";
  const std::string err = work_.path() + "/err";
  std::ofstream(in, std::ios::binary) << input;
  std::vector<char*> arguments;
  for (const std::string& word : command) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    Redirect(in, O_RDONLY, STDIN_FILENO);
    Redirect(out, O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO);
    Redirect(err, O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
    for (const std::string& entry : environment) {
      putenv(const_cast<char*>(entry.c_str()));
    }
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
}

Running::~Running() {
  if (!status_ && !Poll()) {
    for (const pid_t child : Children()) {
      kill(child, SIGKILL);
    }
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

namespace {

std::vector<pid_t> ChildrenOf(pid_t parent) {
  std::vector<pid_t> children;
  const std::string tasks = "/proc/" + std::to_string(parent) + "/task";
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator(tasks, ignored)) {
    std::ifstream list(task.path() / "children");
    pid_t child = 0;
    while (list >> child) {
      children.push_back(child);
    }
  }
  return children;
}

bool IsMpirun(pid_t process) {
  std::ifstream name("/proc/" + std::to_string(process) + "/comm");
  std::string text;
  return (name >> text) && (text == "mpirun" || text == "orterun");
}

}  // namespace

std::vector<pid_t> Running::Children() const {
  std::vector<pid_t> children = ChildrenOf(pid_);
  for (const pid_t child : children) {
    if (IsMpirun(child)) {
      return ChildrenOf(child);
    }
  }
  return children;
}

void Running::Signal(int signal) const {
  if (!status_) {
    kill(pid_, signal);
  }
}

std::string Running::Output() const {
  return ReadAll(work_.path() + "/out");
}

std::string Running::Errors() const {
  return ReadAll(work_.path() + "/err");
}

bool Running::WaitForOutput(size_t bytes, double seconds) {
  const Clock::time_point start = Clock::now();
  while (true) {
    const bool ended = Poll();
    std::error_code missing;
    const auto size = std::filesystem::file_size(work_.path() + "/out", missing);
    if (!missing && size >= bytes) {
      return true;
    }
    if (ended || SecondsSince(start) > seconds) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

bool Running::Poll() {
  if (!status_) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
  }
  return status_.has_value();
}

std::optional<Finished> Running::Wait(double seconds) {
  const Clock::time_point start = Clock::now();
  while (!Poll()) {
    if (SecondsSince(start) > seconds) {
      return std::nullopt;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(SecondsSince(start) < 0.2 ? 1 : 10));
  }
  return Finished{*status_, ReadAll(work_.path() + "/out"), ReadAll(work_.path() + "/err")};
}

Finished RunCommand(const std::vector<std::string>& command, const std::string& input,
                    const std::vector<std::string>& environment) {
  Running running(command, input, environment);
  return running.Wait(1e9).value();
}

std::string PenstockPath() {
  return std::string(PENSTOCK_BINARY_DIR) + "/penstock";
}

std::vector<std::string> PenstockCommand(const std::vector<std::string>& arguments, int ranks) {
  std::vector<std::string> command;
  if (ranks > 0) {
    command = {std::string(PENSTOCK_SOURCE_DIR) + "/scripts/mpirun", "-n", std::to_string(ranks)};
  }
  command.push_back(PenstockPath());
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

Finished RunPenstock(std::vector<std::string> arguments, const std::string& input,
                     const std::vector<std::string>& environment) {
  return RunCommand(PenstockCommand(arguments), input, environment);
}

std::string Describe(const std::vector<std::string>& command) {
  std::string line;
  for (const std::string& word : command) {
    line += line.empty() ? word : " " + word;
  }
  return line;
}

}  // namespace penstock::testing
