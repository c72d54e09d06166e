// run and chat as users of other engines know them: stop strings, penalties, log probabilities,
// several sequences, prompts from files and pipes, streaming, JSON. Most of it on a model whose
// answers are known in advance.

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "support/engine_runs.h"
#include "support/model_maker.h"
#include "support/process.h"

namespace penstock::testing {
namespace {

using Words = std::vector<std::string>;

// An owl of four bytes, then letters of one, two, one and three bytes.
const std::string kLetters =
    "\xF0\x9F\xA6\x89"
    "a\xC3\xA9"
    "b\xE6\x97\xA5"
    "c";
constexpr char kChatMl[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ "
    "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' "
    "}}{% endif %}";

class Generate : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    WritePlayback(Alphabet(), "!abcdefghijk");
    WritePlayback(Letters(), "!" + kLetters);
    WritePlayback(Round(), "!aba");
    // After the template's last line end: "One.", then the end.
    WritePlayback(Talker(), "\nOne.");
    WriteModel(Random(), LlamaConfig({}), RandomLlama({}, 3));
  }

  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

  static std::string Path(const std::string& name) { return folder_->path() + "/" + name; }

  static std::string Alphabet() { return Path("alphabet"); }

  static std::string Letters() { return Path("letters"); }

  static std::string Round() { return Path("round"); }

  static std::string Talker() { return Path("talker"); }

  static std::string Random() { return Path("random"); }  // no tokenizer

