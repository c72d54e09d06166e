// Short convolution, delta attention and the SiTU unit against their scalar twins, and bit equality
// however a sequence is split.

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/ref/activation.h"
#include "kernels/ref/delta.h"
#include "kernels/test_support.h"

namespace penstock::kernels {
namespace {

struct Case {
  int64_t heads;
  int64_t dim;
  bool bounded;
  float strength;  // added to f: pushes the decay to its end
};

constexpr Case kCases[] = {
    {3, 16, true, 0.0F},  {2, 128, true, 0.0F},  {2, 64, true, 40.0F},  {2, 64, true, -40.0F},
    {3, 24, false, 0.0F}, {2, 32, false, 20.0F}, {1, 8, false, -20.0F},
};

// The inputs of one sequence.
struct Inputs {
  Inputs(const Case& c, int64_t rows, uint64_t seed)
      : q(rows, c.heads * c.dim, RandomFloats(rows * c.heads * c.dim, seed)),
        k(rows, c.heads * c.dim, RandomFloats(rows * c.heads * c.dim, seed + 1)),
        v(rows, c.heads * c.dim, RandomFloats(rows * c.heads * c.dim, seed + 2)),
        f(rows, c.heads * c.dim, RandomFloats(rows * c.heads * c.dim, seed + 3)),
        b(rows, c.heads, RandomFloats(rows * c.heads, seed + 4)),
        a_log(1, c.heads, RandomFloats(c.heads, 91)),
        dt_bias(1, c.heads * c.dim, RandomFloats(c.heads * c.dim, 92)) {
    for (float& x : f.values()) {
      x = 3 * x + c.strength;
    }
    for (float& x : b.values()) {
      x *= 4;
    }
  }

  int64_t rows() { return q.tensor().rows(); }

