// What can't be right is refused: exit status 2, an error on standard error that says what was got
// and what is wanted, and nothing on standard output.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "base/json.h"
#include "support/engine_runs.h"
#include "support/model_maker.h"
#include "support/process.h"

namespace penstock::testing {
namespace {

using Words = std::vector<std::string>;

constexpr double kLimit = 120;

class BadInput : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    WriteModel(Tiny(), LlamaConfig(shape_), RandomLlama(shape_, 3));
    WritePlayback(Playback(), "!hello");
  }

  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

  static std::string Path(const std::string& name) { return folder_->path() + "/" + name; }

  static std::string Tiny() { return Path("tiny"); }  // no tokenizer

  static std::string Playback() { return Path("playback"); }  // with one

  // The command is refused, and its error has all `words`.
  static void ExpectRefused(const Words& arguments, const Words& words, int ranks = 0,
                            const std::string& input = "") {
    const auto command = PenstockCommand(arguments, ranks);
    SCOPED_TRACE(Describe(command));
    Running run(command, input);
    const auto done = run.Wait(kLimit);
    ASSERT_TRUE(done.has_value()) << "still running after " << kLimit << " s";
    EXPECT_EQ(done->status, 2) << done->err;
    EXPECT_EQ(done->out, "");
    for (const std::string& word : words) {
      EXPECT_NE(done->err.find(word), std::string::npos) << "no '" << word << "' in: " << done->err;
    }
  }

  // `penstock run` on the tiny model with these flags.
  static void ExpectRunRefused(const Words& flags, const Words& words) {
    Words arguments = {"run", "-m", Tiny()};
    if (std::find(flags.begin(), flags.end(), "--tokens") == flags.end()) {
      arguments.insert(arguments.end(), {"--tokens", "1,2,3"});
    }
    if (std::find(flags.begin(), flags.end(), "-n") == flags.end()) {
      arguments.insert(arguments.end(), {"-n", "4"});
    }
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    ExpectRefused(arguments, words);
  }

  static std::string Ids(int64_t count) {
    std::string ids = "1";
    for (int64_t i = 1; i < count; ++i) {
      ids += "," + std::to_string(i % 90);
    }
    return ids;
  }

  // A tiny model with one tensor's value replaced.
  static std::string WithValue(const std::string& name, const std::string& tensor, float value) {
    TensorMap tensors = RandomLlama(shape_, 3);
    tensors.at(tensor).values[5] = value;
    WriteModel(Path(name), LlamaConfig(shape_), tensors);
    return Path(name);
  }

  static const LlamaShape shape_;
  static TemporaryFolder* folder_;
};

const LlamaShape BadInput::shape_;
TemporaryFolder* BadInput::folder_ = nullptr;

TEST_F(BadInput, TheModelsOfTheseTestsRun) {
  const Finished tiny = RunPenstock({"run", "-m", Tiny(), "--tokens", "1,2,3", "-n", "4"});
  EXPECT_EQ(tiny.status, 0) << tiny.err;
  const Finished playback = RunPenstock({"run", "-m", Playback(), "-p", "!"});
  EXPECT_EQ(playback.status, 0) << playback.err;
  EXPECT_EQ(playback.out, "helo\n");  // an "l" goes on as the last one does
}

TEST_F(BadInput, StagesAndCutsThatNoModelHas) {
  ExpectRunRefused({"--stages", "0"}, {"--stages", "0"});
  ExpectRunRefused({"--stages", "-1"}, {"--stages", "-1"});
  ExpectRunRefused({"--stages", "two"}, {"--stages", "two"});
  ExpectRunRefused({"--stages", "7"}, {"--stages 7", "6 units", "1 to 6"});
  ExpectRunRefused({"--stages", "1000000"}, {"1000000", "1 to 6"});
  ExpectRunRefused({"--cut", "3,2"}, {"cut", "entry 2", "2 after 3"});
  ExpectRunRefused({"--cut", "0,2"}, {"cut", "entry 1", "1 to 5"});
  ExpectRunRefused({"--cut", "2,6"}, {"cut", "entry 2", "is 6", "1 to 5"});
  ExpectRunRefused({"--cut", "2,99999999999"}, {"--cut", "99999999999"});
  ExpectRunRefused({"--cut", "1,x"}, {"--cut", "x"});
  ExpectRunRefused({"--cut", "-1"}, {"--cut", "-1"});
  ExpectRunRefused({"--cut", ""}, {"--cut"});
  ExpectRunRefused({"--cut", "2", "--stages", "3"}, {"--stages 3", "--cut"});
}

