// Attention of training against its twins: segments, slices, windows, caps, shared keys.

#include "kernels/ref/attention.h"
#include "kernels/training_test_support.h"

namespace penstock::kernels {
namespace {

struct Case {
  AttentionParams params;
  std::vector<Segment> segments;
  int64_t rows;
  int64_t keys;
};

int64_t Rows(const std::vector<Segment>& segments) {
  int64_t rows = 0;
  for (const Segment& s : segments) {
    rows += s.rows;
  }
  return rows;
}

// Whole sequences of the given lengths, one after the other.
std::vector<Segment> Packed(const std::vector<int64_t>& lengths) {
  std::vector<Segment> segments;
  int64_t row = 0;
  for (const int64_t length : lengths) {
    segments.push_back({.first_row = row, .rows = length, .first_key = row});
    row += length;
  }
  return segments;
}

struct Numbers {
  explicit Numbers(const Case& c)
      : q(c.rows, c.params.heads * c.params.head_dim,
          RandomFloats(c.rows * c.params.heads * c.params.head_dim, 1)),
        k(c.keys, c.params.kv_heads * c.params.head_dim,
          RandomFloats(c.keys * c.params.kv_heads * c.params.head_dim, 2)),
        v(c.keys, c.params.kv_heads * c.params.value_dim,
          RandomFloats(c.keys * c.params.kv_heads * c.params.value_dim, 3)),
        dout(c.rows, c.params.heads * c.params.value_dim,
             RandomFloats(c.rows * c.params.heads * c.params.value_dim, 4)) {}

  Filled q;
  Filled k;
  Filled v;
  Filled dout;
};

struct Results {
  std::vector<float> out;
  std::vector<float> lse;
  std::vector<float> dq;
  std::vector<float> dk;
  std::vector<float> dv;

