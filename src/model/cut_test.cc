#include "model/cut.h"
#include "model/cut_search.h"

#include <gtest/gtest.h>

#include <numeric>

#include <random>
#include <set>

namespace penstock::model {
namespace {

// `layers` decoder layers of width 4; layer i also reads the output of each layer that `reads(i)`
// lists (-1: the embedding). The head is tied.
template <class Reads>
Graph SkipGraph(int layers, Reads reads) {
  GraphBuilder b;
  const auto table = [&] { return b.Tensor("table", {8, 4}, TensorRole::kEmbedding); };
  b.BeginLayer(LayerKind::kEmbedding, "embedding");
  std::vector<ValueId> outputs = {b.Embed(table(), 1.0F, "embedding")};
  for (int i = 0; i < layers; ++i) {
    const std::string tag = std::to_string(i);
    b.BeginLayer(LayerKind::kDecoder, "layer " + tag);
    ValueId x = outputs.back();
    for (const int source : reads(i)) {
      x = b.Add(x, outputs[static_cast<size_t>(source + 1)],
                "skip." + tag + "." + std::to_string(source));
    }
    const ValueId q =
        b.Linear(x, {.weights = {b.Matrix("w." + tag, 4, 4)}, .biases = {}}, {"q." + tag})[0];
    outputs.push_back(b.Attention(
        q, x, x, {.heads = 2, .kv_heads = 2, .head_dim = 2, .value_dim = 2}, "hidden." + tag));
  }
  b.BeginLayer(LayerKind::kHead, "head");
  const ValueId logits =
      b.Linear(outputs.back(), {.weights = {table()}, .biases = {}}, {"logits"})[0];
  auto graph = std::move(b).Build(logits);
  EXPECT_TRUE(graph.ok()) << graph.error().message;
  return std::move(graph).value();
}

std::vector<int> None(int) {
  return {};
}

std::vector<std::string> Names(const Graph& graph, const std::vector<ValueId>& ids) {
  std::vector<std::string> names;
  for (const ValueId id : ids) {
    names.push_back(graph.value(id).name);
  }
  return names;
}

std::vector<int32_t> Starts(const Partition& partition) {
  std::vector<int32_t> starts;
  for (int32_t s = 0; s < partition.num_stages(); ++s) {
    starts.push_back(partition.first_layer(StageId(s)));
  }
  return starts;
}

TEST(Cut, APlainModelSendsOneValueOverEachBoundary) {
  const Graph graph = SkipGraph(3, None);
  const CutSets cuts(graph);
  EXPECT_EQ(Names(graph, cuts.Crossing(0)), (std::vector<std::string>{"tokens"}));
  EXPECT_EQ(Names(graph, cuts.Crossing(1)), (std::vector<std::string>{"embedding"}));
  EXPECT_EQ(Names(graph, cuts.Crossing(2)), (std::vector<std::string>{"hidden.0"}));
  EXPECT_EQ(Names(graph, cuts.Crossing(4)), (std::vector<std::string>{"hidden.2"}));
  EXPECT_TRUE(cuts.Crossing(5).empty());
}

TEST(Cut, ASkipCrossesEveryBoundaryBetweenItsEnds) {
  const Graph graph =
      SkipGraph(4, [](int i) { return i == 3 ? std::vector{0} : std::vector<int>{}; });
  const CutSets cuts(graph);
  EXPECT_EQ(Names(graph, cuts.Crossing(2)), (std::vector<std::string>{"hidden.0"}));
  EXPECT_EQ(Names(graph, cuts.Crossing(3)), (std::vector<std::string>{"hidden.0", "hidden.1"}));
  EXPECT_EQ(Names(graph, cuts.Crossing(4)), (std::vector<std::string>{"hidden.0", "hidden.2"}));
  EXPECT_EQ(Names(graph, cuts.Crossing(5)), (std::vector<std::string>{"hidden.3"}));
}

TEST(Cut, EqualEntriesMakeEmptyStagesThatPassValuesOn) {
  const Graph graph = SkipGraph(3, None);
  const CutSets cuts(graph);
  const std::vector<int64_t> cut = {2, 2, 4};
  const auto partition = CutAt(graph.num_layers(), cut);
  ASSERT_TRUE(partition.ok());
  EXPECT_EQ(partition->num_stages(), 4);
  EXPECT_TRUE(partition->empty(StageId(1)));
  EXPECT_EQ(partition->StageOf(LayerId(1)), StageId(0));
  EXPECT_EQ(partition->StageOf(LayerId(2)), StageId(2));
  EXPECT_EQ(partition->StageOf(LayerId(4)), StageId(3));
  const auto contents = Contents(graph, cuts, partition.value());
  EXPECT_EQ(contents[1].first_op, contents[1].end_op);
  EXPECT_EQ(contents[1].receives, contents[1].sends);
  EXPECT_TRUE(contents[1].reads.empty());
  EXPECT_EQ(contents[2].reads, contents[2].receives);
}

TEST(Cut, TiedWeightsStandOnBothStages) {
  const Graph graph = SkipGraph(2, None);
  const auto partition = CutAt(graph.num_layers(), std::vector<int64_t>{2});
  ASSERT_TRUE(partition.ok());
  const auto contents = Contents(graph, CutSets(graph), partition.value());
  const auto has_table = [&](const StageContent& stage) {
    return std::any_of(stage.tensors.begin(), stage.tensors.end(),
                       [&](TensorId id) { return graph.tensor(id).name == "table"; });
  };
  EXPECT_TRUE(has_table(contents[0]));
  EXPECT_TRUE(has_table(contents[1]));
  EXPECT_EQ(contents[0].states, (std::vector<int32_t>{0}));
  EXPECT_EQ(contents[1].states, (std::vector<int32_t>{1}));
}

TEST(Cut, CutEntriesOutOfOrderOrRangeAreRefusedWithTheLegalRange) {
  const struct {
    std::vector<int64_t> cut;
    const char* message;
  } cases[] = {
      {{0}, "entry 1 is 0, wanted 1 to 4"},
      {{5}, "entry 1 is 5, wanted 1 to 4"},
      {{-3}, "entry 1 is -3, wanted 1 to 4"},
      {{3, 2}, "entry 2 is 2 after 3, wanted 3 to 4"},
      {{1, 1000000000000}, "entry 2 is 1000000000000, wanted 1 to 4"},
  };

  for (const auto& bad : cases) {
    const auto partition = CutAt(5, bad.cut);
    ASSERT_FALSE(partition.ok());
    EXPECT_NE(partition.error().message.find(bad.message), std::string::npos)
        << partition.error().message;
  }
}

TEST(Cut, BalancedCutsHaveTheLightestHeaviestStageAndAreEven) {
  const std::vector<double> uniform = {0, 1, 1, 1, 1, 1, 1, 1, 0};  // 7 decoder layers
  EXPECT_EQ(Starts(CutBalanced(uniform, 3).value()), (std::vector<int32_t>{0, 4, 6}));
  EXPECT_EQ(Starts(CutBalanced(uniform, 9).value()),
            (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
  const std::vector<double> heavy_head = {0, 1, 1, 1, 1, 4};
  EXPECT_EQ(Starts(CutBalanced(heavy_head, 2).value()), (std::vector<int32_t>{0, 5}));
  EXPECT_EQ(Starts(CutBalanced(heavy_head, 3).value()), (std::vector<int32_t>{0, 3, 5}));
}

TEST(Cut, MoreStagesThanUnitsAreRefusedUnlessEmptyOnesAreAllowed) {
  const std::vector<double> weights = {0, 1, 1, 0};
  const auto partition = CutBalanced(weights, 5);
  ASSERT_FALSE(partition.ok());
  EXPECT_NE(partition.error().message.find("got 5, wanted 1 to 4"), std::string::npos);
  EXPECT_FALSE(CutBalanced(weights, 0).ok());
  EXPECT_FALSE(CutBalanced(weights, -1).ok());
  const auto wide = CutBalanced(weights, 6, /*allow_empty=*/true);
  ASSERT_TRUE(wide.ok());
  EXPECT_EQ(wide->num_stages(), 6);
  EXPECT_FALSE(wide->empty(StageId(0)));
  EXPECT_FALSE(wide->empty(StageId(5)));
}

TEST(Cut, ACutThatCannotBeIsToldTheNearestThatCan) {
  using Cuts = std::vector<int64_t>;
  EXPECT_EQ(NearestCut(6, Cuts{}), Cuts{});
  EXPECT_EQ(NearestCut(6, Cuts{0, 9}), (Cuts{1, 5}));
  EXPECT_EQ(NearestCut(6, Cuts{4, 2}), (Cuts{2, 4}));
  EXPECT_EQ(NearestCut(6, Cuts{3}, 4), (Cuts{2, 3, 5}));
  EXPECT_EQ(NearestCut(6, Cuts{1, 2, 4}, 2), (Cuts{4}));
  EXPECT_EQ(NearestCut(2, Cuts{}, 4), (Cuts{1, 1, 1})) << "more stages than layers: empty ones";
  EXPECT_EQ(NearestCut(6, Cuts{1, 2}, 1), Cuts{});
  const auto refused = [](const Cuts& cut) { return CutAt(6, cut).error().message; };
  EXPECT_NE(refused({2, 9}).find("the nearest legal cut is 2,5"), std::string::npos);
  EXPECT_NE(refused({4, 2}).find("the nearest legal cut is 2,4"), std::string::npos);
  EXPECT_EQ(refused(Cuts(100, 9)).find("nearest"), std::string::npos) << "nobody reads a hundred";
  // Whatever is asked for, what is named is legal and has as many stages.
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    const auto layers = static_cast<int32_t>(2 + random() % 8);
    Cuts cut(random() % 6);
    for (int64_t& entry : cut) {
      entry = static_cast<int64_t>(random() % 20) - 5;
    }
    const auto stages = static_cast<int64_t>(random() % 8);
    const Cuts nearest = NearestCut(layers, cut, stages);
    EXPECT_TRUE(CutAt(layers, nearest).ok()) << seed;
    EXPECT_EQ(std::ssize(nearest), stages == 0 ? std::ssize(cut) : stages - 1) << seed;
    EXPECT_EQ(NearestCut(layers, nearest, stages), nearest) << "a legal one is its own nearest";
  }
}

// The best bottleneck by trying every cut.
double BestBottleneck(const std::vector<double>& weights, size_t first, int stages) {
  if (stages == 1) {
    return std::accumulate(weights.begin() + static_cast<std::ptrdiff_t>(first), weights.end(),
                           0.0);
  }
  double best = 1e300;
  double sum = 0.0;
  for (size_t end = first + 1; end + static_cast<size_t>(stages) - 1 <= weights.size(); ++end) {
    sum += weights[end - 1];
    best = std::min(best, std::max(sum, BestBottleneck(weights, end, stages - 1)));
  }
  return best;
}

TEST(Cut, BalancedCutsAreOptimalOnRandomWeights) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    const size_t n = 3 + random() % 8;
    std::vector<double> weights;
    for (size_t i = 0; i < n; ++i) {
      weights.push_back(static_cast<double>(random() % 1000) / 7.0);
    }
    const int stages = 1 + static_cast<int>(random() % n);
    const auto partition = CutBalanced(weights, stages);
    ASSERT_TRUE(partition.ok());
    double heaviest = 0.0;
    for (int32_t s = 0; s < stages; ++s) {
      double sum = 0.0;
      EXPECT_FALSE(partition->empty(StageId(s)));
      for (int32_t l = partition->first_layer(StageId(s)); l < partition->end_layer(StageId(s));
           ++l) {
        sum += weights[static_cast<size_t>(l)];
      }
      heaviest = std::max(heaviest, sum);
    }
    EXPECT_NEAR(heaviest, BestBottleneck(weights, 0, stages), 1e-6 * (1.0 + heaviest)) << seed;
  }
}

// Every cut into `stages`, none empty.
template <class Visit>
void ForEachCut(int32_t layers, int stages, std::vector<int32_t>& starts, const Visit& visit) {
  if (static_cast<int>(starts.size()) == stages) {
    visit(Partition(starts, layers));
    return;
  }
  for (int32_t at = starts.back() + 1; at < layers; ++at) {
    starts.push_back(at);
    ForEachCut(layers, stages, starts, visit);
    starts.pop_back();
  }
}

TEST(Cut, WeighingWhatCrossesStaysWithinAPercentOfTheBestAndSendsNoMore) {
  int changed = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    const auto draw = [&] { return static_cast<double>(random() % 1000) / 1000.0; };
    const auto layers = static_cast<int32_t>(4 + random() % 8);
    const int stages = 2 + static_cast<int>(random() % 3);
    CutWeights weights;
    // Nearly even layers: many cuts are nearly as good.
    for (int32_t l = 0; l < layers; ++l) {
      weights.work.push_back(seed % 2 == 0 ? 1.0 : 1.0 + 1e-3 * draw());
    }
    weights.crossing_bytes.assign(static_cast<size_t>(layers) + 1, 0.0);
    for (int32_t b = 1; b < layers; ++b) {
      weights.crossing_bytes[static_cast<size_t>(b)] = 1.0 + 8 * draw();
    }
    weights.work_per_byte = seed % 3 == 0 ? 0.05 : 1e-6;
    const Partition cut = CutBalanced(weights, stages).value();
    EXPECT_TRUE(cut == CutBalanced(weights, stages).value());
    double best = 1e300;
    std::vector<int32_t> starts = {0};
    ForEachCut(layers, stages, starts, [&](const Partition& other) {
      best = std::min(best, FiguresOf(weights, other).heaviest);
    });
    const CutFigures figures = FiguresOf(weights, cut);
    EXPECT_LE(figures.heaviest, best * 1.0101) << seed;
    const Partition by_work = CutBalanced(weights.work, stages).value();
    if (!(cut == by_work)) {
      ++changed;
      const CutFigures plain = FiguresOf(weights, by_work);
      EXPECT_TRUE(figures.crossing_bytes < plain.crossing_bytes ||
                  figures.heaviest < plain.heaviest)
          << seed;
    }
  }
  EXPECT_GT(changed, 50);
}

