// What --help prints: the usage with all that is required, then the flags under the headings of
// their verb, in two columns and wrapped to the terminal, defaults behind the words.

#pragma once

#include <CLI/CLI.hpp>
#include <memory>

namespace penstock::cli {

// For a CLI::App; its verbs inherit it.
std::shared_ptr<CLI::FormatterBase> HelpFormat();

}  // namespace penstock::cli
