// One model, many layouts: logits and ids are the same bits whatever the cut, the groups in flight,
// the prefill chunk, the threads, and whichever other sequences share the batch.
//
// The ordinary tests take a few layouts that differ in everything at once; those named Slow take
// the whole product.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/json.h"
#include "support/engine_runs.h"

namespace penstock::testing {
namespace {

using runtime::WeightChoice;
using serve::RunOptions;

struct Numbers {
  WeightChoice weights;
  DType kv;
  const char* name;
};

constexpr Numbers kNumbers[] = {
    {WeightChoice::kF32, DType::kF32, "f32"},
    {WeightChoice::kBF16, DType::kBF16, "bf16"},
    {WeightChoice::kInt8, DType::kBF16, "int8"},
    {WeightChoice::kInt4, DType::kF32, "int4 with f32 KV"},
};

RunOptions Plain(const Numbers& numbers) {
  RunOptions options;
  options.stages = 1;
  options.groups = 1;
  options.threads = 1;
  options.weights = numbers.weights;
  options.kv_type = numbers.kv;
  return options;
}

RunOptions Layout(const Numbers& numbers, int64_t stages, std::vector<int64_t> cut, int64_t groups,
                  int64_t chunk, int threads) {
  RunOptions options = Plain(numbers);
  options.stages = cut.empty() ? stages : 0;
  options.cut = std::move(cut);
  options.groups = groups;
  options.prefill_chunk = chunk;
  options.threads = threads;
  return options;
}

// Cuts with every kind of stage: one layer each, embedding or head alone, uneven, empty ones first
// to last. `units`: embedding, layers, head.
std::vector<std::vector<int64_t>> UnevenCuts(int64_t units) {
  const int64_t head = units - 1;
  return {{1}, {head}, {1, head}, {2}, {1, 1, head}, {2, 2, 2, head}, {head, head}};
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A loaded model and its prompts.
class Subject {
 public:
  // `short_prompt`, `long_prompt`: ids. A failure and nothing to use if the model can't be opened.
  void Open(const std::string& path, std::vector<int32_t> short_prompt,
            std::vector<int32_t> long_prompt) {
    auto bundle = serve::OpenBundle(path);
    ASSERT_TRUE(bundle.ok()) << bundle.error().message;
    bundle_ = std::move(bundle).value();
    short_ = std::move(short_prompt);
    long_ = std::move(long_prompt);
  }

  int64_t units() const { return bundle_.model.graph.num_layers(); }

  const std::vector<int32_t>& short_prompt() const { return short_; }

  const std::vector<int32_t>& long_prompt() const { return long_; }

  std::vector<float> Logits(const RunOptions& options) {
    auto logits = EngineLogits(bundle_, options, long_);
    EXPECT_TRUE(logits.ok()) << LayoutText(options) << ": " << logits.error().message;
    return logits.ok() ? std::move(logits).value() : std::vector<float>();
  }

  std::vector<std::vector<int32_t>> Ids(const RunOptions& options,
                                        const std::vector<std::vector<int32_t>>& prompts,
                                        int64_t count) {
    auto ids = EngineIds(bundle_, options, prompts, count);
    EXPECT_TRUE(ids.ok()) << LayoutText(options) << ": " << ids.error().message;
    return ids.ok() ? std::move(ids).value() : std::vector<std::vector<int32_t>>();
  }

  // The logits of each layout are those of one stage.
  void ExpectSameLogits(const Numbers& numbers, const std::vector<RunOptions>& layouts) {
    const std::vector<float> wanted = Logits(Plain(numbers));
    ASSERT_FALSE(wanted.empty());
    const auto zeros = std::count(wanted.begin(), wanted.end(), 0.0F);
    ASSERT_LT(zeros, static_cast<int64_t>(wanted.size()) / 8) << "every row was written";
    for (const RunOptions& layout : layouts) {
      EXPECT_TRUE(SameBits(Logits(layout), wanted)) << numbers.name << ", " << LayoutText(layout);
    }
  }

  // Each of the prompts gives what it gives alone on one stage, in each layout.
  void ExpectSameIds(const Numbers& numbers, const std::vector<RunOptions>& layouts,
                     const std::vector<std::vector<int32_t>>& prompts, int64_t count) {
    std::vector<std::vector<int32_t>> wanted;
    for (const std::vector<int32_t>& prompt : prompts) {
      const auto alone = Ids(Plain(numbers), {prompt}, count);
      ASSERT_EQ(alone.size(), 1U);
      ASSERT_EQ(static_cast<int64_t>(alone[0].size()), count);
      wanted.push_back(alone[0]);
    }
    for (const RunOptions& layout : layouts) {
      EXPECT_EQ(Ids(layout, prompts, count), wanted) << numbers.name << ", " << LayoutText(layout);
    }
  }

 private:
  serve::ModelBundle bundle_;
  std::vector<int32_t> short_;
  std::vector<int32_t> long_;
};

// Prompts of different lengths, so that groups are uneven and chunks of several share a batch.
std::vector<std::vector<int32_t>> Company(const Subject& subject) {
  const std::vector<int32_t>& a = subject.short_prompt();
  const std::vector<int32_t>& b = subject.long_prompt();
  return {a, b, {b.begin(), b.begin() + 1}, {b.begin() + 2, b.begin() + 9}, a};
}

class Equality : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string folder = TinyModelPath(GetParam());
    auto golden = ReadJsonFile(folder + "/golden.json");
    ASSERT_TRUE(golden.ok()) << golden.error().message;
    const Json& prompts = golden.value()["prompts"];
    subject_.Open(folder, prompts[0]["tokens"].get<std::vector<int32_t>>(),
                  prompts[1]["tokens"].get<std::vector<int32_t>>());
  }

