// Attention over paged keys and values against its scalar twin, and bit equality over batches.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "kernels/cpu/attention.h"
#include "kernels/ref/attention.h"
#include "kernels/test_support.h"

namespace penstock::kernels {
namespace {

struct Case {
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t value_dim;
  int64_t window;
  float soft_cap;
  int64_t block_tokens;
};

const Case kCases[] = {
    {4, 4, 16, 16, 0, 0.0F, 32},    {9, 3, 64, 64, 0, 0.0F, 32},  {5, 5, 8, 8, 0, 0.0F, 32},
    {6, 2, 36, 20, 0, 0.0F, 16},    {8, 2, 64, 64, 40, 0.0F, 32}, {4, 1, 24, 24, 7, 20.0F, 5},
    {3, 1, 256, 128, 0, 50.0F, 48},
};

AttentionParams Params(const Case& c) {
  return {.heads = c.heads,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .value_dim = c.value_dim,
          .scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim)),
          .soft_cap = c.soft_cap,
          .window = c.window};
}

// The inputs of one sequence of `tokens` tokens.
class Sequence {
 public:
  Sequence(const Case& c, int64_t tokens, uint64_t seed)
      : tokens_(tokens),
        q_(tokens, c.heads * c.head_dim, RandomFloats(tokens * c.heads * c.head_dim, seed)),
        k_(tokens, c.kv_heads * c.head_dim,
           RandomFloats(tokens * c.kv_heads * c.head_dim, seed + 1)),
        v_(tokens, c.kv_heads * c.value_dim,
           RandomFloats(tokens * c.kv_heads * c.value_dim, seed + 2)) {
    for (float& x : q_.values()) {
      x *= 4.0F;  // far from uniform weights
    }
  }

  int64_t tokens() const { return tokens_; }

  Filled& q() { return q_; }

  Filled& k() { return k_; }

  Filled& v() { return v_; }

 private:
  int64_t tokens_;
  Filled q_;
  Filled k_;
  Filled v_;
};

// Block table of sequence s of n: interleaved with the others'.
std::vector<int32_t> Table(int64_t blocks, int64_t s, int64_t n) {
  std::vector<int32_t> table;
  for (int64_t b = 0; b < blocks; ++b) {
    table.push_back(static_cast<int32_t>((blocks - 1 - b) * n + s));
  }
  return table;
}

KvCacheSpec Spec(const Case& c, int64_t blocks, DType type) {
  return {.blocks = blocks,
          .block_tokens = c.block_tokens,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .value_dim = c.value_dim,
          .type = type};
}

// Fills all pages with NaN: whatever is read before it was written shows.
void Poison(KvCache& cache, const KvCacheSpec& spec) {
  std::byte* pages = static_cast<CpuKvCache&>(cache).Page(0, 0);
  std::fill(pages, pages + CpuKvCache::Bytes(spec), std::byte{0xff});
}

// Runs the sequence in chunks of `chunk` rows.
std::vector<float> Attended(Device& device, const Case& c, Sequence& s, DType type, int64_t chunk) {
  MemoryAccount account;
  const int64_t blocks = (s.tokens() + c.block_tokens - 1) / c.block_tokens;
  auto cache = device.CreateKvCache(Spec(c, blocks, type), account);
  EXPECT_TRUE(cache.ok());
  EXPECT_EQ(account.current()[MemoryCategory::kKv], device.KvCacheBytes(Spec(c, blocks, type)));
  Poison(*cache.value(), Spec(c, blocks, type));
  const std::vector<int32_t> table = Table(blocks, 0, 1);
  const AttentionParams params = Params(c);
  Filled out(s.tokens(), c.heads * c.value_dim);
  Scratch scratch(device.AttentionWorkspaceBytes(params, s.tokens()));
  for (int64_t begin = 0; begin < s.tokens(); begin += chunk) {
    const int64_t rows = std::min(chunk, s.tokens() - begin);
    // Blocks that no row of this or a later chunk sees are gone.
    std::vector<int32_t> live = table;
    if (c.window > 0) {
      const int64_t first = std::max<int64_t>(0, begin - c.window + 1) / c.block_tokens;
      std::fill(live.begin(), live.begin() + first, -1);
    }
    const SequenceRows sequence{
        .first_row = 0, .rows = rows, .first_position = begin, .blocks = live};
    device.Attention(*cache.value(), params, {&sequence, 1}, s.q().tensor().Rows(begin, rows),
                     s.k().tensor().Rows(begin, rows), s.v().tensor().Rows(begin, rows),
                     out.tensor().Rows(begin, rows), scratch.tensor());
  }
  return out.values();
}