TEST_F(BadInput, GradientsRefuseWaitsWithoutEndAndNoMemory) {
  for (const std::string value : {"0", "-1", "nan", "1e9"}) {
    ExpectRefused({"gradients", "-m", Tiny(), "--tokens", "1,2,3", "-o", Path("g.safetensors"),
                   "--deadline", value},
                  {"--deadline", "0.01 to 86400"});
  }
  ExpectRefused({"gradients", "-m", Tiny(), "--tokens", "1,2,3", "-o", Path("g.safetensors"),
                 "--memory", "0"},
                {"--memory", "0 bytes"});
}

TEST_F(BadInput, FlagsOutOfTheirRange) {
  for (const std::string flag : {"--threads", "-n", "--groups", "--prefill-chunk", "--context"}) {
    for (const std::string value : {"0", "-1", "x", "1.5", "99999999999999999999"}) {
      ExpectRunRefused({flag, value}, {flag, value});
    }
  }
  ExpectRunRefused({"--weights", "int3"}, {"--weights", "int3", "int4"});
  ExpectRunRefused({"--kv", "int8"}, {"--kv", "int8", "bf16"});
  ExpectRunRefused({"--deadline", "0"}, {"--deadline"});
  ExpectRunRefused({"--deadline", "nan"}, {"--deadline"});
  ExpectRunRefused({"--temperature", "-1"}, {"temperature", "-1"});
  ExpectRunRefused({"--temperature", "nan"}, {"temperature"});
  ExpectRunRefused({"--top-p", "1.5"}, {"top-p", "1.5"});
  ExpectRunRefused({"--top-p", "0"}, {"top-p"});
  ExpectRunRefused({"--min-p", "2"}, {"min-p", "2"});
  ExpectRunRefused({"--top-k", "-3"}, {"--top-k", "-3"});
  ExpectRunRefused({"--repeat-penalty", "0"}, {"penalty", "0"});
  ExpectRunRefused({"--seed", "x"}, {"--seed", "x"});
  ExpectRunRefused({"--logprobs", "-1"}, {"--logprobs", "-1"});
  ExpectRunRefused({"--memory", "much"}, {"--memory", "much"});
  ExpectRunRefused({"--memory", "0"}, {"--memory", "0"});
  ExpectRunRefused({"--no-such-flag"}, {"--no-such-flag"});
  ExpectRefused({"run"}, {"--model"});
  ExpectRefused({"walk"}, {"walk"});
  ExpectRefused({}, {"penstock"});
}

TEST_F(BadInput, PromptsLongerThanTheContextSayBothNumbers) {
  for (const std::string stages : {"1", "3"}) {
    ExpectRunRefused({"--tokens", Ids(100), "--context", "64", "--stages", stages}, {"100", "64"});
    ExpectRunRefused({"--tokens", Ids(300), "--stages", stages}, {"300", "256"});
    ExpectRunRefused({"--tokens", "1,2", "--tokens", Ids(100), "--context", "64"}, {"100", "64"});
    ExpectRunRefused({"--tokens", Ids(60), "-n", "100", "--context", "64"}, {"60", "100", "64"});
  }
  ExpectRunRefused({"--context", "300"}, {"--context 300", "256"});
  ExpectRefused({"logits", "-m", Tiny(), "--tokens", Ids(257)}, {"257", "256"});
  ExpectRefused({"bench", "-m", Tiny(), "--prompt-tokens", "250", "--generate", "10"},
                {"260", "256"});
}

