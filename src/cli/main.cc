// penstock VERB: parses the command line and hands over to one verb.

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
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
    fmt::print(stderr, "penstock: {}{}\n", word, message);
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

bool IsVerb(const CLI::App& app, const std::string& word) {
  const auto verbs = app.get_subcommands({});
  return std::any_of(verbs.begin(), verbs.end(),
                     [&](const CLI::App* verb) { return verb->get_name() == word; });
}

std::string UnknownVerb(const CLI::App& app, const std::string& word) {
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands({})) {
    verbs.push_back(verb->get_name());
  }
  const std::string nearest = penstock::NearestName(word, verbs);
  return fmt::format("penstock: no verb '{}', wanted one of: {}{}\n", word, fmt::join(verbs, ", "),
                     nearest.empty() ? "" : fmt::format("\nDid you mean '{}'?", nearest));
}

int RunCommandLine(int argc, char** argv) {
  CLI::App app(
      "Run and train language models cut into pipeline stages, and know beforehand whether it is "
      "worth it.",
      "penstock");
  app.set_version_flag("--version", "penstock " PENSTOCK_VERSION);
  app.require_subcommand(1);
  app.failure_message([](const CLI::App*, const CLI::Error& e) {
    return fmt::format("penstock: {}\nRun `penstock --help` or `penstock VERB --help`.\n",
                       e.what());
  });
  app.footer(
      "Each verb has --help with an example. Start with `penstock run -m MODEL -p TEXT --stages "
      "2`.");
  int status = 0;
  for (const penstock::cli::AddVerb add : penstock::cli::kVerbs) {
    add(app, status);
  }
  if (argc > 1 && argv[1][0] != '-' && !IsVerb(app, argv[1])) {
    if (IsFirstRank()) {
      fmt::print(stderr, "{}", UnknownVerb(app, argv[1]));
    }
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::ostringstream nowhere;
    const bool speaks = IsFirstRank();
    return app.exit(e, speaks ? std::cout : nowhere, speaks ? std::cerr : nowhere) == 0 ? 0 : 2;
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  InstallLogSink();
  try {
    return RunCommandLine(argc, argv);
  } catch (const std::exception& e) {
    fmt::print(stderr, "penstock: internal error: {}\n", e.what());
    return 3;
  }
}