TEST(Cut, WhereAllBoundariesAreAlikeTheWorkAloneDecides) {
  CutWeights weights{{0, 1, 1, 1, 1, 1, 1, 1, 0}, {0, 8, 8, 8, 8, 8, 8, 8, 8, 0}, 0.1};
  for (int stages = 1; stages <= 9; ++stages) {
    EXPECT_TRUE(CutBalanced(weights, stages).value() == CutBalanced(weights.work, stages).value());
  }
  EXPECT_FALSE(CutBalanced(weights, 10).ok());
  EXPECT_EQ(CutBalanced(weights, 12, true)->num_stages(), 12);
}

// Blocks of four layers: just behind the start of one a running sum crosses beside the finished
// blocks. Ten layers leave the choice which stages have three.
TEST(Cut, CutsStandAtTheEndsOfBlocksWhereBalanceAllows) {
  CutWeights weights;
  weights.work = {0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0};
  //                       e  1  2  3  4| 5  6  7| 8  9 10
  weights.crossing_bytes = {0, 1, 2, 2, 2, 2, 3, 3, 2, 4, 4, 4, 0};
  EXPECT_EQ(Starts(CutBalanced(weights.work, 3).value()), (std::vector<int32_t>{0, 5, 8}));
  EXPECT_EQ(Starts(CutBalanced(weights, 3).value()), (std::vector<int32_t>{0, 5, 8}));
  weights.crossing_bytes[5] = 4;
  EXPECT_EQ(Starts(CutBalanced(weights, 3).value()), (std::vector<int32_t>{0, 4, 8}));
  weights.work_per_byte = 1;  // links so slow that one stage is lighter for it
  EXPECT_LE(FiguresOf(weights, CutBalanced(weights, 3).value()).crossing_bytes, 4);
}

