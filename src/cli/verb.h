// The registry of verbs: one file per verb, one line per verb here.
//
// A verb adds itself with its flags (cli/command_line.h says how), an example in its footer and a
// callback that does the work and sets `status` (0 done, 1 the answer is no, 2 the command line or
// an input file is wrong, 3 it failed while running). With --json a verb prints one object on
// standard output and nothing else there; progress and logs go to standard error.

#pragma once

#include <string>

#include "base/error.h"
#include "base/json_reader.h"
#include "cli/command_line.h"

namespace penstock::cli {

// What every verb has. Fill with AddCommonFlags.
struct CommonFlags {
  bool json = false;
};

// Adds --json and --version to a verb's subcommand.
void AddCommonFlags(Verb& verb, CommonFlags& flags);

// Text that may quote files and arguments, fit for a terminal: well-formed UTF-8 (U+FFFD where it
// was not), '?' for control characters other than line ends and tabs.
std::string TerminalText(std::string_view text);

// Prints "penstock VERB: message" to standard error and gives the exit status of its code.
int Fail(const Verb& verb, const Error& error);

// One JSON object and a newline on standard output.
void PrintJson(const Json& value);

// True when the stream is a terminal that takes colour (NO_COLOR unset, TERM not dumb).
bool ColourOnStdout();
bool ColourOnStderr();
// Columns of the terminal; without one what $COLUMNS says, else 100.
int TerminalWidth();

// ---- One line per verb; defined in <verb>.cc ----
using AddVerb = void (*)(Verb& app, int& status);

}  // namespace penstock::cli
