#include "cli/verb.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/json.h"

namespace penstock::cli {
namespace {

bool Colour(int fd) {
  const char* term = std::getenv("TERM");
  return ::isatty(fd) != 0 && std::getenv("NO_COLOR") == nullptr && term != nullptr &&
         std::string_view(term) != "dumb";
}

}  // namespace

void AddCommonFlags(Verb& verb, CommonFlags& flags) {
  verb.AddFlag("--json", flags.json,
               "Print one JSON object on standard output, nothing else there");
  verb.VersionFlag("penstock " PENSTOCK_VERSION);
}

int Fail(const Verb& verb, const Error& error) {
  std::fflush(stdout);
  fmt::print(stderr, "penstock {}: {}\n", verb.name(), error.message);
  return ExitStatus(error.code);
}

void PrintJson(const Json& value) {
  const std::string text = DumpJson(value) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

bool ColourOnStdout() {
  return Colour(STDOUT_FILENO);
}

bool ColourOnStderr() {
  return Colour(STDERR_FILENO);
}

int TerminalWidth() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return size.ws_col;
  }
  return 100;
}

}  // namespace penstock::cli
