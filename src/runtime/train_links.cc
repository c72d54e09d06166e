#include "runtime/train_links.h"

#include <algorithm>

#include "runtime/stage_layout.h"
#include "runtime/train_edges.h"

namespace penstock::runtime {

using schedule::Action;
using schedule::OpKind;

TrainLinks::Key TrainLinks::KeyOf(const schedule::Schedule& schedule, const Action& action) {
  const bool forward = action.kind == OpKind::kSendForward || action.kind == OpKind::kRecvForward;
  const int32_t peer = schedule::PeerStage(action).value();
  const int32_t own = action.stage.value();
  const bool send = schedule::IsSend(action.kind);
  return {forward, action.value, send ? own : peer, send ? peer : own,
          schedule.DirectionOf(action.micro_batch)};
}

Result<TrainLinks> TrainLinks::Create(const TrainSpec& spec, const model::CutSets& cuts) {
  const model::Graph& graph = *spec.graph;
  TrainLinks links;
  links.credits_ = spec.credits;
  const std::vector<bool> selected = SelectedValues(graph);
  for (const schedule::Schedule* schedule : {spec.schedule, spec.eval_schedule}) {
    if (schedule == nullptr) {
      continue;
    }
    for (const auto& program : schedule->ranks) {
      for (const Action& a : program) {
        if (!schedule::IsSend(a.kind)) {
          continue;
        }
        const auto [at, fresh] = links.index_.try_emplace(KeyOf(*schedule, a), links.links_.size());
        if (!fresh) {
          continue;
        }
        if (a.kind == OpKind::kSendBackward && a.value != 0) {
          return MakeError(ErrorCode::kUnsupported,
                           "[runtime.train] {}: gradients of long values travel with the chain's, "
                           "wanted no message of their own",
                           schedule::ActionText(a, schedule->edges));
        }
        TrainLink link;
        const StageId to = schedule::PeerStage(a);
        link.lane.kind =
            a.kind == OpKind::kSendForward ? comm::LaneKind::kForward : comm::LaneKind::kBackward;
        link.lane.source = schedule->RankOf(a.stage, a.micro_batch).value();
        link.lane.target = schedule->RankOf(to, a.micro_batch).value();
        link.lane.edge = static_cast<int32_t>(links.links_.size());
        if (a.kind == OpKind::kSendBackward) {
          link.values = GradientsInFront(graph, cuts, *spec.partition, a.stage);
        } else if (a.value == 0) {
          link.values = ChainValues(graph, *spec.partition, a.stage);
        } else {
          link.values = {EdgeValue(graph, schedule->edges[a.value - 1U].name)};
        }
        const int64_t rows = LargestSlice(spec.largest.rows, schedule->slices);
        for (const ValueId id : link.values) {
          const bool few = selected[static_cast<size_t>(id.value())];
          link.max_bytes +=
              graph.value(id).width * 4 * (few ? std::min(rows, spec.largest.counted) : rows);
        }
        links.links_.push_back(std::move(link));
      }
    }
  }
  return links;
}

const TrainLink& TrainLinks::Find(const schedule::Schedule& schedule, const Action& action) const {
  const auto it = index_.find(KeyOf(schedule, action));
  PENSTOCK_CHECK(it != index_.end(), "the link is one of the schedule's");
  return links_[it->second];
}

int64_t TrainLinks::BufferBytes(int32_t rank, bool across_processes) const {
  int64_t bytes = 0;
  for (const TrainLink& link : links_) {
    if (link.lane.source == rank || link.lane.target == rank) {
      bytes += comm::LaneBufferBytes(Options(link), link.lane.target == rank, across_processes);
    }
  }
  return bytes;
}

}  // namespace penstock::runtime