  bool operator==(const Results&) const = default;
};

// Forward and backward; dk and dv start from `start`.
Results Attend(TrainingDevice& kernels, const Case& c, Numbers& n, float start = 0.0F) {
  Scratch scratch(kernels.TrainAttentionWorkspaceBytes(c.params, c.rows, c.keys));
  Filled out(c.rows, n.dout.tensor().columns(), 9.0F);
  Filled lse(c.rows, c.params.heads, 9.0F);
  Filled dq(c.rows, n.q.tensor().columns(), 9.0F);
  Filled dk(c.keys, n.k.tensor().columns(), start);
  Filled dv(c.keys, n.v.tensor().columns(), start);
  kernels.AttentionForward(c.params, c.segments, n.q.tensor(), n.k.tensor(), n.v.tensor(),
                           out.tensor(), lse.tensor(), scratch.tensor());
  kernels.AttentionBackward(c.params, c.segments, n.q.tensor(), n.k.tensor(), n.v.tensor(),
                            out.tensor(), lse.tensor(), n.dout.tensor(), dq.tensor(), dk.tensor(),
                            dv.tensor(), scratch.tensor());
  return {out.values(), lse.values(), dq.values(), dk.values(), dv.values()};
}

struct Reference {
  std::vector<double> out;
  std::vector<double> dq;
  std::vector<double> dk;
  std::vector<double> dv;
};

Reference Twin(const Case& c, const Numbers& n) {
  const auto q = Doubles(n.q.values());
  const auto k = Doubles(n.k.values());
  const auto v = Doubles(n.v.values());
  const auto dout = Doubles(n.dout.values());
  Reference r{std::vector<double>(dout.size()), std::vector<double>(q.size()),
              std::vector<double>(k.size()), std::vector<double>(v.size())};
  const AttentionParams& p = c.params;
  for (const Segment& s : c.segments) {
    const int64_t keys = s.keys_before + s.rows;
    const auto part = [](auto& values, int64_t first, int64_t count, int64_t width) {
      return std::span(values).subspan(static_cast<size_t>(first * width),
                                       static_cast<size_t>(count * width));
    };
    const int64_t kw = p.kv_heads * p.head_dim;
    const int64_t vw = p.kv_heads * p.value_dim;
    ref::Attention<double>(p, part(q, s.first_row, s.rows, p.heads * p.head_dim),
                           part(k, s.first_key, keys, kw), part(v, s.first_key, keys, vw), s.rows,
                           s.keys_before, part(r.out, s.first_row, s.rows, p.heads * p.value_dim));
    ref::AttentionBackward<double>(
        p, part(q, s.first_row, s.rows, p.heads * p.head_dim), part(k, s.first_key, keys, kw),
        part(v, s.first_key, keys, vw), s.rows, s.keys_before,
        part(dout, s.first_row, s.rows, p.heads * p.value_dim),
        part(r.dq, s.first_row, s.rows, p.heads * p.head_dim), part(r.dk, s.first_key, keys, kw),
        part(r.dv, s.first_key, keys, vw));
  }
  return r;
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const auto add = [&cases](const AttentionParams& params, const std::vector<int64_t>& lengths) {
    const auto segments = Packed(lengths);
    cases.push_back({params, segments, Rows(segments), Rows(segments)});
  };
  add({1, 1, 1, 1, 1.0F, 0, 0}, {1});
  add({2, 1, 10, 7, 0.3F, 0, 0}, {5, 1, 66});
  add({3, 3, 64, 64, 0.125F, 0, 0}, {200});
  add({9, 3, 64, 64, 0.125F, 0, 0}, {70, 59});
  add({4, 2, 36, 20, 0.2F, 3.0F, 0}, {129});
  add({4, 1, 80, 80, 0.1F, 0, 33}, {190, 3});
  add({2, 2, 16, 48, 0.25F, 5.0F, 1}, {70});
  add({2, 1, 24, 24, 0.25F, 0, 100}, {300});
  // The second slice of two sequences; keys of both lie apart.
  cases.push_back(
      {{4, 2, 16, 16, 0.25F, 0, 50},
       {{.first_row = 0, .rows = 30, .first_position = 70, .first_key = 0, .keys_before = 70},
        {.first_row = 30, .rows = 65, .first_position = 1, .first_key = 110, .keys_before = 1}},
       95,
       180});
  return cases;
}

TEST(TrainAttention, AgreesWithTheTwinsWhateverTheThreads) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(testing::Message() << c.params.heads << " heads of " << c.params.head_dim << ", "
                                    << c.rows << " rows, window " << c.params.window);
    Numbers n(c);
    const Results got = WithThreads([&](TrainingDevice& kernels) { return Attend(kernels, c, n); });
    const Reference want = Twin(c, n);
    EXPECT_LT(RelativeError(got.out, want.out), 1e-6);
    EXPECT_LT(RelativeError(got.dv, want.dv), 2e-6);
    // With one visible key the gradients of scores are zero up to rounding.
    const bool constant = c.params.window == 1 || c.rows == 1;
    if (!constant) {
      EXPECT_LT(RelativeError(got.dq, want.dq), 3e-6);
      EXPECT_LT(RelativeError(got.dk, want.dk), 3e-6);
    } else {
      for (const float x : got.dq) {
        EXPECT_NEAR(x, 0.0F, 1e-5);
      }
    }
  }
}

TEST(TrainAttention, AddsTheGradientsOfKeysAndValuesToWhatIsThere) {
  const Case c{{4, 2, 16, 16, 0.25F, 0, 0}, Packed({70}), 70, 70};
  Numbers n(c);
  Training t(2);
  const Results from_zero = Attend(*t.kernels, c, n);
  const Results from_one = Attend(*t.kernels, c, n, 1.0F);
  EXPECT_EQ(from_one.dq, from_zero.dq);
  for (size_t i = 0; i < from_zero.dk.size(); ++i) {
    EXPECT_NEAR(from_one.dk[i], 1.0F + from_zero.dk[i], 1e-5);
    EXPECT_NEAR(from_one.dv[i], 1.0F + from_zero.dv[i], 1e-5);
  }
}

