#include "weights/dequantize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/json.h"
#include "weights/gguf_set.h"
#include "weights/testing_files.h"

namespace penstock::weights {
namespace {

const std::string kQuant = std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/models/quant/";

TEST(Dequantize, EveryTypeEqualsGgufPyBitForBit) {
  const auto golden = ReadJsonFile(kQuant + "golden.json");
  ASSERT_TRUE(golden.ok()) << golden.error().message;
  size_t types = 0;
  for (const Json& entry : golden.value()["types"]) {
    const auto set = GgufSet::Open(kQuant + entry["file"].get<std::string>());
    ASSERT_TRUE(set.ok()) << set.error().message;
    for (const auto& [name, file] : entry["tensors"].items()) {
      SCOPED_TRACE(entry["type"].get<std::string>() + " " + name);
      const StoredTensor* tensor = set->Find(name);
      ASSERT_NE(tensor, nullptr);
      const std::vector<float> wanted = testing::ReadNpy(kQuant + file.get<std::string>());
      ASSERT_EQ(static_cast<size_t>(tensor->elements), wanted.size());
      std::vector<float> got(wanted.size());
      DequantizeRow(*tensor->type, set->file(0)->bytes().subspan(tensor->offset, tensor->bytes),
                    got);
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(wanted[i]))
            << "element " << i << ": got " << got[i] << ", wanted " << wanted[i];
      }
    }
    ++types;
  }
  EXPECT_EQ(types, 13U);
}

TEST(Dequantize, EveryHalfIsExact) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const auto mantissa = static_cast<double>(bits & 1023);
    const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    const float got = HalfToFloat(static_cast<uint16_t>(bits));
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(got), mantissa != 0) << bits;
      EXPECT_EQ(std::isinf(got), mantissa == 0) << bits;
      continue;
    }
    const double wanted = exponent == 0 ? sign * std::ldexp(mantissa, -24)
                                        : sign * std::ldexp(1024 + mantissa, exponent - 25);
    ASSERT_EQ(static_cast<double>(got), wanted) << bits;
    ASSERT_EQ(std::signbit(got), sign < 0) << bits;
  }
}

TEST(Dequantize, AllFiniteSeesASingleBadElementAnywhere) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    for (size_t at = 0; at < 37; ++at) {
      std::vector<float> values(37, std::numeric_limits<float>::max());
      EXPECT_TRUE(AllFinite(values));
      values[at] = bad;
      EXPECT_FALSE(AllFinite(values));
    }
  }
}

}  // namespace
}  // namespace penstock::weights
