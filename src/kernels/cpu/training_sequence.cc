#include "kernels/training_sequence.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/delta_attention.h"

namespace penstock::kernels {
namespace {

float Sigmoid(float x) {
  return 1.0F / (1.0F + std::exp(-x));
}

// The convolution's value before its activation.
float ConvSum(const ConvShape& shape, const Segment& segment, Tensor x, const float* weight,
              int64_t row, int64_t column) {
  float sum = 0;
  for (int64_t j = 0; j < shape.taps; ++j) {
    const int64_t from = row - shape.taps + 1 + j;
    if (from >= 0) {
      sum = std::fma(weight[j], x.Row<float>(segment.first_row + from)[static_cast<size_t>(column)],
                     sum);
    }
  }
  return sum;
}

float SiluSlope(float x) {
  const float s = Sigmoid(x);
  return s * (1.0F + x * (1.0F - s));
}

// Slopes times dy of one column of a segment.
void ConvSlopes(const ConvShape& shape, const Segment& segment, Tensor x, const float* weight,
                Tensor dy, int64_t column, std::span<float> out) {
  for (int64_t r = 0; r < segment.rows; ++r) {
    out[static_cast<size_t>(r)] =
        dy.Row<float>(segment.first_row + r)[static_cast<size_t>(column)] *
        SiluSlope(ConvSum(shape, segment, x, weight, r, column));
  }
}

// One head of one sequence in the backward pass.
struct HeadRows {
  const DeltaParams* params;
  const Segment* segment;
  int64_t head;
  Tensor q, k, v, f, b, dout;

  const float* At(Tensor t, int64_t r) const {
    return t.Row<float>(segment->first_row + r).data() + head * params->dim;
  }

  float Beta(int64_t r) const {
    return Sigmoid(b.Row<float>(segment->first_row + r)[static_cast<size_t>(head)]);
  }