// For random graphs and cuts: layers are conserved, and each stage can compute everything from what
// it receives.
TEST(Cut, AnyCutOfAnyGraphIsComplete) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    std::mt19937_64 random(seed);
    const int layers = 1 + static_cast<int>(random() % 8);
    const Graph graph = SkipGraph(layers, [&](int i) {
      std::vector<int> sources;
      for (int source = -1; source < i; ++source) {
        if (random() % 4 == 0) {
          sources.push_back(source);
        }
      }
      return sources;
    });
    std::vector<int64_t> cut(random() % 6);
    for (int64_t& entry : cut) {
      entry = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(graph.num_layers() - 1));
    }
    std::sort(cut.begin(), cut.end());
    const auto partition = CutAt(graph.num_layers(), cut);
    ASSERT_TRUE(partition.ok());
    const CutSets cuts(graph);
    const auto contents = Contents(graph, cuts, partition.value());
    int32_t next_op = 0;
    size_t states = 0;
    for (size_t s = 0; s < contents.size(); ++s) {
      const StageContent& stage = contents[s];
      std::vector<ValueId> have = stage.receives;
      if (stage.first_op != stage.end_op) {
        EXPECT_EQ(stage.first_op, next_op);
        next_op = stage.end_op;
      }
      for (int32_t i = stage.first_op; i < stage.end_op; ++i) {
        for (const ValueId id : graph.ops[static_cast<size_t>(i)].inputs) {
          EXPECT_NE(std::find(have.begin(), have.end(), id), have.end())
              << seed << ": stage " << s << " lacks " << graph.value(id).name;
        }
        for (const ValueId id : graph.ops[static_cast<size_t>(i)].outputs) {
          have.push_back(id);
        }
      }
      for (const ValueId id : stage.sends) {
        EXPECT_NE(std::find(have.begin(), have.end(), id), have.end());
      }
      if (s + 1 < contents.size()) {
        EXPECT_EQ(stage.sends, contents[s + 1].receives);
      }
      states += stage.states.size();
    }
    EXPECT_EQ(next_op, static_cast<int32_t>(graph.ops.size()));
    EXPECT_EQ(states, graph.states.size());
  }
}

