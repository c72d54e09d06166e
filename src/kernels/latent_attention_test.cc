// Multi-head latent attention against its scalar twin, and bit equality over batches.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "kernels/cpu/latent_attention.h"
#include "kernels/ref/latent_attention.h"
#include "kernels/test_support.h"

namespace penstock::kernels {
namespace {

struct Case {
  int64_t heads;
  int64_t nope;
  int64_t rope;
  int64_t value_dim;
  int64_t latent;
  int64_t block_tokens;
};

constexpr std::array<Case, 4> kCases = {{{4, 16, 8, 16, 32, 32},
                                         {3, 12, 6, 10, 24, 16},
                                         {20, 32, 16, 24, 64, 32},
                                         {2, 8, 4, 8, 20, 5}}};

LatentAttentionParams Params(const Case& c, bool absorbed) {
  LatentAttentionParams params;
  params.heads = c.heads;
  params.nope = c.nope;
  params.rope = c.rope;
  params.value_dim = c.value_dim;
  params.latent = c.latent;
  params.scale = 1.0F / std::sqrt(static_cast<float>(c.nope + c.rope));
  params.absorbed = absorbed;
  return params;
}

// The inputs of one sequence of `tokens` tokens, and the layer's weights.
struct Inputs {
  Inputs(const Case& c, int64_t tokens, uint64_t seed)
      : q(tokens, c.heads * (c.nope + c.rope),
          RandomFloats(tokens * c.heads * (c.nope + c.rope), seed)),
        latent(tokens, c.latent, RandomFloats(tokens * c.latent, seed + 1)),
        key(tokens, c.rope, RandomFloats(tokens * c.rope, seed + 2)),
        expand(c.heads * (c.nope + c.value_dim), c.latent,
               RandomFloats(c.heads * (c.nope + c.value_dim) * c.latent, 77)) {
    for (float& x : q.values()) {
      x *= 4.0F;  // far from uniform weights
    }
  }

