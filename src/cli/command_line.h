// The command line as verbs see it: flags, options and positionals bound to variables. CLI11 does
// the work behind it; only command_line.cc includes that library, which costs seconds per file.
//
// How to add a verb `penstock frob`:
//   1. src/cli/frob.cc: a struct with the values of its flags and their defaults, a function that
//      does the work (Result<> or an exit status), and
//
//        void AddFrob(Verb& app, int& status) {
//          auto flags = std::make_shared<FrobFlags>();   // lives as long as the callback
//          Verb* verb = app.AddVerb("frob", "One line of what it is for");
//          AddCommonFlags(*verb, flags->common);         // --json, --version
//          verb->AddOption("-n,--number", flags->number, "What it means")
//              ->TypeName("N")->Range(1, 100)->ShowDefault();
//          verb->AddOption("file", flags->file, "No dash: a positional")->Required();
//          verb->AddFlag("--fast", flags->fast, "True when it is there");
//          verb->Examples({"penstock frob -n 3 file.json"});
//          verb->Callback([verb, flags, &status] {       // runs after the whole line was parsed
//            const Result<> result = Frob(*flags);
//            status = result.ok() ? 0 : Fail(*verb, result.error());
//          });
//        }
//
//      A verb that runs a model uses AddModelFlags and RunModelVerb (cli/model_flags.h) instead.
//   2. verbs.h: its declaration, and a line in kVerbs. 3. src/cli/CMakeLists.txt: its file.
//
// A bad value is refused with exit status 2 before the callback runs. Setters of a Flag give the
// Flag, so that they can be chained.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::cli {

class Verb;

// Headings of --help: of flags under none of their own, and of --help, --json and --version, which
// stand last.
inline constexpr const char* kFlagsHeading = "Flags";
inline constexpr const char* kGeneralHeading = "General";

// One flag, option or positional. Owned by its verb.
class Flag {
 public:
  struct Impl;
  explicit Flag(std::unique_ptr<Impl> impl);
  ~Flag();
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;

  Flag* Required();
  // What stands for the value in --help, for instance FILE.
  Flag* TypeName(const std::string& name);
  // The variable's value at this moment stands in --help.
  Flag* ShowDefault();
  // Not in --help.
  Flag* Hide();
  // Not together with `other`; only together with it.
  Flag* Excludes(Flag* other);
  Flag* Needs(Flag* other);

  // What values are taken. `check` gives the complaint about a value, "" when it is fine.
  Flag* Range(int64_t low, int64_t high);
  Flag* Positive();
  Flag* NotNegative();
  Flag* OneOf(const std::vector<std::string>& words);
  Flag* Check(const std::function<std::string(const std::string& text)>& check);

  // How often it stands on the command line. Valid in the callback.
  [[nodiscard]] size_t Count() const;

 private:
  friend class Verb;
  std::unique_ptr<Impl> impl_;
};

// A verb, a verb of a verb, or (as Program) the binary.
class Verb {
 public:
  struct Impl;
  explicit Verb(std::unique_ptr<Impl> impl);
  ~Verb();
  Verb(const Verb&) = delete;
  Verb& operator=(const Verb&) = delete;

  [[nodiscard]] std::string name() const;
  [[nodiscard]] std::vector<std::string> VerbNames() const;
  Verb* AddVerb(const std::string& name, const std::string& help);
  // One of its verbs must be named.
  void RequireVerb();

  // The heading in --help of the flags that follow (at first kFlagsHeading). A heading may come
  // again.
  void Heading(const std::string& heading);

  // `names` is "-n,--number" or "--number", or without a dash a positional. The value keeps its
  // default when the flag is not there; a vector takes all words up to the next flag, and the flag
  // may be repeated. REQUIRES: `value` outlives the callback.
  Flag* AddFlag(const std::string& names, bool& value, const std::string& help);
  Flag* AddOption(const std::string& names, std::string& value, const std::string& help);
  Flag* AddOption(const std::string& names, int& value, const std::string& help);
  Flag* AddOption(const std::string& names, int64_t& value, const std::string& help);
  Flag* AddOption(const std::string& names, uint64_t& value, const std::string& help);
  Flag* AddOption(const std::string& names, double& value, const std::string& help);
  Flag* AddOption(const std::string& names, std::optional<std::string>& value,
                  const std::string& help);
  Flag* AddOption(const std::string& names, std::optional<int>& value, const std::string& help);
  Flag* AddOption(const std::string& names, std::optional<int64_t>& value, const std::string& help);
  Flag* AddOption(const std::string& names, std::optional<double>& value, const std::string& help);
  Flag* AddOption(const std::string& names, std::vector<std::string>& value,
                  const std::string& help);
  void VersionFlag(const std::string& version);

  // Stands under the flags in --help.
  void Remark(const std::string& text);
  // Commands at the end of --help.
  void Examples(const std::vector<std::string>& commands);
  // Does the verb's work, after the whole line was parsed.
  void Callback(std::function<void()> callback);

  // How often the flag `name` ("-n") stands on the command line. Valid in the callback.
  [[nodiscard]] size_t Count(const std::string& name) const;
  // The flags in the order in which they stand on the command line, once per value. Valid in the
  // callback.
  [[nodiscard]] std::vector<const Flag*> Order() const;

 protected:
  std::unique_ptr<Impl> impl_;

 private:
  template <typename T>
  Flag* Add(const std::string& names, T& value, const std::string& help);
};

// `penstock` itself.
class Program : public Verb {
 public:
  Program(const std::string& name, const std::string& help);

  // Parses and runs the callbacks. Where none runs (--help, --version, a wrong line, which is said
  // on standard error), `status` becomes the exit status, 0 or 2. Prints only with `speaks`.
  void Parse(int argc, char** argv, bool speaks, int& status);
};

}  // namespace penstock::cli