std::vector<RankId> Loop(int stages, int ranks) {
  std::vector<RankId> rank_of;
  for (int s = 0; s < stages; ++s) {
    rank_of.push_back(RankId(s % ranks));
  }
  return rank_of;
}

// A bank of block outputs: every layer reads all multiples of `block`, as attention residuals do.
TEST(Cut, ARankNeverReceivesAValueTwice) {
  const int layers = 8;
  const Graph graph = SkipGraph(layers, [](int i) {
    std::vector<int> bank;
    for (int source = -1; source < i - 1; source += 2) {
      bank.push_back(source);
    }
    return bank;
  });
  const CutSets cuts(graph);
  const auto partition = CutAt(graph.num_layers(), std::vector<int64_t>{3, 5, 7}).value();
  const HopPlan plan = PlanHops(graph, cuts, partition, Loop(4, 2), 2, 2);
  ASSERT_EQ(plan.hops.size(), 3U);
  std::vector<std::vector<ValueId>> received(2);
  size_t needed = 0;
  size_t naive = 0;
  for (const Hop& hop : plan.hops) {
    auto& mine = received[static_cast<size_t>(hop.to_rank.value())];
    for (const ValueId id : hop.values) {
      EXPECT_EQ(std::count(mine.begin(), mine.end(), id), 0);
      mine.push_back(id);
    }
    needed += hop.values.size();
    naive += hop.naive.size();
  }
  EXPECT_LT(needed, naive);
  // Rank 0 has the embedding and wrote hidden.0 and hidden.1 itself: from stage 1 it needs only
  // what stage 1 wrote.
  EXPECT_EQ(Names(graph, plan.hops[1].values), (std::vector<std::string>{"hidden.3"}));
  EXPECT_EQ(plan.held.size(), 2U);
}

