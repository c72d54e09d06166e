// Mixture of experts in training against its twins.

#include <utility>

#include "kernels/ref/moe.h"
#include "kernels/training_test_support.h"

namespace penstock::kernels {
namespace {

constexpr int64_t kExperts = 6;
constexpr int64_t kWidth = 41;
constexpr int64_t kFfn = 23;

struct Options {
  bool sigmoid = false;
  bool normalize = false;
  bool bias = false;
  int64_t groups = 1;
  int64_t routed = kWidth;  // columns of what the router reads; kWidth: x itself
  ProductType type = ProductType::kF32;
};

struct Results {
  std::vector<float> out;
  std::vector<float> dx;
  std::vector<float> drouted;
  std::vector<float> drouter;
  std::vector<std::vector<float>> dgate_up;
  std::vector<std::vector<float>> ddown;

  bool operator==(const Results&) const = default;
};

class Layer {
 public:
  Layer(const Options& options, int64_t rows)
      : options_(options),
        rows_(rows),
        router_(kExperts, options.routed, RandomFloats(kExperts * options.routed, 1)),
        bias_(1, kExperts, RandomFloats(kExperts, 2)),
        x_(rows, kWidth, RandomFloats(rows * kWidth, 3)),
        routed_(rows, options.routed, RandomFloats(rows * options.routed, 5)),
        dy_(rows, kWidth, RandomFloats(rows * kWidth, 4)) {
    for (uint64_t e = 0; e < kExperts; ++e) {
      gate_up_.emplace_back(2 * kFfn, kWidth, RandomFloats(2 * kFfn * kWidth, 10 + e));
      down_.emplace_back(kWidth, kFfn, RandomFloats(kWidth * kFfn, 30 + e));
    }
  }

  // Gradients start from `start`.
  Results Step(TrainingDevice& kernels, float start = 0.0F) {
    MemoryAccount account;
    std::vector<std::unique_ptr<TrainMatrix>> owned;
    std::vector<const TrainMatrix*> gate_up;
    std::vector<const TrainMatrix*> down;
    for (size_t e = 0; e < kExperts; ++e) {
      owned.push_back(Pack(kernels, gate_up_[e], account));
      gate_up.push_back(owned.back().get());
      owned.push_back(Pack(kernels, down_[e], account));
      down.push_back(owned.back().get());
    }
    TrainMoeParams params = Params(gate_up, down);
    const int64_t chosen = params.chosen;
    Scratch saved(kernels.MoeSavedBytes(kExperts, chosen, kWidth, kFfn, rows_));
    Scratch held(kernels.MoeHeldBytes(kExperts, chosen, kWidth, kFfn, rows_));
    Scratch work(
        kernels.TrainMoeWorkspaceBytes(kExperts, chosen, kWidth, kFfn, options_.type, rows_));
    Filled out(rows_, kWidth, 9.0F);
    Filled dx(rows_, kWidth, start);
    Filled drouter(kExperts, options_.routed, start);
    Filled drouted(rows_, options_.routed, start);
    if (options_.routed != kWidth) {
      params.router_input = routed_.tensor();
      params.router_input_gradient = drouted.tensor();
      params.accumulate_router_input = true;
    }
    std::vector<Filled> dgate_up(kExperts, Filled(2 * kFfn, kWidth, start));
    std::vector<Filled> ddown(kExperts, Filled(kWidth, kFfn, start));
    std::vector<Tensor> up_tensors;
    std::vector<Tensor> down_tensors;
    for (size_t e = 0; e < kExperts; ++e) {
      up_tensors.push_back(dgate_up[e].tensor());
      down_tensors.push_back(ddown[e].tensor());
    }
    kernels.MoeForward(params, x_.tensor(), out.tensor(), saved.tensor(), work.tensor());
    kernels.MoeBackwardInput(params, x_.tensor(), saved.tensor(), dy_.tensor(), true, dx.tensor(),
                             held.tensor(), work.tensor());
    kernels.MoeBackwardWeight(params, x_.tensor(), saved.tensor(), dy_.tensor(), held.tensor(),
                              drouter.tensor(), up_tensors, down_tensors, work.tensor());
    Results results{out.values(), dx.values(), drouted.values(), drouter.values(), {}, {}};
    for (size_t e = 0; e < kExperts; ++e) {
      results.dgate_up.push_back(dgate_up[e].values());
      results.ddown.push_back(ddown[e].values());
    }
    return results;
  }

  struct Reference {
    std::vector<double> out;
    std::vector<double> dx;
    std::vector<double> drouted;
    ref::MoeGradients<double> gradients;
  };

