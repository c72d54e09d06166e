#include "runtime/train_op.h"

#include "runtime/train_ops.h"

namespace penstock::runtime {

int64_t TrainOp::WorkspaceBytes(const OpShape&, const kernels::TrainingDevice&) const {
  return 0;
}

int64_t TrainOp::ExtraBytes(size_t, const OpShape&, const kernels::TrainingDevice&) const {
  return 0;
}

void TrainOp::BackwardWeight(OpFrame&) const {}

namespace {

// The table: one line per kind.
struct Maker {
  const model::Op& op;
  int32_t index;
  const TrainOpContext& context;

  using Made = std::unique_ptr<TrainOp>;

  Made operator()(const model::EmbedOp& p) const { return MakeEmbed(op, p, index, context); }

  Made operator()(const model::RmsNormOp& p) const { return MakeRmsNorm(op, p); }

  Made operator()(const model::LinearOp& p) const { return MakeLinear(op, p, context); }

  Made operator()(const model::SplitOp& p) const { return MakeSplit(op, p); }

  Made operator()(const model::RopeOp& p) const { return MakeRope(op, p); }

  Made operator()(const model::AttentionOp& p) const { return MakeAttention(op, p, context); }

  Made operator()(const model::LatentAttentionOp& p) const {
    return MakeLatentAttention(op, p, context);
  }

  Made operator()(const model::ShortConvOp& p) const { return MakeShortConv(op, p, context); }

  Made operator()(const model::DeltaAttentionOp& p) const {
    return MakeDeltaAttention(op, p, context);
  }

  Made operator()(const model::GatedOp& p) const { return MakeGated(op, p); }

  Made operator()(const model::ActivationOp& p) const { return MakeAct(op, p); }

  Made operator()(const model::MoeOp& p) const { return MakeMoe(op, p, context); }

  Made operator()(const model::AddOp&) const { return MakeAdd(op, index, context); }

  Made operator()(const model::ScaleOp& p) const { return MakeScale(op, p); }

  Made operator()(const model::SoftCapOp& p) const { return MakeSoftCap(op, p); }

  Made operator()(const model::SelectRowsOp&) const { return MakeSelectRows(op); }

  Made operator()(const model::ConcatOp&) const { return MakeConcat(op); }

  Made operator()(const model::DepthReadOp& p) const { return MakeDepthRead(op, p); }

  Made operator()(const model::StreamWeightsOp& p) const { return MakeStreamWeights(op, p); }

  Made operator()(const model::StreamReadOp& p) const { return MakeStreamRead(op, p); }

  Made operator()(const model::StreamWriteOp& p) const { return MakeStreamWrite(op, p); }

  template <class Other>
  Made operator()(const Other&) const {
    return nullptr;
  }
};

}  // namespace

Result<std::unique_ptr<TrainOp>> MakeTrainOp(int32_t op_index, const TrainOpContext& context) {
  const model::Op& op = context.graph.ops[static_cast<size_t>(op_index)];
  std::unique_ptr<TrainOp> made = std::visit(Maker{op, op_index, context}, op.params);
  if (made == nullptr) {
    const std::string& layer = context.graph.layers[static_cast<size_t>(op.layer.value())].name;
    if (context.slices > 1) {
      return MakeError(
          ErrorCode::kUnsupported,
          "[runtime.train] {}: {} runs over whole sequences in training, got {} slices "
          "per sequence, wanted 1\nThe nearest schedule that cuts none is 1f1b.",
          layer, model::OpName(op), context.slices);
    }
    return MakeError(ErrorCode::kUnsupported,
                     "[runtime.train] {} has an operation that can't be trained: {}", layer,
                     model::OpName(op));
  }
  return made;
}

}  // namespace penstock::runtime
