// Makers of the table's entries, one per kind. Only train_op.cc calls them.

#pragma once

#include <memory>

#include "runtime/activation_map.h"
#include "runtime/train_op.h"

namespace penstock::runtime {

// train_ops_matrix.cc
std::unique_ptr<TrainOp> MakeEmbed(const model::Op& op, const model::EmbedOp& params, int32_t index,
                                   const TrainOpContext& context);
std::unique_ptr<TrainOp> MakeLinear(const model::Op& op, const model::LinearOp& params,
                                    const TrainOpContext& context);
std::unique_ptr<TrainOp> MakeMoe(const model::Op& op, const model::MoeOp& params,
                                 const TrainOpContext& context);

// train_ops_attention.cc
std::unique_ptr<TrainOp> MakeRope(const model::Op& op, const model::RopeOp& params);
std::unique_ptr<TrainOp> MakeAttention(const model::Op& op, const model::AttentionOp& params,
                                       const TrainOpContext& context);

// train_ops_latent.cc; null where the schedule cuts sequences into slices
std::unique_ptr<TrainOp> MakeLatentAttention(const model::Op& op,
                                             const model::LatentAttentionOp& params,
                                             const TrainOpContext& context);

// train_ops_sequence.cc; the last two give null likewise
std::unique_ptr<TrainOp> MakeSitu(const model::Op& op, const model::GatedOp& params);
std::unique_ptr<TrainOp> MakeShortConv(const model::Op& op, const model::ShortConvOp& params,
                                       const TrainOpContext& context);
std::unique_ptr<TrainOp> MakeDeltaAttention(const model::Op& op,
                                            const model::DeltaAttentionOp& params,
                                            const TrainOpContext& context);

// train_ops_elementwise.cc
std::unique_ptr<TrainOp> MakeRmsNorm(const model::Op& op, const model::RmsNormOp& params);
std::unique_ptr<TrainOp> MakeSplit(const model::Op& op, const model::SplitOp& params);
std::unique_ptr<TrainOp> MakeGated(const model::Op& op, const model::GatedOp& params);
std::unique_ptr<TrainOp> MakeAct(const model::Op& op, const model::ActivationOp& params);
std::unique_ptr<TrainOp> MakeAdd(const model::Op& op, int32_t index, const TrainOpContext& context);
std::unique_ptr<TrainOp> MakeScale(const model::Op& op, const model::ScaleOp& params);
std::unique_ptr<TrainOp> MakeSoftCap(const model::Op& op, const model::SoftCapOp& params);
std::unique_ptr<TrainOp> MakeSelectRows(const model::Op& op);

// train_ops_depth.cc
std::unique_ptr<TrainOp> MakeConcat(const model::Op& op);
std::unique_ptr<TrainOp> MakeDepthRead(const model::Op& op, const model::DepthReadOp& params);
std::unique_ptr<TrainOp> MakeStreamWeights(const model::Op& op,
                                           const model::StreamWeightsOp& params);
std::unique_ptr<TrainOp> MakeStreamRead(const model::Op& op, const model::StreamReadOp& params);
std::unique_ptr<TrainOp> MakeStreamWrite(const model::Op& op, const model::StreamWriteOp& params);

}  // namespace penstock::runtime