  Reference Twin() const {
    std::vector<std::vector<double>> store;
    store.reserve(2 + 2 * kExperts);
    const auto keep = [&store](const std::vector<float>& values) -> std::span<const double> {
      return store.emplace_back(values.begin(), values.end());
    };
    ref::MoeWeights<double> weights;
    weights.router = keep(router_.values());
    if (options_.bias) {
      weights.router_bias = keep(bias_.values());
    }
    Reference r;
    r.gradients.router.resize(static_cast<size_t>(kExperts * options_.routed));
    for (size_t e = 0; e < kExperts; ++e) {
      weights.gate_up.push_back(keep(gate_up_[e].values()));
      weights.down.push_back(keep(down_[e].values()));
      r.gradients.gate_up.emplace_back(2 * kFfn * kWidth);
      r.gradients.down.emplace_back(kWidth * kFfn);
    }
    ref::MoeChoice choice;
    choice.sigmoid = options_.sigmoid;
    choice.normalize = options_.normalize;
    choice.chosen = 2;
    choice.weight_scale = 1.5;
    choice.groups = options_.groups;
    for (int64_t row = 0; row < rows_; ++row) {
      std::vector<double> out(kWidth);
      std::vector<double> dx(kWidth);
      const bool apart = options_.routed != kWidth;
      const std::vector<double> x = Doubles(x_.row(row));
      const std::vector<double> routed = apart ? Doubles(routed_.row(row)) : x;
      std::vector<double> drouted(routed.size());
      ref::Moe<double>(weights, choice, Activation::kSilu, kFfn, x, out, routed);
      ref::MoeBackward<double>(weights, choice, Activation::kSilu, kFfn, x, routed,
                               Doubles(dy_.row(row)), dx, apart ? drouted : dx, r.gradients);
      r.drouted.insert(r.drouted.end(), drouted.begin(), drouted.end());
      r.out.insert(r.out.end(), out.begin(), out.end());
      r.dx.insert(r.dx.end(), dx.begin(), dx.end());
    }
    return r;
  }

 private:
  std::unique_ptr<TrainMatrix> Pack(TrainingDevice& kernels, Filled& w, MemoryAccount& account) {
    auto matrix =
        kernels.CreateMatrix(w.tensor().rows(), w.tensor().columns(), options_.type, account);
    EXPECT_TRUE(matrix.ok());
    kernels.Repack(*matrix.value(), w.tensor(), 0);
    return std::move(matrix).value();
  }

  TrainMoeParams Params(std::span<const TrainMatrix* const> gate_up,
                        std::span<const TrainMatrix* const> down) {
    TrainMoeParams params;
    params.sigmoid = options_.sigmoid;
    params.normalize = options_.normalize;
    params.chosen = 2;
    params.weight_scale = 1.5F;
    params.groups = options_.groups;
    params.router = router_.tensor();
    if (options_.bias) {
      params.router_bias = bias_.tensor();
    }
    params.gate_up = gate_up;
    params.down = down;
    return params;
  }

