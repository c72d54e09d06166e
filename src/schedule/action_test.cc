#include "schedule/action.h"

#include <gtest/gtest.h>

#include "schedule/placement.h"
#include "schedule/schedule.h"

namespace penstock::schedule {
namespace {

TEST(Action, TextOfEveryKindReadsBackAsTheSameAction) {
  const std::vector<Edge> edges = {{"block0", EdgeKind::kValue, StageId(0), {StageId(4)}, 8}};
  for (const char* text : {"2F0",
                           "0B11",
                           "3I1",
                           "0W3",
                           "1SEND_F2",
                           "2RECV_F2",
                           "1SEND_B3",
                           "0RECV_B3",
                           "1WAIT_SEND_F2",
                           "1WAIT_SEND_B2",
                           "2R0",
                           "4FREE0:block0",
                           "1UNSHARD",
                           "1RESHARD",
                           "1REDUCE_GRAD",
                           "1REDUCE_GRAD:block0",
                           "1WAIT_REDUCE_GRAD",
                           "1OPT",
                           "1OPT2",
                           "BARRIER",
                           "BARRIER1",
                           "2F0.1",
                           "0SEND_F3:block0>4",
                           "4RECV_F3:block0>0",
                           "0SEND_F3.2:block0>4",
                           "."}) {
    const auto action = ParseAction(text, edges);
    ASSERT_TRUE(action.ok()) << text << ": " << action.error().message;
    EXPECT_EQ(ActionText(action.value(), edges), text);
  }
}

TEST(Action, MalformedTextIsRefused) {
  for (const char* text : {"",          "2",
                           "F0",        "2X0",
                           "2F",        "2BW0",
                           "0F1junk",   "0F1.",
                           "0F1.x",     "-1F0",
                           "0F-1",      "0F99999999999",
                           "99999F0",   "0F0 ",
                           " 0F0",      "0SEND_F0:nowhere",
                           "0SEND_F0>", "0SEND_F0>99999",
                           "1UNSHARD0", "1BARRIER",
                           "0F0>2",     "0F0:block0",
                           "2f0",       "2SEND_F",
                           "..",        "0F0.99999",
                           "BARRIER0.1"}) {
    const auto action = ParseAction(text);
    ASSERT_FALSE(action.ok()) << text;
    EXPECT_EQ(action.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(Action, PeerIsTheNeighbourUnlessNamed) {
  EXPECT_EQ(PeerStage(ParseAction("1SEND_F0").value()), StageId(2));
  EXPECT_EQ(PeerStage(ParseAction("1RECV_F0").value()), StageId(0));
  EXPECT_EQ(PeerStage(ParseAction("1SEND_B0").value()), StageId(0));
  EXPECT_EQ(PeerStage(ParseAction("1RECV_B0").value()), StageId(2));
  EXPECT_EQ(PeerStage(ParseAction("1SEND_F0>7").value()), StageId(7));
}

TEST(Placement, HelpersPlaceStagesAsTheirNamesSay) {
  const Placement loop = Placement::Loop(3, 2);
  EXPECT_EQ(loop.RankOf(StageId(4)), RankId(1));
  EXPECT_EQ(loop.ChunkOf(StageId(4)), 1);
  const Placement v = Placement::V(4);
  EXPECT_EQ(v.RankOf(StageId(3)), RankId(3));
  EXPECT_EQ(v.RankOf(StageId(4)), RankId(3));
  EXPECT_EQ(v.RankOf(StageId(7)), RankId(0));
  EXPECT_EQ(v.chunks(), 2);
  const Placement wave = Placement::Wave(3, 3);
  EXPECT_EQ(wave.RankOf(StageId(6)), RankId(0));
  const Placement mirrored = Placement::Mirrored(4);
  EXPECT_EQ(mirrored.num_directions(), 2);
  EXPECT_EQ(mirrored.RankOf(StageId(1), 1), RankId(2));
  EXPECT_EQ(mirrored.chunks(), 1);
  EXPECT_EQ(v.StagesOf(RankId(1)), (std::vector<StageId>{StageId(1), StageId(6)}));
}

TEST(Placement, KindOfAMapIsRecognised) {
  auto ids = [](std::vector<int> ranks) {
    std::vector<RankId> map;
    for (int rank : ranks)
      map.emplace_back(rank);
    return map;
  };
  EXPECT_EQ(Placement::FromMap(2, ids({0, 1, 0, 1})).value().kind(), PlacementKind::kLoop);
  EXPECT_EQ(Placement::FromMap(2, ids({0, 1, 1, 0})).value().kind(), PlacementKind::kV);
  EXPECT_EQ(Placement::FromMap(2, ids({0, 1, 1, 0, 0, 1})).value().kind(), PlacementKind::kWave);
  EXPECT_EQ(Placement::FromMap(2, ids({1, 0})).value().kind(), PlacementKind::kCustom);
  EXPECT_EQ(Placement::FromMap(2, ids({0, 1}), ids({1, 0})).value().kind(),
            PlacementKind::kMirrored);
  EXPECT_FALSE(Placement::FromMap(2, ids({0, 2})).ok());
  EXPECT_FALSE(Placement::FromMap(2, {}).ok());
}

}  // namespace
}  // namespace penstock::schedule
