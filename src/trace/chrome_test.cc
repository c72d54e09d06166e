#include "trace/chrome.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace penstock::trace {
namespace {

using schedule::MakeAction;
using schedule::OpKind;

Timeline Sample() {
  Timeline timeline;
  timeline.name = "a \"run\"\nof two";
  timeline.measured = true;
  timeline.instruction_set = "avx512";
  timeline.threads_per_rank = 2;
  timeline.end_s = 4.5;
  timeline.values = {"block0"};
  timeline.ranks.resize(2);
  timeline.ranks[0].name = "rank 0";
  timeline.ranks[1].name = "node1:0";
  schedule::Action send = MakeAction(OpKind::kSendForward, StageId(0), MicroBatchId(3));
  send.value = 1;
  timeline.ranks[0].slices = {
      {MakeAction(OpKind::kForward, StageId(0), MicroBatchId(3)), 2, 16, 0.25, 1, 0},
      {send, 2, 0, 1, 1.0625, 640}};
  timeline.ranks[1].slices = {
      {MakeAction(OpKind::kForward, StageId(1), MicroBatchId(3), 1), 2, 16, 2, 4.5, 0}};
  timeline.ranks[1].slices[0].action.joined = true;
  timeline.ranks[1].waits = {{MakeAction(OpKind::kForward, StageId(0), MicroBatchId(3)), RankId(0),
                              WaitCause::kCommunication, 1.5, 2}};
  timeline.ranks[1].received = {{send, RankId(0), RankId(1), 2, 1.0625, 2, 640}};
  timeline.ranks[1].counters = {{"activations", "bytes", {{2, 100}, {4.5, 0}}}};
  return timeline;
}

std::string Text(const Timeline& timeline) {
  std::string text;
  WriteChromeTrace(timeline, [&text](std::string_view piece) { text += piece; });
  return text;
}

TEST(ChromeTrace, ReadsBackWhatItWrote) {
  const Timeline before = Sample();
  const auto after = ReadChromeTrace(Text(before), "trace.json");
  ASSERT_TRUE(after.ok()) << after.error().message;
  EXPECT_EQ(after->name, before.name);
  EXPECT_EQ(after->measured, before.measured);
  EXPECT_EQ(after->instruction_set, before.instruction_set);
  EXPECT_EQ(after->threads_per_rank, 2);
  EXPECT_EQ(after->values, before.values);
  EXPECT_DOUBLE_EQ(after->end_s, before.end_s);
  ASSERT_EQ(after->ranks.size(), 2U);
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(after->ranks[r].name, before.ranks[r].name);
    EXPECT_EQ(after->ranks[r].slices, before.ranks[r].slices);
    EXPECT_EQ(after->ranks[r].waits, before.ranks[r].waits);
    EXPECT_EQ(after->ranks[r].received, before.ranks[r].received);
  }
}

TEST(ChromeTrace, JoinsMessagesAndTheirReadersByArrows) {
  const auto json = ParseJson(Text(Sample()), "trace");
  ASSERT_TRUE(json.ok());
  int starts = 0;
  int ends = 0;
  for (const Json& event : json.value()["traceEvents"]) {
    const std::string phase = event["ph"];
    starts += phase == "s" ? 1 : 0;
    if (phase != "f")
      continue;
    ++ends;
    EXPECT_EQ(event["tid"], 1);
    EXPECT_GT(event["ts"].get<double>(), 2e6);  // inside the slice that reads it
    EXPECT_LT(event["ts"].get<double>(), 4.5e6);
  }
  EXPECT_EQ(starts, 1);
  EXPECT_EQ(ends, 1);
}

TEST(ChromeTrace, IgnoresEventsOfOtherTools) {
  const auto timeline = ReadChromeTrace(
      R"({"traceEvents":[{"ph":"X","name":"cudaMalloc","ts":1,"dur":2,"tid":3},
          {"ph":"X","name":"0F0","ts":1,"dur":2,"tid":0},{"ph":"i","name":"x"}]})",
      "t.json");
  ASSERT_TRUE(timeline.ok()) << timeline.error().message;
  EXPECT_EQ(timeline->CountSlices(), 1);
  EXPECT_DOUBLE_EQ(timeline->end_s, 3e-6);
}

TEST(ChromeTrace, RefusesWhatIsNoTraceAndNamesTheFile) {
  for (const char* text :
       {"", "[]", "{}", R"({"traceEvents":1})", R"({"traceEvents":[1]})", R"({"traceEvents":[]})",
        R"({"traceEvents":[{"ph":"X","name":"0F0","ts":"a","tid":0}]})",
        R"({"traceEvents":[{"ph":"X","name":"0F0","ts":1,"dur":-1,"tid":0}]})",
        R"({"traceEvents":[{"ph":"X","name":"0F0","ts":1,"tid":65536}]})",
        R"({"traceEvents":[{"ph":"X","name":"0F0","ts":1,"tid":-1}]})",
        R"({"traceEvents":[{"ph":"s","cat":"message","name":"nonsense","tid":0,"ts":1}]})",
        R"({"otherData":{"values":[1]},"traceEvents":[]})"}) {
    const auto timeline = ReadChromeTrace(text, "t.json");
    ASSERT_FALSE(timeline.ok()) << text;
    EXPECT_NE(timeline.error().message.find("t.json"), std::string::npos)
        << timeline.error().message;
  }
  EXPECT_FALSE(ReadChromeTraceFile("/no/such/file.json").ok());
}

TEST(ChromeTrace, SaysWhenAFileCanNotBeWritten) {
  EXPECT_FALSE(WriteChromeTraceFile(Sample(), "/no/such/folder/t.json").ok());
}

}  // namespace
}  // namespace penstock::trace