  float Rate() const { return std::exp(params->a_log.Row<float>(0)[static_cast<size_t>(head)]); }
};

// What one position needs of its inputs.
struct Position {
  std::vector<float> q, k, decay, z;  // normalized and scaled; exp(g); f + dt_bias
  float q_scale = 0;                  // 1 / length
  float k_scale = 0;
  float beta = 0;
};

float Unit(const float* x, int64_t dim, std::vector<float>& out) {
  float sum = 0;
  for (int64_t c = 0; c < dim; ++c) {
    sum += x[c] * x[c];
  }
  const float scale = 1.0F / std::sqrt(sum + 1e-6F);
  for (int64_t c = 0; c < dim; ++c) {
    out[static_cast<size_t>(c)] = x[c] * scale;
  }
  return scale;
}

float Decay(const DeltaParams& params, float rate, float z) {
  if (params.bounded) {
    return params.lower_bound * Sigmoid(rate * z);
  }
  return -rate * (std::max(z, 0.0F) + std::log1p(std::exp(-std::abs(z))));
}

void Prepare(const HeadRows& h, int64_t r, Position& p) {
  const int64_t dim = h.params->dim;
  for (std::vector<float>* v : {&p.q, &p.k, &p.decay, &p.z}) {
    v->resize(static_cast<size_t>(dim));
  }
  p.q_scale = Unit(h.At(h.q, r), dim, p.q);
  p.k_scale = Unit(h.At(h.k, r), dim, p.k);
  const float factor = 1.0F / std::sqrt(static_cast<float>(dim));
  const float* bias = h.params->dt_bias.Row<float>(0).data() + h.head * dim;
  const float* f = h.At(h.f, r);
  const float rate = h.Rate();
  for (int64_t c = 0; c < dim; ++c) {
    const auto i = static_cast<size_t>(c);
    p.q[i] *= factor;
    p.z[i] = f[c] + bias[c];
    p.decay[i] = std::exp(Decay(*h.params, rate, p.z[i]));
  }
  p.beta = h.Beta(r);
}

// state [dim keys, dim values] one position on; `error` gets v - S'^T k.
void Step(const Position& p, const float* v, int64_t dim, float* state, float* error) {
  std::copy_n(v, dim, error);
  for (int64_t c = 0; c < dim; ++c) {
    float* row = state + c * dim;
    const float decay = p.decay[static_cast<size_t>(c)];
    const float key = p.k[static_cast<size_t>(c)];
    for (int64_t i = 0; i < dim; ++i) {
      row[i] *= decay;
      error[i] -= row[i] * key;
    }
  }
  for (int64_t c = 0; c < dim; ++c) {
    float* row = state + c * dim;
    const float key = p.k[static_cast<size_t>(c)] * p.beta;
    for (int64_t i = 0; i < dim; ++i) {
      row[i] += key * error[i];
    }
  }
}

// Gradients of one position, before they go through normalizations and gates.
struct StepGradients {
  std::vector<float> q, k, v, g;
  float beta = 0;
};

// `before`: the state in front of the position, `after`: behind it; ds [dim, dim]: gradient of the
// state behind it from later positions, turned into that in front.
void StepBack(const Position& p, const float* error, const float* dout, const float* before,
              const float* after, int64_t dim, float* ds, StepGradients& d) {
  for (std::vector<float>* v : {&d.q, &d.k, &d.v, &d.g}) {
    v->assign(static_cast<size_t>(dim), 0.0F);
  }
  std::vector<float> du(static_cast<size_t>(dim), 0.0F);
  for (int64_t c = 0; c < dim; ++c) {
    const auto at = static_cast<size_t>(c);
    float* row = ds + c * dim;
    const float* state = after + c * dim;
    float dq = 0;
    float dk = 0;
    for (int64_t i = 0; i < dim; ++i) {
      row[i] += p.q[at] * dout[i];
      dq += state[i] * dout[i];
      du[static_cast<size_t>(i)] += row[i] * p.k[at];
      dk += row[i] * p.beta * error[i];
    }
    d.q[at] = dq;
    d.k[at] = dk;
  }
  d.beta = 0;
  for (int64_t i = 0; i < dim; ++i) {
    const auto at = static_cast<size_t>(i);
    d.beta += du[at] * error[i];
    d.v[at] = p.beta * du[at];
  }
  for (int64_t c = 0; c < dim; ++c) {
    const auto at = static_cast<size_t>(c);
    float* row = ds + c * dim;
    const float* state = before + c * dim;
    float dk = 0;
    float dg = 0;
    for (int64_t i = 0; i < dim; ++i) {
      const float decayed = p.decay[at] * state[i];
      const float de = d.v[static_cast<size_t>(i)];
      dk += decayed * de;
      row[i] -= p.k[at] * de;
      dg += row[i] * decayed;
      row[i] *= p.decay[at];
    }
    d.k[at] -= dk;
    d.g[at] = dg;
  }
}

// dx (+)= gradient of x / |x| * factor, of which `unit` is x / |x|.
void UnitBack(const std::vector<float>& d, const std::vector<float>& unit, float unit_factor,
              float scale, float factor, bool accumulate, float* dx) {
  float dot = 0;
  for (size_t c = 0; c < d.size(); ++c) {
    dot += d[c] * unit[c] * unit_factor;
  }
  for (size_t c = 0; c < d.size(); ++c) {
    const float term = factor * scale * (d[c] - unit[c] * unit_factor * dot);
    dx[c] = accumulate ? dx[c] + term : term;
  }
}

void WriteGradients(const HeadRows& h, int64_t r, const Position& p, const StepGradients& d,
                    const DeltaGradients& to) {
  const int64_t dim = h.params->dim;
  const auto at = [&](Tensor t) {
    return t.Row<float>(h.segment->first_row + r).data() + h.head * dim;
  };
  const float root = std::sqrt(static_cast<float>(dim));
  UnitBack(d.q, p.q, root, p.q_scale, 1.0F / root, to.accumulate_q, at(to.q));
  UnitBack(d.k, p.k, 1.0F, p.k_scale, 1.0F, to.accumulate_k, at(to.k));
  float* dv = at(to.v);
  float* df = at(to.f);
  const float rate = h.Rate();
  float* bias_sums = to.sums.data() + h.head * dim;
  float& rate_sum = to.sums[static_cast<size_t>(h.params->heads * dim + h.head)];
  for (int64_t c = 0; c < dim; ++c) {
    const auto i = static_cast<size_t>(c);
    float slope = 0;    // dg/dz
    float by_rate = 0;  // dg/da_log
    if (h.params->bounded) {
      const float s = Sigmoid(rate * p.z[i]);
      slope = h.params->lower_bound * s * (1.0F - s) * rate;
      by_rate = slope * p.z[i];
    } else {
      slope = -rate * Sigmoid(p.z[i]);
      by_rate = Decay(*h.params, rate, p.z[i]);
    }
    const float dz = d.g[i] * slope;
    dv[c] = to.accumulate_v ? dv[c] + d.v[i] : d.v[i];
    df[c] = to.accumulate_f ? df[c] + dz : dz;
    bias_sums[c] += dz;
    rate_sum += d.g[i] * by_rate;
  }
  float& db = to.b.Row<float>(h.segment->first_row + r)[static_cast<size_t>(h.head)];
  const float term = d.beta * p.beta * (1.0F - p.beta);
  db = to.accumulate_b ? db + term : term;
}

void HeadBack(const HeadRows& h, const DeltaGradients& to, float* scratch) {
  const int64_t dim = h.params->dim;
  const int64_t size = dim * dim;
  const int64_t rows = h.segment->rows;
  float* ds = scratch;
  float* errors = ds + size;                          // [chunk, dim]
  float* states = errors + kDeltaChunk * dim;         // [chunk + 1, size]
  float* starts = states + (kDeltaChunk + 1) * size;  // [chunks, size]
  std::vector<Position> positions(static_cast<size_t>(kDeltaChunk));
  std::fill_n(states, size, 0.0F);
  Position one;
  for (int64_t r = 0; r < rows; ++r) {
    if (r % kDeltaChunk == 0) {
      std::copy_n(states, size, starts + r / kDeltaChunk * size);
    }
    Prepare(h, r, one);
    Step(one, h.At(h.v, r), dim, states, errors);
  }
  std::fill_n(ds, size, 0.0F);
  StepGradients d;
  for (int64_t chunk = (rows - 1) / kDeltaChunk; chunk >= 0; --chunk) {
    const int64_t first = chunk * kDeltaChunk;
    const int64_t count = std::min(kDeltaChunk, rows - first);
    std::copy_n(starts + chunk * size, size, states);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(states + i * size, size, states + (i + 1) * size);
      Position& p = positions[static_cast<size_t>(i)];
      Prepare(h, first + i, p);
      Step(p, h.At(h.v, first + i), dim, states + (i + 1) * size, errors + i * dim);
    }
    for (int64_t i = count - 1; i >= 0; --i) {
      const Position& p = positions[static_cast<size_t>(i)];
      StepBack(p, errors + i * dim, h.At(h.dout, first + i), states + i * size,
               states + (i + 1) * size, dim, ds, d);
      WriteGradients(h, first + i, p, d, to);
    }
  }
}

}  // namespace

