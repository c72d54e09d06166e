#include "schedule/passes.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "schedule/registry.h"
#include "schedule/validate.h"

namespace penstock::schedule {
namespace {

template <class Check>
void ForAll(const Check& check) {
  for (const GeneratorInfo& info : Generators()) {
    for (int p = 1; p <= 6; ++p) {
      for (const int m : {1, 2, 3, 5, 8, 13}) {
        for (int v = 1; v <= (info.any_chunks ? 3 : 1); ++v) {
          SCOPED_TRACE(fmt::format("{} p={} m={} v={}", info.name, p, m, v));
          check(Generate(info.name, {p, m, info.any_chunks ? v : 0, 0}).value());
          if (testing::Test::HasFatalFailure())
            return;
        }
      }
    }
  }
}

// Every stage but the last makes a value that every later stage reads, as attention residuals do;
// `stride` thins it out.
Schedule WithLongEdges(Schedule s, int stride) {
  for (int from = 0; from + 1 < s.num_stages(); from += stride) {
    Edge edge;
    edge.name = fmt::format("block{}", from);
    edge.from = StageId(from);
    edge.bytes = 1;
    for (int to = from + stride; to < s.num_stages(); to += stride)
      edge.to.emplace_back(to);
    if (!edge.to.empty())
      s.edges.push_back(edge);
  }
  return s;
}

void ExpectLegal(const Schedule& s, TransportKind kind = TransportKind::kCredits) {
  const Report report = Validate(s, {.transport = {kind, 1}});
  ASSERT_TRUE(report.ok()) << TransportKindText(kind) << "\n" << FormatProblems(s, report);
}

std::string Row(const Schedule& s, size_t rank) {
  std::string text;
  for (const Action& a : s.ranks[rank])
    text += (text.empty() ? "" : a.joined ? "&" : " ") + ActionText(a, s.edges);
  return text;
}

int64_t LongMessages(const Schedule& s) {
  int64_t count = 0;
  for (const auto& program : s.ranks) {
    for (const Action& a : program)
      count += a.kind == OpKind::kSendForward && a.value != 0;
  }
  return count;
}

TEST(Passes, LoweredSchedulesOfEveryGeneratorPassTheProofWithOneCredit) {
  ForAll([](const Schedule& s) {
    const auto lowered = AddCommunication(s);
    ASSERT_TRUE(lowered.ok()) << lowered.error().message;
    ExpectLegal(lowered.value());
    ExpectLegal(lowered.value(), TransportKind::kBuffered);
    ExpectLegal(lowered.value(), TransportKind::kPosted);
  });
}

TEST(Passes, LoweredForRendezvousSchedulesOfEveryGeneratorRunUnderEveryTransport) {
  ForAll([](const Schedule& s) {
    for (const int stride : {0, 1, 2}) {
      const Schedule x = stride == 0 ? s : WithLongEdges(s, stride);
      const auto lowered = AddCommunication(x, {.rendezvous = true});
      ASSERT_TRUE(lowered.ok()) << lowered.error().message;
      for (const TransportKind kind : {TransportKind::kRendezvous, TransportKind::kCredits,
                                       TransportKind::kBuffered, TransportKind::kPosted}) {
        ExpectLegal(lowered.value(), kind);
      }
      EXPECT_EQ(RemoveCommunication(lowered.value()).value().ranks,
                RemoveCommunication(AddCommunication(x).value()).value().ranks);
    }
  });
}

TEST(Passes, NeighboursThatBothSendFirstStandStillUnderRendezvousUnlessLoweredForIt) {
  const Schedule s = Generate("1f1b", {4, 8, 0, 0}).value();
  EXPECT_FALSE(
      Validate(AddCommunication(s).value(), {.transport = {TransportKind::kRendezvous, 1}}).ok());
  ExpectLegal(AddCommunication(s, {.rendezvous = true}).value(), TransportKind::kRendezvous);
}

TEST(Passes, AllPassesTogetherGiveLegalSchedules) {
  ForAll([](const Schedule& s) {
    for (const int stride : {1, 2}) {
      Schedule x = WithLongEdges(s, stride);
      if (s.num_stages() > 1)
        x.edges.push_back({"tied", EdgeKind::kTied, StageId(0), {StageId(s.num_stages() - 1)}, 0});
      if (!s.forward_only) {
        x = PlaceRecompute(SplitBackward(x).value()).value();
        x = AddStepEnd(x).value();
      }
      x = UnrollSteps(x, 2, stride == 1).value();
      const auto lowered = AddCommunication(x, {.naive = stride == 2});
      ASSERT_TRUE(lowered.ok()) << lowered.error().message;
      x = AddWaits(ReleaseValues(lowered.value()).value()).value();
      ExpectLegal(x);
      ExpectLegal(x, TransportKind::kPosted);
    }
  });
}

TEST(Passes, CommunicationStandsWhereItsValueIsNeededOrMade) {
  const Schedule s = AddCommunication(Generate("1f1b", {3, 3, 0, 0}).value()).value();
  EXPECT_EQ(Row(s, 0),
            "0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0RECV_B0 0B0 0RECV_B1 0B1 0RECV_B2 0B2");
  EXPECT_EQ(Row(s, 2),
            "2RECV_F0 2F0 2B0 2SEND_B0 2RECV_F1 2F1 2B1 2SEND_B1 2RECV_F2 2F2 2B2 2SEND_B2");
}

TEST(Passes, LocalHopsOfAVSendNothing) {
  const Schedule s = AddCommunication(Generate("zb-v", {2, 1, 0, 0}).value()).value();
  EXPECT_EQ(Row(s, 1).find("1SEND_F"), std::string::npos);
  EXPECT_EQ(Row(s, 1).find("2RECV_F"), std::string::npos);
}

// Bytes of block-wise attention residuals: P(P-1)/2 + (V-1) P (P-1) messages per micro-batch, every
// rank once per block that it lacks; the embedding and the running sum are the chain's.
TEST(Passes, LongValuesMeetTheTightBoundForLoopAndVPlacements) {
  for (const int p : {2, 4, 8}) {
    for (const int v : {1, 2, 4}) {
      const Schedule s = WithLongEdges(Generate("interleaved-1f1b", {p, 2, v, 0}).value(), 1);
      const Schedule lowered = AddCommunication(s).value();
      EXPECT_EQ(LongMessages(lowered), 2 * (p * (p - 1) / 2 + (v - 1) * p * (p - 1)))
          << p << " " << v;
      // Naive: block b crosses every hop after stage b.
      const int stages = p * v;
      const int naive = p == 1 ? 0 : stages * (stages - 1) / 2;
      EXPECT_EQ(LongMessages(AddCommunication(s, {.naive = true}).value()), 2 * naive);
      EXPECT_EQ(LongMessages(AddCommunication(s, {.route = LongRoute::kDirect}).value()),
                LongMessages(lowered));
    }
    const Schedule lowered =
        AddCommunication(WithLongEdges(Generate("zb-v", {p, 2, 0, 0}).value(), 1)).value();
    EXPECT_EQ(LongMessages(lowered), 2 * (p * (p - 1) / 2 + p * (p - 1))) << p;
  }
}

// SENDs of long values, as "from->to", ascending.
std::string LongHops(const Schedule& s) {
  std::set<std::string> hops;
  for (const auto& program : s.ranks) {
    for (const Action& a : program) {
      if (a.kind == OpKind::kSendForward && a.value != 0) {
        hops.insert(std::to_string(a.stage.value()) + "->" + std::to_string(PeerStage(a).value()));
      }
    }
  }
  std::string text;
  for (const std::string& hop : hops)
    text += (text.empty() ? "" : " ") + hop;
  return text;
}

// A skip from the first stage of four to the last, which the two between do not read.
TEST(Passes, LongValuesTakeTheFastestWay) {
  Schedule s = Generate("1f1b", {4, 4, 0, 0}).value();
  s.edges.push_back({"skip", EdgeKind::kValue, StageId(0), {StageId(3)}, 1000});
  const auto way = [&](const LinkSeconds& seconds) {
    const Schedule lowered =
        AddCommunication(s, {.route = LongRoute::kCheapest, .link_seconds = seconds}).value();
    ExpectLegal(ReleaseValues(lowered).value());
    return LongHops(lowered);
  };
  EXPECT_EQ(LongHops(AddCommunication(s).value()), "0->3");
  EXPECT_EQ(way(nullptr), "0->3") << "all links alike";
  EXPECT_EQ(way([](RankId, RankId, int64_t) { return 1.0; }), "0->3");
  EXPECT_EQ(way([](RankId, RankId, int64_t) { return 0.0; }), "0->3") << "the fewest messages";
  // Neighbours are near, others are not.
  EXPECT_EQ(way([](RankId a, RankId b, int64_t) {
              return std::abs(a.value() - b.value()) == 1 ? 1.0 : 10.0;
            }),
            "0->1 1->2 2->3");
  // Two racks of two.
  EXPECT_EQ(way([](RankId a, RankId b, int64_t bytes) {
              const bool inside = a.value() / 2 == b.value() / 2;
              return (inside                             ? 1e-3
                      : a.value() == 1 && b.value() == 2 ? 1e-2
                                                         : 1e-1) *
                     static_cast<double>(bytes);
            }),
            "0->1 1->2 2->3");
  EXPECT_EQ(way([](RankId a, RankId b, int64_t) {
              return a.value() == 0 && b.value() == 1 ? 9.0 : b.value() - a.value() == 3 ? 7 : 2.0;
            }),
            "0->2 2->3");
}

TEST(Passes, AnyRouteBringsAValueOnceToEachRank) {
  ForAll([](const Schedule& s) {
    uint32_t draw = 1;
    std::map<std::pair<int, int>, double> seconds;
    const Schedule lowered =
        AddCommunication(WithLongEdges(s, 1), {.route = LongRoute::kCheapest,
                                               .link_seconds =
                                                   [&](RankId a, RankId b, int64_t) {
                                                     double& t = seconds[{a.value(), b.value()}];
                                                     if (t == 0) {
                                                       draw = draw * 1664525U + 1013904223U;
                                                       t = 1.0 + draw % 100;
                                                     }
                                                     return t;
                                                   }})
            .value();
    ExpectLegal(ReleaseValues(lowered).value());
    for (const auto& program : lowered.ranks) {
      std::set<std::pair<int, int>> got;
      for (const Action& a : program) {
        if (a.kind == OpKind::kRecvForward && a.value != 0 && a.slice == 0) {
          EXPECT_TRUE(got.insert({a.value, a.micro_batch.value()}).second);
        }
      }
    }
  });
}

TEST(Passes, AValueGoesOnceToEachRankThatReadsIt) {
  ForAll([](const Schedule& s) {
    const Schedule lowered = AddCommunication(WithLongEdges(s, 1)).value();
    for (const auto& program : lowered.ranks) {
      std::set<std::tuple<int, int, int>> got;
      for (const Action& a : program) {
        if (a.kind == OpKind::kRecvForward && a.value != 0) {
          ASSERT_TRUE(got.emplace(a.value, a.micro_batch.value(), a.slice).second)
              << ActionText(a, lowered.edges);
        }
      }
    }
  });
}

TEST(Passes, ASkipGoesStraightToItsReader) {
  Schedule s = Generate("forward", {4, 1, 0, 0}).value();
  s.edges.push_back({"skip", EdgeKind::kValue, StageId(0), {StageId(3)}, 8});
  s = ReleaseValues(AddCommunication(s).value()).value();
  EXPECT_EQ(Row(s, 0), "0F0 0SEND_F0 0SEND_F0:skip>3 0FREE0:skip");
  EXPECT_EQ(Row(s, 1), "1RECV_F0 1F0 1SEND_F0");
  EXPECT_EQ(Row(s, 3), "3RECV_F0 3RECV_F0:skip>0 3F0 3FREE0:skip");
}

TEST(Passes, SplittingAndMergingTheBackwardUndoEachOther) {
  ForAll([](const Schedule& s) {
    const Schedule split = SplitBackward(s).value();
    for (const auto& program : split.ranks) {
      for (const Action& a : program)
        ASSERT_NE(a.kind, OpKind::kBackward);
    }
    ExpectLegal(split);
    if (s.name == "gpipe" || s.name == "1f1b" || s.name == "hanayo" || s.name == "sliced-1f1b") {
      ASSERT_EQ(MergeBackward(split).value(), s);
    }
  });
}

TEST(Passes, TakingCommunicationOutGivesTheComputeOnlyScheduleBack) {
  ForAll([](const Schedule& s) {
    Schedule flat = s;  // lowering takes overlapped pairs apart
    for (auto& program : flat.ranks) {
      for (Action& a : program)
        a.joined = false;
    }
    const Schedule lowered = AddCommunication(s).value();
    ASSERT_EQ(RemoveCommunication(lowered).value(), flat);
    ASSERT_EQ(RemoveWaits(AddWaits(lowered).value()).value(), lowered);
    ASSERT_EQ(AddWaits(AddWaits(lowered).value()).value(), AddWaits(lowered).value());
  });
}

TEST(Passes, RecomputeLeavesOutBackwardsThatFollowTheirForward) {
  const Schedule s = PlaceRecompute(Generate("1f1b", {2, 2, 0, 0}).value()).value();
  EXPECT_EQ(Row(s, 0), "0F0 0F1 0R0 0B0 0R1 0B1");
  EXPECT_EQ(Row(s, 1), "1F0 1B0 1F1 1B1");
  // Recomputed activations live from R on.
  EXPECT_EQ(Validate(s).peak_activations[0], 1);
}

TEST(Passes, StepsFollowEachOtherWithOrWithoutABarrier) {
  const Schedule s =
      UnrollSteps(AddStepEnd(Generate("1f1b", {2, 1, 0, 0}).value()).value(), 2, true).value();
  EXPECT_EQ(Row(s, 0), "0F0 0B0 0REDUCE_GRAD0 0OPT0 BARRIER0 0F1 0B1 0REDUCE_GRAD1 0OPT1");
  EXPECT_EQ(s.total_micro_batches(), 2);
  ExpectLegal(s);
  EXPECT_FALSE(UnrollSteps(s, 2, true).ok());
  EXPECT_FALSE(UnrollSteps(Generate("1f1b", {2, 8, 0, 0}).value(), 2000000000, true).ok());
}

TEST(Passes, LoweringRefusesWhatFailsItsProof) {
  Schedule s = Generate("1f1b", {2, 2, 0, 0}).value();
  std::swap(s.ranks[1][0], s.ranks[1][1]);
  const auto lowered = AddCommunication(s);
  ASSERT_FALSE(lowered.ok());
  EXPECT_EQ(lowered.error().code, ErrorCode::kInvalidSchedule);
  EXPECT_FALSE(
      AddCommunication(AddCommunication(Generate("1f1b", {2, 2, 0, 0}).value()).value()).ok());
}

}  // namespace
}  // namespace penstock::schedule