  Options options_;
  int64_t rows_;
  Filled router_;
  Filled bias_;
  Filled x_;
  Filled routed_;
  Filled dy_;
  std::vector<Filled> gate_up_;
  std::vector<Filled> down_;
};

TEST(TrainMoe, AgreesWithTheTwinsWhateverTheThreads) {
  for (const Options& options :
       {Options{}, Options{.normalize = true}, Options{.normalize = true, .groups = 2},
        Options{.sigmoid = true, .bias = true},
        Options{.sigmoid = true, .normalize = true, .bias = true},
        Options{.normalize = true, .routed = 97}, Options{.sigmoid = true, .routed = 7}}) {
    for (const int64_t rows : {1, 3, 70}) {
      Layer layer(options, rows);
      const Results got = WithThreads([&](TrainingDevice& kernels) { return layer.Step(kernels); });
      const Layer::Reference want = layer.Twin();
      EXPECT_LT(RelativeError(got.out, want.out), 2e-6);
      EXPECT_LT(RelativeError(got.dx, want.dx), 3e-6);
      if (options.routed != kWidth) {
        EXPECT_LT(RelativeError(got.drouted, want.drouted), 2e-5);
      }
      // A softmax that is nearly sure cancels digits.
      EXPECT_LT(RelativeError(got.drouter, want.gradients.router), 2e-5);
      for (size_t e = 0; e < kExperts; ++e) {
        const auto near = [](const std::vector<float>& g, const std::vector<double>& w) {
          const bool none = std::ranges::all_of(w, [](double v) { return v == 0; });
          return none ? std::ranges::all_of(g, [](float v) { return v == 0; })
                      : RelativeError(g, w) < 3e-6;
        };
        EXPECT_TRUE(near(got.dgate_up[e], want.gradients.gate_up[e])) << e;
        EXPECT_TRUE(near(got.ddown[e], want.gradients.down[e])) << e;
      }
    }
  }
}

TEST(TrainMoe, GradientsAreAddedToWhatIsThere) {
  Layer layer(Options{.normalize = true}, 30);
  Training t(2);
  const Results zero = layer.Step(*t.kernels);
  const Results one = layer.Step(*t.kernels, 1.0F);
  EXPECT_EQ(one.out, zero.out);
  const auto expect_more = [](const std::vector<float>& more, const std::vector<float>& less) {
    for (size_t i = 0; i < less.size(); ++i) {
      ASSERT_NEAR(more[i], less[i] + 1.0F, 1e-5 + 2e-6 * std::abs(less[i]));
    }
  };
  expect_more(one.dx, zero.dx);
  expect_more(one.drouter, zero.drouter);
  expect_more(one.dgate_up[2], zero.dgate_up[2]);
  expect_more(one.ddown[2], zero.ddown[2]);
}

TEST(TrainMoe, WithBf16ProductsStaysNear) {
  Layer layer(Options{.normalize = true, .type = ProductType::kBF16}, 50);
  const Results got = WithThreads([&](TrainingDevice& kernels) { return layer.Step(kernels); });
  const Layer::Reference want = layer.Twin();
  EXPECT_LT(RelativeError(got.out, want.out), 1e-2);
  EXPECT_LT(RelativeError(got.dx, want.dx), 1e-2);
  EXPECT_LT(RelativeError(got.ddown[1], want.gradients.down[1]), 1e-2);
}

TEST(TrainMoe, ForwardHasTheBitsOfInference) {
  constexpr int64_t kRows = 20;
  Filled w(2 * kFfn, kWidth, RandomFloats(2 * kFfn * kWidth, 1));
  Filled d(kWidth, kFfn, RandomFloats(kWidth * kFfn, 2));
  Filled router(2, kWidth, RandomFloats(2 * kWidth, 3));
  Filled x(kRows, kWidth, RandomFloats(kRows * kWidth, 4));
  Training t(2);
  MemoryAccount account;
  const FloatSource up_source("up", 2 * kFfn, kWidth, w.values());
  const FloatSource down_source("down", kWidth, kFfn, d.values());
  const MatrixSource* up_parts[] = {&up_source};
  const MatrixSource* down_parts[] = {&down_source};
  auto up = t.device->LoadMatrix(up_parts, WeightType::kF32, account);
  auto down = t.device->LoadMatrix(down_parts, WeightType::kF32, account);
  auto train_up = t.kernels->CreateMatrix(2 * kFfn, kWidth, ProductType::kF32, account);
  auto train_down = t.kernels->CreateMatrix(kWidth, kFfn, ProductType::kF32, account);
  ASSERT_TRUE(up.ok() && down.ok() && train_up.ok() && train_down.ok());
  t.kernels->Repack(*train_up.value(), w.tensor(), 0);
  t.kernels->Repack(*train_down.value(), d.tensor(), 0);
  const Matrix* ups[] = {up.value().get(), up.value().get()};
  const Matrix* downs[] = {down.value().get(), down.value().get()};
  const TrainMatrix* train_ups[] = {train_up.value().get(), train_up.value().get()};
  const TrainMatrix* train_downs[] = {train_down.value().get(), train_down.value().get()};
  MoeParams params;
  params.chosen = 2;
  params.router = router.tensor();
  params.gate_up = ups;
  params.down = downs;
  TrainMoeParams train;
  train.chosen = 2;
  train.router = router.tensor();
  train.gate_up = train_ups;
  train.down = train_downs;
  Filled a(kRows, kWidth);
  Filled b(kRows, kWidth);
  Scratch work(t.device->MoeWorkspaceBytes(2, 2, kWidth, kFfn, WeightType::kF32, kRows));
  t.device->Moe(params, x.tensor(), a.tensor(), work.tensor());
  Scratch saved(t.kernels->MoeSavedBytes(2, 2, kWidth, kFfn, kRows));
  Scratch train_work(
      t.kernels->TrainMoeWorkspaceBytes(2, 2, kWidth, kFfn, ProductType::kF32, kRows));
  t.kernels->MoeForward(train, x.tensor(), b.tensor(), saved.tensor(), train_work.tensor());
  EXPECT_EQ(a.values(), b.values());
}

}  // namespace
}  // namespace penstock::kernels