TEST_F(BadInput, TokensThatAreNone) {
  ExpectRunRefused({"--tokens", "1,96"}, {"96", "0 to 95"});
  ExpectRunRefused({"--tokens", "1,-2"}, {"--tokens", "-2"});
  ExpectRunRefused({"--tokens", "1,2a"}, {"--tokens", "2a"});
  ExpectRunRefused({"--tokens", "1,5000000000"}, {"--tokens", "5000000000"});
  ExpectRunRefused({"--tokens", ""}, {"no tokens"});
  ExpectRefused({"logits", "-m", Tiny(), "--tokens", "96"}, {"96", "0 to 95"});
  ExpectRefused({"logits", "-m", Tiny(), "--tokens", ""}, {"--tokens"});
  ExpectRefused({"perplexity", "-m", Tiny(), "--tokens", "1,2,96"}, {"96"});
}

TEST_F(BadInput, PromptsThatAreNone) {
  ExpectRefused({"run", "-m", Playback(), "-p", ""}, {"no tokens"});
  ExpectRefused({"run", "-m", Playback()}, {"-p", "--tokens"});
  ExpectRefused({"run", "-m", Playback(), "--prompt-file", "-"}, {"no tokens"}, 0, "");
  ExpectRefused({"run", "-m", Playback(), "--prompt-file", Path("absent.txt")}, {"absent.txt"});
  ExpectRefused({"run", "-m", Playback(), "--prompt-file", folder_->path()}, {folder_->path()});
  ExpectRefused({"run", "-m", Playback(), "--prompt-file", "-", "--prompt-lines", "-"},
                {"--prompt-lines", "standard input", "2 times"});
  ExpectRefused({"run", "-m", Playback(), "--prompt-lines", "-"}, {"--prompt-lines -", "no line"},
                0, "\n\r\n\n");
  ExpectRefused({"run", "-m", Playback(), "--chat", Path("absent.json"), "--template", "chatml"},
                {"absent.json"});
  WriteText(Path("broken.json"), "{\"messages\": [");
  ExpectRefused({"run", "-m", Playback(), "--chat", Path("broken.json"), "--template", "chatml"},
                {"broken.json"});
  WriteText(Path("empty.json"), "{\"messages\": []}");
  ExpectRefused({"run", "-m", Playback(), "--chat", Path("empty.json"), "--template", "chatml"},
                {"messages"});
  ExpectRefused({"run", "-m", Playback(), "-p", "!", "--stop", ""}, {"stop"});
}

TEST_F(BadInput, MissingTokenizersAndUnknownTemplates) {
  ExpectRefused({"run", "-m", Tiny(), "-p", "hello"}, {"tokenizer"});
  ExpectRefused({"chat", "-m", Tiny()}, {"tokenizer"});
  ExpectRefused({"tokenize", "-m", Tiny(), "hello"}, {"tokenizer"});
  WriteText(Path("chat.json"), R"({"messages": [{"role": "user", "content": "hi"}]})");
  const Words chat = {"run", "-m", Playback(), "--chat", Path("chat.json")};
  ExpectRefused(chat, {"no chat template", "--template", "chatml", "smollm2"});
  Words named = chat;
  named.insert(named.end(), {"--template", "chatmal"});
  ExpectRefused(named, {"chatmal", "chatml"});
  WritePlayback(Path("odd"), "!a", "{% for m in messages %}@@{{ m.content }}{% endfor %}");
  ExpectRefused({"run", "-m", Path("odd"), "--chat", Path("chat.json")}, {"template", "chatml"});
  ExpectRefused({"chat", "-m", Path("odd")}, {"template", "chatml"});
}

TEST_F(BadInput, FilesThatCannotBeRead) {
  ExpectRefused({"run", "-m", Path("absent"), "--tokens", "1"}, {"absent"});
  ExpectRefused({"run", "-m", Path("absent.gguf"), "--tokens", "1"}, {"absent.gguf"});
  std::filesystem::create_directories(Path("hollow"));
  ExpectRefused({"run", "-m", Path("hollow"), "--tokens", "1"}, {"hollow"});
  WriteText(Path("text.gguf"), "This is no model.");
  ExpectRefused({"run", "-m", Path("text.gguf"), "--tokens", "1"}, {"text.gguf"});
  WriteText(Path("nothing.gguf"), "");
  ExpectRefused({"run", "-m", Path("nothing.gguf"), "--tokens", "1"}, {"nothing.gguf"});
  std::filesystem::create_directories(Path("cut-off"));
  std::filesystem::copy(Tiny(), Path("cut-off"), std::filesystem::copy_options::recursive);
  std::filesystem::resize_file(Path("cut-off") + "/model.safetensors", 20000);
  ExpectRefused({"run", "-m", Path("cut-off"), "--tokens", "1"}, {"model.safetensors"});
}