// Attention residuals over blocks of `block` layers: layer l reads the bank and the running sum,
// and at the start of a block the sum joins the bank.
Graph DepthGraph(int layers, int block) {
  GraphBuilder b;
  const auto table = [&] { return b.Tensor("table", {8, 4}, TensorRole::kEmbedding); };
  b.BeginLayer(LayerKind::kEmbedding, "embedding");
  ValueId sum = b.Embed(table(), 1.0F, "embedding");
  std::vector<ValueId> bank;
  const auto sources = [&] {
    std::vector<ValueId> all = bank;
    all.push_back(sum);
    return all;
  };
  for (int l = 0; l < layers; ++l) {
    const std::string tag = std::to_string(l);
    b.BeginLayer(LayerKind::kDecoder, "layer " + tag);
    const std::vector<ValueId> read = sources();
    if (l % block == 0) {
      bank.push_back(sum);
    }
    sum = b.Counted(read, {.kind = "layer"}, std::nullopt, {{"sum." + tag, 4}})[0];
  }
  b.BeginLayer(LayerKind::kHead, "head");
  const ValueId x = b.Counted(sources(), {.kind = "read"}, std::nullopt, {{"x", 4}})[0];
  const ValueId logits = b.Linear(x, {.weights = {table()}, .biases = {}}, {"logits"})[0];
  auto graph = std::move(b).Build(logits);
  EXPECT_TRUE(graph.ok()) << graph.error().message;
  return std::move(graph).value();
}