  // What the command printed, which must be one JSON object and nothing else.
  static Json RunJson(const std::string& model, Words flags, const std::string& input = "",
                      int ranks = 0) {
    Words arguments = {"run", "-m", model, "--json", "--threads", "1"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Finished done = RunCommand(PenstockCommand(arguments, ranks), input);
    EXPECT_EQ(done.status, 0) << Describe(arguments) << "\n" << done.err;
    auto json = ParseJson(done.out, "standard output");
    EXPECT_TRUE(json.ok()) << json.error().message << "\n" << done.out;
    return json.ok() ? std::move(json).value() : Json();
  }

  static std::string Text(const std::string& model, const Words& flags,
                          const std::string& input = "") {
    return RunJson(model, flags, input)["outputs"][0]["text"].get<std::string>();
  }

  static TemporaryFolder* folder_;
};

TemporaryFolder* Generate::folder_ = nullptr;

TEST_F(Generate, EndsWithItsEndTokenWhichIsNotPartOfTheAnswer) {
  for (const std::string stages : {"1", "3", "6"}) {
    const Json json = RunJson(Alphabet(), {"-p", "!", "--stages", stages});
    const Json& output = json["outputs"][0];
    EXPECT_EQ(output["text"], "abcdefghijk");
    EXPECT_EQ(output["prompt_tokens"], 1);
    EXPECT_EQ(output["tokens"].size(), 11U);
    EXPECT_EQ(output["finish_reason"], "stop");
  }
}

TEST_F(Generate, StopsAtTheBudget) {
  for (const int count : {1, 2, 11}) {
    const Json json = RunJson(Alphabet(), {"-p", "!", "-n", std::to_string(count)});
    const Json& output = json["outputs"][0];
    EXPECT_EQ(output["text"], std::string("abcdefghijk").substr(0, static_cast<size_t>(count)));
    EXPECT_EQ(output["tokens"].size(), static_cast<size_t>(count));
    EXPECT_EQ(output["finish_reason"], "length");
  }
}

TEST_F(Generate, WithoutABudgetItEndsWhereTheContextEnds) {
  const Json json = RunJson(Round(), {"-p", "!!!", "--context", "20"});
  EXPECT_EQ(json["outputs"][0]["finish_reason"], "length");
  EXPECT_EQ(json["outputs"][0]["tokens"].size(), 17U);
}

TEST_F(Generate, StopTextsEndBeforeThemWhereverTokensCutThem) {
  EXPECT_EQ(Text(Alphabet(), {"-p", "!", "--stop", "def"}), "abc");
  EXPECT_EQ(Text(Alphabet(), {"-p", "!", "--stop", "a"}), "");
  EXPECT_EQ(Text(Alphabet(), {"-p", "!", "--stop", "ij", "--stop", "gh"}), "abcdef");
  // What might have begun one is given back at the end and at the budget.
  EXPECT_EQ(Text(Alphabet(), {"-p", "!", "--stop", "jkQ"}), "abcdefghijk");
  const Json cut = RunJson(Alphabet(), {"-p", "!", "--stop", "cdX", "-n", "4"});
  EXPECT_EQ(cut["outputs"][0]["text"], "abcd");
  EXPECT_EQ(cut["outputs"][0]["finish_reason"], "length");
  const Json stopped = RunJson(Alphabet(), {"-p", "!", "--stop", "def", "--stages", "2"});
  EXPECT_EQ(stopped["outputs"][0]["finish_reason"], "stop");
  EXPECT_LE(stopped["outputs"][0]["tokens"].size(), 6U);
}

TEST_F(Generate, AStopTextEndsOneSequenceAndNotTheOthers) {
  const Json json =
      RunJson(Alphabet(), {"-p", "!", "-p", "e", "-p", "g", "--stop", "def", "--stages", "2"});
  EXPECT_EQ(json["outputs"][0]["text"], "abc");
  EXPECT_EQ(json["outputs"][1]["text"], "fghijk");
  EXPECT_EQ(json["outputs"][2]["text"], "hijk");
}

TEST_F(Generate, IgnoringTheEndTokenGoesOnBehindIt) {
  const Json json = RunJson(Alphabet(), {"-p", "j", "--ignore-eos", "-n", "6"});
  EXPECT_EQ(json["outputs"][0]["tokens"].size(), 6U);
  EXPECT_EQ(json["outputs"][0]["finish_reason"], "length");
}

TEST_F(Generate, CharactersOfSeveralTokensComeWhole) {
  EXPECT_EQ(Text(Letters(), {"-p", "!"}), kLetters);
  // A budget that cuts a character leaves what is whole.
  const std::vector<std::pair<int, std::string>> wanted = {
      {4, kLetters.substr(0, 4)}, {5, kLetters.substr(0, 5)}, {7, kLetters.substr(0, 7)}};
  for (const auto& [count, text] : wanted) {
    EXPECT_EQ(Text(Letters(), {"-p", "!", "-n", std::to_string(count)}), text);
  }
  const Finished plain = RunPenstock({"run", "-m", Letters(), "-p", "!", "--stages", "2"});
  EXPECT_EQ(plain.out, kLetters + "\n");
}

TEST_F(Generate, SeveralSequencesComeInTheOrderGiven) {
  const Json json = RunJson(
      Alphabet(), {"-p", "!", "-p", "f", "-p", "h", "-n", "3", "--stages", "2", "--groups", "2"});
  ASSERT_EQ(json["outputs"].size(), 3U);
  EXPECT_EQ(json["outputs"][0]["text"], "abc");
  EXPECT_EQ(json["outputs"][1]["text"], "ghi");
  EXPECT_EQ(json["outputs"][2]["text"], "ijk");
  const Json ids = RunJson(Alphabet(), {"--tokens", "97", "--tokens", "33,102", "-n", "2"});
  EXPECT_EQ(ids["outputs"][0]["text"], "bc");
  EXPECT_EQ(ids["outputs"][1]["text"], "gh");
  EXPECT_EQ(ids["outputs"][1]["prompt_tokens"], 2);
}

TEST_F(Generate, SequencesOfMixedKindsComeInTheOrderGiven) {
  const Json json = RunJson(Alphabet(),
                            {"-p", "f", "--tokens", "97", "--prompt-file", "-", "-p", "h", "-p",
                             "d", "--tokens", "33", "102", "-n", "2"},
                            "xyz!");
  ASSERT_EQ(json["outputs"].size(), 7U);
  const char* const wanted[] = {"gh", "bc", "ab", "ij", "ef", "ab", "gh"};
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(json["outputs"][i]["text"], wanted[i]) << i;
  }
}

TEST_F(Generate, PromptsComeFromFilesAndPipes) {
  EXPECT_EQ(Text(Alphabet(), {"--prompt-file", "-", "-n", "2"}, "xyz!"), "ab");
  WriteText(Path("prompt.txt"), "line\ne");
  EXPECT_EQ(Text(Alphabet(), {"--prompt-file", Path("prompt.txt"), "-n", "2"}), "fg");
  // Bytes are taken as they are: the line end at the end is part of the prompt.
  EXPECT_EQ(RunJson(Talker(), {"--prompt-file", "-"}, "e\n")["outputs"][0]["text"], "One.");
  EXPECT_EQ(RunJson(Talker(), {"--prompt-file", "-"}, "e\n")["outputs"][0]["prompt_tokens"], 2);
}

TEST_F(Generate, FilesMayBeSeveralAndLinesSeveralSequences) {
  WriteText(Path("first.txt"), "a");
  WriteText(Path("second.txt"), "x\nd");
  const Json files = RunJson(Alphabet(), {"--prompt-file", Path("first.txt"), "--prompt-file",
                                          Path("second.txt"), "-p", "g", "-n", "2"});
  ASSERT_EQ(files["outputs"].size(), 3U);
  EXPECT_EQ(files["outputs"][0]["text"], "bc");
  EXPECT_EQ(files["outputs"][1]["text"], "ef");
  EXPECT_EQ(files["outputs"][2]["text"], "hi");
  // Line ends of either kind, empty lines, and a last line without an end.
  const Json lines =
      RunJson(Alphabet(), {"-p", "h", "--prompt-lines", "-", "-n", "2"}, "a\n\n\r\nbc\r\nxe\n\nf");
  ASSERT_EQ(lines["outputs"].size(), 5U);
  const char* const wanted[] = {"ij", "bc", "de", "fg", "gh"};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(lines["outputs"][i]["text"], wanted[i]) << i;
  }
}

