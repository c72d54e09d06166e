#include "plan/hops.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>

#include "hw/links.h"

namespace penstock::plan {
namespace {

// Stage of each layer.
std::vector<int32_t> StageOfLayer(const Layout& layout) {
  std::vector<int32_t> stage;
  for (size_t s = 0; s < layout.cut.size(); ++s) {
    stage.insert(stage.end(), static_cast<size_t>(layout.cut[s]), static_cast<int32_t>(s));
  }
  return stage;
}

}  // namespace

double HopWidths::largest() const {
  double most = 0;
  for (const auto* list : {&forward, &backward}) {
    for (const double width : *list) {
      most = std::max(most, width);
    }
  }
  return most;
}

HopWidths HopsOf(const cost::ModelProfile& model, const Layout& layout, Mode mode) {
  const size_t stages = layout.cut.size();
  const std::vector<int32_t> stage_of = StageOfLayer(layout);
  HopWidths out;
  out.forward.assign(stages, 0);
  out.backward.assign(stages, 0);
  out.kept.assign(static_cast<size_t>(layout.pp), 0);
  std::vector<size_t> rank(stages);
  for (size_t s = 0; s < stages; ++s) {
    rank[s] = static_cast<size_t>(RankOfStage(layout, static_cast<int64_t>(s)));
  }
  size_t first = 0;  // layer of the stage
  for (size_t s = 1; s < stages; ++s) {
    first += static_cast<size_t>(layout.cut[s - 1]);
    if (rank[s] != rank[s - 1] && first > 0) {
      out.backward[s] = model.boundary_width[first - 1];
    }
  }
  if (mode == Mode::kInference) {
    out.forward = out.backward;
  }
  // By rank: the last value that came there, and the last that is kept.
  std::vector<int64_t> has;
  std::vector<int64_t> keeps;
  has.assign(out.kept.size(), -1);
  keeps.assign(out.kept.size(), -1);
  for (int64_t v = 0; v < static_cast<int64_t>(model.crossing.size()); ++v) {
    const cost::CrossingValue& value = model.crossing[static_cast<size_t>(v)];
    has[rank[static_cast<size_t>(stage_of[static_cast<size_t>(value.producer)])]] = v;
    for (const cost::CrossingValue::Readers& run : value.readers) {
      const auto last = static_cast<size_t>(stage_of[static_cast<size_t>(run.last)]);
      for (auto s = static_cast<size_t>(stage_of[static_cast<size_t>(run.first)]); s <= last; ++s) {
        if (layout.cut[s] == 0) {
          continue;
        }
        const size_t r = rank[s];
        if (has[r] != v && mode == Mode::kTraining) {
          out.forward[s] += value.width;
        }
        has[r] = v;
        if (run.keeps && keeps[r] != v) {
          out.kept[r] += value.width;
          keeps[r] = v;
        }
      }
    }
  }
  return out;
}

std::vector<schedule::Edge> EdgesOf(const cost::ModelProfile& model, const Layout& layout,
                                    double rows) {
  const std::vector<int32_t> stage_of = StageOfLayer(layout);
  std::vector<schedule::Edge> edges;
  for (const cost::CrossingValue& value : model.crossing) {
    const int32_t from = stage_of[static_cast<size_t>(value.producer)];
    std::vector<StageId> to;
    for (const cost::CrossingValue::Readers& run : value.readers) {
      for (int32_t l = run.first; l <= run.last; ++l) {
        const StageId stage(stage_of[static_cast<size_t>(l)]);
        if (stage.value() != from && (to.empty() || to.back() != stage)) {
          to.push_back(stage);
        }
      }
    }
    if (to.empty() || (to.size() == 1 && to[0].value() == from + 1)) {
      continue;  // nothing, or the chain's
    }
    std::string name = value.name;
    for (char& c : name) {
      c = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' ? c : '/';
    }
    edges.push_back({std::move(name), schedule::EdgeKind::kValue, StageId(from), std::move(to),
                     std::llround(2 * rows * value.width)});
  }
  return edges;
}

cost::ModelProfile WithPlainResidual(const cost::ModelProfile& model) {
  cost::ModelProfile plain = model;
  plain.crossing.clear();
  for (int32_t l = 0; l + 1 < model.num_layers(); ++l) {
    plain.boundary_width[static_cast<size_t>(l)] = model.hidden;
    plain.crossing.push_back({model.hidden, l, {{l + 1, l + 1, false}}, {}});
  }
  return plain;
}

cost::LinkCost HopLink(const Context& context, const Layout& layout, double bytes) {
  const double share = context.calibration().exposed_hop;
  const double empty_s = hw::MessageSeconds(*context.system, layout.hop_distance(), 0);
  const double full_s = hw::MessageSeconds(*context.system, layout.hop_distance(), bytes);
  cost::LinkCost link;
  link.latency_s = share * empty_s;
  link.bytes_per_s = share > 0 && full_s > empty_s ? bytes / (full_s - empty_s) / share : 0;
  link.occupied = true;
  return link;
}

std::vector<double> CrossingBytes(const cost::ModelProfile& model) {
  std::vector<double> bytes = {0};
  for (const double width : model.boundary_width) {
    bytes.push_back(2 * width);
  }
  bytes.back() = 0;
  const bool alike =
      std::all_of(bytes.begin() + 1, bytes.end() - 1, [&](double b) { return b == bytes[1]; });
  return alike ? std::vector<double>() : bytes;
}

void Recut(const cost::ModelProfile& model, Plan& plan, const std::function<bool(Plan&)>& price) {
  if (CrossingBytes(model).empty()) {
    return;
  }
  Plan other = plan;
  other.layout.cut.clear();
  if (price(other)) {
    plan = std::move(other);
  }
}

}  // namespace penstock::plan
