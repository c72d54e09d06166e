#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>

#include "base/cores.h"
#include "base/file.h"
#include "base/ids.h"
#include "base/json.h"
#include "base/markup.h"
#include "base/result.h"
#include "base/rng.h"
#include "base/units.h"

namespace penstock {
namespace {

Result<int> Half(int number) {
  if (number % 2 != 0) {
    return MakeError(ErrorCode::kInvalidArgument, "[test.Half] got {}, wanted an even number",
                     number);
  }
  return number / 2;
}

Result<int> Quarter(int number) {
  PENSTOCK_TRY_ASSIGN(const int half, Half(number));
  PENSTOCK_TRY(Half(half));
  return Half(half);
}

TEST(Result, PassesValuesAndErrorsThroughTheMacros) {
  EXPECT_EQ(Quarter(8).value(), 2);
  EXPECT_EQ(Quarter(6).error().message, "[test.Half] got 3, wanted an even number");
}

// Known answers of the Random123 distribution (kat_vectors, philox4x32 10).
TEST(Rng, PhiloxGivesThePublishedVectors) {
  EXPECT_EQ(Philox({0, 0, 0, 0}, 0),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffffULL),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Json, NamesLineAndColumnOfASyntaxError) {
  const auto result = ParseJson("{\n  \"a\": tru\n}", "x.json");
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("x.json:2:"), std::string::npos) << result.error().message;
}

TEST(Json, RefusesDeepNestingWithoutRecursion) {
  const auto result = ParseJson(std::string(1 << 20, '['), "deep.json");
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("nested"), std::string::npos);
}

TEST(Json, ReadsMembersWithinTheirRange) {
  const Json object =
      ParseJson(R"({"a": 3, "b": null, "c": [1, 2], "d": 5, "e": 1.5})", "x").value();
  const JsonReader reader(object, "x");
  EXPECT_EQ(reader.Int("a", 0, 5).value(), 3);
  EXPECT_FALSE(reader.Int("a", 4, 5).ok());
  EXPECT_EQ(reader.IntOr("b", 7, 0, 9).value(), 7);
  EXPECT_EQ(reader.IntsOr("c", 0, 9).value(), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(reader.IntsOr("d", 0, 9).value(), (std::vector<int64_t>{5}));
  EXPECT_FALSE(reader.Int("e", 0, 5).ok());
}

TEST(Units, FormatsAndParsesBytes) {
  EXPECT_EQ(FormatBytes(16060522496.0), "16.06 GB");
  EXPECT_EQ(ParseBytes("1.5GiB", "x").value(), 1610612736);
  EXPECT_EQ(ParseBytes("2g", "x").value(), 2000000000);
  EXPECT_FALSE(ParseBytes("2x", "x").ok());
  EXPECT_FALSE(ParseBytes("-2", "x").ok());
  EXPECT_EQ(FormatCount(-1234567), "-1,234,567");
}

TEST(Units, FormatsSecondsWithoutEverReadingAThousand) {
  EXPECT_EQ(FormatSeconds(1.0), "1.00 s");
  EXPECT_EQ(FormatSeconds(0.99999), "1.00 s");
  EXPECT_EQ(FormatSeconds(0.9994), "999.4 ms");
  EXPECT_EQ(FormatSeconds(0.000999999), "1.00 ms");
  EXPECT_EQ(FormatSeconds(0.00099994), "999.9 us");
  EXPECT_EQ(FormatSeconds(9.999999e-7), "1.00 us");
  EXPECT_EQ(FormatSeconds(-0.99999), "-1.00 s");
  EXPECT_EQ(FormatSeconds(120), "120.0 s");
}

TEST(Units, FindsTheNearestName) {
  const std::vector<std::string> names = {"warmup_steps", "weight_decay"};
  EXPECT_EQ(NearestName("warmup_step", names), "warmup_steps");
  EXPECT_EQ(NearestName("zzz", names), "");
}

TEST(Markup, EscapesWhatMarkupMeansAndDropsWhatXmlForbids) {
  EXPECT_EQ(EscapeMarkup("a<b> & \"c\"\n\x01\x1b[0m\t\xc3\xa4"),
            "a&lt;b&gt; &amp; &quot;c&quot;\n[0m\t\xc3\xa4");
}

TEST(Files, ADeviceIsWrittenIntoAndNotReplaced) {
  const std::string folder = ::testing::TempDir() + "penstock_device";
  std::filesystem::create_directories(folder);
  const std::string pipe = folder + "/pipe";
  ::unlink(pipe.c_str());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  EXPECT_TRUE(CheckWritable(pipe).ok());
  ASSERT_TRUE(WriteFileAtomically(pipe, "through").ok());
  char got[16] = {};
  EXPECT_EQ(::read(reader, got, sizeof got), 7);
  EXPECT_EQ(std::string(got), "through");
  ::close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_FALSE(MappedFile::Open(pipe).ok());  // and does not wait for a writer
  std::filesystem::remove_all(folder);
}

TEST(Files, ALinkKeepsPointingWhereItDoes) {
  const std::string folder = ::testing::TempDir() + "penstock_link";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::filesystem::create_symlink("target", folder + "/link");
  ASSERT_TRUE(WriteFileAtomically(folder + "/link", "one").ok());
  ASSERT_TRUE(WriteFileAtomically(folder + "/link", "two").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(folder + "/link"));
  EXPECT_EQ(ReadFile(folder + "/target").value(), "two");
  std::filesystem::remove_all(folder);
}

TEST(Files, WhereNothingCanBeWrittenTheFileIsNamedAsTheUserDid) {
  const std::string folder = ::testing::TempDir();
  for (const std::string& path : {folder + "absent/x", folder, std::string("")}) {
    const Result<> checked = CheckWritable(path);
    const Result<> written = WriteFileAtomically(path, "x");
    ASSERT_FALSE(checked.ok()) << path;
    ASSERT_FALSE(written.ok()) << path;
    EXPECT_EQ(ExitStatus(written.error().code), 2);
    EXPECT_NE(written.error().message.find(path), std::string::npos);
    EXPECT_EQ(written.error().message.find(".tmp"), std::string::npos) << written.error().message;
  }
  const Result<> full = WriteFileAtomically("/dev/full", "x");
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(ExitStatus(full.error().code), 3);
}

TEST(Cores, AThreadThatIsBoundToOneCoreMayUseOne) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  EXPECT_GE(UsableCores(), 1);
  EXPECT_LE(UsableCores(), CPU_COUNT(&allowed));
  int first = 0;
  while (!CPU_ISSET(static_cast<size_t>(first), &allowed)) {
    ++first;
  }
  std::thread([first] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(first), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(UsableCores(), 1);
  }).join();
}

}  // namespace
}  // namespace penstock