void TrainSituBackward(const SituParams& params, Tensor gate, Tensor up, Tensor dy,
                       bool accumulate_gate, Tensor dgate, bool accumulate_up, Tensor dup) {
  for (int64_t r = 0; r < dy.rows(); ++r) {
    for (size_t c = 0; c < static_cast<size_t>(dy.columns()); ++c) {
      const float g = gate.Row<float>(r)[c];
      const float u = up.Row<float>(r)[c];
      const float d = dy.Row<float>(r)[c];
      const float t = std::tanh(g / params.beta);
      const float s = Sigmoid(g);
      const float left = params.beta * t * s;
      const float left_slope = (1.0F - t * t) * s + left * (1.0F - s);
      float right = u;
      float right_slope = 1.0F;
      if (params.linear_beta > 0) {
        const float tu = std::tanh(u / params.linear_beta);
        right = params.linear_beta * tu;
        right_slope = 1.0F - tu * tu;
      }
      float& to_gate = dgate.Row<float>(r)[c];
      float& to_up = dup.Row<float>(r)[c];
      to_gate = (accumulate_gate ? to_gate : 0.0F) + d * left_slope * right;
      to_up = (accumulate_up ? to_up : 0.0F) + d * left * right_slope;
    }
  }
}

void TrainConvForward(const ConvShape& shape, std::span<const Segment> segments, Tensor x,
                      std::span<const float> weight, Tensor out) {
  for (const Segment& segment : segments) {
    for (int64_t r = 0; r < segment.rows; ++r) {
      const std::span<float> to = out.Row<float>(segment.first_row + r);
      for (int64_t c = 0; c < x.columns(); ++c) {
        const float s = ConvSum(shape, segment, x, weight.data() + c * shape.taps, r, c);
        to[static_cast<size_t>(c)] = s * Sigmoid(s);
      }
    }
  }
}

