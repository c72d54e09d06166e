// penstock VERB: parses the command line and hands over to one verb.

#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
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

// Verbs that run on every rank of mpirun.
constexpr std::string_view kRankedVerbs[] = {"run",  "chat",       "bench",     "train",
                                             "eval", "perplexity", "gradients", "logits"};

// Of the others the first rank does everything.
bool WorksAlone(int argc, char** argv) {
  const std::string_view verb = argv[1];
  const bool probe = std::any_of(argv, argv + argc, [](const char* word) {
    return std::string_view(word) == "--mpi-probe";  // calibrate's own ranks
  });
  return !probe && std::find(std::begin(kRankedVerbs), std::end(kRankedVerbs), verb) ==
                       std::end(kRankedVerbs);
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
  if (!IsFirstRank() && argc > 1 && WorksAlone(argc, argv)) {
    return 0;
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

// A standard stream that is closed would be the first file that is opened: a result would be
// written into it. It is taken by something that can be neither read nor written as it should.
void TakeClosedStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) < 0) {
      static_cast<void>(::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  TakeClosedStreams();
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