TEST_F(Generate, APipeGetsTextAndNothingElse) {
  const Finished one = RunPenstock({"run", "-m", Alphabet(), "-p", "!", "--stages", "2"});
  EXPECT_EQ(one.status, 0);
  EXPECT_EQ(one.out, "abcdefghijk\n");
  EXPECT_EQ(one.err.find('\x1b'), std::string::npos);
  EXPECT_NE(one.err.find("Memory per stage"), std::string::npos) << one.err;
}

TEST_F(Generate, PenaltiesMoveAwayFromWhatOccurred) {
  // Plain: a and b for ever. The other tokens' logits are zero, the next one's is about 17.
  EXPECT_EQ(Text(Round(), {"-p", "!", "-n", "6"}), "ababab");
  for (const Words& flags : {Words{"--repeat-penalty", "1.1"}, Words{"--presence-penalty", "1"},
                             Words{"--frequency-penalty", "1"}}) {
    Words all = {"-p", "!", "-n", "6"};
    all.insert(all.end(), flags.begin(), flags.end());
    EXPECT_EQ(Text(Round(), all), "ababab") << flags[0];  // too weak to change the largest
  }
  // Strong enough: no token comes twice while one that never came is left.
  for (const Words& flags :
       {Words{"--presence-penalty", "30"}, Words{"--frequency-penalty", "30"}}) {
    for (const std::string stages : {"1", "3"}) {
      Words all = {"-p", "!", "-n", "20", "--ignore-eos", "--stages", stages};
      all.insert(all.end(), flags.begin(), flags.end());
      const Json json = RunJson(Round(), all);
      const auto tokens = json["outputs"][0]["tokens"].get<std::vector<int32_t>>();
      EXPECT_EQ(std::set<int32_t>(tokens.begin(), tokens.end()).size(), 20U) << flags[0];
      EXPECT_EQ(std::count(tokens.begin(), tokens.end(), int32_t{'!'}), 0) << "the prompt counts";
    }
  }
  // On random weights a repetition penalty changes the answer, and every cut gives the same one.
  const Words base = {"--tokens", "1,2,3,2,1", "-n", "40", "--ignore-eos", "--greedy"};
  const auto with = [&base](const Words& more) {
    Words all = base;
    all.insert(all.end(), more.begin(), more.end());
    return RunJson(Random(), all)["outputs"][0]["tokens"];
  };
  const Json penalized = with({"--repeat-penalty", "1.3"});
  EXPECT_NE(penalized, with({}));
  EXPECT_EQ(penalized, with({"--repeat-penalty", "1.3", "--stages", "3"}));
}

