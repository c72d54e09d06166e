#include "cli/help_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "cli/verb.h"

namespace penstock::cli {
namespace {

constexpr size_t kNameWidth = 26;  // of flags with their value; longer ones take a line
constexpr size_t kMinWidth = 60;
constexpr size_t kMaxWidth = 100;

size_t Width() {
  return std::clamp(static_cast<size_t>(TerminalWidth()), kMinWidth, kMaxWidth);
}

// `text` in lines of at most `width` columns, broken at spaces.
std::vector<std::string> Wrapped(std::string_view text, size_t width) {
  std::vector<std::string> lines(1);
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > width) {
      lines.emplace_back();
    }
    lines.back() += (lines.back().empty() ? "" : " ") + std::string(word);
  }
  return lines;
}

std::string TwoColumns(const std::string& name, const std::string& text) {
  constexpr size_t kIndent = 2 + kNameWidth + 1;
  std::string out = "  " + name;
  if (out.size() >= kIndent) {
    out += "\n" + std::string(kIndent, ' ');
  } else {
    out.resize(kIndent, ' ');
  }
  const std::vector<std::string> lines = Wrapped(text, Width() - kIndent);
  return out + fmt::format("{}", fmt::join(lines, "\n" + std::string(kIndent, ' '))) + "\n";
}

bool TakesNoValue(const CLI::Option* option) {
  return option->get_expected_max() == 0;
}

// "FILE", with a leading space; nothing for flags without a value.
std::string ValueOf(const CLI::Option* option) {
  if (TakesNoValue(option)) {
    return "";
  }
  const std::string type = option->get_type_name();
  return type == "INT" || type == "UINT" ? " N" : " " + type;
}

bool Repeats(const CLI::Option* option) {
  return !TakesNoValue(option) && option->get_expected_max() >= CLI::detail::expected_max_vector_size;
}

// "-m, --model MODEL"; long names alone stand where those behind a short one do.
std::string NameOf(const CLI::Option* option) {
  if (option->get_positional()) {
    return option->get_type_name();
  }
  std::vector<std::string> names;
  for (const std::string& name : option->get_snames()) {
    names.push_back("-" + name);
  }
  for (const std::string& name : option->get_lnames()) {
    names.push_back("--" + name);
  }
  const std::string indent = option->get_snames().empty() ? "    " : "";
  return indent + fmt::format("{}", fmt::join(names, ", ")) + ValueOf(option) +
         (Repeats(option) ? " ..." : "");
}

std::string Names(const std::set<CLI::Option*>& options) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options) {
    names.push_back(option->get_name());
  }
  std::sort(names.begin(), names.end());
  return fmt::format("{}", fmt::join(names, ", "));
}

// The help text and, in brackets behind it, what else there is to know.
std::string TextOf(const CLI::Option* option) {
  std::vector<std::string> notes;
  if (option->get_required()) {
    notes.emplace_back("required");
  }
  if (!option->get_default_str().empty()) {
    notes.push_back("default " + option->get_default_str());
  }
  if (!option->get_needs().empty()) {
    notes.push_back("only with " + Names(option->get_needs()));
  }
  if (!option->get_excludes().empty()) {
    notes.push_back("not with " + Names(option->get_excludes()));
  }
  const std::string& text = option->get_description();
  return notes.empty() ? text : fmt::format("{} ({})", text, fmt::join(notes, "; "));
}

std::string Usage(const CLI::App* app, const std::string& name) {
  std::string out = "Usage: " + name;
  if (!app->get_subcommands(nullptr).empty()) {
    return out + " VERB [flags]\n";
  }
  const auto options = app->get_options([](const CLI::Option*) { return true; });
  for (const CLI::Option* option : options) {
    if (option->get_positional()) {
      const std::string value = NameOf(option);
      out += option->get_required() ? " " + value : " [" + value + "]";
    }
  }
  for (const CLI::Option* option : options) {
    if (!option->get_positional() && option->get_required()) {
      out += fmt::format(" {}{}",
                         option->get_snames().empty() ? "--" + option->get_lnames()[0]
                                                      : "-" + option->get_snames()[0],
                         ValueOf(option));
    }
  }
  return out + " [flags]\n";
}

std::string Section(const CLI::App* app, const std::string& heading) {
  std::string out;
  for (const CLI::Option* option : app->get_options([&](const CLI::Option* option) {
         return option->get_group() == heading && !option->get_positional();
       })) {
    out += TwoColumns(NameOf(option), TextOf(option));
  }
  return out.empty() ? out : fmt::format("\n{}:\n{}", heading, out);
}

std::string Arguments(const CLI::App* app) {
  std::string out;
  for (const CLI::Option* option :
       app->get_options([](const CLI::Option* option) { return option->get_positional(); })) {
    out += TwoColumns(NameOf(option), TextOf(option));
  }
  return out.empty() ? out : "\nArguments:\n" + out;
}

std::string Verbs(const CLI::App* app) {
  std::string out;
  for (const CLI::App* verb : app->get_subcommands(nullptr)) {
    out += TwoColumns(verb->get_name(), verb->get_description());
  }
  return out.empty() ? out : "\nVerbs:\n" + out;
}

std::string Help(const CLI::App* app, const std::string&, CLI::AppFormatMode) {
  std::string words;
  for (const CLI::App* at = app; at != nullptr; at = at->get_parent()) {
    words = at->get_name() + (words.empty() ? "" : " " + words);
  }
  std::string out = app->get_description() + "\n\n" + Usage(app, words);
  out += Verbs(app);
  out += Arguments(app);
  std::vector<std::string> headings = app->get_groups();
  std::erase(headings, kGeneralHeading);
  std::erase(headings, "");  // hidden flags
  headings.emplace_back(kGeneralHeading);
  for (const std::string& heading : headings) {
    out += Section(app, heading);
  }
  const std::string footer = app->get_footer();
  return out + (footer.empty() ? "" : "\n" + footer + "\n");
}

}  // namespace

std::shared_ptr<CLI::FormatterBase> HelpFormat() {
  return std::make_shared<CLI::FormatterLambda>(Help);
}

}  // namespace penstock::cli
