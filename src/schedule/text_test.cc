#include "schedule/text/text.h"

#include <gtest/gtest.h>

#include "schedule/layout.h"
#include "schedule/passes.h"
#include "schedule/registry.h"
#include "schedule/validate.h"

namespace penstock::schedule {
namespace {

template <class Check>
void ForAll(const Check& check) {
  for (const GeneratorInfo& info : Generators()) {
    for (int p = 1; p <= 5; ++p) {
      for (const int m : {1, 2, 3, 8}) {
        for (int v = 1; v <= (info.any_chunks ? 3 : 1); ++v) {
          for (const int slices : {1, 3}) {
            if (slices > 1 && info.default_slices == 1)
              continue;
            SCOPED_TRACE(fmt::format("{} p={} m={} v={} slices={}", info.name, p, m, v, slices));
            check(Generate(info.name, {p, m, info.any_chunks ? v : 0, slices}).value());
            if (testing::Test::HasFatalFailure())
              return;
          }
        }
      }
    }
  }
}

constexpr Dialect kCsvDialects[] = {Dialect::kBw, Dialect::kPlain, Dialect::kWait};

TEST(NativeText, EveryScheduleReadsBackAsItself) {
  ForAll([](Schedule s) {
    if (s.num_stages() > 2) {
      s.edges.push_back({"block0", EdgeKind::kValue, StageId(0), {StageId(1), StageId(2)}, 4096});
      s.edges.push_back({"wte", EdgeKind::kTied, StageId(0), {StageId(s.num_stages() - 1)}, 0});
    }
    Schedule lowered = AddCommunication(s).value();
    if (!s.forward_only)
      lowered = AddStepEnd(PlaceRecompute(lowered).value()).value();
    lowered = ReleaseValues(UnrollSteps(lowered, 2, true).value()).value();
    for (const Schedule& x : {s, lowered}) {
      const std::string text = WriteNative(x);
      const auto back = ParseSchedule(text, "test.schedule");
      ASSERT_TRUE(back.ok()) << back.error().message << "\n" << text;
      ASSERT_EQ(back.value().dialect, Dialect::kNative);
      ASSERT_EQ(back.value().schedule, x);
      ASSERT_EQ(back.value().schedule.name, x.name);
      ASSERT_EQ(WriteNative(back.value().schedule), text);
    }
  });
}

TEST(CsvText, EveryScheduleReadsBackAsTheSameProgramInEveryDialect) {
  ForAll([](const Schedule& s) {
    if (s.slices > 1)
      return;
    const Schedule lowered = AddCommunication(s).value();
    for (const Dialect dialect : kCsvDialects) {
      for (const Schedule& x : {s, lowered}) {
        const auto text = WriteCsv(x, dialect);
        ASSERT_TRUE(text.ok()) << text.error().message;
        const auto back = ParseSchedule(text.value(), "test.csv");
        ASSERT_TRUE(back.ok()) << back.error().message << "\n" << text.value();
        const bool waits = dialect == Dialect::kWait && x.lowered;
        ASSERT_TRUE(SameProgram(back.value().schedule, waits ? AddWaits(x).value() : x))
            << text.value();
        ASSERT_TRUE(SameProgram(RemoveWaits(back.value().schedule).value(), x));
        // The other direction: what was read writes the same text.
        ASSERT_EQ(WriteCsv(back.value().schedule, dialect).value(), text.value());
        const Report report = Validate(back.value().schedule);
        ASSERT_TRUE(report.ok()) << FormatProblems(back.value().schedule, report) << text.value();
      }
    }
  });
}

TEST(CsvText, DialectsAreRecognised) {
  auto dialect = [](std::string_view text) { return ParseSchedule(text, "x.csv").value().dialect; };
  // The shortened examples of the reference: old zero bubble, old lowered, new.
  EXPECT_EQ(dialect("0F0,2F0,2B0,2W0,0B0,0W0\n,1F0,3F0,3B0,3W0,1B0,1W0\n"), Dialect::kBw);
  EXPECT_EQ(dialect("0F0,0SEND_F0,0RECV_B0,0BW0\r\n1RECV_F0,1F0,1BW0,1SEND_B0\r\n"), Dialect::kBw);
  EXPECT_EQ(dialect("0F0,0I0,0W0\n"), Dialect::kPlain);
  EXPECT_EQ(dialect("0F0,0B0\n"), Dialect::kPlain);
  EXPECT_EQ(
      dialect("0F0,0SEND_F0,0WAIT_SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n"),
      Dialect::kWait);
}

TEST(CsvText, OldDialectMeansInputGradientByB) {
  const Schedule s = ParseSchedule("0F0,1F0,1B0,1W0,0BW0", "x.csv").value().schedule;
  EXPECT_EQ(s.ranks[0][2].kind, OpKind::kBackwardInput);
  EXPECT_EQ(s.ranks[0][4].kind, OpKind::kBackward);
  EXPECT_TRUE(Validate(s).ok());
}

TEST(CsvText, RowEndsBlankCellsAndRaggedRowsAreTolerated) {
  const std::string plain = "0F0,,0B0\n,1F0,1B0\n";
  const Schedule s = ParseSchedule(plain, "x.csv").value().schedule;
  EXPECT_EQ(s.ranks[0].size(), 3U);
  EXPECT_EQ(s.ranks[0][1].kind, OpKind::kIdle);
  for (const char* text : {"0F0,,0B0\r\n,1F0,1B0\r\n", "0F0,,0B0,,\n,1F0,1B0",
                           " 0F0 ,, 0B0\n, 1F0,1B0,\n\n", "0F0,\"\",0B0\n\"\",1F0,\"1B0\"\n\n\n",
                           "\xef\xbb\xbf"
                           "0F0,,0B0\n,1F0,1B0\n"}) {
    EXPECT_TRUE(SameProgram(ParseSchedule(text, "x.csv").value().schedule, s)) << text;
  }
  // A rank without work is a row of its own: a quoted cell, or cells that are all blank.
  for (const char* text : {"0F0,0B0\n\"\"\n", "0F0,0B0\n\"\"\n\n\n", "0F0,0B0\r\n,\r\n\r\n"})
    EXPECT_EQ(ParseSchedule(text, "x.csv").value().schedule.num_ranks(), 2) << text;
}

TEST(CsvText, OverlappedPairsAreOneCell) {
  const Schedule s =
      ParseSchedule("0F0,1F0,1B0,(0F1;0B0)OVERLAP_F_B,1F1,1B1,0B1\n", "x.csv").value().schedule;
  EXPECT_FALSE(s.ranks[0][3].joined);
  EXPECT_TRUE(s.ranks[0][4].joined);
  EXPECT_TRUE(Validate(s).ok());
  EXPECT_EQ(WriteCsv(s, Dialect::kPlain).value(), "0F0,1F0,1B0,(0F1;0B0)OVERLAP_F_B,1F1,1B1,0B1\n");
}

TEST(CsvText, PlacementComesFromTheRows) {
  EXPECT_EQ(ParseSchedule("0F0,3F0\n1F0,2F0\n", "x").value().schedule.placement.kind(),
            PlacementKind::kV);
  EXPECT_EQ(ParseSchedule("0F0,2F0\n1F0,3F0\n", "x").value().schedule.placement.kind(),
            PlacementKind::kLoop);
  EXPECT_EQ(ParseSchedule("1F0\n0F0\n", "x").value().schedule.placement.kind(),
            PlacementKind::kCustom);
  const auto mirrored =
      WriteCsv(Generate("chimera", {4, 8, 0, 0}).value(), Dialect::kPlain).value();
  EXPECT_EQ(ParseSchedule(mirrored, "x").value().schedule.placement.kind(),
            PlacementKind::kMirrored);
}

TEST(CsvText, MalformedCellsAreRefusedWithRowAndColumn) {
  struct Case {
    const char* text;
    int row, column;
  };

  for (const Case& c : {Case{"0F0,0F1junk\n", 1, 2},
                        {"0F0\n1X0\n", 2, 1},
                        {"0F0,F1", 1, 2},
                        {"0F0,0F", 1, 2},
                        {"0F0,0F-1", 1, 2},
                        {"0F0\n\n1F0,0F0 0B0", 3, 2},
                        {"(0F0;0B0)", 1, 1},
                        {"(0F0;0B0)OVERLAP", 1, 1},
                        {"(0F0;0B0OVERLAP_F_B", 1, 1},
                        {"0F0,(0F1;)OVERLAP_F_B", 1, 2},
                        {"0F0,()OVERLAP_F_B", 1, 2},
                        {"0F0.1", 1, 1},
                        {"0F0,0R0", 1, 2},
                        {"0F0,0SEND_F0>3", 1, 2},
                        {"0F0,0FW0", 1, 2},
                        {"0F99999999999", 1, 1},
                        {"40000F0", 1, 1},
                        {"0F0,BARRIER", 1, 2},
                        {"0BWF0", 1, 1},
                        {"0F0,0OPT", 1, 2},
                        {"0F0,2BWW0", 1, 2},
                        {"0F0,.", 1, 2}}) {
    TextPlace place;
    const auto result = ParseSchedule(c.text, "bad.csv", &place);
    ASSERT_FALSE(result.ok()) << c.text;
    EXPECT_EQ(result.error().code, ErrorCode::kCorruptData);
    EXPECT_EQ(place.row, c.row) << c.text;
    EXPECT_EQ(place.column, c.column) << c.text;
    EXPECT_NE(result.error().message.find(fmt::format("bad.csv:{}:{}", c.row, c.column)),
              std::string::npos);
  }
  for (const char* text : {"", "\n\n", ",,,\n", "   ", "0UNSHARD\n"})
    EXPECT_FALSE(ParseSchedule(text, "x.csv").ok()) << text;
}

TEST(CsvText, WhatItCannotSayIsListed) {
  Schedule s = Generate("1f1b", {4, 4, 0, 0}).value();
  s.edges.push_back({"skip", EdgeKind::kValue, StageId(0), {StageId(3)}, 8});
  s.edges.push_back({"wte", EdgeKind::kTied, StageId(0), {StageId(3)}, 0});
  const auto refused = WriteCsv(AddStepEnd(PlaceRecompute(s).value()).value(), Dialect::kPlain);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  for (const char* part :
       {"edge 'skip' 0 -> 3", "tied weights 'wte' 0 -> 3", "R actions", "OPT actions"}) {
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << part << "\n"
                                                                     << refused.error().message;
  }
  const auto sliced = WriteCsv(Generate("sliced-1f1b", {2, 2, 0, 4}).value(), Dialect::kPlain);
  ASSERT_FALSE(sliced.ok());
  EXPECT_NE(sliced.error().message.find("4 sequence slices"), std::string::npos);
}

TEST(NativeText, MalformedTextIsRefusedWithItsPlace) {
  const std::string head = "penstock-schedule 1\nranks 1\nmicro-batches 1\n";

  struct Case {
    std::string text;
    int row, column;
  };

  for (const Case& c : {Case{"penstock-schedule 2\n", 1, 1},
                        {"penstock-schedule\n", 1, 1},
                        {head + "colour red\nrank 0\n0F0\n", 4, 1},
                        {head + "ranks 2\n", 4, 1},
                        {head + "slices 0\n", 4, 8},
                        {head + "steps x\n", 4, 7},
                        {head + "steps 1 2\n", 4, 9},
                        {head + "units seconds\n", 4, 7},
                        {head + "flags lowered fast\n", 4, 15},
                        {head + "edge a value 0 1\n", 4, 1},
                        {head + "edge a! value 0 -> 1\n", 4, 6},
                        {head + "edge a other 0 -> 1\n", 4, 8},
                        {head + "edge a value 0 -> 1 bytes x\n", 4, 21},
                        {head + "edge a value 0 -> 1 bytes 9223372036854775807\n", 4, 21},
                        {head + "rank 1\n", 4, 1},
                        {head + "rank 0\n  0F0 0X0\n", 5, 7},
                        {head + "rank 0\n  (0F0;0B0\n", 5, 3},
                        {head + "rank 0\n 0F0:nowhere\n", 5, 2},
                        {head + "rank 0\n 0F0\nrank 2\n", 6, 1},
                        {head + "name a b\n", 4, 8},
                        {head + "name \x01\n", 4, 6}}) {
    TextPlace place;
    const auto result = ParseSchedule(c.text, "bad", &place);
    ASSERT_FALSE(result.ok()) << c.text;
    EXPECT_EQ(result.error().code, ErrorCode::kCorruptData);
    EXPECT_EQ(place.row, c.row) << c.text << result.error().message;
    EXPECT_EQ(place.column, c.column) << c.text << result.error().message;
  }
  for (const char* header :
       {"chunks 2\nstages 3", "placement v\nchunks 3", "placement sideways", "placement custom 0 1",
        "placement custom", "placement loop 3", "placement mirrored\nchunks 2", "chunks 32768"}) {
    EXPECT_FALSE(ParseSchedule(head + header + "\nrank 0\n", "bad").ok()) << header;
  }
  EXPECT_FALSE(ParseSchedule("penstock-schedule 1\n", "bad").ok());
  EXPECT_FALSE(ParseSchedule("penstock-schedule 1\nrank 0\n0F0\n", "bad").ok());
}

TEST(NativeText, CommentsBlankLinesAndCustomPlacementsAreRead) {
  const char* text =
      "# swapped ranks\npenstock-schedule 1\nname mine # a label\nranks 2\nmicro-batches "
      "1\nplacement custom 1 0\n\nrank 0\n"
      "  1F0 # last stage\n  1B0\nrank 1\n  0F0 0B0\n";
  const auto read = ParseSchedule(text, "x");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_TRUE(Validate(read.value().schedule).ok());
  EXPECT_EQ(read.value().schedule.placement.RankOf(StageId(0)), RankId(1));
}

TEST(NativeText, CellsThatSendSayThatCommunicationIsThere) {
  const Schedule s = AddCommunication(Generate("zb-v", {3, 4, 0, 0}).value()).value();
  std::string text = WriteNative(s);
  const std::string flag = "flags lowered\n";
  text.erase(text.find(flag), flag.size());
  EXPECT_TRUE(ParseSchedule(text, "x").value().schedule == s);
  Schedule wrong = s;
  wrong.lowered = false;
  EXPECT_FALSE(AddCommunication(wrong).ok());
}

TEST(NativeText, HeadersThatClaimMuchAllocateNothing) {
  const auto read = ParseSchedule(
      "penstock-schedule 1\nranks 1\nmicro-batches 2000000000\nsteps 2000000000\nslices "
      "60000\nrank 0\n0F0\n",
      "x");
  ASSERT_TRUE(read.ok());
  EXPECT_FALSE(Validate(read.value().schedule).ok());
  const auto second = ParseSchedule(
      "penstock-schedule 1\nranks 30000\nmicro-batches 2000000000\nslices 60000\nrank 0\n0F0\n",
      "x");
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(Validate(second.value().schedule).problems.at(0).kind, ProblemKind::kShape);
  const auto third =
      ParseSchedule("penstock-schedule 1\nranks 1\nmicro-batches 2000000000\nrank 0\n0F0\n", "x");
  const Report report = Validate(third.value().schedule);
  ASSERT_EQ(report.problem_count, 1);
  EXPECT_EQ(report.problems[0].kind, ProblemKind::kMissing);
  EXPECT_EQ(report.problems[0].action, "0F1");
}

// A gigabyte of commas would be sixteen of idle cells.
TEST(Texts, OfTooManyCellsAreRefused) {
  std::string csv = "0F0" + std::string((size_t{1} << 27) + 1, ',') + "0B0\n";
  TextPlace place;
  auto read = ParseSchedule(csv, "x.csv", &place);
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.error().message.find("wanted at most 134217728 in all rows"), std::string::npos)
      << read.error().message;
  EXPECT_EQ(place.row, 1);
  csv.clear();
  csv.shrink_to_fit();
  std::string native = "penstock-schedule 1\nranks 1\nmicro-batches 1\nrank 0\n";
  constexpr size_t kWords = (size_t{1} << 24) + 1;
  native.reserve(native.size() + 2 * kWords);
  for (size_t i = 0; i < kWords; ++i)
    native += ". ";
  read = ParseSchedule(native, "x", &place);
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.error().message.find("at most 16777216 words in a line"), std::string::npos)
      << read.error().message;
  EXPECT_EQ(place.row, 5);
}

