#include "weights/gguf.h"

#include <gtest/gtest.h>

#include <functional>

#include "weights/gguf_tokenizer.h"
#include "weights/testing_files.h"

namespace penstock::weights {
namespace {

using testing::AsBytes;
using testing::Bytes;
using testing::GgufBuilder;

GgufBuilder Small() {
  GgufBuilder builder;
  builder.Text("general.architecture", "llama")
      .Uint("llama.block_count", 1)
      .Float("llama.eps", 0.5F)
      .Bool("flag", true);
  builder.Strings("words", {"a", "", "long word"});
  builder.Floats("token_embd.weight", {4, 3}, std::vector<float>(12, 1.5F));
  builder.Floats("output_norm.weight", {4}, {1, 2, 3, 4});
  return builder;
}

TEST(Gguf, ReadsMetadataAndTensorsOfBothVersions) {
  for (const uint32_t version : {2U, 3U}) {
    GgufBuilder builder = Small();
    builder.version = version;
    const std::string file = builder.Build();
    const auto header = ParseGguf(AsBytes(file), "m.gguf");
    ASSERT_TRUE(header.ok()) << header.error().message;
    EXPECT_EQ(header->version, version);
    EXPECT_EQ(header->metadata.String("general.architecture").value(), "llama");
    EXPECT_EQ(header->metadata.Int("llama.block_count", 0, 9).value(), 1);
    EXPECT_EQ(header->metadata.Number("llama.eps").value(), 0.5);
    EXPECT_TRUE(header->metadata.Bool("flag").value());
    const auto words = header->metadata.StringsOr("words", 10);
    ASSERT_TRUE(words.ok());
    EXPECT_EQ(words.value(), (std::vector<std::string_view>{"a", "", "long word"}));
    ASSERT_EQ(header->tensors.size(), 2U);
    EXPECT_EQ(header->tensors[0].shape, (std::vector<int64_t>{3, 4}));
    EXPECT_EQ(header->tensors[0].bytes, 48U);
    float value = 0;
    std::memcpy(&value, file.data() + header->tensors[1].offset + 8, sizeof value);
    EXPECT_EQ(value, 3.0F);
  }
}

TEST(Gguf, TypedReadsNameFileKeyGotAndWanted) {
  const std::string file = Small().Build();
  const auto header = ParseGguf(AsBytes(file), "m.gguf");
  ASSERT_TRUE(header.ok());
  const auto wrong = header->metadata.Int("llama.eps", 1, 5);
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().message,
            "[weights.gguf] m.gguf: metadata llama.eps: got 0.5 (float32), wanted an integer from "
            "1 to 5");
  const auto missing = header->metadata.String("no.such");
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("no.such is missing"), std::string::npos);
  EXPECT_FALSE(header->metadata.Int("llama.block_count", 2, 9).ok());
  EXPECT_FALSE(header->metadata.Bool("general.architecture").ok());
  EXPECT_FALSE(header->metadata.StringsOr("words", 2).ok());
  EXPECT_FALSE(header->metadata.FloatsOr("words", 10).ok());
}

// Every prefix of a good file is refused, and none is read beyond its end (the sanitizers watch).
TEST(Gguf, EveryTruncationIsAnError) {
  const std::string file = Small().Build();
  for (size_t length = 0; length < file.size(); ++length) {
    const std::string cut = file.substr(0, length);
    const auto header = ParseGguf(AsBytes(cut), "cut.gguf");
    // The padding of the last tensor may be missing.
    const bool only_padding = length >= file.size() - 16;
    EXPECT_EQ(header.ok(), only_padding) << length;
    if (!header.ok()) {
      EXPECT_EQ(header.error().code, ErrorCode::kCorruptData) << header.error().message;
    }
  }
}

struct Malformed {
  const char* what;
  std::function<std::string()> make;
  const char* says;  // part of the message
};

std::string NestedArrays(int depth) {
  Bytes bytes;
  for (int i = 0; i < depth; ++i) {
    bytes.Put<uint32_t>(9).Put<uint64_t>(1);
  }
  return bytes.Put<uint32_t>(0).Put<uint64_t>(1).Put<uint8_t>(7).data();
}

