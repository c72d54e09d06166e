#include "sim/hops.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/json.h"
#include "schedule/passes.h"

namespace penstock::sim {
namespace {

using schedule::Action;
using schedule::Edge;
using schedule::EdgeKind;
using schedule::OpKind;
using schedule::Schedule;

bool HasRelease(const Schedule& schedule) {
  for (const auto& program : schedule.ranks) {
    for (const Action& action : program) {
      if (action.kind == OpKind::kRelease)
        return true;
    }
  }
  return false;
}

// Peak of held long values over one rank's program.
int64_t PeakOf(const Schedule& schedule, const std::vector<Action>& program) {
  std::set<std::pair<int32_t, int>> held;  // (micro-batch, value)
  int64_t bytes = 0;
  int64_t peak = 0;
  auto size_of = [&schedule](int value) {
    return schedule.edges[static_cast<size_t>(value - 1)].bytes;
  };
  auto hold = [&](int32_t micro_batch, int value) {
    if (held.insert({micro_batch, value}).second) {
      bytes += size_of(value);
      peak = std::max(peak, bytes);
    }
  };
  for (const Action& action : program) {
    const int value = action.value;
    if (action.kind == OpKind::kForward && action.slice == 0) {
      for (size_t e = 0; e < schedule.edges.size(); ++e) {
        if (schedule.edges[e].kind == EdgeKind::kValue && schedule.edges[e].from == action.stage)
          hold(action.micro_batch.value(), static_cast<int>(e) + 1);
      }
    } else if (value == 0 || value > static_cast<int>(schedule.edges.size())) {
      continue;
    } else if (action.kind == OpKind::kRecvForward) {
      hold(action.micro_batch.value(), value);
    } else if (action.kind == OpKind::kRelease &&
               held.erase({action.micro_batch.value(), value}) > 0) {
      bytes -= size_of(value);
    }
  }
  return peak;
}

}  // namespace

Result<HopReport> MeasureHops(const Schedule& schedule, const cost::CostModel& costs) {
  if (!schedule.lowered) {
    PENSTOCK_TRY_ASSIGN(const Schedule lowered, schedule::AddCommunication(schedule));
    return MeasureHops(lowered, costs);
  }
  HopReport report;
  PENSTOCK_TRY(cost::CheckCosts(costs, schedule));
  // By copy of the weights (whose micro-batches take other ranks) and forward stage pair.
  std::map<std::tuple<int, int, int>, Hop> hops;
  // (copy, from, to, value): counted for one micro-batch
  std::set<std::tuple<int, int, int, int>> seen;
  for (const auto& program : schedule.ranks) {
    for (const Action& action : program) {
      if (!schedule::IsSend(action.kind) || action.slice != 0)
        continue;
      const bool backward = action.kind == OpKind::kSendBackward;
      const int own = action.stage.value();
      const int peer = schedule::PeerStage(action).value();
      const int low = backward ? peer : own;
      const int high = backward ? own : peer;
      const int copy = schedule.DirectionOf(action.micro_batch);
      if (!seen.insert({copy, own, peer, action.value}).second)
        continue;
      Hop& hop = hops[{copy, low, high}];
      hop.from_stage = low;
      hop.to_stage = high;
      hop.from_rank = schedule.RankOf(StageId(low), action.micro_batch).value();
      hop.to_rank = schedule.RankOf(StageId(high), action.micro_batch).value();
      if (backward) {
        hop.backward_bytes += costs.stages[static_cast<size_t>(own)].gradient_bytes +
                              schedule::LongGradientBytes(schedule, StageId(low));
      } else if (action.value == 0) {
        hop.forward_bytes += costs.stages[static_cast<size_t>(own)].output_bytes;
      } else if (action.value <= schedule.edges.size()) {
        const Edge& edge = schedule.edges[action.value - 1U];
        hop.forward_bytes += edge.bytes;
        hop.values.push_back(edge.name);
      }
    }
  }
  for (auto& [key, hop] : hops) {
    if (std::get<0>(key) == 0) {
      report.forward_bytes += hop.forward_bytes;
      report.backward_bytes += hop.backward_bytes;
    }
    report.peak_hop_forward_bytes = std::max(report.peak_hop_forward_bytes, hop.forward_bytes);
    report.peak_hop_backward_bytes = std::max(report.peak_hop_backward_bytes, hop.backward_bytes);
    report.hops.push_back(std::move(hop));
  }
  if (HasRelease(schedule) || schedule.edges.empty()) {
    for (const auto& program : schedule.ranks)
      report.peak_value_bytes.push_back(PeakOf(schedule, program));
    return report;
  }
  PENSTOCK_TRY_ASSIGN(const Schedule released, schedule::ReleaseValues(schedule));
  for (const auto& program : released.ranks)
    report.peak_value_bytes.push_back(PeakOf(released, program));
  return report;
}

Json HopReportJson(const HopReport& report) {
  Json hops = Json::array();
  for (const Hop& hop : report.hops) {
    hops.push_back(Json{{"from_stage", hop.from_stage},
                        {"to_stage", hop.to_stage},
                        {"from_rank", hop.from_rank},
                        {"to_rank", hop.to_rank},
                        {"values", hop.values},
                        {"forward_bytes", hop.forward_bytes},
                        {"backward_bytes", hop.backward_bytes}});
  }
  return Json{{"hops", std::move(hops)},
              {"forward_bytes", report.forward_bytes},
              {"backward_bytes", report.backward_bytes},
              {"peak_hop_forward_bytes", report.peak_hop_forward_bytes},
              {"peak_hop_backward_bytes", report.peak_hop_backward_bytes},
              {"peak_value_bytes", report.peak_value_bytes}};
}

}  // namespace penstock::sim