TEST_F(Generate, LogProbabilitiesAreThoseOfTheModel) {
  const Json json = RunJson(Alphabet(), {"-p", "!", "-n", "3", "--logprobs", "4"});
  const Json& logprobs = json["outputs"][0]["logprobs"];
  ASSERT_EQ(logprobs.size(), 3U);
  // One logit of sqrt(288) (a normalized one-hot vector), 287 of zero.
  const double largest = std::sqrt(288.0);
  const double wanted = largest - std::log(std::exp(largest) + 287);
  for (const Json& entry : logprobs) {
    EXPECT_NEAR(entry["logprob"].get<double>(), wanted, 2e-6);
    ASSERT_EQ(entry["top"].size(), 4U);
    EXPECT_EQ(entry["top"][0]["token"], entry["token"]);
    EXPECT_NEAR(entry["top"][1]["logprob"].get<double>(), wanted - largest, 0.1);
  }
  EXPECT_FALSE(RunJson(Alphabet(), {"-p", "!"})["outputs"][0].contains("logprobs"));
}

TEST_F(Generate, DrawsAreKeyedBySeedAndSequence) {
  const auto draw = [](const std::string& seed, int copies, const Words& more) {
    Words flags = {"-n", "24", "--temperature", "1.5", "--ignore-eos", "--seed", seed};
    for (int i = 0; i < copies; ++i) {
      flags.insert(flags.end(), {"--tokens", "5,6,7"});
    }
    flags.insert(flags.end(), more.begin(), more.end());
    std::vector<std::vector<int32_t>> all;
    const Json json = RunJson(Random(), flags);
    for (const Json& output : json["outputs"]) {
      all.push_back(output["tokens"].get<std::vector<int32_t>>());
    }
    return all;
  };
  const auto six = draw("5", 6, {});
  EXPECT_EQ(std::set(six.begin(), six.end()).size(), 6U);
  EXPECT_EQ(draw("5", 6, {}), six);
  EXPECT_EQ(draw("5", 6, {"--stages", "3", "--prefill-chunk", "1", "--groups", "4"}), six);
  EXPECT_NE(draw("6", 6, {}), six);
  EXPECT_EQ(draw("5", 1, {})[0], six[0]);
}

TEST_F(Generate, FiguresOfShortRunsAreNumbersThatAddUp) {
  for (const Words& flags :
       {Words{"-n", "1"}, Words{"-n", "1", "--stages", "3"}, Words{"-n", "2", "-p", "e"},
        Words{"-n", "2", "-p", "e", "--stages", "2", "--groups", "3"}}) {
    Words all = {"-p", "!"};
    all.insert(all.end(), flags.begin(), flags.end());
    SCOPED_TRACE(Describe(all));
    const Json json = RunJson(Alphabet(), all);
    ASSERT_TRUE(json.is_object());
    for (const char* part : {"prefill", "decode"}) {
      EXPECT_GE(json[part]["tokens"].get<int64_t>(), 0);
      EXPECT_GE(json[part]["seconds_s"].get<double>(), 0);
      const Json& rate = json[part]["tokens_per_s"];
      EXPECT_TRUE(rate.is_null() || rate.get<double>() >= 0) << rate;
    }
    EXPECT_GT(json["ttft_s"].get<double>(), 0);
    for (const Json& stage : json["stages"]) {
      double sum = 0;
      for (const Json& part : stage["bubble"]) {
        EXPECT_GE(part.get<double>(), -1e-9) << stage.dump();
        sum += part.get<double>();
      }
      EXPECT_NEAR(sum, stage["idle_s"].get<double>(), 1e-6);
      EXPECT_GT(stage["busy_s"].get<double>(), 0);
    }
  }
}

