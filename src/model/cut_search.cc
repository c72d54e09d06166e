#include "model/cut_search.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace penstock::model {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// How much heavier the heaviest stage may be for the sake of what crosses.
constexpr double kTolerance = 0.01;
// Unevenness (in mean squares of a stage) that sending one average boundary less is worth.
constexpr double kCrossingWorth = 0.02;

class Searcher {
 public:
  Searcher(const CutWeights& weights, int32_t stages, const StageFits& fits)
      : w_(weights), stages_(stages), fits_(fits) {
    prefix_.push_back(0.0);
    for (const double work : w_.work) {
      prefix_.push_back(prefix_.back() + std::max(work, 0.0));
    }
  }

  // Whether some boundary sends more than another.
  bool Uneven() const {
    return w_.crossing_bytes.size() == w_.work.size() + 1 && layers() > 2 &&
           std::any_of(w_.crossing_bytes.begin() + 2, w_.crossing_bytes.end() - 1,
                       [&](double bytes) { return bytes != w_.crossing_bytes[1]; });
  }

  void IgnoreCrossing() { alike_ = true; }

  std::optional<std::vector<int32_t>> Run() {
    const double limit = Bottleneck();
    if (limit == kInfinity) {
      return std::nullopt;
    }
    const double exact = limit * (1.0 + 1e-9);
    const auto square = [&](size_t first, size_t end) {
      const double load = Load(first, end);
      return load * load;
    };
    const auto add = [](double a, double b) { return a + b; };
    if (alike_) {
      return Least(exact, square, add, nullptr);
    }
    // The cut of the work alone stands unless another one is lighter or sends less.
    Searcher by_work(w_, stages_, fits_);
    by_work.IgnoreCrossing();
    auto even = by_work.Run();
    if (!even || Heaviest(*even) > exact) {
      even = Least(exact, square, add, nullptr);
    }
    if (!even) {
      return even;
    }
    const double mean = std::max(prefix_.back(), 1e-300) / static_cast<double>(stages_);
    double bytes = 0;
    for (size_t b = 1; b < layers(); ++b) {
      bytes += w_.crossing_bytes[b] / static_cast<double>(layers() - 1);
    }
    const auto both = [&](size_t first, size_t end) {
      const double load = Load(first, end) / mean;
      const double sent = end < layers() ? w_.crossing_bytes[end] / bytes : 0.0;
      return load * load + kCrossingWorth * sent;
    };
    const auto light = Least(limit * (1.0 + kTolerance), both, add, nullptr);
    return light && Sent(*light) < Sent(*even) ? light : even;
  }

 private:
  size_t layers() const { return w_.work.size(); }

  double Work(size_t first, size_t end) const { return prefix_[end] - prefix_[first]; }

  double Crossing(size_t boundary) const {
    return alike_ || boundary == 0 || boundary == layers()
               ? 0.0
               : w_.crossing_bytes[boundary] * w_.work_per_byte;
  }

  double Load(size_t first, size_t end) const {
    return Work(first, end) + Crossing(first) + Crossing(end);
  }

  double Sent(const std::vector<int32_t>& starts) const {
    double bytes = 0;
    for (size_t s = 1; s < starts.size(); ++s) {
      bytes += w_.crossing_bytes[static_cast<size_t>(starts[s])];
    }
    return bytes;
  }

  double Heaviest(const std::vector<int32_t>& starts) const {
    double heaviest = 0;
    for (size_t s = 0; s < starts.size(); ++s) {
      const size_t end = s + 1 < starts.size() ? static_cast<size_t>(starts[s + 1]) : layers();
      heaviest = std::max(heaviest, Load(static_cast<size_t>(starts[s]), end));
    }
    return heaviest;
  }

  // Fewest stages with no work above `limit`, none empty.
  int64_t StagesNeeded(double limit) const {
    int64_t stages = 1;
    size_t first = 0;
    for (size_t i = 0; i < layers(); ++i) {
      if (Work(first, i + 1) > limit && i > first) {
        first = i;
        ++stages;
      }
    }
    return stages;
  }

  // The least possible weight of the heaviest stage; infinity where no cut fits.
  double Bottleneck() const {
    double low = *std::max_element(w_.work.begin(), w_.work.end());
    double high = prefix_.back();
    for (int i = 0; i < 100 && low < high; ++i) {
      const double middle = low + (high - low) / 2;
      (StagesNeeded(middle) <= stages_ ? high : low) = middle;
      if (high - low <= 1e-12 * high) {
        break;
      }
    }
    if (alike_ && !fits_) {
      return high;
    }
    // Nobody needs more than the cut of the work alone with the widest boundaries at each stage.
    double widest = 0;
    for (size_t b = 1; b < layers(); ++b) {
      widest = std::max(widest, Crossing(b));
    }
    const auto larger = [](double a, double b) { return std::max(a, b); };
    const auto load = [&](size_t first, size_t end) { return Load(first, end); };
    double best = kInfinity;
    if (!Least((high + 2 * widest) * (1.0 + 1e-9), load, larger, &best)) {
      Least(kInfinity, load, larger, &best);
    }
    return best;
  }