  Filled q, latent, key, expand;
};

// Runs sequences that share one cache, each in chunks of `chunk` rows, all in one batch per round.
std::vector<std::vector<float>> Attended(Device& device, const Case& c, bool absorbed, DType type,
                                         std::vector<Inputs>& inputs, int64_t chunk) {
  MemoryAccount account;
  LatentAttentionParams params = Params(c, absorbed);
  FloatSource source("expand", inputs[0].expand.tensor().rows(), c.latent,
                     inputs[0].expand.values());
  const MatrixSource* part = &source;
  auto matrix = device.LoadMatrix({&part, 1}, WeightType::kF32, account);
  params.expand = matrix.value().get();
  params.expand_rows = inputs[0].expand.tensor();
  const auto count = static_cast<int64_t>(inputs.size());
  int64_t longest = 0;
  for (Inputs& in : inputs) {
    longest = std::max(longest, in.q.tensor().rows());
  }
  const int64_t blocks = (longest + c.block_tokens - 1) / c.block_tokens;
  const LatentCacheSpec spec{blocks * count, c.block_tokens, c.latent, c.rope, type};
  auto cache = device.CreateLatentCache(spec, account);
  EXPECT_EQ(account.current()[MemoryCategory::kKv], device.LatentCacheBytes(spec));
  // Whatever is read before it was written shows.
  std::byte* pages = static_cast<CpuLatentCache&>(*cache.value()).Page(0);
  std::fill(pages, pages + device.LatentCacheBytes(spec), std::byte{0xff});
  std::vector<std::vector<int32_t>> tables(inputs.size());
  std::vector<std::vector<float>> outs;
  for (size_t s = 0; s < inputs.size(); ++s) {
    for (int64_t b = 0; b < blocks; ++b) {
      tables[s].push_back(static_cast<int32_t>((blocks - 1 - b) * count) + static_cast<int32_t>(s));
    }
    outs.emplace_back(static_cast<size_t>(inputs[s].q.tensor().rows() * c.heads * c.value_dim));
  }
  for (int64_t begin = 0; begin < longest; begin += chunk) {
    std::vector<SequenceRows> rows;
    std::vector<float> q;
    std::vector<float> latent;
    std::vector<float> key;
    int64_t total = 0;
    for (size_t s = 0; s < inputs.size(); ++s) {
      Inputs& in = inputs[s];
      const int64_t n = std::min(chunk, in.q.tensor().rows() - begin);
      if (n <= 0) {
        continue;
      }
      rows.push_back({.first_row = total, .rows = n, .first_position = begin, .blocks = tables[s]});
      const auto append = [&](std::vector<float>& to, Filled& from) {
        const int64_t columns = from.tensor().columns();
        to.insert(to.end(), from.values().begin() + begin * columns,
                  from.values().begin() + (begin + n) * columns);
      };
      append(q, in.q);
      append(latent, in.latent);
      append(key, in.key);
      total += n;
    }
    Filled fq(total, c.heads * (c.nope + c.rope), q);
    Filled fl(total, c.latent, latent);
    Filled fk(total, c.rope, key);
    Filled out(total, c.heads * c.value_dim);
    Scratch scratch(device.LatentAttentionWorkspaceBytes(params, WeightType::kF32, total));
    device.LatentAttention(*cache.value(), params, rows, fq.tensor(), fl.tensor(), fk.tensor(),
                           out.tensor(), scratch.tensor());
    size_t next = 0;
    for (size_t s = 0; s < inputs.size(); ++s) {
      if (begin < inputs[s].q.tensor().rows()) {
        const SequenceRows& r = rows[next++];
        const int64_t columns = c.heads * c.value_dim;
        std::copy_n(out.values().begin() + r.first_row * columns, r.rows * columns,
                    outs[s].begin() + begin * columns);
      }
    }
  }
  return outs;
}

std::vector<double> Reference(const Case& c, bool absorbed, DType type, Inputs& in) {
  const auto stored = [type](std::vector<float> x) {
    if (type == DType::kBF16) {
      for (float& value : x) {
        value = RoundToBf16(value);
      }
    }
    return Doubles(x);
  };
  const int64_t tokens = in.q.tensor().rows();
  std::vector<double> want(static_cast<size_t>(tokens * c.heads * c.value_dim));
  ref::LatentAttention<double>(Params(c, absorbed), Doubles(in.q.values()),
                               stored(in.latent.values()), stored(in.key.values()),
                               Doubles(in.expand.values()), tokens, want);
  return want;
}

TEST(LatentAttention, AgreesWithTheScalarTwinAbsorbedAndPlain) {
  for (const Case& c : kCases) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      for (const bool absorbed : {true, false}) {
        auto device = MakeDevice(2);
        std::vector<Inputs> inputs;
        inputs.emplace_back(c, 77, 1);
        const auto got = Attended(*device, c, absorbed, type, inputs, 77);
        EXPECT_LT(RelativeError(got[0], Reference(c, absorbed, type, inputs[0])), 1e-6)
            << "latent " << c.latent << " " << DTypeName(type) << " absorbed " << absorbed;
        EXPECT_LT(RelativeError(got[0], Reference(c, !absorbed, type, inputs[0])), 1e-6);
      }
    }
  }
}

TEST(LatentAttention, HasTheSameBitsForAnyChunksThreadsAndCompany) {
  for (const Case& c : kCases) {
    for (const bool absorbed : {true, false}) {
      std::vector<Inputs> inputs;
      inputs.emplace_back(c, 70, 2);
      inputs.emplace_back(c, 3, 12);
      inputs.emplace_back(c, 41, 22);
      std::vector<std::vector<float>> want;
      for (const Inputs& in : inputs) {
        auto one = MakeDevice(1);
        std::vector<Inputs> alone = {in};
        want.push_back(Attended(*one, c, absorbed, DType::kBF16, alone, 70)[0]);
      }
      for (const int threads : {1, 3}) {
        auto device = MakeDevice(threads);
        for (const int64_t chunk : {1, 7, 32, 64}) {
          EXPECT_EQ(want, Attended(*device, c, absorbed, DType::kBF16, inputs, chunk))
              << "latent " << c.latent << " chunk " << chunk << " threads " << threads
              << " absorbed " << absorbed;
        }
      }
    }
  }
}

}  // namespace
}  // namespace penstock::kernels
