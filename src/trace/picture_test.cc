#include "trace/picture.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "trace/activations.h"
#include "trace/critical_path.h"

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
  EXPECT_EQ(TextGrid(Sample(), nullptr, options).value(),
            "         |0             |5 s\n"
            "rank 0   F0 F1 ......B0--- ...B1---\n"
            "rank 1   ...F0 B0--- F1 B1--- ......\n");
}

TEST(TextGrid, FitsTheWidthAndSaysHowToGoOn) {
  GridOptions options;
  options.width = 24;
  const std::string grid = TextGrid(Sample(), nullptr, options).value();
  size_t start = 0;
  for (size_t end; (end = grid.find('\n', start)) != std::string::npos; start = end + 1) {
    if (grid.substr(start, 4) == "rank") {
      EXPECT_LE(end - start, 24U);
    }
  }
  EXPECT_NE(grid.find("--from 5"), std::string::npos) << grid;
  options.from_s = 5;
  EXPECT_NE(TextGrid(Sample(), nullptr, options).value().find("B1"), std::string::npos);
}

TEST(TextGrid, UsesColourOnlyWhereAsked) {
  GridOptions options;
  EXPECT_EQ(TextGrid(Sample(), nullptr, options).value().find('\x1b'), std::string::npos);
  options.colour = true;
  const std::string grid = TextGrid(Sample(), nullptr, options).value();
  EXPECT_NE(grid.find("\x1b[48;5;25"), std::string::npos);
  EXPECT_NE(grid.find(" F \x1b[0m forward  \x1b"), std::string::npos) << grid;
  EXPECT_NE(grid.find(" B \x1b[0m backward\n"), std::string::npos) << grid;
  EXPECT_EQ(grid.find("recompute"), std::string::npos) << grid;
}

// In colour too: without their colours, micro-batches 10 and 11 side by side are no 1011.
TEST(TextGrid, KeepsNumbersOfNeighboursApart) {
  Timeline timeline;
  timeline.ranks.resize(1);
  for (int j = 0; j < 40; ++j) {
    timeline.ranks[0].slices.push_back(
        {schedule::MakeAction(schedule::OpKind::kForward, StageId(0), MicroBatchId(j)), 0, 0,
         static_cast<double>(j), j + 1.0, 0});
  }
  timeline.end_s = 40;
  GridOptions options;
  options.width = 80;
  options.colour = true;
  std::string grid = TextGrid(timeline, nullptr, options).value();
  for (size_t at; (at = grid.find('\x1b')) != std::string::npos;)
    grid.erase(at, grid.find('m', at) + 1 - at);
  EXPECT_NE(grid.find(" 10 11 12 13 "), std::string::npos) << grid;
}