// ---- Conversations ----

class Chat : public Generate {
 protected:
  static Finished Talk(const std::string& input, Words flags = {}) {
    Words arguments = {"chat", "-m", Talker(), "--template", "chatml", "--threads", "1"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return RunPenstock(arguments, input);
  }
};

TEST_F(Chat, AnswersEachPipedLine) {
  for (const std::string stages : {"1", "3"}) {
    const Finished done = Talk("hello\nagain\n", {"--stages", stages});
    EXPECT_EQ(done.status, 0) << done.err;
    EXPECT_EQ(done.out, "One.\nOne.\n");
  }
  EXPECT_EQ(Talk("the last line has no end").out, "One.\n");
  EXPECT_EQ(Talk("").out, "");
  EXPECT_EQ(Talk("\n\n").out, "");
}

TEST_F(Chat, KnowsItsCommands) {
  const Finished done = Talk("hello\n/stats\n/reset\nhello\n/exit\nnever said\n");
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.out, "One.\nOne.\n");
  EXPECT_NE(done.err.find("prefill"), std::string::npos) << done.err;
}

TEST_F(Chat, MistypedCommandsAreNotSaidToTheModelAndLinesOfWindowsAreRead) {
  const Finished done = Talk("/exti\r\nhello\r\n/exit\r\nnever said\r\n");
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.out, "One.\n");
  EXPECT_NE(done.err.find("no command /exti; /reset"), std::string::npos) << done.err;
  EXPECT_EQ(Talk("/usr/bin is a folder\n").out, "One.\n");
}

TEST_F(Chat, KeepsWhatItHasComputed) {
  // A second turn's prefill is the new turn alone; after a reset it is the whole text again.
  const std::string turn = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n";
  const auto prefill = [](const Finished& done) {
    const auto json = ParseJson(done.out, "standard output");
    EXPECT_TRUE(json.ok()) << done.out;
    return json.ok() ? json.value()["prefill"]["tokens"].get<size_t>() : 0;
  };
  EXPECT_EQ(prefill(Talk("hello\n", {"--json"})), turn.size());
  // The answer's end token, the line end behind it, and the new turn.
  EXPECT_EQ(prefill(Talk("hello\nhello\n", {"--json"})),
            std::string("<|im_end|>\n").size() + turn.size());
  EXPECT_EQ(prefill(Talk("hello\n/reset\nhello\n", {"--json"})), turn.size());
}

TEST_F(Chat, SaysWhenTheContextIsFull) {
  const Finished done = Talk("hello\nhello\nhello\n/reset\nhello\n", {"--context", "80"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.out, "One.\nOne.\n");
  EXPECT_NE(done.err.find("context has 80"), std::string::npos) << done.err;
}

TEST_F(Chat, RunsAsProcesses) {
  const Finished done = RunCommand(
      PenstockCommand({"chat", "-m", Talker(), "--template", "chatml", "--threads", "1"}, 3),
      "hello\nagain\n");
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.out, "One.\nOne.\n");
}

TEST_F(Chat, SystemMessagesAndTemplatesShapeThePrompt) {
  WriteText(Path("chat.json"), R"({"messages": [{"role": "user", "content": "hi"}]})");
  const std::string user = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
  const std::string system = "<|im_start|>system\nbe short<|im_end|>\n";
  const auto tokens = [](const Words& flags) {
    return RunJson(Talker(), flags)["outputs"][0]["prompt_tokens"].get<size_t>();
  };
  EXPECT_EQ(tokens({"--chat", Path("chat.json"), "--template", "chatml"}), user.size());
  EXPECT_EQ(tokens({"--chat", Path("chat.json"), "--template", "chatml", "--system", "be short"}),
            system.size() + user.size());
  EXPECT_EQ(tokens({"-p", "hi", "--template", "chatml"}), user.size());
  EXPECT_EQ(tokens({"-p", "hi", "--template", "chatml", "--system", "be short"}),
            system.size() + user.size());
}

