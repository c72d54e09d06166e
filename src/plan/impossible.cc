#include <fmt/format.h>

#include "base/units.h"
#include "plan/context.h"

namespace penstock::plan {

std::string Impossible(const Context& context, const Layout& layout) {
  const cost::ModelProfile& model = *context.model;
  if (model.attention_heads > 0 && layout.tp > model.attention_heads) {
    return fmt::format("tp {} exceeds the {} attention heads", layout.tp, model.attention_heads);
  }
  if (model.attention_heads > 0 && model.attention_heads % layout.tp != 0) {
    return fmt::format("{} attention heads do not divide by tp {}", model.attention_heads,
                       layout.tp);
  }
  if (layout.ep > 1) {
    if (!model.has_experts) {
      return fmt::format("ep {}: the model has no routed experts", layout.ep);
    }
    double experts = 0;
    for (const cost::LayerProfile& layer : model.classes) {
      experts = std::max(experts, layer.experts.experts);
    }
    if (static_cast<double>(layout.ep) > experts) {
      return fmt::format("ep {} exceeds the {:.0f} experts", layout.ep, experts);
    }
    if (layout.dp * layout.tp * layout.cp % layout.ep != 0) {
      return fmt::format("ep {} does not divide dp x cp x tp = {}", layout.ep,
                         layout.dp * layout.tp * layout.cp);
    }
  }
  if (layout.stages() > model.num_layers()) {
    return fmt::format("{}, more than the model's {} units (layers, embedding, head)",
                       Counted(layout.stages(), "stage"), model.num_layers());
  }
  if (layout.chunks > 1 && layout.pp == 1) {
    return "chunks without pipeline stages change nothing";
  }
  if (context.workload->mode == Mode::kTraining) {
    const TrainingWorkload& w = context.workload->training;
    if (w.global_batch % (layout.dp * layout.micro_batch) != 0) {
      return fmt::format("a global batch of {} does not divide by dp x micro_batch = {}",
                         w.global_batch, layout.dp * layout.micro_batch);
    }
    if (w.sequence_tokens % layout.cp != 0) {
      return fmt::format("sequences of {} tokens do not divide by cp {}", w.sequence_tokens,
                         layout.cp);
    }
  } else if (layout.cp > 1) {
    return "cp is for training: serving splits prompts by chunks";
  }
  return "";
}

}  // namespace penstock::plan