TEST(TrainAttention, SlicesOfASequenceGiveTheBitsOfTheWholeAndTheirGradientsAddUp) {
  const AttentionParams params{4, 2, 24, 16, 0.2F, 0, 90};
  const Case whole{params, Packed({230}), 230, 230};
  Numbers n(whole);
  Training t(2);
  const Results want = Attend(*t.kernels, whole, n);

  Scratch scratch(t.kernels->TrainAttentionWorkspaceBytes(params, 230, 230));
  Filled out(230, 64);
  Filled lse(230, 4);
  Filled dq(230, 96);
  Filled dk(230, 48);
  Filled dv(230, 32);
  const int64_t cuts[] = {0, 64, 101, 230};
  const auto slice = [&](int i) {
    return Segment{.first_row = 0,
                   .rows = cuts[i + 1] - cuts[i],
                   .first_position = cuts[i],
                   .first_key = 0,
                   .keys_before = cuts[i]};
  };
  for (int i = 0; i < 3; ++i) {
    const Segment s = slice(i);
    t.kernels->AttentionForward(params, {&s, 1}, n.q.tensor().Rows(cuts[i], s.rows), n.k.tensor(),
                                n.v.tensor(), out.tensor().Rows(cuts[i], s.rows),
                                lse.tensor().Rows(cuts[i], s.rows), scratch.tensor());
  }
  EXPECT_EQ(out.values(), want.out);
  EXPECT_EQ(lse.values(), want.lse);
  for (int i = 2; i >= 0; --i) {
    const Segment s = slice(i);
    t.kernels->AttentionBackward(
        params, {&s, 1}, n.q.tensor().Rows(cuts[i], s.rows), n.k.tensor(), n.v.tensor(),
        out.tensor().Rows(cuts[i], s.rows), lse.tensor().Rows(cuts[i], s.rows),
        n.dout.tensor().Rows(cuts[i], s.rows), dq.tensor().Rows(cuts[i], s.rows), dk.tensor(),
        dv.tensor(), scratch.tensor());
  }
  EXPECT_EQ(dq.values(), want.dq);
  EXPECT_LT(RelativeError(dk.values(), want.dk), 1e-6);
  EXPECT_LT(RelativeError(dv.values(), want.dv), 1e-6);
}

TEST(TrainAttention, ASequenceHasTheSameBitsAloneAndPackedWithOthers) {
  const AttentionParams params{3, 1, 32, 32, 0.2F, 0, 0};
  const Case packed{params, Packed({45, 130, 20}), 195, 195};
  Numbers n(packed);
  Training t(2);
  const Results all = Attend(*t.kernels, packed, n);
  const Case alone{params, Packed({130}), 130, 130};
  Numbers one(alone);
  const auto part = [](const std::vector<float>& values, int64_t width) {
    return std::vector<float>(values.begin() + 45 * width, values.begin() + 175 * width);
  };
  one.q.values() = part(n.q.values(), 96);
  one.k.values() = part(n.k.values(), 32);
  one.v.values() = part(n.v.values(), 32);
  one.dout.values() = part(n.dout.values(), 96);
  const Results got = Attend(*t.kernels, alone, one);
  EXPECT_EQ(got.out, part(all.out, 96));
  EXPECT_EQ(got.dq, part(all.dq, 96));
  EXPECT_EQ(got.dk, part(all.dk, 32));
  EXPECT_EQ(got.dv, part(all.dv, 32));
}

TEST(TrainAttention, HugeScoresStayFinite) {
  const Case c{{1, 1, 16, 16, 1.0F, 0, 0}, Packed({100}), 100, 100};
  Numbers n(c);
  for (float& x : n.q.values()) {
    x *= 1e3F;
  }
  Training t(1);
  const Results got = Attend(*t.kernels, c, n);
  for (const auto* values : {&got.out, &got.dq, &got.dk, &got.dv}) {
    EXPECT_TRUE(std::ranges::all_of(*values, [](float x) { return std::isfinite(x); }));
  }
}

}  // namespace
}  // namespace penstock::kernels
