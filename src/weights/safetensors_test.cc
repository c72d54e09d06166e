#include "weights/safetensors.h"

#include <gtest/gtest.h>

#include "weights/testing_files.h"

namespace penstock::weights {
namespace {

using testing::AsBytes;
using testing::Bytes;
using testing::Safetensors;

Result<SafetensorsHeader> Parse(const std::string& file) {
  return ParseSafetensors(AsBytes(file), "m.safetensors");
}

TEST(Safetensors, ReadsTensorsInOrderOfTheirData) {
  const std::string file = Safetensors(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[1,2],"data_offsets":[4,12]},)"
      R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"c":{"dtype":"BOOL","shape":[3],"data_offsets":[12,15]},)"
      R"("empty":{"dtype":"F32","shape":[0,4],"data_offsets":[12,12]},"one":{"dtype":"U8","shape":[],"data_offsets":[15,16]}})",
      std::string(16, '\0'));
  const auto header = Parse(file);
  ASSERT_TRUE(header.ok()) << header.error().message;
  ASSERT_EQ(header->tensors.size(), 5U);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[0].type, DType::kBF16);
  EXPECT_EQ(header->tensors[1].name, "b");
  EXPECT_EQ(header->tensors[1].offset, file.size() - 12);
  EXPECT_EQ(header->tensors[1].shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(header->tensors[2].elements, 0);
  EXPECT_FALSE(header->tensors[3].type.has_value());
  EXPECT_EQ(header->tensors[3].type_name, "BOOL");
  EXPECT_EQ(header->tensors[4].elements, 1);
  EXPECT_EQ(header->metadata.at("format"), "pt");
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const std::string file = Safetensors(
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   )", std::string(8, '\1'));
  ASSERT_TRUE(Parse(file).ok());
  for (size_t length = 0; length < file.size(); ++length) {
    const auto header = Parse(file.substr(0, length));
    ASSERT_FALSE(header.ok()) << length;
    EXPECT_EQ(header.error().code, ErrorCode::kCorruptData);
  }
}

TEST(Safetensors, EveryFlippedByteIsSurvived) {
  const std::string file = Safetensors(
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
      std::string(8, '\1'));
  for (size_t at = 0; at < file.size(); ++at) {
    for (int change = 1; change < 256; change += 3) {
      std::string flipped = file;
      flipped[at] = static_cast<char>(flipped[at] ^ change);
      const auto header = Parse(flipped);
      if (header.ok()) {
        for (const StoredTensor& tensor : header->tensors) {
          EXPECT_LE(tensor.offset + tensor.bytes, flipped.size());
        }
      }
    }
  }
}

struct Malformed {
  const char* what;
  std::string file;
  const char* says;
};

TEST(Safetensors, EveryMalformedFileIsRefusedByName) {
  const std::string eight(8, '\1');
  const auto one = [&eight](std::string_view body) {
    return Safetensors(R"({"a":)" + std::string(body) + "}", eight);
  };
  const std::vector<Malformed> cases = {
      {"a header longer than the file", Bytes().Put<uint64_t>(1000).Text("{}").data(),
       "a header of 1000 bytes"},
      {"a header of 2^64 - 1", Bytes().Put(UINT64_MAX).Text("{}").data(),
       "a header of 18446744073709551615 bytes"},
      {"no JSON", Safetensors("hello"), "not valid JSON"},
      {"an empty header", Safetensors(""), "not valid JSON"},
      {"JSON that ends early", Safetensors(R"({"a":{"dtype":)"), "not valid JSON"},
      {"an array", Safetensors("[]"), "instead of an object"},
      {"a number", Safetensors("5"), "instead of an object"},
      {"a deep nest", Safetensors(std::string(100000, '[')), "instead of an object"},
      {"deep objects", one(R"({"shape":{"x":{}}})"), "an object for shape"},
      {"nested shape", one(R"({"dtype":"F32","shape":[[2]],"data_offsets":[0,8]})"),
       "an array for shape"},
      {"a name twice",
       Safetensors(
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
           eight),
       "the name a stands twice"},
      {"a member twice", one(R"({"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]})"),
       "shape stands twice"},
      {"unknown member", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})"),
       "unknown member"},
      {"no dtype", one(R"({"shape":[2],"data_offsets":[0,8]})"), "no dtype"},
      {"no shape", one(R"({"dtype":"F32","data_offsets":[0,8]})"), "no shape"},
      {"no offsets", one(R"({"dtype":"F32","shape":[2]})"), "no data_offsets"},
      {"unknown dtype", one(R"({"dtype":"Q9","shape":[2],"data_offsets":[0,8]})"),
       "dtype \"Q9\", wanted one of F32"},
      {"dtype of the wrong type", one(R"({"dtype":5,"shape":[2],"data_offsets":[0,8]})"),
       "wanted the name of a type"},
      {"a negative size", one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
       "the number -2 for shape"},
      {"a fraction", one(R"({"dtype":"F32","shape":[2.5],"data_offsets":[0,8]})"),
       "the number 2.5 for shape"},
      {"null", one(R"({"dtype":"F32","shape":null,"data_offsets":[0,8]})"), "null for shape"},
      {"sizes that overflow",
       one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})"),
       "too many elements"},
      {"a size above 2^63",
       one(R"({"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]})"), "for shape"},
      {"a shape that lies", one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
       "takes 12 bytes"},
      {"offsets beyond the data", one(R"({"dtype":"F32","shape":[4],"data_offsets":[0,16]})"),
       "within the 8 bytes of data"},
      {"offsets backwards", one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"),
       "data_offsets are [8, 0]"},
      {"one offset", one(R"({"dtype":"F32","shape":[2],"data_offsets":[8]})"),
       "data_offsets are [8]"},
      {"many numbers", one(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]})"),
       "more than 8 numbers"},
      {"misaligned",
       Safetensors(
           R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
           "123456"),
       "misaligned"},
      {"overlap",
       Safetensors(
           R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
           eight),
       "overlaps a"},
      {"a hole in front", one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})"),
       "4 bytes before it belong to nothing"},
      {"bytes behind", one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"),
       "4 bytes after the last tensor"},
      {"metadata that is no text", Safetensors(R"({"__metadata__":{"a":1}})"), "wanted a string"},
  };
  for (const Malformed& malformed : cases) {
    SCOPED_TRACE(malformed.what);
    const auto header = Parse(malformed.file);
    ASSERT_FALSE(header.ok());
    EXPECT_NE(header.error().message.find(malformed.says), std::string::npos)
        << header.error().message;
    EXPECT_NE(header.error().message.find("m.safetensors"), std::string::npos);
    EXPECT_EQ(ExitStatus(header.error().code), 2);
  }
}

}  // namespace
}  // namespace penstock::weights
