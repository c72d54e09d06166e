// penstock VERB: parses the command line and hands over to one verb.

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/log.h"
#include "base/units.h"
#include "cli/verb.h"
#include "cli/verbs.h"

namespace {

void InstallLogSink() {
  penstock::SetLogSink([](penstock::LogLevel level, const std::string& message) {
    if (level == penstock::LogLevel::kDebug) {
      return;
    }
    const char* word = level == penstock::LogLevel::kWarning ? "warning: " : "";
    fmt::print(stderr, "penstock: {}{}\n", word, penstock::cli::TerminalText(message));
  });
}

// Under mpirun all ranks see the same command line; the first one speaks.
bool IsFirstRank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    const char* rank = std::getenv(name);
    if (rank != nullptr && std::string_view(rank) != "0") {
      return false;
    }
  }
  return true;
}

std::string UnknownVerb(const std::string& word, const std::vector<std::string>& verbs) {
  const std::string nearest = penstock::NearestName(word, verbs);
  return fmt::format("penstock: no verb '{}', wanted one of: {}{}\n", word, fmt::join(verbs, ", "),
                     nearest.empty() ? "" : fmt::format("\nDid you mean '{}'?", nearest));
}

int RunCommandLine(int argc, char** argv) {
  penstock::cli::Program app(
      "penstock",
      "Run and train language models cut into pipeline stages, and know beforehand whether it is "
      "worth it.");
  app.VersionFlag("penstock " PENSTOCK_VERSION);
  app.RequireVerb();
  app.Remark(
      "Each verb has --help with an example. Start with `penstock run -m MODEL -p TEXT --stages "
      "2`.");
  int status = 0;
  for (const penstock::cli::AddVerb add : penstock::cli::kVerbs) {
    add(app, status);
  }
  const std::vector<std::string> verbs = app.VerbNames();
  if (argc > 1 && argv[1][0] != '-' &&
      std::find(verbs.begin(), verbs.end(), argv[1]) == verbs.end()) {
    if (IsFirstRank()) {
      fmt::print(stderr, "{}", penstock::cli::TerminalText(UnknownVerb(argv[1], verbs)));
    }
    return 2;
  }
  app.Parse(argc, argv, IsFirstRank(), status);
  return status;
}

// What was said must have arrived: a result cut off by a full disk is no success. A reader that
// went away (`penstock ... | head`) has what it wanted.
int WithOutputWritten(int status) {
  const bool whole = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;

  struct stat info {};

  const bool reader =
      ::fstat(STDOUT_FILENO, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode));
  if (whole || reader || status != 0) {
    return status;
  }
  fmt::print(stderr, "penstock: standard output could not be written to its end\n");
  return 3;
}

}  // namespace

int main(int argc, char** argv) {
  InstallLogSink();
  try {
    return WithOutputWritten(RunCommandLine(argc, argv));
  } catch (const std::system_error&) {  // fmt's word for an output that takes no more
    return WithOutputWritten(0);
  } catch (const std::exception& e) {
    fmt::print(stderr, "penstock: internal error: {}\n", e.what());
    return 3;
  }
}