// ---- Processes ----

TEST_F(Generate, ProcessesGiveWhatThreadsGive) {
  const Words base = {"--tokens", "1,2,3", "--tokens",     "9",       "--tokens", "4,5,6,7,8",
                      "-n",       "12",    "--ignore-eos", "--greedy"};
  for (const std::string weights : {"f32", "int8"}) {
    Words flags = base;
    flags.insert(flags.end(), {"--weights", weights});
    const Json alone = RunJson(Random(), flags);
    for (const int ranks : {1, 2, 3, 6}) {
      const Json json = RunJson(Random(), flags, "", ranks);
      EXPECT_EQ(json["outputs"], alone["outputs"]) << ranks << " ranks, " << weights;
      EXPECT_EQ(json["stages"].size(), static_cast<size_t>(ranks));
    }
    flags.insert(flags.end(), {"--cut", "2,2", "--groups", "2"});
    EXPECT_EQ(RunJson(Random(), flags, "", 3)["outputs"], alone["outputs"]);
  }
  EXPECT_EQ(RunJson(Alphabet(), {"-p", "!"}, "", 3)["outputs"][0]["text"], "abcdefghijk");
}

TEST_F(Generate, ProcessesMeasureSeveralNumbersOfSequencesInOneBench) {
  const Words bench = {"bench", "-m",          Random(), "--prompt-tokens", "8", "--generate",
                       "4",     "--sequences", "1,3",    "--repeat",        "1", "--threads",
                       "1",     "--json"};
  const Finished done = RunCommand(PenstockCommand(bench, 2));
  ASSERT_EQ(done.status, 0) << done.err;
  const auto json = ParseJson(done.out, "bench");
  ASSERT_TRUE(json.ok()) << done.out;
  ASSERT_EQ(json.value()["runs"].size(), 2U);
  EXPECT_EQ(json.value()["runs"][1]["sequences"], 3);
  EXPECT_EQ(json.value()["runs"][1]["stages"].size(), 2U);
}

TEST_F(Generate, OnlyTheFirstProcessOfAVerbWithoutRanksSpeaks) {
  const Finished done = RunCommand(PenstockCommand({"inspect", Random(), "--json"}, 3));
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_TRUE(ParseJson(done.out, "inspect").ok()) << done.out;
}

TEST_F(Generate, ProcessesGiveTheLogitsOfEachFamilyThatThreadsGive) {
  for (const std::string name : {"llama3", "gemma3", "qwen3_moe", "phi3-longrope"}) {
    const auto logits = [&name](int ranks) {
      const Finished done =
          RunCommand(PenstockCommand({"logits", "-m", TinyModelPath(name), "--tokens",
                                      "3,1,4,1,5,9,2,6", "--threads", "1", "--json"},
                                     ranks));
      EXPECT_EQ(done.status, 0) << done.err;
      return done.out;
    };
    const std::string alone = logits(0);
    EXPECT_EQ(logits(3), alone) << name;
  }
}

TEST_F(Generate, SmolLm2SaysTheSameAsThreadsAndAsProcesses) {
  const Words flags = {"-p", "The river", "-n", "12", "--greedy"};
  const Json alone = RunJson(SmolLm2Path(), flags);
  EXPECT_EQ(alone["outputs"][0]["tokens"].size(), 12U);
  EXPECT_EQ(RunJson(SmolLm2Path(), flags, "", 2)["outputs"], alone["outputs"]);
  EXPECT_EQ(RunJson(SmolLm2Path(), flags, "", 3)["outputs"], alone["outputs"]);
}

}  // namespace
}  // namespace penstock::testing
