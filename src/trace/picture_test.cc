#include "trace/picture.h"

#include <gtest/gtest.h>

#include "trace/activations.h"

namespace penstock::trace {
namespace {

using schedule::MakeAction;
using schedule::OpKind;

Timeline Sample() {
  RankRecorder a(RankId(0), 10);
  RankRecorder b(RankId(1), 10);
  auto act = [](OpKind kind, int stage, int j) {
    return MakeAction(kind, StageId(stage), MicroBatchId(j));
  };
  a.Record(act(OpKind::kForward, 0, 0), 0, 0, 1);
  a.Record(act(OpKind::kForward, 0, 1), 0, 1, 2);
  b.Record(act(OpKind::kForward, 1, 0), 0, 1, 2);
  b.Record(act(OpKind::kBackward, 1, 0), 0, 2, 4);
  a.Record(act(OpKind::kBackward, 0, 0), 0, 4, 6);
  b.Record(act(OpKind::kForward, 1, 1), 0, 4, 5);
  b.Record(act(OpKind::kBackward, 1, 1), 0, 5, 7);
  a.Record(act(OpKind::kBackward, 0, 1), 0, 7, 9);
  std::vector<RankTimeline> parts;
  parts.push_back(a.Take());
  parts.push_back(b.Take());
  return MergeRanks("t<&>", std::move(parts));
}

TEST(TextGrid, DrawsCellsWhereTheyAreInTime) {
  GridOptions options;
  options.width = 100;
  EXPECT_EQ(TextGrid(Sample(), nullptr, options),
            "         |0             |5.00 s\n"
            "rank 0   F0 F1 ......B0--- ...B1---\n"
            "rank 1   ...F0 B0--- F1 B1--- ......\n");
}

TEST(TextGrid, FitsTheWidthAndSaysHowToGoOn) {
  GridOptions options;
  options.width = 24;
  const std::string grid = TextGrid(Sample(), nullptr, options);
  size_t start = 0;
  for (size_t end; (end = grid.find('\n', start)) != std::string::npos; start = end + 1) {
    if (grid.substr(start, 4) == "rank") {
      EXPECT_LE(end - start, 24U);
    }
  }
  EXPECT_NE(grid.find("--from 5"), std::string::npos) << grid;
  options.from_s = 5;
  EXPECT_NE(TextGrid(Sample(), nullptr, options).find("B1"), std::string::npos);
}

TEST(TextGrid, UsesColourOnlyWhereAsked) {
  GridOptions options;
  EXPECT_EQ(TextGrid(Sample(), nullptr, options).find('\x1b'), std::string::npos);
  options.colour = true;
  EXPECT_NE(TextGrid(Sample(), nullptr, options).find("\x1b[48;5;25"), std::string::npos);
}

TEST(TextGrid, DrawsAnEmptyTimeline) {
  Timeline timeline;
  timeline.ranks.resize(1);
  EXPECT_NE(TextGrid(timeline, nullptr, {}).find("rank 0"), std::string::npos);
}

TEST(Svg, HasACellPerActionAndEscapesItsTitle) {
  Timeline timeline = Sample();
  schedule::Schedule schedule;
  schedule.placement = schedule::Placement::Loop(2, 1);
  schedule.micro_batches = 2;
  AddActivationCounters(timeline, schedule);
  SvgOptions options;
  options.notes = {"a note"};
  const auto svg = Svg(timeline, &schedule, options);
  ASSERT_TRUE(svg.ok()) << svg.error().message;
  size_t cells = 0;
  for (size_t at = 0; (at = svg.value().find("</title></rect>", at)) != std::string::npos; ++at)
    ++cells;
  EXPECT_EQ(cells, 8U);
  EXPECT_NE(svg.value().find("t&lt;&amp;&gt;"), std::string::npos);
  EXPECT_NE(svg.value().find("prefers-color-scheme: dark"), std::string::npos);
  EXPECT_NE(svg.value().find("class=\"curve\" d=\"M"), std::string::npos);
  EXPECT_NE(svg.value().find("a note"), std::string::npos);
  EXPECT_NE(svg.value().find(">2 M<"), std::string::npos);  // peak of rank 0
}

TEST(Svg, DrawsABarPerHopAndDirection) {
  SvgOptions options;
  options.hops = {{"rank 0 to 1", 4096, 2048}, {"rank 1 to 2", 8192, 8192}};
  options.held_per_rank = {0, 1024, 3072};
  const std::string svg = Svg(Sample(), nullptr, options).value();
  for (const char* text : {">rank 0 to 1<", ">rank 1 to 2<", ">4.10 kB<", ">2.05 kB<",
                           "bold\">8.19 kB<", ">rank 2<", "bold\">3.07 kB<"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text << "\n" << svg;
  }
  options.hops.clear();
  EXPECT_EQ(Svg(Sample(), nullptr, options).value().find("per hop"), std::string::npos);
  options.hops.resize(100, {"full", 100, 100});
  options.hops[7] = {"empty", 1, 1};
  const std::string many = Svg(Sample(), nullptr, options).value();
  EXPECT_NE(many.find("the fullest 40 of 100"), std::string::npos);
  EXPECT_EQ(many.find(">empty<"), std::string::npos);
}

TEST(Svg, RefusesAnEmptyPart) {
  SvgOptions options;
  options.from_s = 100;
  EXPECT_FALSE(Svg(Sample(), nullptr, options).ok());
}

}  // namespace
}  // namespace penstock::trace
