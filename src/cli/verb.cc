#include "cli/verb.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/json.h"
#include "text/utf8.h"

namespace penstock::cli {
namespace {

bool Colour(int fd) {
  const char* term = std::getenv("TERM");
  return ::isatty(fd) != 0 && std::getenv("NO_COLOR") == nullptr && term != nullptr &&
         std::string_view(term) != "dumb";
}

}  // namespace

void AddCommonFlags(Verb& verb, CommonFlags& flags) {
  verb.Heading(kGeneralHeading);
  verb.AddFlag("--json", flags.json,
               "Print one JSON object on standard output, nothing else there");
  verb.Heading(kFlagsHeading);
  verb.VersionFlag("penstock " PENSTOCK_VERSION);
}

std::string TerminalText(std::string_view text) {
  std::string out;
  const std::string whole = text::ReplaceIllFormed(text);
  for (size_t at = 0; at < whole.size();) {
    const size_t start = at;
    const char32_t c = text::NextCodePoint(whole, at);
    const bool control = (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0);
    if (control) {
      out += '?';
    } else {
      out.append(whole, start, at - start);
    }
  }
  return out;
}

int Fail(const Verb& verb, const Error& error) {
  std::fflush(stdout);
  fmt::print(stderr, "penstock {}: {}\n", verb.name(), TerminalText(error.message));
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
  if (const char* columns = std::getenv("COLUMNS"); columns != nullptr) {
    if (const int width = std::atoi(columns); width >= 20 && width <= 1000) {
      return width;
    }
  }
  return 100;
}

}  // namespace penstock::cli
