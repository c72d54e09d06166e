#include "schedule/validate.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "schedule/brute_force_for_tests.h"
#include "schedule/grid.h"
#include "schedule/passes.h"
#include "schedule/registry.h"
#include "schedule/text/text.h"

namespace penstock::schedule {
namespace {

Schedule FromCsv(std::string_view text) {
  return ParseSchedule(text, "test.csv").value().schedule;
}

std::set<std::string> Kinds(const Report& report) {
  std::set<std::string> kinds;
  for (const Problem& problem : report.problems)
    kinds.emplace(ProblemKindText(problem.kind));
  return kinds;
}

std::set<std::string> KindsOf(std::string_view csv, const ValidateOptions& options = {}) {
  return Kinds(Validate(FromCsv(csv), options));
}

using Set = std::set<std::string>;

constexpr const char* kGood = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";

TEST(Validate, EveryGeneratorIsLegalAndItsPeaksAgreeWithBruteForceLimits) {
  for (const GeneratorInfo& info : Generators()) {
    for (int p = 1; p <= 6; ++p) {
      for (const int m : {1, 2, 3, 6, 11}) {
        const Schedule s = Generate(info.name, {p, m, 0, 0}).value();
        const Report report = Validate(s);
        ASSERT_TRUE(report.ok()) << info.name << p << m << FormatProblems(s, report);
        EXPECT_GT(report.makespan_slots, 0);
        for (const int64_t held : report.held_gradients)
          EXPECT_EQ(held, 0);
        const double most =
            *std::max_element(report.peak_activations.begin(), report.peak_activations.end());
        EXPECT_TRUE(Validate(s, {.activation_limit = {most}}).ok());
        EXPECT_EQ(Kinds(Validate(s, {.activation_limit = {most - 0.01}})), Set{"memory"});
        EXPECT_TRUE(Validate(s, {.activation_limit = report.peak_activations}).ok());
      }
    }
  }
}

TEST(Validate, EachKindOfFaultHasItsName) {
  EXPECT_EQ(KindsOf(kGood), Set{});
  EXPECT_EQ(KindsOf("0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n"), Set{"missing"});
  EXPECT_EQ(KindsOf("0F0,0F1,0B0,0B1,0B1\n1F0,1B0,1F1,1B1\n"), Set{"duplicate"});
  EXPECT_EQ(KindsOf("0F0,0F1,0B0,0B1,0F0\n1F0,1B0,1F1,1B1\n"), Set{"duplicate"});
  EXPECT_EQ(KindsOf("0F0,0B0,0F1,0B1\n1F0,1B0,1B1,1F1\n"), Set{"order"});
  EXPECT_EQ(KindsOf("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"), Set{"deadlock"});
  EXPECT_EQ(KindsOf("0F0,0F1,0B0,0B1,1F0\n1B0,1F1,1B1\n").count("placement"), 1U);
  EXPECT_EQ(KindsOf(kGood, {.activation_limit = {1}}), Set{"memory"});
  EXPECT_EQ(KindsOf(kGood, {.activation_limit = {2, 1}}), Set{});
  EXPECT_EQ(KindsOf(kGood, {.activation_limit = {2, 1, 1}}), Set{"shape"});
  EXPECT_EQ(KindsOf("0F0,0I0,0F1,0I1,0W0,0W1,0B0\n").count("duplicate"), 1U);
  Schedule s = FromCsv(kGood);
  s.micro_batches = 1;
  EXPECT_EQ(Kinds(Validate(s)), Set{"range"});
  s.micro_batches = 0;
  EXPECT_EQ(Kinds(Validate(s)), Set{"shape"});
  s = FromCsv(kGood);
  s.ranks.pop_back();
  EXPECT_EQ(Kinds(Validate(s)), Set{"shape"});
  s = FromCsv(kGood);
  s.ranks[0][0].joined = true;
  EXPECT_EQ(Kinds(Validate(s)), Set{"shape"});
}

TEST(Validate, MessagesAreMatchedAndInPlace) {
  const std::string good = "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n";
  EXPECT_EQ(KindsOf(good), Set{});
  EXPECT_EQ(KindsOf("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"), Set{"unmatched"});
  EXPECT_EQ(KindsOf("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n"), Set{"unmatched"});
  EXPECT_EQ(KindsOf("0F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n"), Set{"missing"});
  EXPECT_EQ(KindsOf("0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"), Set{"order"});
  EXPECT_EQ(KindsOf("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n"), Set{"order"});
  EXPECT_EQ(KindsOf("0F0,0SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
            Set{"duplicate"});
  EXPECT_EQ(KindsOf("0F0,0SEND_F0,1RECV_F0,1F0,1B0,0B0\n"), Set{"placement"});
  EXPECT_EQ(KindsOf("0F0,0SEND_B0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
            Set{"range"});
  EXPECT_EQ(KindsOf("0F0,0WAIT_SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
            Set{"order"});
  EXPECT_EQ(KindsOf("0F0,0SEND_F0,0WAIT_SEND_B0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n")
                .count("range"),
            1U);
  EXPECT_EQ(KindsOf("0F0,0SEND_F0,0RECV_B0,0B0\n1WAIT_SEND_B0,1RECV_F0,1F0,1B0,1SEND_B0\n"),
            Set{"order"});
}

TEST(Validate, GatheredWeightsAndReductionsHaveAnOrder) {
  EXPECT_EQ(KindsOf("0UNSHARD,0F0,0B0,0RESHARD,0REDUCE_GRAD\n"), Set{});
  EXPECT_EQ(KindsOf("0F0,0UNSHARD,0B0,0RESHARD\n"), Set{"order"});
  EXPECT_EQ(KindsOf("0UNSHARD,0F0,0RESHARD,0B0\n"), Set{"order"});
  EXPECT_EQ(KindsOf("0UNSHARD,0UNSHARD,0F0,0B0\n"), Set{"order"});
  EXPECT_EQ(KindsOf("0F0,0F1,0B0,0REDUCE_GRAD,0B1\n"), Set{"order"});
  EXPECT_EQ(KindsOf("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n"), Set{"duplicate"});
  EXPECT_EQ(KindsOf("0F0,0B0,0WAIT_REDUCE_GRAD\n"), Set{"unmatched"});
  EXPECT_EQ(KindsOf("0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n"), Set{});
}

// Two ranks that both send first, and two sends that are swapped.
TEST(Validate, TransportsDifferWhereTheyShould) {
  auto legal = [](std::string_view csv, TransportKind kind, int credits = 1) {
    return Validate(FromCsv(csv), {.transport = {kind, credits}}).ok();
  };
  // Both ranks send before they receive.
  const char* both_send =
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,"
      "1B1,1SEND_B1\n";
  EXPECT_TRUE(legal(both_send, TransportKind::kPosted));
  EXPECT_TRUE(legal(both_send, TransportKind::kBuffered));
  EXPECT_TRUE(legal(both_send, TransportKind::kCredits));
  EXPECT_FALSE(legal(both_send, TransportKind::kRendezvous));
  // Sends in another order than the receives.
  const char* swapped = "0F0,0F1,0SEND_F1,0SEND_F0\n1RECV_F0,1F0,1RECV_F1,1F1\n";
  EXPECT_TRUE(legal(swapped, TransportKind::kPosted));
  EXPECT_TRUE(legal(swapped, TransportKind::kBuffered));
  EXPECT_FALSE(legal(swapped, TransportKind::kCredits));
  EXPECT_TRUE(legal(swapped, TransportKind::kCredits, 2));
  EXPECT_FALSE(legal(swapped, TransportKind::kRendezvous));
  // A receive that waits in program order holds up a computation that does not need it.
  const char* early = "0F0,0RECV_B0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n";
  EXPECT_TRUE(legal(early, TransportKind::kPosted));
  EXPECT_FALSE(legal(early, TransportKind::kBuffered));
}

TEST(Validate, ADeadlockIsPrintedAsAChainWithTheNearestLegalOrder) {
  const Report report = Validate(FromCsv("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"));
  ASSERT_EQ(report.problems.size(), 1U);
  EXPECT_EQ(report.problems[0].message,
            "2 ranks wait for each other (compute-only: free data flow)\n"
            "  rank 0 stands at cell 1, 0B0: waits for rank 1 to do 1B0 at cell 2\n"
            "  rank 1 stands at cell 1, 1F1: waits for rank 0 to do 0F1 at cell 2\n"
            "  nearest legal order: 1B0 on rank 1 at cell 1 instead of 2");
  EXPECT_EQ(report.problems[0].rank, 0);
  EXPECT_EQ(report.problems[0].position, 1);
  EXPECT_EQ(report.problems[0].action, "0B0");
  const Report full = Validate(FromCsv("0F0,0F1,0SEND_F1,0SEND_F0\n1RECV_F0,1F0,1RECV_F1,1F1\n"));
  EXPECT_NE(
      full.problems.at(0).message.find("waits for rank 1 to make room with 1RECV_F1 at cell 2"),
      std::string::npos)
      << full.problems[0].message;
}

TEST(Validate, AnOverlongMemoryNamesItsOwners) {
  const Report report = Validate(FromCsv(kGood), {.activation_limit = {1}});
  ASSERT_EQ(report.problems.size(), 1U);
  EXPECT_EQ(report.problems[0].position, 1);
  EXPECT_EQ(report.problems[0].action, "0F1");
  EXPECT_EQ(
      report.problems[0].message,
      "more saved activations than the limit of 1 shares, in slot 1; the peak of this rank is "
      "2, at cell 1, in slot 1, and belongs to 0F0 0F1");
  const Report bytes =
      Validate(FromCsv(kGood), {.activation_limit = {150}, .activation_bytes = {100, 160}});
  ASSERT_EQ(bytes.problems.size(), 2U);
  EXPECT_EQ(bytes.peak_bytes, (std::vector<double>{200, 160}));
}

// What the hint says is done: the schedule is legal then.
TEST(Validate, TheNearestLegalOrderIsLegal) {
  struct Case {
    const char* csv;
    TransportKind kind;
    const char* hint;
    const char* mended;
  };

  const Case cases[] = {
      // A RECV in front of the SEND that its own sender waits for.
      {"0F0,0RECV_B0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", TransportKind::kCredits,
       "nearest legal order: 0SEND_F0 on rank 0 at cell 1 instead of 2",
       "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"},
      // The same in front of what makes it: the RECV has to go back.
      {"0RECV_B0,0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", TransportKind::kCredits,
       "nearest legal order: 0RECV_B0 on rank 0 at cell 2 instead of 0",
       "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"},
      // Both ranks send first.
      {"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
       "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n",
       TransportKind::kRendezvous, "nearest legal order: 1RECV_F1 on rank 1 at cell 3 instead of 4",
       "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
       "1RECV_F0,1F0,1B0,1RECV_F1,1SEND_B0,1F1,1B1,1SEND_B1\n"},
  };
  for (const Case& one : cases) {
    const ValidateOptions options{.transport = {one.kind, 1}};
    const Report report = Validate(FromCsv(one.csv), options);
    ASSERT_EQ(report.problems.size(), 1U) << one.csv;
    EXPECT_EQ(report.problems[0].kind, ProblemKind::kDeadlock);
    EXPECT_NE(report.problems[0].message.find(one.hint), std::string::npos)
        << report.problems[0].message;
    EXPECT_TRUE(Validate(FromCsv(one.mended), options).ok());
  }
  // More than one thing is wrong: no promise.
  const Report two =
      Validate(FromCsv("0RECV_B0,0RECV_B1,0F0,0SEND_F0,0F1,0SEND_F1,0B0,0B1\n"
                       "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"));
  ASSERT_EQ(two.problems.size(), 1U);
  EXPECT_EQ(two.problems[0].message.find("nearest legal order"), std::string::npos);
  EXPECT_NE(two.problems[0].message.find("a first step towards a legal order: 0RECV_B0"),
            std::string::npos)
      << two.problems[0].message;
}

// The limit is passed early, the peak comes later and is that of other actions.
TEST(Validate, AMemoryRefusalNamesTimeAndOwnersOfThePeak) {
  const Report report = Validate(
      FromCsv("0F0,0F1,0B0,0F2,(0F3;0B1)OVERLAP_F_B,0F4,0B2,0B3,0B4\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,"
              "1B3,1F4,1B4\n"),
      {.activation_limit = {1.5, 1}});
  ASSERT_EQ(report.problems.size(), 1U) << FormatProblems(Schedule(), report);
  EXPECT_EQ(report.problems[0].rank, 0);
  EXPECT_EQ(report.problems[0].position, 1);
  EXPECT_EQ(report.problems[0].action, "0F1");
  EXPECT_EQ(report.problems[0].message,
            "more saved activations than the limit of 1.5 shares, in slot 1; the peak of this rank "
            "is 3, at cell 4, in slot 5, and belongs to 0F1 0F2 0F3");
}

TEST(Validate, OverlappedPairsCountTheForwardFirst) {
  for (const char* text : {"0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", "0F0,(0B0;0F1)OVERLAP_F_B,0B1\n"}) {
    EXPECT_EQ(Validate(FromCsv(text)).peak_activations[0], 2) << text;
  }
  EXPECT_EQ(Validate(FromCsv("0F0,0B0,0F1,0B1\n")).peak_activations[0], 1);
}

TEST(Validate, PositionsCountCellsWithIdleOnes) {
  const Report report = Validate(FromCsv("0F0,,(0F1;0B0)OVERLAP_F_B,0F1,0B1\n"));
  ASSERT_EQ(report.problems.size(), 1U);
  EXPECT_EQ(report.problems[0].position, 3);
}

TEST(Validate, GradientsThatComeEarlyAreCountedAndHeld) {
  const Report report = Validate(FromCsv("0F0,0F1,0F2,0B2,0B1,0B0\n"));
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.held_gradients[0], 2);
}

TEST(Validate, LongValuesAreHeldUntilTheirLastRead) {
  Schedule s = Generate("1f1b", {3, 2, 0, 0}).value();
  s.edges.push_back({"skip", EdgeKind::kValue, StageId(0), {StageId(2)}, 8});
  Schedule lowered = ReleaseValues(AddCommunication(s).value()).value();
  ASSERT_TRUE(Validate(lowered).ok());
  auto find = [&](size_t rank, std::string_view text) {
    auto& program = lowered.ranks[rank];
    for (size_t i = 0; i < program.size(); ++i) {
      if (ActionText(program[i], s.edges) == text)
        return i;
    }
    ADD_FAILURE() << text;
    return size_t{0};
  };
  // Released before its last read.
  Schedule early = lowered;
  const size_t release = find(2, "2FREE0:skip");
  std::rotate(early.ranks[2].begin() + static_cast<long>(find(2, "2F0")) + 1,
              early.ranks[2].begin() + static_cast<long>(release),
              early.ranks[2].begin() + static_cast<long>(release) + 1);
  EXPECT_EQ(Kinds(Validate(early)), Set{"order"});
  const std::string told = FormatProblems(early, Validate(early));
  EXPECT_NE(told.find("2B0: reads 'skip' after its release on this rank, 2FREE0:skip at cell 3; "
                      "the first legal place of that is behind 2B0 at cell"),
            std::string::npos)
      << told;
  // Never received.
  Schedule missing = lowered;
  missing.ranks[0].erase(missing.ranks[0].begin() + static_cast<long>(find(0, "0SEND_F1:skip>2")));
  missing.ranks[2].erase(missing.ranks[2].begin() + static_cast<long>(find(2, "2RECV_F1:skip>0")));
  EXPECT_EQ(Kinds(Validate(missing)), Set{"missing"});
  // Received after it is read.
  Schedule late = lowered;
  const size_t recv = find(2, "2RECV_F0:skip>0");
  std::swap(late.ranks[2][recv], late.ranks[2][find(2, "2F0")]);
  EXPECT_EQ(Kinds(Validate(late)), Set{"order"});
}

TEST(Validate, OptimizerAndBarrierHaveTheirPlace) {
  const Schedule good =
      AddCommunication(
          UnrollSteps(AddStepEnd(Generate("1f1b", {2, 2, 0, 0}).value()).value(), 2, true).value())
          .value();
  ASSERT_TRUE(Validate(good).ok()) << FormatProblems(good, Validate(good));
  Schedule s = good;
  for (auto it = s.ranks[1].begin(); it != s.ranks[1].end(); ++it) {
    if (it->kind == OpKind::kBarrier) {
      s.ranks[1].erase(it);
      break;
    }
  }
  EXPECT_EQ(Kinds(Validate(s)), Set{"unmatched"});
  s = good;
  const auto opt = std::find_if(s.ranks[0].begin(), s.ranks[0].end(),
                                [](const Action& a) { return a.kind == OpKind::kOptimizer; });
  std::rotate(s.ranks[0].begin(), opt, opt + 1);
  EXPECT_EQ(Kinds(Validate(s)), Set{"order"});
}

// Each owner updates its copy by itself: with less than the whole sum they would drift apart.
TEST(Validate, TiedWeightsHaveTheirWholeSumBeforeAnyOptimizer) {
  const auto check = [](std::string_view rank0, std::string_view rank1) {
    return Validate(ParseSchedule(fmt::format("penstock-schedule 1\nname tied\nranks 2\nstages 2\n"
                                              "micro-batches 1\nedge wte tied 0 -> 1\n"
                                              "rank 0\n 0F0 {}\nrank 1\n 1F0 {}\n",
                                              rank0, rank1),
                                  "test")
                        .value()
                        .schedule);
  };
  const std::string good0 = "0B0 0REDUCE_GRAD0 0REDUCE_GRAD0:wte 0OPT0";
  const std::string good1 = "1B0 1REDUCE_GRAD0 1REDUCE_GRAD0:wte 1OPT0";
  EXPECT_TRUE(check(good0, good1).ok());
  EXPECT_TRUE(check("0B0", "1B0").ok()) << "no optimizer, no sum";
  const auto refused = [&](std::string_view rank0, std::string_view rank1, std::string_view why) {
    const Report report = check(rank0, rank1);
    EXPECT_EQ(Kinds(report), Set{"order"}) << rank0;
    ASSERT_FALSE(report.problems.empty());
    EXPECT_NE(report.problems[0].message.find(why), std::string::npos)
        << report.problems[0].message;
  };
  refused("0B0 0REDUCE_GRAD0 0OPT0", "1B0 1REDUCE_GRAD0 1OPT0",
          "updates 'wte', which stage 0 shares with 1, each with an optimizer of its own: wanted "
          "0REDUCE_GRAD0:wte before it");
  refused("0B0 0REDUCE_GRAD0 0OPT0 0REDUCE_GRAD0:wte", good1, "wanted 0REDUCE_GRAD0:wte before it");
  refused("0B0 0REDUCE_GRAD0:wte 0REDUCE_GRAD0 0OPT0", good1,
          "before the REDUCE_GRAD of stage 0, whose sum it takes");
  refused("0REDUCE_GRAD0:wte 0B0 0REDUCE_GRAD0 0OPT0", good1, "whose sum it takes");
  refused("0I0 0REDUCE_GRAD0:wte 0W0 0OPT0", "1I0 1W0 1REDUCE_GRAD0:wte 1OPT0",
          "a reduction comes after the last B or W of its stage");
}

TEST(Validate, RefusalsShowTheGridWithThePlaceMarked) {
  const Schedule s = FromCsv("0F0,0B0,0F1,0B1\n1F0,1B0,1B1,1F1\n");
  const std::string text = FormatProblems(s, Validate(s));
  EXPECT_NE(text.find("order, rank 1, cell 2, 1B1: before 1F1 at cell 3, its forward\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("rank 1 | 1F0   1B0   [1B1] 1F1\n"), std::string::npos) << text;
  const auto refused = Prove(s);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidSchedule);
}

TEST(Validate, ProblemsBeyondTheListAreCounted) {
  const Report report =
      Validate(FromCsv("0F0,0F1,0F2,0F3,0F4,0F5,0F0,0F1,0F2,0F3\n"), {.max_problems = 2});
  EXPECT_EQ(report.problems.size(), 2U);
  EXPECT_EQ(report.problem_count, 4);
}

TEST(Validate, LinearInTheNumberOfActions) {
  const Schedule s = Generate("interleaved-1f1b", {64, 1024, 4, 0}).value();
  EXPECT_EQ(s.CountActions(), 64 * 4 * 1024 * 2);
  const Report report = Validate(s);
  EXPECT_TRUE(report.ok());
}

// ---- Against brute force ----

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  int Below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }

  // One change that may or may not break the schedule. Its name. With `in_place` only those that
  // leave every action what it is, but for its micro-batch.
  std::string Change(Schedule& s, bool in_place = false) {
    const auto r = static_cast<size_t>(Below(s.num_ranks()));
    auto& program = s.ranks[r];
    if (program.empty())
      return "none";
    const auto i = static_cast<size_t>(Below(static_cast<int>(program.size())));
    const auto j = static_cast<size_t>(Below(static_cast<int>(program.size())));
    Ungroup(program);
    constexpr int kInPlace[] = {0, 1, 2, 3, 5, 6, 8};
    switch (in_place ? kInPlace[Below(7)] : Below(9)) {
      case 0:
        program.erase(program.begin() + static_cast<long>(i));
        return "drop";
      case 1:
        program.insert(program.begin() + static_cast<long>(j), program[i]);
        return "repeat";
      case 2:
        std::swap(program[i], program[j]);
        return "swap";
      case 3:
        if (i + 1 < program.size())
          std::swap(program[i], program[i + 1]);
        return "swap neighbours";
      case 4:
        program[i].stage = StageId(Below(s.num_stages() + 1));
        return "stage";
      case 5:
        program[i].micro_batch = MicroBatchId(Below(s.micro_batches + 1));
        return "micro-batch";
      case 6: {
        auto& other = s.ranks[static_cast<size_t>(Below(s.num_ranks()))];
        Ungroup(other);
        const Action moved = program[i];
        program.erase(program.begin() + static_cast<long>(i));
        other.insert(other.begin() + Below(static_cast<int>(other.size()) + 1), moved);
        return "move";
      }
      case 7: {
        constexpr OpKind kKinds[] = {OpKind::kForward,       OpKind::kBackward,
                                     OpKind::kBackwardInput, OpKind::kBackwardWeight,
                                     OpKind::kSendForward,   OpKind::kRecvForward,
                                     OpKind::kSendBackward,  OpKind::kRecvBackward};
        program[i].kind = kKinds[Below(8)];
        return "kind";
      }
      default:
        std::rotate(program.begin() + static_cast<long>(std::min(i, j)),
                    program.begin() + static_cast<long>(std::max(i, j)),
                    program.begin() + static_cast<long>(std::max(i, j)) + 1);
        return "pull";
    }
  }

 private:
  static void Ungroup(std::vector<Action>& program) {
    for (Action& a : program)
      a.joined = false;
  }

  std::mt19937 random_;
};

brute::Problem ToBrute(const Schedule& s, const Transport& transport, double limit) {
  brute::Problem p;
  p.ranks = s.num_ranks();
  p.stages = s.num_stages();
  p.micro_batches = s.micro_batches;
  p.slices = s.slices;
  p.chunks = s.chunks();
  p.lowered = s.lowered;
  p.credits = transport.credits;
  p.transport = TransportKindText(transport.kind)[0];
  p.limit = limit;
  p.rank_of = [&s](int stage, int micro_batch) {
    return s.RankOf(StageId(stage), MicroBatchId(micro_batch)).value();
  };
  for (const Edge& edge : s.edges) {
    brute::LongValue value{edge.name, edge.from.value(), {}};
    for (const StageId reader : edge.to)
      value.readers.insert(reader.value());
    p.long_values.push_back(value);
  }
  for (const auto& program : s.ranks) {
    p.rows.emplace_back();
    for (const Action& a : program) {
      if (a.joined) {
        p.rows.back().back().push_back(ActionText(a, s.edges));
      } else {
        p.rows.back().push_back({ActionText(a, s.edges)});
      }
    }
  }
  return p;
}

TEST(Validate, AgreesWithBruteForceOnTenThousandRandomSchedules) {
  Mutator random(20251130);
  std::map<std::string, int> kinds;
  int illegal = 0;
  constexpr int kCases = 10000;
  for (int n = 0; n < kCases; ++n) {
    const auto generators = Generators();
    const GeneratorInfo& info =
        generators[static_cast<size_t>(random.Below(static_cast<int>(generators.size())))];
    const int v = info.any_chunks ? 1 + random.Below(2) : 0;
    Schedule s =
        Generate(info.name, {1 + random.Below(4), 1 + random.Below(4), v, info.default_slices})
            .value();
    s.ring = false;  // the laps of decoding are not among what brute force knows
    if (random.Below(3) > 0)
      s = AddCommunication(s).value();
    constexpr TransportKind kTransports[] = {TransportKind::kCredits, TransportKind::kCredits,
                                             TransportKind::kPosted, TransportKind::kBuffered,
                                             TransportKind::kRendezvous};
    const Transport transport{kTransports[random.Below(5)], 1 + random.Below(2)};
    std::string changes;
    for (int c = random.Below(3); c > 0; --c)
      changes += random.Change(s) + ", ";
    const double limit = random.Below(4) == 0 ? random.Below(2 * s.num_ranks() + 1) * 0.5 : -1;
    ValidateOptions options{.transport = transport};
    if (limit >= 0)
      options.activation_limit = {limit};
    const Report report = Validate(s, options);
    const Set mine = Kinds(report);
    const Set theirs = brute::Faults(ToBrute(s, transport, limit));
    ASSERT_EQ(mine.empty(), theirs.empty())
        << n << " " << changes << TransportKindText(transport.kind) << transport.credits
        << " limit " << limit << "\nbrute force: " << fmt::format("{}", fmt::join(theirs, " "))
        << "\n"
        << FormatProblems(s, report) << WriteNative(s);
    if (mine.empty())
      continue;
    ++illegal;
    Set common;
    std::set_intersection(mine.begin(), mine.end(), theirs.begin(), theirs.end(),
                          std::inserter(common, common.begin()));
    ASSERT_FALSE(common.empty()) << n << " " << changes << fmt::format("{}", fmt::join(theirs, " "))
                                 << "\n"
                                 << FormatProblems(s, report);
    for (const std::string& kind : common)
      ++kinds[kind];
  }
  EXPECT_GE(illegal, kCases / 3);
  EXPECT_GE(kCases - illegal, kCases / 5);
  for (const char* kind :
       {"missing", "duplicate", "order", "deadlock", "unmatched", "range", "placement", "memory"}) {
    EXPECT_GT(kinds[kind], 50) << kind;
  }
}

// The same for values that skip stages: sent, received, read and released.
TEST(Validate, AgreesWithBruteForceOnValuesThatSkipStages) {
  Mutator random(20261130);
  std::map<std::string, int> kinds;
  int illegal = 0;
  constexpr int kCases = 2500;
  for (int n = 0; n < kCases; ++n) {
    const auto generators = Generators();
    const GeneratorInfo& info =
        generators[static_cast<size_t>(random.Below(static_cast<int>(generators.size())))];
    const int v = info.any_chunks ? 1 + random.Below(2) : 0;
    Schedule s =
        Generate(info.name, {2 + random.Below(3), 1 + random.Below(3), v, info.default_slices})
            .value();
    s.ring = false;
    for (int e = 1 + random.Below(3); e > 0 && s.num_stages() > 1; --e) {
      const int from = random.Below(s.num_stages() - 1);
      Edge edge{fmt::format("x{}", e), EdgeKind::kValue, StageId(from), {}, 1};
      for (int to = from + 1; to < s.num_stages(); ++to) {
        if (random.Below(2) == 0 || (edge.to.empty() && to + 1 == s.num_stages()))
          edge.to.emplace_back(to);
      }
      s.edges.push_back(edge);
    }
    LowerOptions lower;
    lower.route = random.Below(2) == 0 ? LongRoute::kNearest : LongRoute::kDirect;
    lower.naive = random.Below(4) == 0;
    s = AddCommunication(s, lower).value();
    if (random.Below(4) > 0)
      s = ReleaseValues(s).value();
    constexpr TransportKind kTransports[] = {TransportKind::kCredits, TransportKind::kPosted,
                                             TransportKind::kBuffered, TransportKind::kRendezvous};
    const Transport transport{kTransports[random.Below(4)], 1 + random.Below(2)};
    std::string changes;
    for (int c = random.Below(3); c > 0; --c)
      changes += random.Change(s, true) + ", ";
    const Report report = Validate(s, {.transport = transport});
    const Set mine = Kinds(report);
    const Set theirs = brute::Faults(ToBrute(s, transport, -1));
    ASSERT_EQ(mine.empty(), theirs.empty())
        << n << " " << changes << TransportKindText(transport.kind) << transport.credits
        << "\nbrute force: " << fmt::format("{}", fmt::join(theirs, " ")) << "\n"
        << FormatProblems(s, report) << WriteNative(s);
    if (mine.empty())
      continue;
    ++illegal;
    Set common;
    std::set_intersection(mine.begin(), mine.end(), theirs.begin(), theirs.end(),
                          std::inserter(common, common.begin()));
    ASSERT_FALSE(common.empty()) << n << " " << changes << fmt::format("{}", fmt::join(theirs, " "))
                                 << "\n"
                                 << FormatProblems(s, report);
    for (const std::string& kind : common)
      ++kinds[kind];
  }
  EXPECT_GE(illegal, kCases / 3);
  EXPECT_GE(kCases - illegal, kCases / 5);
  for (const char* kind :
       {"missing", "duplicate", "order", "deadlock", "unmatched", "range", "placement"}) {
    EXPECT_GT(kinds[kind], 20) << kind;
  }
}

}  // namespace
}  // namespace penstock::schedule