const std::vector<Malformed>& Cases() {
  constexpr uint64_t kHuge = UINT64_MAX;
  static const std::vector<Malformed> cases = {
      {"no magic", [] { return "GGML" + Small().Build().substr(4); }, "not a GGUF file"},
      {"version 1", [] { return Bytes().Text("GGUF").Put<uint32_t>(1).Fill(64).data(); },
       "version 1, wanted 2 or 3"},
      {"version 4", [] { return Bytes().Text("GGUF").Put<uint32_t>(4).Fill(64).data(); },
       "version 4, wanted 2 or 3"},
      {"big-endian", [] { return Bytes().Text("GGUF").Put<uint32_t>(0x03000000).Fill(64).data(); },
       "big-endian"},
      {"huge tensor count",
       [] {
         return Bytes().Text("GGUF").Put<uint32_t>(3).Put(kHuge).Put<uint64_t>(0).Fill(64).data();
       },
       "tensors in 88 bytes"},
      {"huge key count",
       [] {
         return Bytes().Text("GGUF").Put<uint32_t>(3).Put<uint64_t>(0).Put(kHuge).Fill(64).data();
       },
       "metadata keys in"},
      {"one key more than there are",
       [] {
         GgufBuilder builder = Small();
         builder.key_count_offset = 1;
         return builder.Build();
       },
       ""},
      {"one tensor less than there are",
       [] {
         GgufBuilder builder = Small();
         builder.tensor_count_offset = -1;
         return builder.Build();
       },
       "belong to nothing"},
      {"one tensor more than there are",
       [] {
         GgufBuilder builder = Small();
         builder.tensor_count_offset = 1;
         return builder.Build();
       },
       ""},
      {"key length beyond the file",
       [] {
         return Bytes()
             .Text("GGUF")
             .Put<uint32_t>(3)
             .Put<uint64_t>(0)
             .Put<uint64_t>(1)
             .Put(kHuge)
             .Fill(32)
             .data();
       },
       "metadata key 1 of 1"},
      {"empty key", [] { return GgufBuilder().Uint("", 1).Build(); }, "has 0 bytes"},
      {"key twice", [] { return GgufBuilder().Uint("a", 1).Uint("a", 1).Build(); },
       "metadata key a stands twice"},
      {"value type 13", [] { return GgufBuilder().Raw("a", 13, "12345678").Build(); },
       "value type 13, wanted 0 to 12"},
      {"bool of 2", [] { return GgufBuilder().Raw("a", 7, "\x02").Build(); }, "a bool of 2"},
      {"string beyond the file",
       [] { return GgufBuilder().Raw("a", 8, Bytes().Put(kHuge).data()).Build(); }, "metadata a"},
      {"array count beyond the file",
       [] {
         return GgufBuilder().Raw("a", 9, Bytes().Put<uint32_t>(4).Put(kHuge / 2).data()).Build();
       },
       "metadata a"},
      {"array count whose bytes overflow",
       [] {
         return GgufBuilder()
             .Raw("a", 9, Bytes().Put<uint32_t>(10).Put(uint64_t{1} << 61).data())
             .Build();
       },
       "metadata a"},
      {"array of huge many strings",
       [] { return GgufBuilder().Raw("a", 9, Bytes().Put<uint32_t>(8).Put(kHuge).data()).Build(); },
       "strings"},
      {"array of arrays beyond the file",
       [] { return GgufBuilder().Raw("a", 9, Bytes().Put<uint32_t>(9).Put(kHuge).data()).Build(); },
       "arrays"},
      {"arrays nested deep", [] { return GgufBuilder().Raw("a", 9, NestedArrays(1000)).Build(); },
       "nested deeper"},
      {"alignment 0", [] { return GgufBuilder().Uint("general.alignment", 0).Build(); },
       "general.alignment"},
      {"alignment 24", [] { return GgufBuilder().Uint("general.alignment", 24).Build(); },
       "wanted a power of two"},
      {"alignment of the wrong type",
       [] { return GgufBuilder().Text("general.alignment", "32").Build(); }, "general.alignment"},
      {"no dimension", [] { return GgufBuilder().Tensor("t", {}, 0, "").Build(); }, "0 dimensions"},
      {"five dimensions",
       [] {
         return GgufBuilder().Tensor("t", {1, 1, 1, 1, 1}, 0, "1234").Build();
       },
       "5 dimensions"},
      {"a dimension of 0",
       [] {
         return GgufBuilder().Tensor("t", {4, 0}, 0, "").Build();
       },
       "dimension 1 is 0"},
      {"dimensions that overflow",
       [] {
         return GgufBuilder()
             .Tensor("t", {uint64_t{1} << 32, uint64_t{1} << 32}, 0, "1234")
             .Build();
       },
       "2^63"},
      {"bytes that overflow",
       [] { return GgufBuilder().Tensor("t", {uint64_t{1} << 62}, 0, "1234").Build(); },
       "2^63 bytes"},
      {"a tensor larger than the file",
       [] { return GgufBuilder().Tensor("t", {1000000}, 0, "1234").Build(); },
       "reach past the end"},
      {"unknown type", [] { return GgufBuilder().Tensor("t", {32}, 99, "1234").Build(); },
       "type number 99"},
      {"rows that are no whole blocks",
       [] { return GgufBuilder().Tensor("t", {33}, 2, std::string(36, 'x')).Build(); },
       "wanted a multiple of 32"},
      {"tensor twice",
       [] { return GgufBuilder().Floats("t", {1}, {1}).Floats("t", {1}, {1}).Build(); },
       "tensor t stands twice"},
      {"misaligned offset", [] { return GgufBuilder().Tensor("t", {1}, 0, "1234", 4).Build(); },
       "misaligned"},
      {"overlap",
       [] { return GgufBuilder().Floats("a", {1}, {1}).Tensor("b", {1}, 0, "1234", 0).Build(); },
       "overlaps"},
      {"gap",
       [] { return GgufBuilder().Tensor("a", {1}, 0, "1234", 32).Build() + std::string(32, 'x'); },
       "leaves a gap"},
      {"offset beyond the file",
       [] { return GgufBuilder().Tensor("a", {1}, 0, "1234", INT64_MAX / 32 * 32).Build(); },
       "gap"},
      {"bytes behind", [] { return Small().Build() + std::string(64, 'x'); },
       "64 bytes after the last tensor"},
      {"two files joined", [] { return Small().Build() + Small().Build(); }, "split"},
      {"empty name", [] { return GgufBuilder().Floats("", {1}, {1}).Build(); },
       "a name of 0 bytes"},
      {"long name", [] { return GgufBuilder().Floats(std::string(2000, 'n'), {1}, {1}).Build(); },
       "a name of 2000 bytes"},
  };
  return cases;
}