// Kimi K3 has 93 layers in blocks of 12. Totals and the naive peak were counted by hand for cuts
// that spread the layers evenly, with what is left over in front.
TEST(Cut, HopsOfBlockAttentionResidualsAreThoseCountedByHand) {
  const Graph graph = DepthGraph(93, 12);
  const CutSets cuts(graph);
  EXPECT_EQ(cuts.Crossing(1 + 12).size(), 2U)
      << "at a block's start the sum is the next of the bank";
  EXPECT_EQ(cuts.Crossing(1 + 13).size(), 3U);
  EXPECT_EQ(cuts.Crossing(1 + 93).size(), 9U) << "the last read needs everything";

  const struct {
    int ranks, chunks;
    size_t naive, naive_peak, needed;
  } table[] = {{2, 1, 5, 5, 5},    {2, 2, 15, 7, 8},    {2, 4, 35, 8, 9},  {4, 1, 15, 7, 15},
               {4, 2, 35, 8, 21},  {4, 4, 79, 9, 31},   {8, 1, 35, 8, 35}, {8, 2, 79, 9, 55},
               {8, 4, 167, 9, 77}, {16, 4, 378, 9, 170}};

  for (const auto& row : table) {
    const int stages = row.ranks * row.chunks;
    const auto partition = CutBalanced(LayerCountWeights(graph), stages);
    ASSERT_TRUE(partition.ok());
    const HopPlan plan =
        PlanHops(graph, cuts, partition.value(), Loop(stages, row.ranks), row.ranks, 2);
    size_t naive = 0;
    size_t peak = 0;
    size_t needed = 0;
    for (const Hop& hop : plan.hops) {
      naive += hop.naive.size();
      peak = std::max(peak, hop.naive.size());
      needed += hop.values.size();
    }
    EXPECT_EQ(naive, row.naive) << row.ranks << " x " << row.chunks;
    EXPECT_EQ(peak, row.naive_peak) << row.ranks << " x " << row.chunks;
    EXPECT_EQ(needed, row.needed) << row.ranks << " x " << row.chunks;
  }
}

