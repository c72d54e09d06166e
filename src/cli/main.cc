// penstock VERB: parses the command line and hands over to one verb.

#include <fmt/core.h>

#include <cstdio>
#include <exception>

#include "base/log.h"
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

int RunCommandLine(int argc, char** argv) {
  CLI::App app("Run and train language models cut into pipeline stages, and know beforehand whether it is worth it.", "penstock");
  app.set_version_flag("--version", "penstock " PENSTOCK_VERSION);
  app.require_subcommand(1);
  app.failure_message([](const CLI::App*, const CLI::Error& e) {
    return fmt::format("penstock: {}\nRun `penstock --help` or `penstock VERB --help`.\n", e.what());
  });
  app.footer("Each verb has --help with an example. Start with `penstock run -m MODEL -p TEXT --stages 2`.");
  int status = 0;
  for (const penstock::cli::AddVerb add : penstock::cli::kVerbs) {
    add(app, status);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
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