TEST(Gguf, EveryMalformedFileIsRefusedByName) {
  for (const Malformed& malformed : Cases()) {
    SCOPED_TRACE(malformed.what);
    const std::string file = malformed.make();
    const auto header = ParseGguf(AsBytes(file), "bad.gguf");
    ASSERT_FALSE(header.ok());
    EXPECT_NE(header.error().message.find(malformed.says), std::string::npos)
        << header.error().message;
    EXPECT_NE(header.error().message.find("bad.gguf"), std::string::npos) << header.error().message;
    EXPECT_EQ(ExitStatus(header.error().code), 2);
  }
}

// One byte changed anywhere: parsed or refused, never a crash (the sanitizers watch).
TEST(Gguf, EveryFlippedByteIsSurvived) {
  const std::string file = Small().Build();
  for (size_t at = 0; at < file.size(); ++at) {
    for (const int change : {1, 0x80, 0xff}) {
      std::string flipped = file;
      flipped[at] = static_cast<char>(flipped[at] ^ change);
      const auto header = ParseGguf(AsBytes(flipped), "flipped.gguf");
      if (header.ok()) {
        for (const StoredTensor& tensor : header->tensors) {
          EXPECT_LE(tensor.offset + tensor.bytes, file.size());
        }
        const auto words = header->metadata.StringsOr("words", 100);
        EXPECT_TRUE(!words.ok() || words->size() <= 3);
      }
    }
  }
}

TEST(Gguf, ArraysWithinArraysAreSkipped) {
  GgufBuilder builder;
  builder.Raw("nested", 9, NestedArrays(2)).Uint("after", 5);
  const std::string file = builder.Build();
  const auto header = ParseGguf(AsBytes(file), "m.gguf");
  ASSERT_TRUE(header.ok()) << header.error().message;
  EXPECT_EQ(header->metadata.Int("after", 0, 9).value(), 5);
  EXPECT_FALSE(header->metadata.IntsOr("nested", 0, 9, 10).ok());
}

TEST(Gguf, TokenizerFieldsAreChecked) {
  GgufBuilder builder;
  builder.Text("tokenizer.ggml.model", "gpt2").Strings("tokenizer.ggml.tokens", {"a", "b"});
  builder.Uint("tokenizer.ggml.eos_token_id", 1).Uint("tokenizer.ggml.bos_token_id", UINT32_MAX);
  const std::string good = builder.Build();
  const auto header = ParseGguf(AsBytes(good), "v.gguf");
  ASSERT_TRUE(header.ok());
  const auto data = ReadGgufTokenizer(header->metadata);
  ASSERT_TRUE(data.ok()) << data.error().message;
  EXPECT_EQ(data->tokens, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(data->eos_id, 1);
  EXPECT_FALSE(data->bos_id.has_value());
  EXPECT_FALSE(data->add_bos.has_value());

  builder.Uint("tokenizer.ggml.unknown_token_id", 2);
  const std::string bad = builder.Build();
  const auto bad_header = ParseGguf(AsBytes(bad), "v.gguf");
  ASSERT_TRUE(bad_header.ok());
  const auto refused = ReadGgufTokenizer(bad_header->metadata);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("unknown_token_id is 2, wanted 0 to 1"), std::string::npos)
      << refused.error().message;
}

}  // namespace
}  // namespace penstock::weights
