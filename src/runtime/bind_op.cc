#include "runtime/bind_op.h"

#include <array>

#include "runtime/activation_map.h"

namespace penstock::runtime {
namespace {

class Binder {
 public:
  Binder(const model::Op& op, const BindContext& context) : op_(op), context_(context) {}

  RunOp operator()(const model::EmbedOp& params) const {
    const TensorId table = params.table;
    const kernels::Matrix& matrix = context_.weights.matrix(std::span(&table, 1));
    return [&matrix, scale = params.scale, y = Out()](const StepInput& in) {
      in.device.Embed(matrix, in.tokens, scale, in.value(y));
    };
  }

  RunOp operator()(const model::RmsNormOp& params) const {
    const Tensor weight = context_.weights.vector(params.weight);
    return [weight, params, x = In(), y = Out()](const StepInput& in) {
      in.device.RmsNorm(in.value(x), weight, params.epsilon, params.add_one, params.group,
                        in.value(y));
    };
  }

  // One product per group of parts that are packed together; their outputs lie side by side.
  RunOp operator()(const model::LinearOp& params) const {
    struct Product {
      const kernels::Matrix* matrix;
      Tensor bias;
    };

    std::vector<Product> products;
    int64_t width = 0;
    size_t begin = 0;
    for (const size_t end : PackGroups(params, context_.rule)) {
      const auto parts = std::span(params.weights).subspan(begin, end - begin);
      const Tensor bias =
          params.biases.empty()
              ? Tensor()
              : context_.weights.bias(std::span(params.biases).subspan(begin, end - begin));
      products.push_back({&context_.weights.matrix(parts), bias});
      width += products.back().matrix->rows();
      begin = end;
    }
    return [products, width, x = In(), first = Out()](const StepInput& in) {
      const Tensor whole = in.value(first).Widened(width);
      int64_t column = 0;
      for (const Product& product : products) {
        in.device.Linear(*product.matrix, in.value(x), product.bias,
                         whole.Columns(column, product.matrix->rows()), in.workspace);
        column += product.matrix->rows();
      }
    };
  }

  RunOp operator()(const model::SplitOp&) const {
    return [](const StepInput&) {};  // the outputs are views
  }

  RunOp operator()(const model::RopeOp& params) const {
    return [params, x = In(), y = Out()](const StepInput& in) {
      const kernels::RopeParams rope{params.heads,
                                     params.head_dim,
                                     params.rotary_dim,
                                     params.interleaved,
                                     params.table.inverse_frequencies,
                                     params.table.long_inverse_frequencies,
                                     params.table.scale,
                                     params.table.long_scale,
                                     params.offset};
      in.device.Rope(in.value(x), rope, in.sequences[0], in.value(y));
    };
  }

  RunOp operator()(const model::AttentionOp& params) const {
    auto& cache = State<kernels::KvCache>(params.state);
    const size_t pool = Pool(params.state);
    const kernels::AttentionParams attention{params.heads,     params.kv_heads, params.head_dim,
                                             params.value_dim, params.scale,    params.soft_cap,
                                             params.window};
    return [&cache, pool, attention, q = op_.inputs[0], k = op_.inputs[1], v = op_.inputs[2],
            y = Out()](const StepInput& in) {
      in.device.Attention(cache, attention, in.sequences[pool], in.value(q), in.value(k),
                          in.value(v), in.value(y), in.workspace);
    };
  }

  RunOp operator()(const model::LatentAttentionOp& params) const {
    kernels::LatentAttentionParams attention;
    attention.heads = params.heads;
    attention.nope = params.nope;
    attention.rope = params.rope;
    attention.value_dim = params.value_dim;
    attention.latent = params.latent;
    attention.scale = params.scale;
    attention.absorbed = params.absorbed;
    if (params.absorbed) {
      attention.expand_rows = context_.weights.vector(params.expand);
    } else {
      attention.expand = &context_.weights.matrix(std::span(&params.expand, 1));
    }
    return [&cache = State<kernels::LatentCache>(params.state), pool = Pool(params.state),
            attention, q = op_.inputs[0], latent = op_.inputs[1], key = op_.inputs[2],
            y = Out()](const StepInput& in) {
      in.device.LatentAttention(cache, attention, in.sequences[pool], in.value(q), in.value(latent),
                                in.value(key), in.value(y), in.workspace);
    };
  }