  // The cut of least joined cost with no stage above `limit`; later ends win ties (within
  // rounding): earlier stages are the heavier.
  template <class Cost, class Join>
  std::optional<std::vector<int32_t>> Least(double limit, const Cost& cost, const Join& join,
                                            double* value) const {
    const size_t n = layers();
    const auto k = static_cast<size_t>(stages_);
    std::vector<double> best(n + 1, kInfinity);  // of layers i.. in the stages that remain
    best[n] = 0.0;
    std::vector<std::vector<int32_t>> choice(k);
    for (size_t s = k; s-- > 0;) {
      std::vector<double> next(n + 1, kInfinity);
      std::vector<int32_t>& ends = choice[s];
      ends.assign(n + 1, -1);
      // Stages in front and behind have a layer each.
      for (size_t i = s; i + (k - s) <= n && (s > 0 || i == 0); ++i) {
        for (size_t end = i + 1; end + (k - 1 - s) <= n && Work(i, end) <= limit; ++end) {
          if (best[end] == kInfinity || Load(i, end) > limit) {
            continue;
          }
          if (fits_ &&
              !fits_(static_cast<int32_t>(s), static_cast<int32_t>(i), static_cast<int32_t>(end))) {
            continue;
          }
          const double total = join(cost(i, end), best[end]);
          if (total <= next[i] * (1.0 + 1e-12)) {
            next[i] = std::min(total, next[i]);
            ends[i] = static_cast<int32_t>(end);
          }
        }
      }
      best = std::move(next);
    }
    if (best[0] == kInfinity) {
      return std::nullopt;
    }
    if (value != nullptr) {
      *value = best[0];
    }
    std::vector<int32_t> starts = {0};
    for (size_t s = 0; s + 1 < k; ++s) {
      starts.push_back(choice[s][static_cast<size_t>(starts.back())]);
    }
    return starts;
  }

  const CutWeights& w_;
  int32_t stages_;
  const StageFits& fits_;
  std::vector<double> prefix_;
  bool alike_ = false;
};

}  // namespace

std::optional<std::vector<int32_t>> FindBalancedCut(const CutWeights& weights, int32_t stages,
                                                    const StageFits& fits) {
  PENSTOCK_CHECK(stages >= 1 && static_cast<size_t>(stages) <= weights.work.size(),
                 "as many layers as stages");
  Searcher searcher(weights, stages, fits);
  if (!searcher.Uneven()) {
    searcher.IgnoreCrossing();
  }
  return searcher.Run();
}

Result<Partition> CutBalanced(const CutWeights& weights, int64_t stages, bool allow_empty) {
  const auto layers = static_cast<int64_t>(weights.work.size());
  constexpr int64_t kMaxStages = 32767;
  const int64_t most = allow_empty ? kMaxStages : layers;
  if (stages < 1 || stages > most) {
    return MakeError(ErrorCode::kInvalidArgument, "[model.cut] stages: got {}, wanted 1 to {}{}",
                     stages, most, allow_empty ? "" : " (decoder layers, embedding and head)");
  }
  std::vector<int32_t> starts;
  if (stages >= layers) {
    for (int64_t s = 0; s < stages; ++s) {
      starts.push_back(static_cast<int32_t>(std::min(s, layers - 1)));
    }
  } else {
    auto found = FindBalancedCut(weights, static_cast<int32_t>(stages));
    PENSTOCK_CHECK(found.has_value(), "a cut without limits exists");
    starts = std::move(*found);
  }
  return Partition(std::move(starts), static_cast<int32_t>(layers));
}

Result<Partition> CutBalanced(std::span<const double> weights, int64_t stages, bool allow_empty) {
  return CutBalanced(CutWeights{{weights.begin(), weights.end()}, {}, 0}, stages, allow_empty);
}

std::vector<double> CrossingBytes(const Graph& graph, int64_t element_bytes) {
  const CutSets cuts(graph);
  std::vector<double> bytes(graph.layers.size() + 1, 0.0);
  for (int32_t b = 1; b < graph.num_layers(); ++b) {
    for (const ValueId id : cuts.Crossing(b)) {
      bytes[static_cast<size_t>(b)] +=
          id == graph.tokens ? 0.0
                             : static_cast<double>(BytesPerToken(graph.value(id), element_bytes));
    }
  }
  return bytes;
}

CutFigures FiguresOf(const CutWeights& weights, const Partition& partition) {
  const bool crossing = !weights.crossing_bytes.empty();
  const auto sent = [&](int32_t boundary) {
    return crossing && boundary > 0 && boundary < partition.num_layers()
               ? weights.crossing_bytes[static_cast<size_t>(boundary)]
               : 0.0;
  };
  CutFigures figures;
  for (int32_t s = 0; s < partition.num_stages(); ++s) {
    const int32_t first = partition.first_layer(StageId(s));
    const int32_t end = partition.end_layer(StageId(s));
    double load = weights.work_per_byte * (sent(first) + sent(end));
    for (int32_t l = first; l < end; ++l) {
      load += weights.work[static_cast<size_t>(l)];
    }
    figures.heaviest = std::max(figures.heaviest, load);
    figures.crossing_bytes += s > 0 ? sent(first) : 0.0;
  }
  return figures;
}

}  // namespace penstock::model
