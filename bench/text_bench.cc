// Tokenizing a megabyte of texts on which a careless tokenizer takes minutes: each kind of
// tokenizer of tests/golden/tokenizers, and any tokenizer.json given in PENSTOCK_TOKENIZERS
// (separated by colons). src/text/linear_test.cc counts the steps; here is what they take.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "text/tokenizer.h"

namespace penstock::text {
namespace {

constexpr size_t kBytes = 1'000'000;

struct Kind {
  const char* name;
  const char* unit;
};

constexpr Kind kKinds[] = {{"spaces", " "},
                           {"letter", "a"},
                           {"newlines", "\n"},
                           {"digits", "1"},
                           {"emoji", "\U0001F600"},
                           {"han", "\u4e2d"},
                           {"marks", "\u0301"},
                           {"words", "the quick brown fox jumps over the lazy dog. "},
                           {"mixed", "a 1 \u00e9\n\u4e2d\U0001F600  !\u0301 "},
                           {"ill-formed", "a\xff"}};

void Encode(benchmark::State& state, const Tokenizer& tokenizer, const Kind& kind) {
  std::string text;
  while (text.size() < kBytes) {
    text += kind.unit;
  }
  size_t ids = 0;
  for (auto _ : state) {
    ids = tokenizer.Encode(text)->size();
  }
  state.SetBytesProcessed(static_cast<int64_t>(text.size()) * state.iterations());
  state.counters["ids"] = static_cast<double>(ids);
}

std::vector<std::string> Files() {
  std::vector<std::string> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(PENSTOCK_SOURCE_DIR "/tests/golden/tokenizers")) {
    files.push_back(entry.path().string() + "/tokenizer.json");
  }
  std::sort(files.begin(), files.end());
  if (const char* more = std::getenv("PENSTOCK_TOKENIZERS"); more != nullptr) {
    std::istringstream list(more);
    for (std::string file; std::getline(list, file, ':');) {
      files.push_back(file);
    }
  }
  return files;
}

void Register() {
  for (const std::string& file : Files()) {
    const auto text = ReadFile(file);
    if (!text.ok()) {
      continue;  // texts.json lies beside the folders
    }
    auto tokenizer = Tokenizer::FromTokenizerJson(text.value(), nullptr, file);
    if (!tokenizer.ok()) {
      continue;
    }
    const auto shared = std::make_shared<Tokenizer>(std::move(tokenizer).value());
    const std::string name = std::filesystem::path(file).parent_path().filename().string();
    for (const Kind& kind : kKinds) {
      benchmark::RegisterBenchmark((name + "/" + kind.name).c_str(), [shared, kind](
                                                                         benchmark::State& state) {
        Encode(state, *shared, kind);
      })->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace
}  // namespace penstock::text

int main(int argc, char** argv) {
  penstock::text::Register();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