TEST_F(BadInput, ConfigurationsThatSayTooLittleOrTooMuch) {
  const auto refused = [](const std::string& name, const Json& change, const Words& words) {
    Json config = LlamaConfig(shape_);
    for (const auto& [key, value] : change.items()) {
      if (value.is_null()) {
        config.erase(key);
      } else {
        config[key] = value;
      }
    }
    WriteModel(Path(name), config, RandomLlama(shape_, 3));
    ExpectRefused({"run", "-m", Path(name), "--tokens", "1,2", "-n", "2"}, words);
  };
  refused("family", {{"model_type", "walrus"}, {"architectures", {"WalrusForCausalLM"}}},
          {"alrus", "llama"});
  refused("no-layers", {{"num_hidden_layers", 0}}, {"num_hidden_layers"});
  refused("many-layers", {{"num_hidden_layers", 5}}, {"model.layers.4"});
  refused("huge-layers", {{"num_hidden_layers", 2000000000}}, {"num_hidden_layers"});
  refused("heads", {{"num_attention_heads", 5}, {"num_key_value_heads", 5}}, {"32", "5"});
  refused("kv-heads", {{"num_key_value_heads", 3}}, {"num_key_value_heads"});
  refused("vocabulary", {{"vocab_size", 97}}, {"96", "97"});
  refused("no-width", {{"hidden_size", nullptr}}, {"hidden_size"});
  refused("odd-width", {{"hidden_size", "wide"}}, {"hidden_size"});
  refused("activation", {{"hidden_act", "swoosh"}}, {"swoosh"});
}

TEST_F(BadInput, TensorsThatAreMissingOrHaveAnotherShape) {
  TensorMap tensors = RandomLlama(shape_, 3);
  tensors.erase("model.layers.2.mlp.up_proj.weight");
  WriteModel(Path("no-up"), LlamaConfig(shape_), tensors);
  ExpectRefused({"run", "-m", Path("no-up"), "--tokens", "1", "-n", "1"},
                {"model.layers.2.mlp.up_proj.weight"});
  tensors = RandomLlama(shape_, 3);
  tensors.erase("lm_head.weight");
  WriteModel(Path("no-head"), LlamaConfig(shape_), tensors);
  for (const std::string stages : {"1", "2"}) {
    ExpectRefused({"run", "-m", Path("no-head"), "--tokens", "1", "-n", "1", "--stages", stages},
                  {"lm_head.weight"});
  }
  tensors = RandomLlama(shape_, 3);
  tensors["model.layers.1.self_attn.q_proj.weight"].shape = {16, 64};
  WriteModel(Path("reshaped"), LlamaConfig(shape_), tensors);
  ExpectRefused({"run", "-m", Path("reshaped"), "--tokens", "1", "-n", "1"},
                {"model.layers.1.self_attn.q_proj.weight", "16", "64", "32"});
}

TEST_F(BadInput, NumbersThatAreNoneInWeightsNameTheTensor) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinite = std::numeric_limits<float>::infinity();
  const std::vector<std::pair<std::string, float>> cases = {
      {"model.embed_tokens.weight", nan},
      {"model.layers.0.input_layernorm.weight", nan},
      {"model.layers.1.self_attn.k_proj.weight", nan},
      {"model.layers.3.mlp.down_proj.weight", infinite},
      {"model.norm.weight", -infinite},
      {"lm_head.weight", nan},
  };
  int number = 0;
  for (const auto& [tensor, value] : cases) {
    const std::string model = WithValue("nan" + std::to_string(number++), tensor, value);
    for (const std::string stages : {"1", "3"}) {
      for (const std::string weights : {"f32", "bf16", "int8", "int4"}) {
        ExpectRefused({"run", "-m", model, "--tokens", "1,2", "-n", "2", "--stages", stages,
                       "--weights", weights},
                      {tensor});
      }
    }
    ExpectRefused({"run", "-m", model, "--tokens", "1,2", "-n", "2"}, {tensor}, 2);
  }
}