  RunOp operator()(const model::ShortConvOp& params) const {
    std::vector<Tensor> weights;
    for (const TensorId id : params.weights) {
      weights.push_back(context_.weights.vector(id));
    }
    return [&cache = State<kernels::SlotCache>(params.state), pool = Pool(params.state), weights,
            taps = params.taps, act = ConvertActivation(params.activation), from = op_.inputs,
            to = op_.outputs](const StepInput& in) {
      std::vector<Tensor> x;
      std::vector<Tensor> y;
      for (size_t i = 0; i < from.size(); ++i) {
        x.push_back(in.value(from[i]));
        y.push_back(in.value(to[i]));
      }
      in.device.ShortConv(cache, {taps, act, weights}, in.sequences[pool], x, y);
    };
  }

  RunOp operator()(const model::DeltaAttentionOp& params) const {
    const auto row = [](Tensor t) {
      return Tensor(t.All<float>().data(), DType::kF32, 1, t.rows() * t.columns());
    };
    const kernels::DeltaParams delta{params.heads,
                                     params.dim,
                                     params.bounded,
                                     params.lower_bound,
                                     row(context_.weights.vector(params.a_log)),
                                     row(context_.weights.vector(params.dt_bias))};
    return [&cache = State<kernels::SlotCache>(params.state), pool = Pool(params.state), delta,
            x = op_.inputs, y = Out()](const StepInput& in) {
      in.device.DeltaAttention(cache, delta, in.sequences[pool], in.value(x[0]), in.value(x[1]),
                               in.value(x[2]), in.value(x[3]), in.value(x[4]), in.value(y),
                               in.workspace);
    };
  }

  RunOp operator()(const model::GatedOp& params) const {
    if (params.activation == model::Activation::kSitu) {
      return [situ = kernels::SituParams{params.beta, params.linear_beta}, gate = In(),
              up = op_.inputs[1], y = Out()](const StepInput& in) {
        in.device.Situ(situ, in.value(gate), in.value(up), in.value(y));
      };
    }
    return [act = ConvertActivation(params.activation), gate = In(), up = op_.inputs[1],
            y = Out()](const StepInput& in) {
      in.device.Gated(act, in.value(gate), in.value(up), in.value(y));
    };
  }

  RunOp operator()(const model::ActivationOp& params) const {
    return [act = ConvertActivation(params.activation), x = In(), y = Out()](const StepInput& in) {
      in.device.Act(act, in.value(x), in.value(y));
    };
  }

  RunOp operator()(const model::MoeOp& params) const {
    std::vector<const kernels::Matrix*> gate_up;
    std::vector<const kernels::Matrix*> down;
    for (size_t e = 0; e < params.up.size(); ++e) {
      const std::array<TensorId, 2> both = {params.gate[e], params.up[e]};
      gate_up.push_back(&context_.weights.matrix(both));
      down.push_back(&context_.weights.matrix(std::span(&params.down[e], 1)));
    }
    const Tensor router = context_.weights.vector(params.router);
    const Tensor bias =
        params.router_bias.valid() ? context_.weights.vector(params.router_bias) : Tensor();
    return [gate_up, down, router, bias, params, x = In(), read = op_.inputs.back(),
            y = Out()](const StepInput& in) {
      kernels::MoeParams moe;
      moe.sigmoid = params.scoring == model::MoeOp::Scoring::kSigmoid;
      moe.normalize = params.normalize;
      moe.chosen = params.chosen;
      moe.weight_scale = params.weight_scale;
      moe.activation = ConvertActivation(params.activation);
      moe.situ = {params.beta, params.linear_beta};
      moe.groups = params.groups;
      moe.chosen_groups = params.chosen_groups;
      moe.router_input = in.value(read);
      moe.router = router;
      moe.router_bias = bias;
      moe.gate_up = gate_up;
      moe.down = down;
      in.device.Moe(moe, in.value(x), in.value(y), in.workspace);
    };
  }