  Subject subject_;
};

TEST_P(Equality, LogitsAreTheSameForEveryCut) {
  for (const Numbers& numbers : kNumbers) {
    std::vector<RunOptions> layouts;
    for (const int64_t stages : {int64_t{2}, int64_t{3}, subject_.units()}) {
      layouts.push_back(Layout(numbers, stages, {}, 0, 0, 1));
    }
    for (std::vector<int64_t>& cut : UnevenCuts(subject_.units())) {
      layouts.push_back(Layout(numbers, 0, std::move(cut), 0, 0, 1));
    }
    subject_.ExpectSameLogits(numbers, layouts);
  }
}

TEST_P(Equality, LogitsAreTheSameForEveryChunkGroupCountAndThreadCount) {
  for (const Numbers& numbers : kNumbers) {
    const int64_t head = subject_.units() - 1;
    subject_.ExpectSameLogits(numbers, {
                                           Layout(numbers, 1, {}, 1, 1, 2),
                                           Layout(numbers, 1, {}, 1, 3, 5),
                                           Layout(numbers, 1, {}, 4, 7, 1),
                                           Layout(numbers, 2, {}, 8, 64, 2),
                                           Layout(numbers, 3, {}, 2, 5, 2),
                                           Layout(numbers, 0, {2, 2, head}, 3, 16, 5),
                                       });
  }
}

TEST_P(Equality, IdsAreTheSameAloneAndInCompany) {
  for (const Numbers& numbers : kNumbers) {
    const int64_t head = subject_.units() - 1;
    subject_.ExpectSameIds(numbers,
                           {
                               Layout(numbers, 1, {}, 1, 0, 1),
                               Layout(numbers, 1, {}, 3, 3, 2),
                               Layout(numbers, 2, {}, 1, 64, 1),
                               Layout(numbers, 2, {}, 2, 7, 5),
                               Layout(numbers, 3, {}, 8, 1, 1),
                               Layout(numbers, subject_.units(), {}, 0, 0, 1),
                               Layout(numbers, 0, {1, 1, head}, 5, 20, 2),
                           },
                           Company(subject_), 10);
  }
}

TEST_P(Equality, SlowEveryCombinationGivesTheSameIdsAndLogits) {
  for (const WeightChoice weights :
       {WeightChoice::kF32, WeightChoice::kBF16, WeightChoice::kInt8, WeightChoice::kInt4}) {
    for (const DType kv : {DType::kF32, DType::kBF16}) {
      const Numbers numbers{weights, kv, kv == DType::kF32 ? "f32 KV" : "bf16 KV"};
      std::vector<RunOptions> layouts;
      std::vector<std::vector<int64_t>> cuts = UnevenCuts(subject_.units());
      for (int64_t stages = 1; stages <= subject_.units(); ++stages) {
        cuts.push_back({});
        const int64_t groups = 1 + stages % 8;
        for (const int64_t chunk : {1, 3, 7, 64}) {
          for (const int threads : {1, 2, 5}) {
            layouts.push_back(Layout(numbers, stages, {}, groups, chunk, threads));
          }
        }
      }
      for (int64_t groups = 1; groups <= 8; ++groups) {
        for (const std::vector<int64_t>& cut : cuts) {
          layouts.push_back(Layout(numbers, 2, cut, groups, 7, 1));
        }
      }
      subject_.ExpectSameLogits(numbers, layouts);
      subject_.ExpectSameIds(numbers, layouts, Company(subject_), 6);
    }
  }
}

std::string TestName(const ::testing::TestParamInfo<std::string>& model) {
  std::string name = model.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Equality, ::testing::ValuesIn(TinyModels()), TestName);

TEST(EqualityModels, AreOneOfEachFamilyAtLeast) {
  EXPECT_GE(TinyModels().size(), 18U);
}

// SmolLM2 with real text; ids of scripts/fetch-model's file.
class SmolLm2Equality : public ::testing::Test {
 protected:
  void SetUp() override {
    auto golden =
        ReadJsonFile(std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/smollm2/golden.json");
    ASSERT_TRUE(golden.ok()) << golden.error().message;
    const Json& prompts = golden.value()["prompts"];
    std::vector<std::vector<int32_t>> ids;
    for (const Json& prompt : prompts) {
      ids.push_back(prompt["tokens"].get<std::vector<int32_t>>());
    }
    ASSERT_GE(ids.size(), 2U);
    const auto by_size = [](const auto& a, const auto& b) { return a.size() < b.size(); };
    std::sort(ids.begin(), ids.end(), by_size);
    subject_.Open(SmolLm2Path(), ids.front(), ids.back());
  }

  Subject subject_;
};

TEST_F(SmolLm2Equality, IdsAreTheSameForEveryLayoutAndCompany) {
  const Numbers numbers{WeightChoice::kAuto, DType::kBF16, "auto"};
  subject_.ExpectSameIds(numbers,
                         {
                             Layout(numbers, 2, {}, 2, 7, 1),
                             Layout(numbers, 3, {}, 3, 0, 2),
                             Layout(numbers, subject_.units(), {}, 2, 64, 1),
                             Layout(numbers, 0, {1, 5, 5, 31}, 4, 3, 1),
                         },
                         {subject_.short_prompt(), subject_.long_prompt()}, 8);
}

TEST_F(SmolLm2Equality, SlowLogitsAreTheSameForEveryCutAndType) {
  for (const Numbers& numbers : kNumbers) {
    std::vector<RunOptions> layouts;
    for (const int64_t stages : {int64_t{2}, int64_t{3}, subject_.units()}) {
      for (const int64_t chunk : {1, 7, 64}) {
        layouts.push_back(Layout(numbers, stages, {}, 0, chunk, 1 + static_cast<int>(chunk % 2)));
      }
    }
    for (std::vector<int64_t>& cut : UnevenCuts(subject_.units())) {
      layouts.push_back(Layout(numbers, 0, std::move(cut), 3, 0, 1));
    }
    subject_.ExpectSameLogits(numbers, layouts);
  }
}

TEST_F(SmolLm2Equality, SlowIdsAreTheSameForEveryTypeLayoutAndCompany) {
  for (const Numbers& numbers : kNumbers) {
    std::vector<RunOptions> layouts;
    for (int64_t groups = 1; groups <= 8; ++groups) {
      layouts.push_back(Layout(numbers, 1 + groups % 4, {}, groups, 1 + 9 * groups, 1));
    }
    layouts.push_back(Layout(numbers, subject_.units(), {}, 0, 0, 1));
    subject_.ExpectSameIds(numbers, layouts, Company(subject_), 12);
  }
}

}  // namespace
}  // namespace penstock::testing