TEST_F(BadInput, NumbersThatOverflowOnTheWayNameTheLayer) {
  // Finite weights whose products are not.
  TensorMap tensors = RandomLlama(shape_, 3);
  for (const char* part : {"up", "gate", "down"}) {
    for (float& value :
         tensors.at("model.layers.2.mlp." + std::string(part) + "_proj.weight").values) {
      value *= 1e30F;
    }
  }
  WriteModel(Path("huge"), LlamaConfig(shape_), tensors);
  tensors = RandomLlama(shape_, 3);
  for (float& value : tensors.at("lm_head.weight").values) {
    value = value < 0 ? -3e38F : 3e38F;
  }
  WriteModel(Path("huge-head"), LlamaConfig(shape_), tensors);
  for (const std::string stages : {"1", "3", "6"}) {
    ExpectRefused({"run", "-m", Path("huge"), "--tokens", "1,2", "-n", "2", "--weights", "f32",
                   "--stages", stages},
                  {"layer 2", "NaN or infinity"});
    ExpectRefused({"run", "-m", Path("huge-head"), "--tokens", "1,2", "-n", "2", "--weights", "f32",
                   "--stages", stages},
                  {"head", "NaN or infinity"});
  }
  ExpectRefused({"logits", "-m", Path("huge-head"), "--tokens", "1,2", "--weights", "f32"},
                {"head", "NaN or infinity"}, 2);
}

TEST_F(BadInput, MemoryThatCannotSufficeIsRefusedBeforeAnythingIsLoaded) {
  ExpectRunRefused({"--memory", "50000"},
                   {"rank 0", "50000 bytes are free", "--memory", "of weights"});
  ExpectRunRefused({"--memory", "50000", "--stages", "3"}, {"bytes are free"});
  // A context too large for what would do without it.
  const Finished fits = RunPenstock(
      {"run", "-m", Tiny(), "--tokens", "1", "-n", "4", "--memory", "400kB", "--context", "32"});
  EXPECT_EQ(fits.status, 0) << fits.err;
  Words many = {"run", "-m", Tiny(), "-n", "4", "--memory", "400kB", "--context", "256"};
  for (int i = 0; i < 40; ++i) {
    many.insert(many.end(), {"--tokens", "1"});
  }
  ExpectRefused(many, {"40 sequences", "256 tokens", "400000 bytes are free"});
  // The file's data are never touched: a hole of 40 GB that claims to be weights is refused at
  // once.
  LlamaShape large;
  large.layers = 1;
  large.width = 65536;
  large.heads = 512;
  large.kv_heads = 1;
  large.ffn = 8;
  large.vocabulary = 8;
  Json config = LlamaConfig(large);
  std::filesystem::create_directories(Path("large"));
  WriteText(Path("large") + "/config.json", config.dump());
  TensorMap shapes = RandomLlama({1, 8, 2, 1, 8, 8, 16}, 1);
  Json header = Json::object();
  int64_t end = 0;
  const auto claim = [&](const std::string& name, std::vector<int64_t> shape) {
    int64_t bytes = 4;
    for (const int64_t n : shape) {
      bytes *= n;
    }
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  };
  claim("model.embed_tokens.weight", {8, 65536});
  claim("model.norm.weight", {65536});
  claim("lm_head.weight", {8, 65536});
  const std::string layer = "model.layers.0.";
  claim(layer + "self_attn.q_proj.weight", {65536, 65536});
  claim(layer + "self_attn.k_proj.weight", {128, 65536});
  claim(layer + "self_attn.v_proj.weight", {128, 65536});
  claim(layer + "self_attn.o_proj.weight", {65536, 65536});
  claim(layer + "mlp.gate_proj.weight", {8, 65536});
  claim(layer + "mlp.up_proj.weight", {8, 65536});
  claim(layer + "mlp.down_proj.weight", {65536, 8});
  claim(layer + "input_layernorm.weight", {65536});
  claim(layer + "post_attention_layernorm.weight", {65536});
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t size = text.size();
  std::string file(reinterpret_cast<const char*>(&size), sizeof size);
  WriteText(Path("large") + "/model.safetensors", file + text);
  std::filesystem::resize_file(Path("large") + "/model.safetensors",
                               sizeof size + text.size() + static_cast<uint64_t>(end));
  ExpectRefused({"run", "-m", Path("large"), "--tokens", "1", "-n", "1", "--memory", "1GB",
                 "--weights", "f32"},
                {"1000000000 bytes are free"});
}

