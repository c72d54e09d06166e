#include "runtime/train_gradient_sums.h"

#include <algorithm>

#include "runtime/train_edges.h"

namespace penstock::runtime {

std::vector<int32_t> LaneStarts(const TrainSpec& spec) {
  if (!spec.lane_starts.empty()) {
    return spec.lane_starts;
  }
  const schedule::Schedule& schedule = *spec.schedule;
  if (schedule.placement.num_directions() == 2 &&
      schedule.direction_split() < schedule.micro_batches) {
    return {0, schedule.direction_split()};
  }
  return {0};
}

int32_t LaneOf(const std::vector<int32_t>& starts, int32_t micro_batch) {
  return static_cast<int32_t>(std::upper_bound(starts.begin(), starts.end(), micro_batch) -
                              starts.begin()) -
         1;
}

std::vector<int32_t> LanesHere(const TrainSpec& spec, StageId stage, int32_t rank) {
  const std::vector<int32_t> starts = LaneStarts(spec);
  std::vector<int32_t> lanes;
  for (size_t l = 0; l < starts.size(); ++l) {
    if (spec.schedule->RankOf(stage, MicroBatchId(starts[l])).value() == rank) {
      lanes.push_back(static_cast<int32_t>(l));
    }
  }
  return lanes;
}

GradientSums::GradientSums(const TrainSpec& spec, int32_t channel_rank,
                           std::vector<TrainParameters::HeldStage> stages,
                           TrainParameters* parameters)
    : spec_(spec),
      channel_rank_(channel_rank),
      stages_(std::move(stages)),
      parameters_(parameters) {
  // Every rank counts all sums, so that lanes have the same numbers everywhere.
  const schedule::Schedule& schedule = *spec.schedule;
  int32_t edge = 0;
  for (int32_t s = 0; s < schedule.num_stages(); ++s) {
    AddStage(StageId(s), edge);
  }
  for (size_t e = 0; e < schedule.edges.size(); ++e) {
    if (schedule.edges[e].kind == schedule::EdgeKind::kTied) {
      for (int d = 0; d < schedule.placement.num_directions(); ++d) {
        AddTied(schedule.edges[e], e, d, edge);
      }
    }
  }
}

void GradientSums::AddStage(StageId stage, int32_t& edge) {
  const std::vector<int32_t> starts = LaneStarts(spec_);
  const int32_t ranks = spec_.schedule->num_ranks();
  StageSum sum;
  sum.reduction.first_edge = edge;
  const auto held = std::find_if(stages_.begin(), stages_.end(),
                                 [&](const auto& h) { return h.plan->stage == stage; });
  for (int32_t replica = 0; replica < spec_.replicas; ++replica) {
    size_t local = 0;
    for (const int32_t start : starts) {
      const int32_t rank =
          replica * ranks + spec_.schedule->RankOf(stage, MicroBatchId(start)).value();
      const size_t place = AddPlace(sum.reduction, rank, 1);
      sum.local_lanes.resize(place + 1);
      if (rank == channel_rank_) {
        sum.local_lanes[place].push_back(local++);
      }
    }
  }
  edge += Reduction::EdgesOf(sum.reduction.ranks.size());
  if (held != stages_.end() && sum.reduction.Holds(channel_rank_)) {
    stage_sums_[stage.value()] = std::move(sum);
  }
}

void GradientSums::AddTied(const schedule::Edge& tied, size_t index, int direction, int32_t& edge) {
  const int32_t ranks = spec_.schedule->num_ranks();
  const int32_t replica = channel_rank_ / ranks;
  TiedSum sum;
  sum.reduction.first_edge = edge;
  std::vector<StageId> owners = tied.to;
  owners.insert(owners.begin(), tied.from);
  const TensorId tensor = EdgeTensor(*spec_.graph, tied.name);
  for (const StageId owner : owners) {
    int32_t uses = 0;
    for (const model::Op& op : spec_.graph->ops) {
      const auto used = model::TensorsOf(op);
      uses += spec_.partition->StageOf(op.layer) == owner
                  ? static_cast<int32_t>(std::count(used.begin(), used.end(), tensor))
                  : 0;
    }
    const int32_t rank =
        replica * ranks + spec_.schedule->placement.RankOf(owner, direction).value();
    const size_t place = AddPlace(sum.reduction, rank, uses);
    sum.owners.resize(place + 1);
    sum.owners[place].push_back(owner);
  }
  edge += Reduction::EdgesOf(sum.reduction.ranks.size());
  if (sum.reduction.Holds(channel_rank_)) {
    tied_sums_[index].push_back(std::move(sum));
  }
}

int64_t GradientSums::BufferBytes(bool across_processes) const {
  int64_t bytes = 0;
  for (const auto& [stage, sum] : stage_sums_) {
    bytes += ReductionBufferBytes(sum.reduction, channel_rank_, across_processes);
  }
  for (const auto& [edge, sums] : tied_sums_) {
    for (const TiedSum& sum : sums) {
      bytes += ReductionBufferBytes(sum.reduction, channel_rank_, across_processes);
    }
  }
  return bytes;
}

bool GradientSums::NeedsScratch() const {
  return BufferBytes(true) > 0;
}

Result<> GradientSums::Open(comm::Channel& channel, MemoryAccount& account) const {
  for (const auto& [stage, sum] : stage_sums_) {
    PENSTOCK_TRY(OpenReduction(sum.reduction, channel, account));
  }
  for (const auto& [edge, sums] : tied_sums_) {
    for (const TiedSum& sum : sums) {
      PENSTOCK_TRY(OpenReduction(sum.reduction, channel, account));
    }
  }
  return {};
}

Result<> GradientSums::ReduceStage(StageId stage, const Means& means) const {
  const auto it = stage_sums_.find(stage.value());
  PENSTOCK_CHECK(it != stage_sums_.end(), "the stage is one of this rank's");
  const StageSum& sum = it->second;
  // All groups of all operations of the stage, by local lane.
  const auto held = std::find_if(stages_.begin(), stages_.end(),
                                 [&](const auto& h) { return h.plan->stage == stage; });
  std::vector<std::pair<int32_t, size_t>> items;
  for (const PlannedOp& op : held->plan->ops) {
    for (size_t g = 0; g < op.run->traits.gradients.size(); ++g) {
      items.emplace_back(op.index, g);
    }
  }
  const auto group = [&](int64_t item, size_t lane) {
    const auto [op, g] = items[static_cast<size_t>(item)];
    return parameters_->bound(op).gradients[lane][g];
  };
  ReductionTerms terms;
  terms.items = static_cast<int64_t>(items.size());
  terms.terms = [&](size_t place, int64_t item) {
    std::vector<Tensor> lanes;
    for (const size_t lane : sum.local_lanes[place]) {
      lanes.push_back(group(item, lane));
    }
    return lanes;
  };
  terms.total = [&](int64_t item) { return group(item, 0); };
  PENSTOCK_TRY(RunReduction(sum.reduction, terms, means.step, means.channel, means.device,
                            means.scratch, means.deadline_s, means.waited_s));
  return SumUses(stage, means);
}

Result<> GradientSums::SumUses(StageId stage, const Means& means) const {
  const auto owners = TensorStages(*spec_.graph, *spec_.partition);
  for (size_t p = 0; p < parameters_->parameters().size(); ++p) {
    const Parameter& parameter = parameters_->parameters()[p];
    const std::vector<StageId>& of = owners[static_cast<size_t>(parameter.id.value())];
    if (of.size() != 1 || of[0] != stage) {
      continue;
    }
    const std::vector<TensorUse> uses = parameters_->Uses(static_cast<int32_t>(p));
    for (size_t u = 1; u < uses.size(); ++u) {
      means.device.ScaleInto(parameters_->UsePart(static_cast<int32_t>(p), uses[u], 0), 1.0F, true,
                             parameter.gradient);
    }
  }
  return {};
}

Result<> GradientSums::ReduceTied(size_t edge, const Means& means) const {
  const auto it = tied_sums_.find(edge);
  if (it == tied_sums_.end()) {
    return {};
  }
  const std::string& name = spec_.schedule->edges[edge].name;
  const int32_t p = parameters_->Find(EdgeTensor(*spec_.graph, name));
  PENSTOCK_CHECK(p >= 0, "an owner of a tied tensor holds it");
  for (const TiedSum& sum : it->second) {
    ReductionTerms terms;
    terms.items = 1;
    terms.terms = [&](size_t place, int64_t) {
      std::vector<Tensor> parts;
      for (const StageId owner : sum.owners[place]) {
        for (const TensorUse& use : parameters_->Uses(p, owner)) {
          parts.push_back(parameters_->UsePart(p, use, 0));
        }
      }
      return parts;
    };
    terms.total = [&](int64_t) {
      return parameters_->parameters()[static_cast<size_t>(p)].gradient;
    };
    PENSTOCK_TRY(RunReduction(sum.reduction, terms, means.step, means.channel, means.device,
                              means.scratch, means.deadline_s, means.waited_s));
  }
  return {};
}

}  // namespace penstock::runtime