// The last layer reads what the first one wrote; the stages between do not.
TEST(Cut, AValueThatStagesBetweenDoNotReadGoesStraight) {
  const Graph graph = SkipGraph(5, [](int i) { return i == 4 ? std::vector<int>{0} : None(i); });
  const CutSets cuts(graph);
  const auto four = CutAt(graph.num_layers(), std::vector<int64_t>{3, 4, 5}).value();
  const HopPlan plan = PlanHops(graph, cuts, four, Loop(4, 4), 4, 2);
  ASSERT_EQ(plan.hops.size(), 4U);
  EXPECT_EQ(plan.hops[1].from_stage, StageId(0));
  EXPECT_EQ(plan.hops[1].to_stage, StageId(3));
  EXPECT_EQ(Names(graph, plan.hops[1].values), (std::vector<std::string>{"hidden.0"}));
  EXPECT_TRUE(plan.hops[1].naive.empty());
  EXPECT_EQ(plan.hops[2].values.size(), 1U) << "only the chain's";
  EXPECT_EQ(plan.hops[2].naive.size(), 2U);
  EXPECT_EQ(plan.held[0].values.size(), 2U) << "the chain's and the skip's";
  EXPECT_EQ(plan.held[1].values.size(), 1U) << "nothing of the skip";
  // An empty stage gets nothing and passes nothing on.
  const auto empty = CutAt(graph.num_layers(), std::vector<int64_t>{3, 3, 5}).value();
  const HopPlan around = PlanHops(graph, cuts, empty, Loop(4, 4), 4, 2);
  for (const Hop& hop : around.hops) {
    EXPECT_TRUE(hop.values.empty() || hop.to_stage != StageId(1));
  }
  EXPECT_EQ(around.held[1].values.size(), 0U);
  EXPECT_FALSE(around.held[1].stage.valid());
}

// Blocks of one layer, two stages on each of two ranks, one layer each: what a rank keeps between
// its stages is what it had, not what the chain brings.
TEST(Cut, ARankKeepsBetweenItsStagesWhatALaterOneOfThemReads) {
  const Graph graph = DepthGraph(4, 1);
  const CutSets cuts(graph);
  const auto partition = CutAt(graph.num_layers(), std::vector<int64_t>{2, 3, 4}).value();
  using List = std::vector<std::string>;
  const HopPlan loop = PlanHops(graph, cuts, partition, Loop(4, 2), 2, 2);
  ASSERT_EQ(loop.kept.size(), 2U);
  EXPECT_EQ(loop.kept[0].from_stage, StageId(0));
  EXPECT_EQ(loop.kept[0].to_stage, StageId(2));
  EXPECT_EQ(Names(graph, loop.kept[0].values), (List{"embedding", "sum.0"}));
  EXPECT_EQ(loop.kept[1].from_stage, StageId(1));
  EXPECT_EQ(Names(graph, loop.kept[1].values), (List{"embedding", "sum.0", "sum.1"}));
  // Stage 2 begins with all that crosses in front of it, each value once.
  EXPECT_EQ(loop.held[0].stage, StageId(2));
  EXPECT_FALSE(loop.held[0].behind);
  EXPECT_EQ(Names(graph, loop.held[0].values), (List{"embedding", "sum.0", "sum.1"}));
  EXPECT_EQ(loop.held[1].stage, StageId(3));
  EXPECT_EQ(Names(graph, loop.held[1].values), (List{"embedding", "sum.0", "sum.1", "sum.2"}));
  // A plain residual keeps nothing, and holds what came or goes.
  const Graph plain = SkipGraph(4, None);
  const HopPlan chain = PlanHops(plain, CutSets(plain), partition, Loop(4, 2), 2, 2);
  ASSERT_EQ(chain.kept.size(), 2U);
  for (const Kept& kept : chain.kept) {
    EXPECT_TRUE(kept.values.empty());
  }
  for (const Held& held : chain.held) {
    EXPECT_EQ(held.values.size(), 1U);
  }
  // On a V the middle rank goes from its first stage to its second at once: the chain's value
  // stays.
  const std::vector<RankId> v = {RankId(0), RankId(1), RankId(1), RankId(0)};
  const HopPlan turn = PlanHops(plain, CutSets(plain), partition, v, 2, 2);
  ASSERT_EQ(turn.kept.size(), 2U);
  EXPECT_TRUE(turn.kept[0].values.empty());
  EXPECT_EQ(turn.kept[1].from_stage, StageId(1));
  EXPECT_EQ(turn.kept[1].values.size(), 1U);
}