void TrainConvBackwardInput(const ConvShape& shape, std::span<const Segment> segments, Tensor x,
                            std::span<const float> weight, Tensor dy, bool accumulate, Tensor dx) {
  std::vector<float> slopes;
  for (const Segment& segment : segments) {
    slopes.resize(static_cast<size_t>(segment.rows));
    for (int64_t c = 0; c < x.columns(); ++c) {
      const float* w = weight.data() + c * shape.taps;
      ConvSlopes(shape, segment, x, w, dy, c, slopes);
      for (int64_t r = 0; r < segment.rows; ++r) {
        float sum = 0;
        for (int64_t j = 0; j < shape.taps; ++j) {
          const int64_t to = r + shape.taps - 1 - j;  // the row that reads row r by tap j
          if (to < segment.rows) {
            sum = std::fma(w[j], slopes[static_cast<size_t>(to)], sum);
          }
        }
        float& out = dx.Row<float>(segment.first_row + r)[static_cast<size_t>(c)];
        out = accumulate ? out + sum : sum;
      }
    }
  }
}

void TrainConvBackwardWeight(const ConvShape& shape, std::span<const Segment> segments, Tensor x,
                             std::span<const float> weight, Tensor dy, std::span<float> dweight) {
  std::vector<float> slopes;
  std::vector<float> term(dweight.size(), 0.0F);
  for (const Segment& segment : segments) {
    slopes.resize(static_cast<size_t>(segment.rows));
    for (int64_t c = 0; c < x.columns(); ++c) {
      ConvSlopes(shape, segment, x, weight.data() + c * shape.taps, dy, c, slopes);
      for (int64_t j = 0; j < shape.taps; ++j) {
        float& sum = term[static_cast<size_t>(c * shape.taps + j)];
        for (int64_t r = shape.taps - 1 - j; r < segment.rows; ++r) {
          const int64_t from = segment.first_row + r - shape.taps + 1 + j;
          sum = std::fma(slopes[static_cast<size_t>(r)], x.Row<float>(from)[static_cast<size_t>(c)],
                         sum);
        }
      }
    }
  }
  for (size_t i = 0; i < term.size(); ++i) {
    dweight[i] += term[i];
  }
}

int64_t TrainDeltaForwardFloats(int64_t dim) {
  return DeltaHeadFloats(dim) + DeltaScratchFloats(dim) + 32;
}

void TrainDeltaForward(const DeltaParams& params, std::span<const Segment> segments, Tensor q,
                       Tensor k, Tensor v, Tensor f, Tensor b, Tensor out, float* scratch) {
  for (const Segment& segment : segments) {
    const SequenceRows rows{
        .first_row = segment.first_row, .rows = segment.rows, .first_position = 0, .blocks = {}};
    for (int64_t head = 0; head < params.heads; ++head) {
      RunDeltaHead({&params, head, &rows, scratch}, q, k, v, f, b, out,
                   scratch + DeltaHeadFloats(params.dim));
    }
  }
}

int64_t TrainDeltaBackwardFloats(int64_t dim, int64_t rows) {
  const int64_t size = dim * dim;
  return size + kDeltaChunk * dim + (kDeltaChunk + 1) * size +
         (rows + kDeltaChunk - 1) / kDeltaChunk * size;
}

void TrainDeltaBackward(const DeltaParams& params, std::span<const Segment> segments, Tensor q,
                        Tensor k, Tensor v, Tensor f, Tensor b, Tensor dout,
                        const DeltaGradients& gradients, float* scratch) {
  std::fill(gradients.sums.begin(), gradients.sums.end(), 0.0F);
  for (const Segment& segment : segments) {
    for (int64_t head = 0; head < params.heads; ++head) {
      HeadBack({&params, &segment, head, q, k, v, f, b, dout}, gradients, scratch);
    }
  }
}

}  // namespace penstock::kernels