  Filled q, k, v, f, b, a_log, dt_bias;
};

DeltaParams Params(const Case& c, Inputs& in) {
  return {c.heads, c.dim, c.bounded, -5.0F, in.a_log.tensor(), in.dt_bias.tensor()};
}

// Runs all sequences together, in rounds of `chunk` rows of each.
std::vector<std::vector<float>> Attended(Device& device, const Case& c, std::vector<Inputs>& inputs,
                                         int64_t chunk) {
  MemoryAccount account;
  const int64_t slot = device.DeltaSlotBytes(c.heads, c.dim);
  const auto count = static_cast<int64_t>(inputs.size());
  auto cache = device.CreateSlots(count, slot, account);
  EXPECT_EQ(account.current()[MemoryCategory::kKv], device.SlotCacheBytes(count, slot));
  std::vector<std::vector<int32_t>> tables;
  std::vector<std::vector<float>> outs;
  int64_t longest = 0;
  for (Inputs& in : inputs) {
    tables.push_back({static_cast<int32_t>(count) - 1 - static_cast<int32_t>(tables.size())});
    outs.emplace_back(in.v.values().size());
    longest = std::max(longest, in.rows());
  }
  const int64_t width = c.heads * c.dim;
  Scratch scratch(device.DeltaWorkspaceBytes(Params(c, inputs[0])));
  for (int64_t begin = 0; begin < longest; begin += chunk) {
    std::vector<SequenceRows> rows;
    std::vector<float> part[5];
    std::vector<size_t> owner;
    int64_t total = 0;
    for (size_t s = 0; s < inputs.size(); ++s) {
      Inputs& in = inputs[s];
      const int64_t n = std::min(chunk, in.rows() - begin);
      if (n <= 0) {
        continue;
      }
      rows.push_back({.first_row = total, .rows = n, .first_position = begin, .blocks = tables[s]});
      owner.push_back(s);
      Filled* all[] = {&in.q, &in.k, &in.v, &in.f, &in.b};
      for (size_t i = 0; i < 5; ++i) {
        const int64_t columns = all[i]->tensor().columns();
        part[i].insert(part[i].end(), all[i]->values().begin() + begin * columns,
                       all[i]->values().begin() + (begin + n) * columns);
      }
      total += n;
    }
    Filled q(total, width, part[0]), k(total, width, part[1]), v(total, width, part[2]),
        f(total, width, part[3]), b(total, c.heads, part[4]), out(total, width);
    device.DeltaAttention(*cache.value(), Params(c, inputs[0]), rows, q.tensor(), k.tensor(),
                          v.tensor(), f.tensor(), b.tensor(), out.tensor(), scratch.tensor());
    for (size_t i = 0; i < rows.size(); ++i) {
      std::copy_n(out.values().begin() + rows[i].first_row * width, rows[i].rows * width,
                  outs[owner[i]].begin() + begin * width);
    }
  }
  return outs;
}

std::vector<double> Reference(const Case& c, Inputs& in) {
  std::vector<double> out(in.v.values().size());
  ref::DeltaAttention<double>(
      {c.heads, c.dim, c.bounded, -5.0}, Doubles(in.q.values()), Doubles(in.k.values()),
      Doubles(in.v.values()), Doubles(in.f.values()), Doubles(in.b.values()),
      Doubles(in.a_log.values()), Doubles(in.dt_bias.values()), in.rows(), out);
  return out;
}

TEST(DeltaAttention, ChunksAgreeWithTheRecurrenceAtTheStrongestAndTheMildestDecay) {
  for (const Case& c : kCases) {
    for (const int64_t rows : {1, 5, 16, 17, 100}) {
      auto device = MakeDevice(2);
      std::vector<Inputs> inputs;
      inputs.emplace_back(c, rows, 1);
      const auto got = Attended(*device, c, inputs, rows);
      EXPECT_LT(RelativeError(got[0], Reference(c, inputs[0])), 4e-6)
          << "dim " << c.dim << " strength " << c.strength << " rows " << rows;
    }
  }
}

TEST(DeltaAttention, HasTheSameBitsForAnySplitThreadsAndCompany) {
  for (const Case& c : kCases) {
    std::vector<Inputs> inputs;
    inputs.emplace_back(c, 70, 2);
    inputs.emplace_back(c, 3, 12);
    inputs.emplace_back(c, 33, 22);
    std::vector<std::vector<float>> want;
    for (const Inputs& in : inputs) {
      auto one = MakeDevice(1);
      std::vector<Inputs> alone = {in};
      want.push_back(Attended(*one, c, alone, 70)[0]);
    }
    for (const int threads : {1, 3}) {
      auto device = MakeDevice(threads);
      for (const int64_t chunk : {1, 5, 16, 21, 64}) {
        EXPECT_EQ(want, Attended(*device, c, inputs, chunk))
            << "dim " << c.dim << " chunk " << chunk << " threads " << threads;
      }
    }
  }
}

TEST(ShortConv, AgreesWithTheScalarTwinHoweverTheSequenceIsSplit) {
  for (const int64_t taps : {1, 2, 4, 7}) {
    const int64_t widths[] = {40, 17};
    constexpr int64_t kRows = 23;
    std::vector<Filled> x;
    std::vector<Filled> weights;
    std::vector<std::vector<double>> want;
    for (size_t i = 0; i < 2; ++i) {
      x.emplace_back(kRows, widths[i], RandomFloats(kRows * widths[i], 5 + i));
      weights.emplace_back(widths[i], taps, RandomFloats(widths[i] * taps, 8 + i));
      want.emplace_back(static_cast<size_t>(kRows * widths[i]));
      ref::ShortConv<double>(Doubles(x[i].values()), Doubles(weights[i].values()), kRows, widths[i],
                             taps, Activation::kSilu, want[i]);
    }
    std::vector<std::vector<float>> first;
    for (const int64_t chunk : {23, 1, 2, 5}) {
      auto device = MakeDevice(chunk == 5 ? 2 : 1);
      MemoryAccount account;
      auto cache = device->CreateSlots(1, device->ShortConvSlotBytes(57, taps), account);
      std::vector<Filled> out;
      out.emplace_back(kRows, widths[0]);
      out.emplace_back(kRows, widths[1]);
      const std::vector<int32_t> table = {0};
      const Tensor w[] = {weights[0].tensor(), weights[1].tensor()};
      for (int64_t begin = 0; begin < kRows; begin += chunk) {
        const int64_t n = std::min<int64_t>(chunk, kRows - begin);
        const SequenceRows rows{
            .first_row = 0, .rows = n, .first_position = begin, .blocks = table};
        const Tensor in[] = {x[0].tensor().Rows(begin, n), x[1].tensor().Rows(begin, n)};
        const Tensor to[] = {out[0].tensor().Rows(begin, n), out[1].tensor().Rows(begin, n)};
        device->ShortConv(*cache.value(), {taps, Activation::kSilu, w}, {&rows, 1}, in, to);
      }
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_LT(RelativeError(out[i].values(), want[i]), 1e-6) << "taps " << taps;
        if (chunk == kRows) {
          first.push_back(out[i].values());
        } else {
          EXPECT_EQ(first[i], out[i].values()) << "taps " << taps << " chunk " << chunk;
        }
      }
    }
  }
}

TEST(Situ, AgreesWithTheScalarTwinForSmallAndLargeInputs) {
  auto device = MakeDevice(1);
  for (const float size : {0.01F, 3.0F, 100.0F}) {
    for (const float linear_beta : {0.0F, 25.0F}) {
      Filled gate(3, 37, RandomFloats(111, 1));
      Filled up(3, 37, RandomFloats(111, 2));
      Filled out(3, 37);
      std::vector<double> want;
      for (size_t i = 0; i < 111; ++i) {
        gate.values()[i] *= size;
        up.values()[i] *= size;
        want.push_back(ref::Situ<double>(4, static_cast<double>(linear_beta), gate.values()[i],
                                         up.values()[i]));
      }
      device->Situ({4.0F, linear_beta}, gate.tensor(), up.tensor(), out.tensor());
      EXPECT_LT(RelativeError(out.values(), want), 1e-6) << size;
    }
  }
}

}  // namespace
}  // namespace penstock::kernels