TEST(TextGrid, DrawsAnEmptyTimeline) {
  Timeline timeline;
  timeline.ranks.resize(1);
  EXPECT_NE(TextGrid(timeline, nullptr, {}).value().find("rank 0"), std::string::npos);
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

// The right edge of what is drawn lies in the picture, also where the legend is wider than the
// step.
TEST(Svg, IsAsWideAsItsLegend) {
  RankRecorder recorder(RankId(0), 10);
  double now = 0;
  for (const OpKind kind : {OpKind::kForward, OpKind::kBackward, OpKind::kBackwardInput,
                            OpKind::kBackwardWeight, OpKind::kRecompute}) {
    recorder.Record(MakeAction(kind, StageId(0), MicroBatchId(0)), 0, now, now + 1);
    ++now;
  }
  std::vector<RankTimeline> parts;
  parts.push_back(recorder.Take());
  schedule::Schedule schedule;
  schedule.placement = schedule::Placement::Loop(1, 2);
  schedule.micro_batches = 1;
  const std::string svg = Svg(MergeRanks("t", std::move(parts)), &schedule, {}).value();
  const double width = std::stod(svg.substr(svg.find("width=\"") + 7));
  const std::string last = "other shades: later chunks";
  const size_t text = svg.find(last);
  ASSERT_NE(text, std::string::npos);
  const size_t x = svg.rfind("x=\"", text);
  EXPECT_LE(std::stod(svg.substr(x + 3)) + 4.5 * static_cast<double>(last.size()), width);
}

// The curve of a part begins at the value that the part begins with.
TEST(Svg, StartsTheCurveOfAPartWhereTheStepIs) {
  Timeline timeline = Sample();
  schedule::Schedule schedule;
  schedule.placement = schedule::Placement::Loop(2, 1);
  schedule.micro_batches = 2;
  AddActivationCounters(timeline, schedule);
  SvgOptions options;
  options.from_s = 6.5;  // rank 0 holds one of its two, to the end at 9
  options.to_s = 8;
  const std::string svg = Svg(timeline, &schedule, options).value();
  const size_t curve = svg.find("class=\"curve\" d=\"M");
  ASSERT_NE(curve, std::string::npos);
  double x = 0, base = 0, x2 = 0, top = 0;
  ASSERT_EQ(std::sscanf(svg.c_str() + curve, "class=\"curve\" d=\"M%lf %lfL%lf %lf", &x, &base, &x2,
                        &top),
            4);
  EXPECT_EQ(x, x2);
  EXPECT_LT(top, base);
  EXPECT_NE(svg.find(">1 M<", curve), std::string::npos);
  EXPECT_EQ(svg.find(">2 M<", curve), std::string::npos);
}

TEST(Pictures, RefuseAnEmptyPart) {
  for (const auto& [from, to] : {std::pair(100.0, -1.0), {9.0, -1.0}, {5.0, 5.0}, {5.0, 2.0}}) {
    SvgOptions svg;
    svg.from_s = from;
    svg.to_s = to;
    EXPECT_FALSE(Svg(Sample(), nullptr, svg).ok()) << from;
    GridOptions grid;
    grid.from_s = from;
    grid.to_s = to;
    EXPECT_FALSE(TextGrid(Sample(), nullptr, grid).ok()) << from;
  }
  EXPECT_TRUE(TextGrid(Timeline(), nullptr, {}).ok());
  EXPECT_FALSE(Svg(Timeline(), nullptr, {}).ok());
}

TEST(Pictures, WriteRoundTimesShort) {
  EXPECT_EQ(AxisSeconds(0), "0");
  EXPECT_EQ(AxisSeconds(5), "5 s");
  EXPECT_EQ(AxisSeconds(10), "10 s");
  EXPECT_EQ(AxisSeconds(100), "100 s");
  EXPECT_EQ(AxisSeconds(3000), "3000 s");
  EXPECT_EQ(AxisSeconds(2.5), "2.5 s");
  EXPECT_EQ(AxisSeconds(0.25), "250 ms");
  EXPECT_EQ(AxisSeconds(1.5e-6), "1.5 us");
}

TEST(CriticalPath, IsListedRankByRankInLinesThatFit) {
  const Timeline timeline = Sample();
  std::vector<PathStep> path;
  for (const auto& [rank, slice] :
       {std::pair(0, 0), {1, 0}, {1, 1}, {0, 2}, {1, 2}, {1, 3}, {0, 3}}) {
    path.push_back({RankId(rank),
                    timeline.ranks[static_cast<size_t>(rank)].slices[static_cast<size_t>(slice)], 0,
                    false});
  }
  EXPECT_EQ(CriticalPathChain(timeline, path, 100, 100),
            "rank 0: 0F0 > rank 1: 1F0 1B0 > rank 0: 0B0 > rank 1: 1F1 1B1 > rank 0: 0B1\n");
  EXPECT_EQ(CriticalPathChain(timeline, path, 24, 100),
            "rank 0: 0F0\n> rank 1: 1F0 1B0\n> rank 0: 0B0\n> rank 1: 1F1 1B1\n> rank 0: 0B1\n");
  EXPECT_EQ(CriticalPathChain(timeline, path, 100, 3),
            "rank 0: 0F0 ... 4 more ... > rank 1: 1B1 > rank 0: 0B1\n");
  EXPECT_EQ(CriticalPathChain(timeline, {}, 100, 3), "");
}

}  // namespace
}  // namespace penstock::trace