std::vector<double> Reference(const Case& c, Sequence& s, DType type) {
  const auto stored = [type](std::vector<float> x) {
    if (type == DType::kBF16) {
      for (float& value : x) {
        value = RoundToBf16(value);
      }
    }
    return Doubles(x);
  };
  std::vector<double> want(static_cast<size_t>(s.tokens() * c.heads * c.value_dim));
  ref::Attention<double>(Params(c), Doubles(s.q().values()), stored(s.k().values()),
                         stored(s.v().values()), s.tokens(), 0, want);
  return want;
}

TEST(Attention, AgreesWithTheScalarTwin) {
  for (const Case& c : kCases) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      auto device = MakeDevice(2);
      Sequence s(c, 131, 1);
      const std::vector<float> got = Attended(*device, c, s, type, 131);
      EXPECT_LT(RelativeError(got, Reference(c, s, type)), 1e-6)
          << "head_dim " << c.head_dim << " " << DTypeName(type);
    }
  }
}

TEST(Attention, HasTheSameBitsForAnyChunksAndThreads) {
  for (const Case& c : kCases) {
    Sequence s(c, 131, 2);
    auto one = MakeDevice(1);
    const std::vector<float> want = Attended(*one, c, s, DType::kBF16, 131);
    for (const int threads : {1, 2, 3}) {
      auto device = MakeDevice(threads);
      for (const int64_t chunk : {1, 7, 32, 100}) {
        EXPECT_EQ(want, Attended(*device, c, s, DType::kBF16, chunk))
            << "head_dim " << c.head_dim << " chunk " << chunk << " threads " << threads;
      }
    }
  }
}

TEST(Attention, SequencesInOneBatchDoNotTouchEachOther) {
  const Case c = kCases[1];
  auto device = MakeDevice(2);
  const AttentionParams params = Params(c);
  const int64_t lengths[] = {3, 67, 40};
  std::vector<Sequence> alone;
  for (uint64_t i = 0; i < 3; ++i) {
    alone.emplace_back(c, lengths[i], 10 + i);
  }
  MemoryAccount account;
  auto cache = device->CreateKvCache(Spec(c, 9, DType::kF32), account);
  ASSERT_TRUE(cache.ok());
  std::vector<std::vector<int32_t>> tables;
  std::vector<SequenceRows> sequences;
  std::vector<float> q;
  std::vector<float> k;
  std::vector<float> v;
  int64_t row = 0;
  for (int64_t i = 0; i < 3; ++i) {
    tables.push_back(Table(3, i, 3));
  }
  for (int64_t i = 0; i < 3; ++i) {
    const auto at = static_cast<size_t>(i);
    sequences.push_back(
        {.first_row = row, .rows = lengths[i], .first_position = 0, .blocks = tables[at]});
    row += lengths[i];
    q.insert(q.end(), alone[at].q().values().begin(), alone[at].q().values().end());
    k.insert(k.end(), alone[at].k().values().begin(), alone[at].k().values().end());
    v.insert(v.end(), alone[at].v().values().begin(), alone[at].v().values().end());
  }
  Filled fq(row, c.heads * c.head_dim, q);
  Filled fk(row, c.kv_heads * c.head_dim, k);
  Filled fv(row, c.kv_heads * c.value_dim, v);
  Filled out(row, c.heads * c.value_dim);
  Scratch scratch(device->AttentionWorkspaceBytes(params, row));
  device->Attention(*cache.value(), params, sequences, fq.tensor(), fk.tensor(), fv.tensor(),
                    out.tensor(), scratch.tensor());
  auto got = out.values().begin();
  for (Sequence& s : alone) {
    const std::vector<float> want = Attended(*device, c, s, DType::kF32, s.tokens());
    EXPECT_TRUE(std::equal(want.begin(), want.end(), got));
    got += static_cast<std::ptrdiff_t>(want.size());
  }
}

}  // namespace
}  // namespace penstock::kernels