  RunOp operator()(const model::AddOp&) const {
    return [a = In(), b = op_.inputs[1], y = Out()](const StepInput& in) {
      in.device.Add(in.value(a), in.value(b), in.value(y));
    };
  }

  RunOp operator()(const model::ScaleOp& params) const {
    return [factor = params.factor, x = In(), y = Out()](const StepInput& in) {
      in.device.Scale(in.value(x), factor, in.value(y));
    };
  }

  RunOp operator()(const model::SoftCapOp& params) const {
    return [cap = params.cap, x = In(), y = Out()](const StepInput& in) {
      in.device.SoftCap(in.value(x), cap, in.value(y));
    };
  }

  RunOp operator()(const model::DepthReadOp& params) const {
    const Tensor query = context_.weights.vector(params.query);
    const Tensor key_norm =
        params.key_norm.valid() ? context_.weights.vector(params.key_norm) : Tensor();
    return [query, key_norm, epsilon = params.epsilon, from = op_.inputs,
            y = Out()](const StepInput& in) {
      std::vector<Tensor> sources;
      sources.reserve(from.size());
      for (const ValueId id : from) {
        sources.push_back(in.value(id));
      }
      in.device.DepthRead(sources, query, key_norm, epsilon, in.value(y));
    };
  }

  RunOp operator()(const model::ConcatOp&) const {
    return [from = op_.inputs, y = Out()](const StepInput& in) {
      int64_t column = 0;
      for (const ValueId id : from) {
        const Tensor part = in.value(id);
        in.device.Scale(part, 1.0F, in.value(y).Columns(column, part.columns()));
        column += part.columns();
      }
    };
  }

  RunOp operator()(const model::StreamWeightsOp& params) const {
    kernels::StreamParams stream{.streams = params.streams,
                                 .base = context_.weights.vector(params.base),
                                 .epsilon = params.epsilon};
    if (params.mix.valid()) {
      stream.mix = context_.weights.vector(params.mix);
      stream.norm = context_.weights.vector(params.norm);
      stream.scale = context_.weights.vector(params.scale);
    }
    return [stream, x = In(), y = Out()](const StepInput& in) {
      in.device.StreamWeights(stream, in.value(x), in.value(y));
    };
  }

  RunOp operator()(const model::StreamReadOp& params) const {
    return [n = params.streams, x = In(), c = op_.inputs[1], y = Out()](const StepInput& in) {
      in.device.StreamRead(n, in.value(x), in.value(c), in.value(y));
    };
  }

  RunOp operator()(const model::StreamWriteOp& params) const {
    return [n = params.streams, in_ids = op_.inputs, y = Out()](const StepInput& in) {
      in.device.StreamWrite(n, in.value(in_ids[0]), in.value(in_ids[1]), in.value(in_ids[2]),
                            in.value(y));
    };
  }

  RunOp operator()(const model::SelectRowsOp&) const {
    return [x = In(), y = Out()](const StepInput& in) {
      in.device.GatherRows(in.value(x), in.selected, in.value(y));
    };
  }

  RunOp operator()(const model::CountedOp&) const {
    PENSTOCK_CHECK(false, "the layout refused operations that are only counted");
    return {};
  }

 private:
  ValueId In() const { return op_.inputs[0]; }

  ValueId Out() const { return op_.outputs[0]; }

  template <class Cache>
  Cache& State(int32_t state) const {
    return static_cast<Cache&>(*context_.caches[static_cast<size_t>(state)]);
  }

  size_t Pool(int32_t state) const {
    return static_cast<size_t>(context_.pool_of[static_cast<size_t>(state)]);
  }

  const model::Op& op_;
  const BindContext& context_;
};

}  // namespace

RunOp BindOp(const model::Op& op, const BindContext& context) {
  return std::visit(Binder(op, context), op.params);
}

}  // namespace penstock::runtime
