// Lowered schedules under each transport, against relaxation: completion times of all actions are
// raised until nothing changes. Slow, obvious, and no code in common with the simulator.

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <tuple>

#include "schedule/passes.h"
#include "schedule/registry.h"
#include "sim/hops.h"
#include "sim/simulate.h"

namespace penstock::sim {
namespace {

using cost::CostModel;
using cost::MakeUniformCost;
using schedule::Action;
using schedule::OpKind;
using schedule::Schedule;
using schedule::Transport;
using schedule::TransportKind;

Schedule Lowered(std::string_view name, int ranks, int micro_batches, int chunks = 0) {
  auto schedule = schedule::Generate(name, {ranks, micro_batches, chunks, 0});
  EXPECT_TRUE(schedule.ok()) << schedule.error().message;
  auto lowered = schedule::AddCommunication(schedule.value());
  EXPECT_TRUE(lowered.ok()) << lowered.error().message;
  return std::move(lowered).value();
}

// (backward, value, from, to, micro-batch, slice)
using Tag = std::tuple<bool, int, int, int, int, int>;

Tag TagOf(const Action& action) {
  const int own = action.stage.value();
  const int peer = schedule::PeerStage(action).value();
  const bool backward =
      action.kind == OpKind::kSendBackward || action.kind == OpKind::kRecvBackward;
  return {backward,
          action.value,
          schedule::IsSend(action.kind) ? own : peer,
          schedule::IsSend(action.kind) ? peer : own,
          action.micro_batch.value(),
          action.slice};
}

// The makespan, or nothing where times grow without end (ranks wait for each other).
std::optional<double> Relax(const Schedule& schedule, const CostModel& costs,
                            const Transport& transport) {
  struct Place {
    size_t rank;
    size_t position;
  };

  std::map<Tag, Place> sends;
  std::map<Tag, Place> recvs;
  // Order of messages of one edge and direction, by SEND and by RECV.
  std::map<std::tuple<bool, int, int, int, int>, std::pair<std::vector<Tag>, std::vector<Tag>>>
      channels;
  std::vector<std::vector<double>> done;
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    done.emplace_back(schedule.ranks[r].size(), 0.0);
    for (size_t i = 0; i < schedule.ranks[r].size(); ++i) {
      const Action& action = schedule.ranks[r][i];
      if (!schedule::IsMessage(action.kind))
        continue;
      const Tag tag = TagOf(action);
      auto& channel = channels[{std::get<0>(tag), std::get<1>(tag), std::get<2>(tag),
                                std::get<3>(tag), schedule.DirectionOf(action.micro_batch)}];
      (schedule::IsSend(action.kind) ? sends : recvs)[tag] = {r, i};
      (schedule::IsSend(action.kind) ? channel.first : channel.second).push_back(tag);
    }
  }
  std::map<Tag, Tag> room_from;  // the RECV that frees the place of this SEND
  for (const auto& [key, channel] : channels) {
    for (size_t n = static_cast<size_t>(transport.credits); n < channel.first.size(); ++n)
      room_from[channel.first[n]] = channel.second[n - static_cast<size_t>(transport.credits)];
  }
  auto time = [&done](const Place& place) { return done[place.rank][place.position]; };
  auto before = [&done](const Place& place) {
    return place.position == 0 ? 0.0 : done[place.rank][place.position - 1];
  };
  auto arrival = [&](const Tag& tag) {
    const Place& send = sends.at(tag);
    return time(send) + (send.rank == recvs.at(tag).rank ? 0.0 : costs.link.latency_s);
  };
  const double share = 1.0 / schedule.slices;
  for (int sweep = 0; sweep < 3000; ++sweep) {
    bool changed = false;
    for (size_t r = 0; r < schedule.ranks.size(); ++r) {
      double now = 0;
      for (size_t i = 0; i < schedule.ranks[r].size(); ++i) {
        const Action& action = schedule.ranks[r][i];
        if (schedule::IsMessage(action.kind)) {
          const Tag tag = TagOf(action);
          if (transport.kind == TransportKind::kRendezvous) {
            now = std::max(before(sends.at(tag)), before(recvs.at(tag))) + costs.link.latency_s;
          } else if (schedule::IsSend(action.kind)) {
            if (transport.kind == TransportKind::kCredits && room_from.contains(tag))
              now = std::max(now, time(recvs.at(room_from.at(tag))));
          } else if (transport.kind != TransportKind::kPosted) {
            now = std::max(now, arrival(tag));
          }
        } else if (schedule::IsCompute(action.kind)) {
          const int stage = action.stage.value();
          const bool backward =
              action.kind == OpKind::kBackward || action.kind == OpKind::kBackwardInput;
          const Tag tag{
              backward,    0, backward ? stage + 1 : stage - 1, stage, action.micro_batch.value(),
              action.slice};
          if (transport.kind == TransportKind::kPosted && action.kind != OpKind::kBackwardWeight &&
              sends.contains(tag)) {
            now = std::max(now, arrival(tag));
          }
          now += costs.StageSeconds(action.kind, action.stage) * share;
        }
        if (done[r][i] < now) {
          done[r][i] = now;
          changed = true;
        }
        now = done[r][i];
      }
    }
    if (!changed) {
      double makespan = 0;
      for (const auto& rank : done)
        makespan = std::max(makespan, rank.empty() ? 0.0 : rank.back());
      return makespan;
    }
  }
  return std::nullopt;
}

TEST(Transports, AgreeWithRelaxationForEveryGenerator) {
  int finished = 0;
  int stuck = 0;
  for (const schedule::GeneratorInfo& info : schedule::Generators()) {
    if (info.name == "decode-ring")
      continue;
    for (const auto& [p, m] : {std::pair(1, 2), {2, 3}, {3, 5}, {4, 8}, {4, 2}}) {
      const Schedule schedule = Lowered(info.name, p, m);
      const CostModel costs =
          MakeUniformCost({1, 1.25, 0.75, -1, 0.5}, schedule.num_stages(), schedule.chunks());
      for (const Transport& transport :
           {Transport{TransportKind::kPosted, 1}, Transport{TransportKind::kBuffered, 1},
            Transport{TransportKind::kCredits, 1}, Transport{TransportKind::kCredits, 2},
            Transport{TransportKind::kCredits, 100}, Transport{TransportKind::kRendezvous, 1}}) {
        SimOptions options;
        options.transport = transport;
        const auto result = Simulate(schedule, costs, options);
        const std::optional<double> wanted = Relax(schedule, costs, transport);
        ASSERT_EQ(result.ok(), wanted.has_value())
            << info.name << " p " << p << " m " << m << " "
            << schedule::TransportKindText(transport.kind) << " " << transport.credits;
        if (!wanted) {
          ++stuck;
          continue;
        }
        ++finished;
        ASSERT_NEAR(result->makespan_s, *wanted, 1e-9)
            << info.name << " p " << p << " m " << m << " "
            << schedule::TransportKindText(transport.kind) << " " << transport.credits;
        for (const RankResult& rank : result->ranks) {
          ASSERT_NEAR(rank.bubble.Sum() + rank.busy_s, result->makespan_s, 1e-9);
          ASSERT_EQ(rank.bubble.other_s, 0);
        }
      }
    }
  }
  EXPECT_GT(finished, 300);
  EXPECT_GT(stuck, 10);  // rendezvous, where both neighbours send first
}

TEST(Transports, LoweringCostsNothingWithoutTransferTimes) {
  for (const char* name : {"1f1b", "zb-h1", "zb-v", "interleaved-1f1b", "dualpipe", "v-half"}) {
    auto schedule = schedule::Generate(name, {4, 8, 0, 0});
    ASSERT_TRUE(schedule.ok());
    const Schedule lowered = Lowered(name, 4, 8);
    const CostModel costs =
        MakeUniformCost({1, 1.25, 0.75, -1, 0}, lowered.num_stages(), lowered.chunks());
    SimOptions options;
    options.transport = {TransportKind::kPosted, 1};
    EXPECT_NEAR(Simulate(lowered, costs, options)->makespan_s,
                Simulate(schedule.value(), costs)->makespan_s, 1e-9)
        << name;
  }
}

// Depth reads: every stage makes a value that all later stages read. Section 5.2 of the schedule
// reference counts values per micro-batch: naive C(C-1)/2, tight P(P-1)/2 + (V-1)P(P-1).
Schedule WithDepthReads(int ranks, int chunks, int64_t bytes,
                        const std::string& name = "interleaved-1f1b") {
  auto made = schedule::Generate(name, {ranks, 2 * ranks, chunks, 0});
  EXPECT_TRUE(made.ok());
  Schedule schedule = std::move(made).value();
  const int stages = schedule.num_stages();
  for (int s = 0; s + 1 < stages; ++s) {
    schedule::Edge edge;
    edge.name = "block" + std::to_string(s);
    edge.from = StageId(s);
    for (int reader = s + 1; reader < stages; ++reader)
      edge.to.emplace_back(reader);
    edge.bytes = bytes;
    schedule.edges.push_back(edge);
  }
  return schedule;
}

TEST(MeasureHops, AVMovesTheSameBytesOverFewerAndFullerHops) {
  for (const char* name : {"zb-v", "v-half", "v-min", "dualpipe-v"}) {
    for (const int p : {2, 4, 8}) {
      SCOPED_TRACE(fmt::format("{} p = {}", name, p));
      const Schedule schedule = WithDepthReads(p, 2, 1000, name);
      const CostModel costs = MakeUniformCost({}, schedule.num_stages(), 2);
      const auto lowered = schedule::AddCommunication(schedule);
      ASSERT_TRUE(lowered.ok()) << lowered.error().message;
      const auto report = MeasureHops(lowered.value(), costs);
      ASSERT_TRUE(report.ok()) << report.error().message;
      EXPECT_EQ(report->hops.size(), 2 * (p - 1));  // one less than a loop: the turn is local
      EXPECT_EQ(report->forward_bytes, 1000 * (p * (p - 1) / 2 + p * (p - 1)));
      EXPECT_EQ(report->peak_hop_forward_bytes, 1000 * 2 * (p - 1));
      // Backward the naive count, without the p gradients that turn on the last rank.
      const int64_t stages = int64_t{2} * p;
      EXPECT_EQ(report->backward_bytes, 1000 * (stages * (stages - 1) / 2 - p));
    }
  }
}

// Each copy's micro-batches take ranks of their own; totals are those of one micro-batch.
TEST(MeasureHops, TwoCopiesOfTheWeightsHaveTwoWays) {
  const auto schedule = schedule::Generate("chimera", {3, 4, 0, 0});
  ASSERT_TRUE(schedule.ok());
  cost::CostModel costs = MakeUniformCost({}, 3, 1);
  for (cost::StageCost& stage : costs.stages)
    stage.output_bytes = stage.gradient_bytes = 10;
  const auto report = MeasureHops(schedule.value(), costs);
  ASSERT_TRUE(report.ok()) << report.error().message;
  ASSERT_EQ(report->hops.size(), 4U);
  std::vector<std::pair<int, int>> ranks;
  for (const Hop& hop : report->hops) {
    ranks.emplace_back(hop.from_rank, hop.to_rank);
    EXPECT_EQ(hop.forward_bytes, 10);
    EXPECT_EQ(hop.backward_bytes, 10);
  }
  EXPECT_EQ(ranks, (std::vector<std::pair<int, int>>{{0, 1}, {1, 2}, {2, 1}, {1, 0}}));
  EXPECT_EQ(report->forward_bytes, 20);
  EXPECT_EQ(report->backward_bytes, 20);
}

TEST(MeasureHops, MeetsTheTightBoundOfDepthReads) {
  for (const auto& [p, v] : {std::pair(4, 2), {4, 4}, {8, 2}, {2, 3}}) {
    const Schedule schedule = WithDepthReads(p, v, 1000);
    const CostModel costs = MakeUniformCost({}, schedule.num_stages(), v);
    const auto lowered = schedule::AddCommunication(schedule);
    ASSERT_TRUE(lowered.ok()) << lowered.error().message;
    const auto report = MeasureHops(lowered.value(), costs);
    ASSERT_TRUE(report.ok()) << report.error().message;
    const int64_t tight = p * (p - 1) / 2 + (v - 1) * p * (p - 1);
    EXPECT_EQ(report->forward_bytes, 1000 * tight) << p << " " << v;
    EXPECT_EQ(report->peak_hop_forward_bytes, 1000 * (p - 1));
    // Backward, gradients travel with the chain: the naive count.
    const int64_t stages = static_cast<int64_t>(p) * v;
    EXPECT_EQ(report->backward_bytes, 1000 * stages * (stages - 1) / 2);
    schedule::LowerOptions naive;
    naive.naive = true;
    const auto lowered_naive = schedule::AddCommunication(schedule, naive);
    ASSERT_TRUE(lowered_naive.ok()) << lowered_naive.error().message;
    EXPECT_EQ(MeasureHops(lowered_naive.value(), costs)->forward_bytes,
              1000 * stages * (stages - 1) / 2);
    for (const int64_t peak : report->peak_value_bytes)
      EXPECT_GT(peak, 0);
    SimOptions options;
    const auto result = Simulate(lowered.value(), costs, options);
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_EQ(result->message_bytes,
              schedule.micro_batches * (report->forward_bytes + report->backward_bytes));
    // Without SENDs too, a rank that has a value does not get it again.
    const auto free_flow = Simulate(schedule, costs, options);
    ASSERT_TRUE(free_flow.ok()) << free_flow.error().message;
    EXPECT_EQ(free_flow->messages, result->messages);
    EXPECT_EQ(free_flow->message_bytes, result->message_bytes);
  }
}

}  // namespace
}  // namespace penstock::sim
