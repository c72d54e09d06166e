// --help of every verb: grouped, aligned, within 100 columns, with what it leaves out stated and
// commands to copy at the end.

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "support/process.h"

namespace penstock::testing {
namespace {

using Words = std::vector<std::string>;

constexpr size_t kTextColumn = 29;

std::string Help(Words verb) {
  verb.emplace_back("--help");
  const Finished done = RunPenstock(verb, "", {"COLUMNS=100"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.err, "");
  return done.out;
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

// The verbs that `help` lists.
std::vector<std::string> VerbsOf(const std::string& help) {
  std::vector<std::string> verbs;
  bool inside = false;
  for (const std::string& line : Lines(help)) {
    if (line == "Verbs:") {
      inside = true;
    } else if (line.empty()) {
      inside = false;
    } else if (inside && line.size() > 2 && line[2] != ' ') {
      verbs.push_back(line.substr(2, line.find(' ', 2) - 2));
    }
  }
  return verbs;
}

// Every verb and verb of a verb.
std::vector<Words> AllVerbs() {
  std::vector<Words> all;
  for (const std::string& verb : VerbsOf(Help({}))) {
    all.push_back({verb});
    for (const std::string& inner : VerbsOf(Help({verb}))) {
      all.push_back({verb, inner});
    }
  }
  return all;
}

// The text behind a flag's name, all its lines in one.
std::string FlagText(const std::string& help, const std::string& flag) {
  std::string text;
  bool inside = false;
  for (const std::string& line : Lines(help)) {
    const bool starts =
        line.size() > 2 && line.starts_with("  ") && line.find_first_not_of(' ') < kTextColumn;
    if (starts || line.empty()) {
      inside = line.find(flag + " ") != std::string::npos || line.ends_with(flag);
    }
    if (inside && line.size() > kTextColumn) {
      text += " " + line.substr(kTextColumn);
    }
  }
  return text;
}

TEST(Help, IsGroupedAndAlignedForEveryVerb) {
  const std::vector<Words> verbs = AllVerbs();
  EXPECT_GE(verbs.size(), 21U);
  for (const Words& verb : verbs) {
    const std::string help = Help(verb);
    const std::string name = verb.size() == 2 ? verb[0] + " " + verb[1] : verb[0];
    EXPECT_NE(help.find("Usage: penstock " + name + " "), std::string::npos) << name;
    EXPECT_NE(help.find("\nExamples:\n  "), std::string::npos) << name;
    EXPECT_NE(help.find("\nGeneral:\n"), std::string::npos) << name;
    EXPECT_NE(help.find("penstock " + verb[0], help.find("Examples:")), std::string::npos) << name;
    bool flags = false;
    for (const std::string& line : Lines(help)) {
      EXPECT_LE(line.size(), 100U) << name << ": " << line;
      const bool heading = line.ends_with(':') && line[0] != ' ' && line != "Examples:";
      flags = !line.empty() && (flags || heading);
      if (!flags || !line.starts_with("  ")) {
        continue;
      }
      const size_t name_end = line.find("  ", line.find_first_not_of(' '));
      const size_t text =
          name_end == std::string::npos ? std::string::npos : line.find_first_not_of(' ', name_end);
      if (text != std::string::npos) {
        EXPECT_EQ(text, kTextColumn) << name << ": " << line;
      }
    }
    for (const char* raw : {" INT", " UINT", " FLOAT", ":POSITIVE", "Excludes:", "REQUIRED"}) {
      EXPECT_EQ(help.find(raw), std::string::npos) << name << raw;
    }
  }
}

TEST(Help, OfRunSaysWhatItDoesWithoutAFlag) {
  const std::string help = Help({"run"});
  for (const char* heading : {"Model:", "Prompt", "Length:", "Sampling:", "Pipeline:",
                              "Memory and time:", "Output:", "General:"}) {
    EXPECT_NE(help.find(std::string("\n") + heading), std::string::npos) << heading;
  }
  EXPECT_NE(FlagText(help, "--deadline S").find("default 30"), std::string::npos) << help;
  EXPECT_NE(FlagText(help, "-n TOKENS").find("default 256"), std::string::npos);
  EXPECT_NE(FlagText(help, "--weights TYPE").find("auto: the file's 4-bit"), std::string::npos);
  EXPECT_NE(FlagText(help, "--kv TYPE").find("auto: f32 with --weights f32"), std::string::npos);
  for (const char* flag : {"--stages N", "--cut LIST", "--groups G", "--threads N",
                           "--prefill-chunk N", "--context N", "--memory BYTES"}) {
    EXPECT_NE(FlagText(help, flag).find("default"), std::string::npos) << flag;
  }
}

TEST(Help, IsWrappedToTheTerminal) {
  const Finished narrow = RunPenstock({"run", "--help"}, "", {"COLUMNS=60"});
  const size_t examples = narrow.out.find("Examples:");
  for (const std::string& line : Lines(narrow.out.substr(0, examples))) {
    if (line.starts_with(std::string(kTextColumn, ' '))) {
      EXPECT_LE(line.size(), 60U) << line;
    }
  }
}

}  // namespace
}  // namespace penstock::testing
