#include "cli/command_line.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/units.h"
#include "cli/help_format.h"
#include "cli/verb.h"

namespace penstock::cli {

struct Flag::Impl {
  CLI::Option* option;
};

struct Verb::Impl {
  CLI::App* app;  // of `owned` for the program, of its parent for the rest
  std::unique_ptr<CLI::App> owned;
  std::vector<std::unique_ptr<Flag>> flags;
  std::vector<std::unique_ptr<Verb>> verbs;
  std::string heading = kFlagsHeading;
  std::string remark;
  std::string examples;

  void SetFooter() const {
    app->footer(remark + (remark.empty() || examples.empty() ? "" : "\n\n") + examples);
  }
};

namespace {

void PutHelpLast(CLI::App& app) {
  app.get_help_ptr()->group(kGeneralHeading);
  app.get_help_ptr()->description("Print this and exit");
}

}  // namespace

Flag::Flag(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Flag::~Flag() = default;

Flag* Flag::Required() {
  impl_->option->required();
  return this;
}

Flag* Flag::TypeName(const std::string& name) {
  impl_->option->type_name(name);
  // An empty name is a shell variable that was not set, not a wish for the default.
  for (const char* named : {"FILE", "FOLDER", "LIST", "MODEL", "NAME"}) {
    if (name.starts_with(named)) {
      impl_->option->check([name](const std::string& text) {
        return text.empty() ? "got nothing, wanted " + name : std::string();
      });
    }
  }
  return this;
}

Flag* Flag::ShowDefault() {
  impl_->option->capture_default_str();
  return this;
}

Flag* Flag::Hide() {
  impl_->option->group("");
  return this;
}

Flag* Flag::Excludes(Flag* other) {
  impl_->option->excludes(other->impl_->option);
  return this;
}

Flag* Flag::Needs(Flag* other) {
  impl_->option->needs(other->impl_->option);
  return this;
}

namespace {

// The library's own complaints name neither what was got nor what is wanted.
CLI::Validator IntegerFrom(int64_t low, int64_t high) {
  return CLI::Validator(
      [low, high](const std::string& text) {
        int64_t number = 0;
        const bool fine =
            CLI::detail::lexical_cast(text, number) && number >= low && number <= high;
        return fine ? std::string()
                    : fmt::format("got '{}', wanted an integer from {} to {}", text, low, high);
      },
      "");
}

CLI::Validator WordOf(const std::vector<std::string>& words) {
  return CLI::Validator(
      [words](const std::string& text) {
        const bool fine = std::find(words.begin(), words.end(), text) != words.end();
        return fine ? std::string()
                    : fmt::format("got '{}', wanted {}", text, fmt::join(words, " or "));
      },
      "");
}

// As the library's validators, whose complaint names the largest double.
CLI::Validator NumberThat(bool (*holds)(double), const std::string& wanted) {
  return CLI::Validator(
      [holds, wanted](const std::string& text) {
        double number = 0;
        const bool fine = CLI::detail::lexical_cast(text, number) && holds(number);
        return fine ? std::string() : "got '" + text + "', wanted " + wanted;
      },
      "");
}

}  // namespace

Flag* Flag::Range(int64_t low, int64_t high) {
  impl_->option->check(IntegerFrom(low, high));
  return this;
}

Flag* Flag::Positive() {
  impl_->option->check(NumberThat([](double x) { return x > 0; }, "more than 0"));
  return this;
}

Flag* Flag::NotNegative() {
  impl_->option->check(NumberThat([](double x) { return x >= 0; }, "0 or more"));
  return this;
}

Flag* Flag::OneOf(const std::vector<std::string>& words) {
  impl_->option->check(WordOf(words));
  return this;
}

Flag* Flag::Check(const std::function<std::string(const std::string& text)>& check) {
  impl_->option->check(check);
  return this;
}

size_t Flag::Count() const {
  return impl_->option->count();
}

Verb::Verb(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Verb::~Verb() = default;

std::string Verb::name() const {
  return impl_->app->get_name();
}

std::vector<std::string> Verb::VerbNames() const {
  std::vector<std::string> names;
  for (const auto& verb : impl_->verbs) {
    names.push_back(verb->name());
  }
  return names;
}

Verb* Verb::AddVerb(const std::string& name, const std::string& help) {
  auto impl = std::make_unique<Impl>();
  impl->app = impl_->app->add_subcommand(name, help);
  PutHelpLast(*impl->app);
  impl_->verbs.push_back(std::make_unique<Verb>(std::move(impl)));
  return impl_->verbs.back().get();
}

void Verb::Heading(const std::string& heading) {
  impl_->heading = heading;
}

void Verb::RequireVerb() {
  impl_->app->require_subcommand(1);
}

template <typename T>
Flag* Verb::Add(const std::string& names, T& value, const std::string& help) {
  CLI::Option* option = nullptr;
  if constexpr (std::is_same_v<T, bool>) {
    option = impl_->app->add_flag(names, value, help);
  } else {
    option = impl_->app->add_option(names, value, help);
  }
  option->group(impl_->heading);
  impl_->flags.push_back(std::make_unique<Flag>(std::make_unique<Flag::Impl>(Flag::Impl{option})));
  return impl_->flags.back().get();
}

Flag* Verb::AddFlag(const std::string& names, bool& value, const std::string& help) {
  return Add(names, value, help);
}

Flag* Verb::AddOption(const std::string& names, std::string& value, const std::string& help) {
  return Add(names, value, help);
}

Flag* Verb::AddOption(const std::string& names, int& value, const std::string& help) {
  return Add(names, value, help);
}

Flag* Verb::AddOption(const std::string& names, int64_t& value, const std::string& help) {
  return Add(names, value, help);
}

Flag* Verb::AddOption(const std::string& names, uint64_t& value, const std::string& help) {
  return Add(names, value, help);
}

Flag* Verb::AddOption(const std::string& names, double& value, const std::string& help) {
  return Add(names, value, help);
}

Flag* Verb::AddOption(const std::string& names, std::optional<std::string>& value,
                      const std::string& help) {
  return Add(names, value, help);
}

Flag* Verb::AddOption(const std::string& names, std::optional<int>& value,
                      const std::string& help) {
  return Add(names, value, help);
}

Flag* Verb::AddOption(const std::string& names, std::optional<int64_t>& value,
                      const std::string& help) {
  return Add(names, value, help);
}

Flag* Verb::AddOption(const std::string& names, std::optional<double>& value,
                      const std::string& help) {
  return Add(names, value, help);
}

Flag* Verb::AddOption(const std::string& names, std::vector<std::string>& value,
                      const std::string& help) {
  return Add(names, value, help);
}

void Verb::VersionFlag(const std::string& version) {
  impl_->app->set_version_flag("--version", version)
      ->group(kGeneralHeading)
      ->description("Print the version and exit");
}

void Verb::Remark(const std::string& text) {
  impl_->remark = text;
  impl_->SetFooter();
}

void Verb::Examples(const std::vector<std::string>& commands) {
  impl_->examples = fmt::format("Examples:\n  {}", fmt::join(commands, "\n  "));
  impl_->SetFooter();
}

void Verb::Callback(std::function<void()> callback) {
  impl_->app->callback(std::move(callback));
}

size_t Verb::Count(const std::string& name) const {
  return impl_->app->count(name);
}

std::vector<const Flag*> Verb::Order() const {
  std::vector<const Flag*> order;
  for (const CLI::Option* option : impl_->app->parse_order()) {
    for (const auto& flag : impl_->flags) {
      if (flag->impl_->option == option) {
        order.push_back(flag.get());
      }
    }
  }
  return order;
}

namespace {

std::unique_ptr<Verb::Impl> Root(const std::string& name, const std::string& help) {
  auto impl = std::make_unique<Verb::Impl>();
  impl->owned = std::make_unique<CLI::App>(help, name);
  impl->app = impl->owned.get();
  impl->app->formatter(HelpFormat());
  PutHelpLast(*impl->app);
  return impl;
}

// The verb that the line names, as far as it was parsed: "penstock trace diff".
const CLI::App* ParsedVerb(const CLI::App* app, std::string& words) {
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
    words += " " + app->get_name();
  }
  return app;
}

std::vector<std::string> FlagNames(const CLI::App* app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app->get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  return names;
}

std::string Unexpected(const CLI::App* app) {
  const std::vector<std::string> rest = app->remaining(true);
  const std::string word = rest.empty() ? "" : rest.front();
  if (!word.starts_with('-')) {
    return fmt::format("got '{}', which is neither a flag nor a flag's value", word);
  }
  const std::string nearest = NearestName(word, FlagNames(app));
  return fmt::format("no flag '{}'{}", word,
                     nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
}

// The library's complaint in our words: what was got and what is wanted.
std::string Complaint(const CLI::App* app, const CLI::Error& error) {
  const std::string what = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    return Unexpected(app);
  }
  const size_t colon = what.find(": ");
  if (colon != std::string::npos && what.find("At Most 1 required") != std::string::npos) {
    return what.substr(0, colon) + ": given more than once, wanted once";
  }
  constexpr std::string_view kConvert = "Could not convert: ";
  const size_t equals = what.find(" = ");
  if (what.starts_with(kConvert) && equals != std::string::npos) {
    return fmt::format("{}: got '{}', wanted a number",
                       what.substr(kConvert.size(), equals - kConvert.size()),
                       what.substr(equals + 3));
  }
  if (what == "A subcommand is required") {
    return "no verb, wanted one of those that --help lists";
  }
  return what;
}

}  // namespace

Program::Program(const std::string& name, const std::string& help) : Verb(Root(name, help)) {
  impl_->app->failure_message([name](const CLI::App* root, const CLI::Error& e) {
    std::string words = name;
    const CLI::App* app = ParsedVerb(root, words);
    return TerminalText(
        fmt::format("{}: {}\n`{} --help` says more.\n", words, Complaint(app, e), words));
  });
}

void Program::Parse(int argc, char** argv, bool speaks, int& status) {
  try {
    impl_->app->parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::ostringstream nowhere;
    status = impl_->app->exit(e, speaks ? std::cout : nowhere, speaks ? std::cerr : nowhere) == 0
                 ? 0
                 : 2;
  }
}

}  // namespace penstock::cli