TEST(Layout, TheDeepSeekExampleIsReadAsMegatronReadsIt) {
  const auto layout = ParseLayout("Et*3|(tt|)*29,m|L", 16);
  ASSERT_TRUE(layout.ok()) << layout.error().message;
  ASSERT_EQ(layout.value().size(), 32U);
  EXPECT_TRUE(layout.value()[0].embedding);
  EXPECT_EQ(layout.value()[0].decoder_layers, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(layout.value()[1].decoder_layers, (std::vector<int>{3, 4}));
  EXPECT_EQ(layout.value()[29].decoder_layers, (std::vector<int>{59, 60}));
  EXPECT_EQ(layout.value()[30].mtp_layers, 1);
  EXPECT_TRUE(layout.value()[31].loss);
  EXPECT_EQ(layout.value()[17].rank, 1);
  EXPECT_EQ(layout.value()[17].chunk, 1);
}

// Strings that people start Megatron-LM with: ranks, stages, decoder layers, MTP layers.
TEST(Layout, StringsInUseAreRead) {
  struct Case {
    const char* text;
    int ranks, stages, decoder_layers, mtp_layers;
  };

  for (const Case& c : {Case{"Et|t|(tt|)*29tL", 2, 32, 61, 0},
                        {"Et*2|(tt|)*22t|(tt|)*7mL", 8, 32, 61, 1},
                        {"Ett|(tt|)*6L", 4, 8, 14, 0},
                        {"Et*16|t*16|t*16|t*12,m,L", 2, 4, 60, 1},
                        {"E,t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4,L", 8, 8, 32, 0},
                        {"Et|(t|)*30tL", 16, 32, 32, 0},
                        {"Et*12|t*12|t*12|t*12L", 4, 4, 48, 0}}) {
    const auto layout = ParseLayout(c.text, c.ranks);
    ASSERT_TRUE(layout.ok()) << layout.error().message;
    int decoder_layers = 0;
    int mtp_layers = 0;
    for (const LayoutStage& stage : layout.value()) {
      for (const int layer : stage.decoder_layers)
        EXPECT_EQ(layer, decoder_layers++);
      mtp_layers += stage.mtp_layers;
    }
    EXPECT_EQ(static_cast<int>(layout.value().size()), c.stages) << c.text;
    EXPECT_EQ(decoder_layers, c.decoder_layers) << c.text;
    EXPECT_EQ(mtp_layers, c.mtp_layers) << c.text;
  }
}

TEST(Layout, EmptyStagesAreLegal) {
  const auto layout = ParseLayout("E||tt|L", 4);
  ASSERT_TRUE(layout.ok());
  EXPECT_TRUE(layout.value()[1].decoder_layers.empty());
  EXPECT_TRUE(ParseLayout("EtL", 1).ok());
  EXPECT_TRUE(ParseLayout("E(t*0)*2tL", 1).ok());
  EXPECT_TRUE(ParseLayout("Et|(t)*2,t*0|tm*2L", 3).ok());
}

TEST(Layout, WhatMegatronRefusesIsRefused) {
  for (const char* text : {"",
                           ",",
                           "ttL",
                           "Ett",
                           "tE|tL",
                           "Et|Lt",
                           "EEt|L",
                           "Et|LL",
                           "Et|x|L",
                           "Et|((t)*2|)*2L",
                           "Et()*2|L",
                           "Et(,)*2|L",
                           "Et(t|L",
                           "Et)|L",
                           "E(t)|L",
                           "Et*|L",
                           "Et*x|L",
                           "E*2t|L",
                           "Em|t|L",
                           "Et|m|mL",
                           "Et|t|L",
                           "Et*99999999999|L",
                           "E(t|)*999999999L",
                           " Et|L",
                           "Et | L",
                           "*3EtL",
                           "E(t|)*1000000L",
                           "e|l"}) {
    const auto layout = ParseLayout(text, 2);
    ASSERT_FALSE(layout.ok()) << text;
    EXPECT_EQ(layout.error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_FALSE(ParseLayout("Et|L", 0).ok());
}

}  // namespace
}  // namespace penstock::schedule
