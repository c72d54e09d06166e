#include "model/graph.h"

#include <gtest/gtest.h>

#include <functional>

namespace penstock::model {
namespace {

TensorId Table(GraphBuilder& b, int64_t vocabulary = 8, int64_t width = 4) {
  return b.Tensor("table", {vocabulary, width}, TensorRole::kEmbedding);
}

// Embedding, one decoder layer by `body`, and a tied head.
Result<Graph> BuildWith(const std::function<ValueId(GraphBuilder&, ValueId)>& body) {
  GraphBuilder b;
  b.BeginLayer(LayerKind::kEmbedding, "embedding");
  const ValueId x = b.Embed(Table(b), 1.0F, "x");
  b.BeginLayer(LayerKind::kDecoder, "layer 0");
  const ValueId y = body(b, x);
  b.BeginLayer(LayerKind::kHead, "head");
  const ValueId rows = b.SelectRows(y, "rows");
  const std::vector<ValueId> logits =
      b.Linear(rows, {.weights = {Table(b)}, .biases = {}}, {"logits"});
  return std::move(b).Build(logits[0]);
}

TEST(Graph, AGoodGraphKeepsOperationsValuesAndTensorsInOrder) {
  const auto graph = BuildWith([](GraphBuilder& b, ValueId x) {
    const ValueId y =
        b.Linear(x, {.weights = {b.Matrix("w", 4, 4)}, .biases = {b.Vector("c", 4)}}, {"y"})[0];
    return b.Add(x, y, "z");
  });
  ASSERT_TRUE(graph.ok()) << graph.error().message;
  EXPECT_EQ(graph->num_layers(), 3);
  ASSERT_EQ(graph->ops.size(), 5U);
  EXPECT_EQ(OpName(graph->ops[0]), "embed");
  EXPECT_EQ(OpName(graph->ops[1]), "linear");
  EXPECT_EQ(OpName(graph->ops[2]), "add");
  EXPECT_EQ(graph->layers[1].first_op, 1);
  EXPECT_EQ(graph->layers[1].last_op, 3);
  EXPECT_EQ(graph->tensors.size(), 3U) << "the tied table stands once";
  EXPECT_EQ(TensorsOf(graph->ops[1]), (std::vector<TensorId>{TensorId(1), TensorId(2)}));
  EXPECT_EQ(graph->value(graph->logits).width, 8);
  EXPECT_EQ(graph->value(graph->logits).producer, LayerId(2));
}

TensorId Query(GraphBuilder& b, int64_t width = 4) {
  return b.Tensor("query", {1, width}, TensorRole::kVector);
}

TEST(Graph, ADepthReadTakesAnyNumberOfSourcesInOrder) {
  const auto graph = BuildWith([](GraphBuilder& b, ValueId x) {
    const ValueId y = b.Scale(x, 2.0F, "y");
    return b.DepthRead({x, y, x}, {.query = Query(b), .key_norm = b.Vector("norm", 4)}, "z");
  });
  ASSERT_TRUE(graph.ok()) << graph.error().message;
  const Op& read = graph->ops[2];
  EXPECT_EQ(OpName(read), "depth_read");
  EXPECT_EQ(read.inputs, (std::vector<ValueId>{ValueId(1), ValueId(2), ValueId(1)}));
  EXPECT_EQ(TensorsOf(read).size(), 2U);
}

struct BadGraph {
  const char* name;
  std::function<ValueId(GraphBuilder&, ValueId)> body;
  const char* message;
};

TEST(Graph, MistakesAreNamedWithLayerAndOperation) {
  const BadGraph cases[] = {
      {"later value", [](GraphBuilder& b, ValueId x) { return b.Add(x, ValueId(99), "z"); },
       "layer 0: z: reads value 99, which is not written yet"},
      {"no value", [](GraphBuilder& b, ValueId) { return b.Scale(ValueId(), 2.0F, "z"); },
       "layer 0: z: reads value -1"},
      {"a read of nothing",
       [](GraphBuilder& b, ValueId) { return b.DepthRead({}, {.query = Query(b)}, "z"); },
       "layer 0: z: reads no source"},
      {"a read of unequal widths",
       [](GraphBuilder& b, ValueId x) {
         const ValueId y = b.Linear(x, {.weights = {b.Matrix("w", 6, 4)}, .biases = {}}, {"y"})[0];
         return b.DepthRead({x, y}, {.query = Query(b)}, "z");
       },
       "layer 0: z: sources 'x' and 'y' have widths 4 and 6"},
      {"a query of another width",
       [](GraphBuilder& b, ValueId x) { return b.DepthRead({x}, {.query = Query(b, 5)}, "z"); },
       "layer 0: z: 'query' has shape [1, 5], wanted [1, 4]"},
      {"token ids as numbers", [](GraphBuilder& b, ValueId x) { return b.Add(x, b.tokens(), "z"); },
       "holds token ids"},
      {"wrong columns",
       [](GraphBuilder& b, ValueId x) {
         return b.Linear(x, {.weights = {b.Matrix("w", 4, 5)}, .biases = {}}, {"y"})[0];
       },
       "layer 0: y: 'w' has shape [4, 5], wanted [4, 4]"},
      {"two shapes",
       [](GraphBuilder& b, ValueId x) {
         b.Matrix("w", 4, 4);
         b.BeginLayer(LayerKind::kDecoder, "layer 1");
         b.Matrix("w", 2, 4);
         return x;
       },
       "layer 1: w: has shape [2, 4] here and [4, 4] in layer 0, which shares it"},
      {"a tensor of two optimizer groups",
       [](GraphBuilder& b, ValueId x) {
         b.Tensor("w", {4, 4}, TensorRole::kVector);
         b.BeginLayer(LayerKind::kDecoder, "layer 1");
         b.Matrix("w", 4, 4);
         return x;
       },
       "layer 1: w: is a matrix here and a vector in layer 0, which shares it"},
      {"odd rotation",
       [](GraphBuilder& b, ValueId x) {
         return b.Rope(x, {.heads = 1, .head_dim = 4, .rotary_dim = 3, .table = {}}, "r");
       },
       "rotates 3 of 4 columns"},
      {"heads",
       [](GraphBuilder& b, ValueId x) {
         return b.Attention(x, x, x, {.heads = 3, .kv_heads = 2, .head_dim = 1, .value_dim = 1},
                            "a");
       },
       "3 heads over 2 key-value heads"},
      {"split",
       [](GraphBuilder& b, ValueId x) {
         return b.Split(x, {.widths = {1, 2}}, {"s", "t"})[0];
       },
       "parts of 3 columns together split a value of width 4"},
      {"same name twice", [](GraphBuilder& b, ValueId x) { return b.Scale(x, 2.0F, "x"); },
       "x: two values have this name"},
      {"experts",
       [](GraphBuilder& b, ValueId x) {
         MoeOp op;
         op.router = b.Matrix("router", 1, 4);
         op.gate = {b.Matrix("g", 2, 4)};
         op.up = {b.Matrix("u", 2, 4)};
         op.down = {b.Matrix("d", 4, 2)};
         op.chosen = 2;
         return b.Moe(x, op, "m");
       },
       "chooses 2 of 1 experts"},
  };
  for (const BadGraph& bad : cases) {
    const auto graph = BuildWith(bad.body);
    ASSERT_FALSE(graph.ok()) << bad.name;
    EXPECT_EQ(graph.error().code, ErrorCode::kInvalidArgument) << bad.name;
    EXPECT_NE(graph.error().message.find(bad.message), std::string::npos)
        << bad.name << ": " << graph.error().message;
  }
}

// What is read too early is named by its name and its layer, when it has one in the end.
TEST(Graph, AReadOfALaterLayerNamesBothLayersAndTheLastValueThatMayBeRead) {
  GraphBuilder b;
  b.BeginLayer(LayerKind::kEmbedding, "embedding");
  const ValueId x = b.Embed(Table(b), 1.0F, "x");
  b.BeginLayer(LayerKind::kDecoder, "layer 0");
  const ValueId later(x.value() + 3);
  const ValueId y = b.Add(x, later, "y");
  b.BeginLayer(LayerKind::kDecoder, "layer 1");
  const ValueId half = b.Scale(y, 0.5F, "half");
  EXPECT_EQ(b.Scale(half, 2.0F, "twice"), later);
  b.BeginLayer(LayerKind::kHead, "head");
  const auto logits = b.Linear(later, {.weights = {Table(b)}, .biases = {}}, {"logits"});
  const auto graph = std::move(b).Build(logits[0]);
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.error().message,
            "[model.graph] layer 0: y: reads 'twice', which layer 1 writes later; a layer may read "
            "earlier values only, the last one here is 'x'");
}

// An auxiliary head goes, and the states of every kind of layer keep their operations.
TEST(Graph, WithoutAuxiliaryHeadsStatesOfAllKindsStayWithTheirOperations) {
  GraphBuilder b;
  b.BeginLayer(LayerKind::kEmbedding, "embedding");
  ValueId x = b.Embed(Table(b), 1.0F, "x");
  for (int layer = 0; layer < 2; ++layer) {
    const std::string tag = std::to_string(layer);
    b.BeginLayer(LayerKind::kDecoder, "layer " + tag);
    const ValueId aside = b.Attention(
        x, x, x, {.heads = 1, .kv_heads = 1, .head_dim = 4, .value_dim = 4}, "aside." + tag);
    b.AddLoss(
        {.name = "exit " + tag,
         .logits = b.Linear(aside, {.weights = {Table(b)}, .biases = {}}, {"exit." + tag})[0]});
    const ValueId conv = b.ShortConv(
        {x}, {.weights = {b.Tensor("conv." + tag, {4, 1, 3}, TensorRole::kVector)}, .taps = 3},
        {"conv." + tag})[0];
    const TensorId expand = b.Matrix("expand." + tag, 5 * 1, 3);
    const ValueId latent =
        b.Linear(conv, {.weights = {b.Matrix("l." + tag, 3, 4)}, .biases = {}}, {"l." + tag})[0];
    const ValueId key =
        b.Linear(conv, {.weights = {b.Matrix("k." + tag, 3, 4)}, .biases = {}}, {"k." + tag})[0];
    x = b.LatentAttention(
        conv, latent, key,
        {.expand = expand, .heads = 1, .nope = 1, .rope = 3, .value_dim = 4, .latent = 3},
        "y." + tag);
  }
  b.BeginLayer(LayerKind::kHead, "head");
  const auto logits = b.Linear(x, {.weights = {Table(b)}, .biases = {}}, {"logits"});
  auto built = std::move(b).Build(logits[0]);
  ASSERT_TRUE(built.ok()) << built.error().message;
  EXPECT_EQ(built->states.size(), 6U);
  const Graph graph = WithoutAuxiliaryHeads(built.value());
  ASSERT_EQ(graph.states.size(), 4U);
  int32_t next = 0;
  for (const Op& op : graph.ops) {
    if (const auto* conv = std::get_if<ShortConvOp>(&op.params)) {
      EXPECT_EQ(conv->state, next++);
      EXPECT_EQ(graph.states[static_cast<size_t>(conv->state)].kind, LayerState::Kind::kRecurrent);
    } else if (const auto* latent = std::get_if<LatentAttentionOp>(&op.params)) {
      EXPECT_EQ(latent->state, next++);
      EXPECT_EQ(graph.states[static_cast<size_t>(latent->state)].kind, LayerState::Kind::kLatent);
    }
    EXPECT_FALSE(std::holds_alternative<AttentionOp>(op.params));
  }
  EXPECT_EQ(next, 4);
}

TEST(Graph, LayersOutOfOrderAreRefused) {
  {
    GraphBuilder b;
    b.BeginLayer(LayerKind::kDecoder, "layer 0");
    const auto graph = std::move(b).Build(ValueId(0));
    ASSERT_FALSE(graph.ok());
    EXPECT_NE(graph.error().message.find("embedding is the first layer"), std::string::npos);
  }
  {
    GraphBuilder b;
    b.BeginLayer(LayerKind::kEmbedding, "embedding");
    const ValueId x = b.Embed(Table(b), 1.0F, "x");
    b.BeginLayer(LayerKind::kHead, "head");
    b.BeginLayer(LayerKind::kDecoder, "layer 9");
    const auto graph = std::move(b).Build(x);
    ASSERT_FALSE(graph.ok());
    EXPECT_NE(graph.error().message.find("layer 9"), std::string::npos);
  }
  {
    GraphBuilder b;
    b.BeginLayer(LayerKind::kEmbedding, "embedding");
    const ValueId x = b.Embed(Table(b), 1.0F, "x");
    b.BeginLayer(LayerKind::kHead, "head");
    EXPECT_FALSE(std::move(b).Build(x).ok()) << "the logits come from the head";
  }
}

TEST(Graph, ParametersBeyondCountingAreRefused) {
  GraphBuilder b;
  b.BeginLayer(LayerKind::kEmbedding, "embedding");
  const ValueId x = b.Embed(Table(b, int64_t{1} << 40, int64_t{1} << 40), 1.0F, "x");
  b.BeginLayer(LayerKind::kHead, "head");
  const auto logits = b.Linear(
      x, {.weights = {Table(b, int64_t{1} << 40, int64_t{1} << 40)}, .biases = {}}, {"logits"});
  const auto graph = std::move(b).Build(logits[0]);
  ASSERT_FALSE(graph.ok());
  EXPECT_NE(graph.error().message.find("parameters"), std::string::npos);
}

}  // namespace
}  // namespace penstock::model