TEST_F(BadInput, RanksThatAreNotTheStages) {
  ExpectRefused({"run", "-m", Tiny(), "--tokens", "1", "-n", "1", "--stages", "3"},
                {"2 ranks", "3 stages"}, 2);
  ExpectRefused({"run", "-m", Tiny(), "--tokens", "1", "-n", "1", "--cut", "1,2"},
                {"2 ranks", "3 stages"}, 2);
  ExpectRefused({"run", "-m", Tiny(), "--tokens", Ids(300), "-n", "1"}, {"300", "256"}, 2);
  ExpectRefused({"run", "-m", Path("absent"), "--tokens", "1"}, {"absent"}, 2);
  ExpectRefused({"run", "-m", Tiny(), "--stages", "none"}, {"--stages", "none"}, 2);
}

TEST_F(BadInput, CutsAndTokensOfCommasAlone) {
  ExpectRunRefused({"--cut", ","}, {"--cut", "','", "10,20"});
  ExpectRefused({"perplexity", "-m", Playback(), "--tokens", ""}, {"0 tokens", "at least 2"});
}

TEST_F(BadInput, PipesInPlaceOfModelsDoNotHang) {
  const std::string pipe = Path("pipe.gguf");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ExpectRefused({"run", "-m", pipe, "--tokens", "1"}, {"pipe.gguf", "not a regular file"});
  ExpectRefused({"inspect", pipe}, {"pipe.gguf", "not a regular file"});
}

TEST_F(BadInput, NamesOfConfigurationsAreNoModelsToRun) {
  ExpectRefused({"run", "-m", "smollm2-135m", "-p", "a"},
                {"'smollm2-135m'", ".gguf", "inspect and plan"});
}

TEST_F(BadInput, TheCommandLineSaysWhatItGotAndWhatIsWanted) {
  ExpectRefused({"run", "-m", Tiny(), "--thread", "2"}, {"penstock run:", "--thread", "--threads"});
  ExpectRefused({"run", "-m", Tiny(), "word"}, {"penstock run:", "'word'", "penstock run --help"});
  ExpectRefused({"run", "-m", Tiny(), "--system", "a", "--system", "b"},
                {"--system", "more than once"});
  ExpectRefused({"trace", "diff", "--frob"}, {"penstock trace diff:"});
  ExpectRefused({"plan", "-m", "x", "-s", "y", "-n", "1e3"}, {"'1e3'", "from 1 to 1048576"});
  ExpectRefused({"plan", "-m", "x", "-s", "y", "--mode", "none"},
                {"'none'", "inference or training"});
  ExpectRefused({"inspect", "smollm2-135m", "--stages", "x"}, {"--stages", "'x'", "a number"});
  ExpectRefused({}, {"no verb"});
}

TEST_F(BadInput, EmptyNamesAreNoNames) {
  ExpectRunRefused({"--trace", ""}, {"--trace", "got nothing, wanted FILE"});
  ExpectRunRefused({"--template", ""}, {"--template", "got nothing, wanted NAME"});
  ExpectRefused({"plan", "-m", "llama-3.1-8b", "-s", "dgx-h100", "--html", ""}, {"--html", "FILE"});
  ExpectRefused({"inspect", "smollm2-135m", "--cut", ""}, {"--cut", "LIST"});
  ExpectRefused({"run", "-m", "", "--tokens", "1"}, {"--model", "MODEL"});
}