// Whatever the graph and the placement: before a stage a rank has what it kept and what it was
// sent, and nothing that it does not read or send again.
TEST(Cut, WhatRanksHoldFollowsFromWhatTheyKeepAndReceive) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    const int layers = 6 + static_cast<int>(random() % 6);
    const Graph graph = SkipGraph(layers, [&](int i) {
      std::vector<int> sources;
      for (int source = -1; source < i - 1; ++source) {
        if (random() % 3 == 0) {
          sources.push_back(source);
        }
      }
      return sources;
    });
    const int stages = 6;
    const auto partition = CutBalanced(LayerCountWeights(graph), stages).value();
    const int ranks = 2 + static_cast<int>(seed % 2);
    const std::vector<RankId> rank_of = Loop(stages, ranks);
    const HopPlan plan = PlanHops(graph, CutSets(graph), partition, rank_of, ranks, 2);
    ASSERT_EQ(plan.kept.size(), static_cast<size_t>(stages - ranks));
    std::vector<size_t> most(static_cast<size_t>(ranks), 0);
    for (int32_t s = 0; s < stages; ++s) {
      const auto r = static_cast<size_t>(rank_of[static_cast<size_t>(s)].value());
      std::set<ValueId> have;
      for (const Kept& kept : plan.kept) {
        if (kept.to_stage == StageId(s)) {
          have.insert(kept.values.begin(), kept.values.end());
        }
      }
      for (const Hop& hop : plan.hops) {
        if (hop.to_stage == StageId(s)) {
          for (const ValueId id : hop.values) {
            EXPECT_TRUE(have.insert(id).second) << seed << ": a value twice on a rank";
          }
        }
      }
      most[r] = std::max(most[r], have.size());
      EXPECT_LE(have.size(), plan.held[r].values.size()) << seed;
    }
    for (size_t r = 0; r < most.size(); ++r) {
      EXPECT_TRUE(plan.held[r].behind || plan.held[r].values.size() == most[r]) << seed;
    }
  }
}

TEST(Cut, NeighboursOnOneRankHaveNoHop) {
  const Graph graph = SkipGraph(4, None);
  const auto partition = CutAt(graph.num_layers(), std::vector<int64_t>{2, 3, 4}).value();
  const std::vector<RankId> v = {RankId(0), RankId(1), RankId(1), RankId(0)};
  const HopPlan plan = PlanHops(graph, CutSets(graph), partition, v, 2, 2);
  ASSERT_EQ(plan.hops.size(), 2U);
  EXPECT_EQ(plan.hops[0].to_stage, StageId(1));
  EXPECT_EQ(plan.hops[1].from_stage, StageId(2));
  EXPECT_EQ(plan.hops[1].to_rank, RankId(0));
  EXPECT_EQ(plan.hops[1].values.size(), 1U);
}

}  // namespace
}  // namespace penstock::model
