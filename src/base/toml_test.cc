#include "base/toml.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TomlTable Parsed(std::string_view text) {
  auto table = ParseToml(text, "file.toml");
  EXPECT_TRUE(table.ok()) << table.error().message;
  return std::move(table).value();
}

TEST(Toml, ReadsTypedValuesAndKeepsDefaults) {
  const TomlTable t = Parsed(
      "a = 3\nb = 2.5\nc = \"x\"\nd = true\n[sub]\nrows = [[1, 2.5], [3, 4]]\n[[link]]\nn = "
      "1\n[[link]]\nn = 2\n");
  EXPECT_EQ(t.Int("a", 0, 10).value(), 3);
  EXPECT_EQ(t.Number("a", 0, 10).value(), 3.0);
  EXPECT_EQ(t.Number("b", 0, 10).value(), 2.5);
  EXPECT_EQ(t.String("c").value(), "x");
  EXPECT_TRUE(t.Bool("d").value());
  EXPECT_EQ(t.IntOr("z", 7, 0, 10).value(), 7);
  const auto rows = t.Table("sub").value().RowsOr("rows", 2).value();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1][1], 4.0);
  EXPECT_EQ(t.Tables("link").value().size(), 2u);
}

TEST(Toml, NamesFileLineAndNearestKeyOfAnUnknownOne) {
  const TomlTable t = Parsed("power_w = 3\n\n[device]\nmemory_byte = 5\n");
  ASSERT_TRUE(t.Number("power_w", 0, 10).ok());
  const TomlTable device = t.Table("device").value();
  EXPECT_EQ(device.IntOr("memory_bytes", 1, 0, 10).value(), 1);
  const auto result = t.NoUnknownKeys();
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("file.toml:4: device.memory_byte"), std::string::npos)
      << result.error().message;
  EXPECT_NE(result.error().message.find("'memory_bytes'?"), std::string::npos)
      << result.error().message;
}

TEST(Toml, AMissingKeyThatStandsThereMistypedIsPointedAt) {
  const TomlTable t = Parsed("[device]\nmemory_byts = 5\nlink = 2\n");
  const TomlTable device = t.Table("device").value();
  const auto missing = device.Number("memory_bytes", 0, 10);
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("is 'memory_byts' on line 2 meant?"), std::string::npos)
      << missing.error().message;
  const auto other = device.Number("power_w", 0, 10);
  EXPECT_EQ(other.error().message.find("meant"), std::string::npos) << other.error().message;
}

TEST(Toml, NamesAnUnknownKeyOfATableOfWhichNothingWasAsked) {
  const TomlTable t = Parsed("[device]\nx = 5\n");
  ASSERT_TRUE(t.Table("device").ok());
  EXPECT_FALSE(t.NoUnknownKeys().ok());
}

TEST(Toml, RefusesValuesOutOfRangeAndOfTheWrongKindWithTheirPlace) {
  const TomlTable t = Parsed("a = -1\nb = \"1\"\nc = nan\nd = 1.5\n");
  EXPECT_NE(t.Int("a", 0, 9).error().message.find(
                "file.toml:1: a: got -1, wanted an integer from 0 to 9"),
            std::string::npos);
  EXPECT_FALSE(t.Number("b", 0, 9).ok());
  EXPECT_FALSE(t.Number("c", -1e300, 1e300).ok());
  EXPECT_FALSE(t.Int("d", 0, 9).ok());
  EXPECT_FALSE(t.Int("missing", 0, 9).ok());
}

TEST(Toml, SaysWhereTheSyntaxIsWrong) {
  const auto result = ParseToml("a = 1\nb = = 2\n", "file.toml");
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("file.toml:2:"), std::string::npos)
      << result.error().message;
}

TEST(Toml, SetTakesTomlValuesAndPlainWords) {
  TomlTable t = Parsed("[train]\nsteps = 3\n");
  ASSERT_TRUE(t.Set("train.steps=5", "--set").ok());
  ASSERT_TRUE(t.Set("train.dtype=bf16", "--set").ok());
  ASSERT_TRUE(t.Set("new.list=[1, 2]", "--set").ok());
  EXPECT_EQ(t.Table("train").value().Int("steps", 0, 9).value(), 5);
  EXPECT_EQ(t.Table("train").value().String("dtype").value(), "bf16");
  EXPECT_EQ(t.Table("new").value().NumbersOr("list", 0, 9).value().size(), 2u);
  EXPECT_FALSE(t.Set("train.steps.deep=1", "--set").ok());
  EXPECT_FALSE(t.Set("nothing", "--set").ok());
}

TEST(Toml, SetRefusesEmptyKeys) {
  TomlTable t = Parsed("[inference]\n");
  EXPECT_FALSE(t.Set("=1", "-W").ok());
  EXPECT_FALSE(t.Set("inference.=1", "-W").ok());
  EXPECT_FALSE(t.Set("inference..x=1", "-W").ok());
}

TEST(Toml, RefusesKeysOfThousandsOfParts) {
  std::string deep = "a";
  for (int i = 0; i < 100000; ++i) {
    deep += ".a";
  }
  EXPECT_FALSE(ParseToml(deep + " = 1\n", "file.toml").ok());
  EXPECT_FALSE(ParseToml("a = " + std::string(100000, '['), "file.toml").ok());
}

}  // namespace
}  // namespace penstock