TEST_F(BadInput, PenaltiesAreNamedOneByOne) {
  ExpectRunRefused({"--frequency-penalty", "inf"}, {"--frequency-penalty: got inf"});
  ExpectRunRefused({"--presence-penalty", "nan"}, {"--presence-penalty: got nan"});
  ExpectRunRefused({"--top-p", "1.1"}, {"got 1.1, wanted"});
}

TEST_F(BadInput, TracesThatCannotBeWrittenAreRefusedBeforeTheRun) {
  ExpectRunRefused({"--trace", Path("absent") + "/x.json"},
                   {"absent/x.json", "folder that exists"});
  ExpectRunRefused({"--trace", folder_->path()}, {"is a folder"});
}

TEST_F(BadInput, AFullDiskIsNoBadInput) {
  const Finished trace =
      RunPenstock({"run", "-m", Tiny(), "--tokens", "1", "-n", "2", "--trace", "/dev/full"});
  EXPECT_EQ(trace.status, 3) << trace.err;
  EXPECT_NE(trace.err.find("No space left"), std::string::npos) << trace.err;
  const Finished logits = RunPenstock({"logits", "-m", Tiny(), "--tokens", "1", "-o", "/dev/full"});
  EXPECT_EQ(logits.status, 3) << logits.err;
  EXPECT_NE(logits.err.find("No space left"), std::string::npos) << logits.err;
}

TEST_F(BadInput, AResultThatStandardOutputDoesNotTakeIsNoSuccess) {
  for (const std::string verb : {"run --json", "logits -o -"}) {
    const std::string command =
        PenstockCommand({})[0] + " " + verb + " -m " + Tiny() + " --tokens 1,2 > /dev/full";
    const Finished done = RunCommand({"/bin/sh", "-c", command});
    EXPECT_EQ(done.status, 3) << done.err;
    EXPECT_NE(done.err.find("standard output"), std::string::npos) << done.err;
  }
  const std::string plan = PenstockCommand({})[0] + " inspect smollm2-135m > /dev/full";
  EXPECT_EQ(RunCommand({"/bin/sh", "-c", plan}).status, 3);
}

TEST_F(BadInput, ClosedStreamsAreNoFilesOfOthers) {
  const std::string run = PenstockCommand({})[0] + " run -m " + Tiny() + " -n 2 --tokens ";
  const Finished out = RunCommand({"/bin/sh", "-c", run + "1,2 --json >&-"});
  EXPECT_EQ(out.status, 3) << out.err;
  EXPECT_NE(out.err.find("standard output"), std::string::npos) << out.err;
  EXPECT_EQ(RunCommand({"/bin/sh", "-c", run + "1,2 2>&-"}).status, 0);
  const std::string tokenize = PenstockCommand({})[0] + " tokenize -m " + Playback();
  const Finished in = RunCommand({"/bin/sh", "-c", tokenize + " <&-"});
  EXPECT_EQ(in.status, 2) << in.out;
  EXPECT_NE(in.err.find("standard input"), std::string::npos) << in.err;
}

TEST_F(BadInput, FlagsThatNothingWouldHeedAreRefused) {
  ExpectRunRefused({"--stop", "x"}, {"--stop", "no tokenizer"});
  ExpectRunRefused({"--system", "Be brief."}, {"--system", "--tokens are taken literally"});
  ExpectRunRefused({"--template", "chatml"}, {"--template", "--tokens are taken literally"});
  const Finished both = RunPenstock(
      {"run", "-m", Tiny(), "--tokens", "1", "-n", "2", "--greedy", "--temperature", "0.7"});
  EXPECT_EQ(both.status, 0) << both.err;
  EXPECT_NE(both.err.find("--temperature is without effect"), std::string::npos) << both.err;
}

TEST_F(BadInput, OutputsThatCannotBeWritten) {
  ExpectRefused({"logits", "-m", Tiny(), "--tokens", "1", "-o", Path("absent") + "/x.npy"},
                {"x.npy"});
  ExpectRefused({"logits", "-m", Tiny(), "--tokens", "1", "--json", "-o", "-"}, {"--json", "-o -"});
}

}  // namespace
}  // namespace penstock::testing
