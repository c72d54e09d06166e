#include "plan/emit.h"

#include "base/units.h"
#include "plan/hops.h"

namespace penstock::plan {
namespace {

// Others hand one vector from stage to stage.
Result<> RefuseLongValues(const cost::ModelProfile& model, const Layout& layout,
                          std::string_view target) {
  constexpr size_t kListed = 64;
  std::string list;
  size_t count = 0;
  for (const schedule::Edge& edge : EdgesOf(model, layout, 1)) {
    if (++count <= kListed) {
      list += fmt::format("{}'{}' {} ->", count > 1 ? ", " : "", edge.name, edge.from);
      for (const StageId to : edge.to) {
        list += fmt::format(" {}", to);
      }
    }
  }
  if (count > 0) {
    return MakeError(ErrorCode::kUnsupported,
                     "[plan.emit] {}: hands one vector from stage to stage, but this cut has {} "
                     "values that later stages read: {}{}; wanted --emit penstock, or --fix pp=1",
                     target, count, list, count > kListed ? ", ..." : "");
  }
  int32_t first = 0;
  for (size_t s = 0; s + 1 < layout.cut.size(); ++s) {
    first += layout.cut[s];
    const double width =
        first > 0 ? model.boundary_width[static_cast<size_t>(first) - 1] : model.hidden;
    if (width != model.hidden) {
      return MakeError(ErrorCode::kUnsupported,
                       "[plan.emit] {}: hands {} numbers per token from stage to stage, but {} "
                       "cross in front of stage {}; wanted --emit penstock, or --fix pp=1",
                       target, model.hidden, width, s + 1);
    }
  }
  return {};
}

Result<std::string> EmitMegatron(const Context& context, const Layout& l) {
  if (context.workload->mode != Mode::kTraining) {
    return MakeError(ErrorCode::kUnsupported,
                     "[plan.emit] megatron: the plan serves, wanted one for training");
  }
  if (l.schedule != "1f1b" && l.schedule != "interleaved-1f1b") {
    return MakeError(ErrorCode::kUnsupported,
                     "[plan.emit] megatron: schedule {}, wanted 1f1b or interleaved-1f1b (--fix "
                     "schedule=...)",
                     l.schedule);
  }
  const TrainingWorkload& w = context.workload->training;
  std::string out = fmt::format(
      "--tensor-model-parallel-size {} --pipeline-model-parallel-size {} --context-parallel-size "
      "{} "
      "--micro-batch-size {} --global-batch-size {} --seq-length {}",
      l.tp, l.pp, l.cp, l.micro_batch, w.global_batch, w.sequence_tokens);
  if (l.ep > 1) {
    out += fmt::format(" --expert-model-parallel-size {} --expert-tensor-parallel-size 1", l.ep);
  }
  if (l.pp > 1) {
    out += fmt::format(" --pipeline-model-parallel-layout '{}'", MegatronLayout(l));
  }
  if (l.sequence_parallel) {
    out += " --sequence-parallel";
  }
  if (l.zero == 1) {
    out += " --use-distributed-optimizer";
  } else if (l.zero > 1) {
    out += fmt::format(" --use-megatron-fsdp --data-parallel-sharding-strategy {}",
                       l.zero == 2 ? "optim_grads" : "optim_grads_params");
  }
  if (l.recompute == Recompute::kFull) {
    out += " --recompute-granularity full --recompute-method uniform --recompute-num-layers 1";
  } else if (l.recompute == Recompute::kSelective) {
    out += " --use-flash-attn";
  }
  out += l.precision == hw::Precision::kFp16 ? " --fp16" : " --bf16";
  if (l.precision == hw::Precision::kFp8) {
    out += " --fp8-format hybrid";
  }
  return out + "\n";
}

Result<std::string> EmitVllm(const Context& context, const Layout& l) {
  if (context.workload->mode != Mode::kInference) {
    return MakeError(ErrorCode::kUnsupported,
                     "[plan.emit] vllm: the plan trains, wanted one for inference");
  }
  std::string out;
  if (l.pp > 1) {
    out += fmt::format("VLLM_PP_LAYER_PARTITION={} ", fmt::join(DecoderLayers(l.cut), ","));
  }
  out += fmt::format(
      "vllm serve MODEL --tensor-parallel-size {} --pipeline-parallel-size {} --max-num-seqs {} "
      "--max-num-batched-tokens {}",
      l.tp, l.pp, l.micro_batch * l.micro_batches, std::max<int64_t>(l.prefill_chunk_tokens, 512));
  if (l.dp > 1) {
    out += fmt::format(" --data-parallel-size {}", l.dp);
  }
  if (l.ep > 1) {
    out += " --enable-expert-parallel";
  }
  if (l.kv_precision == hw::Precision::kFp8) {
    out += " --kv-cache-dtype fp8";
  }
  return out + "\n";
}

Result<std::string> EmitPenstock(const Context& context, const Layout& l) {
  if (l.tp > 1 || l.ep > 1 || l.cp > 1) {
    return MakeError(ErrorCode::kUnsupported,
                     "[plan.emit] penstock: the plan divides layers ({}), wanted tp, ep and cp 1 "
                     "(--fix tp=1,ep=1,cp=1)",
                     LayoutText(l));
  }
  std::vector<int32_t> starts;
  int32_t at = 0;
  for (size_t s = 0; s + 1 < l.cut.size(); ++s) {
    at += l.cut[s];
    starts.push_back(at);
  }
  if (context.workload->mode == Mode::kInference) {
    const std::string cut = starts.empty() ? "" : fmt::format(" --cut {}", fmt::join(starts, ","));
    return fmt::format("penstock run -m MODEL --stages {}{} --groups {} --prefill-chunk {}\n", l.pp,
                       cut, l.micro_batches, std::max<int64_t>(l.prefill_chunk_tokens, 1));
  }
  return fmt::format(
      "[pipeline]\nstages = {}\ncut = [{}]\nschedule = \"{}\"\nchunks = {}\nmicro_batches = {}\n"
      "micro_batch = {}\nreplicas = {}\n\n[data]\nsequence_tokens = {}\n\n[train]\nrecompute = "
      "\"{}\"\n",
      l.pp, fmt::join(starts, ", "), l.schedule, l.chunks, l.micro_batches, l.micro_batch, l.dp,
      context.workload->training.sequence_tokens, RecomputeName(l.recompute));
}

}  // namespace

std::string MegatronLayout(const Layout& layout) {
  const std::vector<int64_t> layers = DecoderLayers(layout.cut);
  std::string out = "E";
  for (size_t s = 0; s < layers.size(); ++s) {
    if (s > 0) {
      out += "|";
    }
    if (layers[s] == 1) {
      out += "t";
    } else if (layers[s] > 1) {
      out += fmt::format("t*{}", layers[s]);
    }
  }
  return out + "L";
}

Result<std::string> Emit(const Context& context, const Plan& plan, const std::string& target) {
  if ((target == "megatron" || target == "vllm") && plan.layout.pp > 1) {
    PENSTOCK_TRY(RefuseLongValues(*context.model, plan.layout, target));
  }
  if (target == "megatron") {
    return EmitMegatron(context, plan.layout);
  }
  if (target == "vllm") {
    return EmitVllm(context, plan.layout);
  }
  if (target == "penstock") {
    return EmitPenstock(context, plan.layout);
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   "[plan.emit] got '{}', wanted megatron, vllm or penstock", target);
}

}  // namespace penstock::plan
