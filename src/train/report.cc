#include "train/report.h"

#include "base/json.h"
#include "runtime/bytes.h"

namespace penstock::train {
namespace {

using runtime::ByteReader;
using runtime::ByteWriter;

constexpr uint64_t kMost = 1 << 24;

void Put(ByteWriter& writer, const trace::RankTimeline& timeline) {
  writer.PutText(timeline.name);
  writer.PutAll(std::span<const trace::Slice>(timeline.slices));
  writer.PutAll(std::span<const trace::Wait>(timeline.waits));
  writer.PutAll(std::span<const trace::Message>(timeline.received));
  writer.Put(timeline.totals);
  writer.Put(timeline.dropped);
  writer.Put(static_cast<uint32_t>(timeline.counters.size()));
  for (const trace::Counter& counter : timeline.counters) {
    writer.PutText(counter.name);
    writer.PutText(counter.unit);
    writer.PutAll(std::span<const trace::Counter::Sample>(counter.samples));
  }
}

void Get(ByteReader& reader, trace::RankTimeline& timeline) {
  reader.GetText(timeline.name, 256);
  reader.GetAll(timeline.slices, kMost);
  reader.GetAll(timeline.waits, kMost);
  reader.GetAll(timeline.received, kMost);
  reader.Get(timeline.totals);
  reader.Get(timeline.dropped);
  uint32_t counters = 0;
  reader.Get(counters);
  for (uint32_t i = 0; i < counters && !reader.bad(); ++i) {
    trace::Counter& counter = timeline.counters.emplace_back();
    reader.GetText(counter.name, 256);
    reader.GetText(counter.unit, 256);
    reader.GetAll(counter.samples, kMost);
  }
}

Error Contradicts(size_t bytes) {
  return MakeError(ErrorCode::kInternal,
                   "[train.report] a report of {} bytes that contradicts itself", bytes);
}

}  // namespace

Json LineJson(const StepLine& line) {
  Json json = {{"step", line.step},
               {"loss", line.loss},
               {"grad_norm", line.grad_norm},
               {"tokens_per_s", line.tokens_per_s},
               {"step_s", line.step_s},
               {"bubble_ratio", line.bubble_ratio},
               {"planned_step_s", line.planned_step_s ? Json(*line.planned_step_s) : Json(nullptr)},
               {"lr", line.lr},
               {"clipped", line.clipped}};
  if (line.eval_loss.has_value()) {
    json["eval_loss"] = *line.eval_loss;
    if (line.eval_terms.size() > 1) {
      for (const auto& [name, loss] : line.eval_terms) {
        json["eval_losses"][name] = loss;
      }
    }
  }
  if (!line.weights_sha256.empty()) {
    json["weights_sha256"] = line.weights_sha256;
  }
  return json;
}

void RankFigures::Add(const trace::RankAccount& account) {
  busy_s += account.busy_s;
  idle_s += account.idle_s;
  bubble.fill_s += account.bubble.fill_s;
  bubble.drain_s += account.bubble.drain_s;
  bubble.imbalance_s += account.bubble.imbalance_s;
  bubble.communication_s += account.bubble.communication_s;
  bubble.barrier_s += account.bubble.barrier_s;
  bubble.other_s += account.bubble.other_s;
}

void Append(trace::RankTimeline& to, trace::RankTimeline later) {
  if (to.slices.empty()) {
    to = std::move(later);
    return;
  }
  const auto append = [](auto& all, const auto& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  append(to.slices, later.slices);
  append(to.waits, later.waits);
  append(to.received, later.received);
  for (size_t c = 0; c < to.counters.size() && c < later.counters.size(); ++c) {
    append(to.counters[c].samples, later.counters[c].samples);
  }
}

std::vector<std::byte> EncodeStep(const MeasuredStep& step) {
  ByteWriter writer;
  writer.Put(step.begin_s);
  writer.Put(step.end_s);
  Put(writer, step.timeline);
  return std::move(writer).Take();
}

Result<MeasuredStep> DecodeStep(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  MeasuredStep step;
  reader.Get(step.begin_s);
  reader.Get(step.end_s);
  Get(reader, step.timeline);
  if (!reader.done()) {
    return Contradicts(bytes.size());
  }
  return step;
}

std::vector<std::byte> EncodeFigures(const RankFigures& figures) {
  ByteWriter writer;
  writer.Put(figures.peak);
  writer.Put(figures.busy_s);
  writer.Put(figures.idle_s);
  writer.Put(figures.bubble);
  writer.Put(figures.counters);
  writer.Put(figures.threads);
  writer.PutText(figures.device);
  Put(writer, figures.timeline);
  return std::move(writer).Take();
}

Result<RankFigures> DecodeFigures(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  RankFigures figures;
  reader.Get(figures.peak);
  reader.Get(figures.busy_s);
  reader.Get(figures.idle_s);
  reader.Get(figures.bubble);
  reader.Get(figures.counters);
  reader.Get(figures.threads);
  reader.GetText(figures.device, 256);
  Get(reader, figures.timeline);
  if (!reader.done()) {
    return Contradicts(bytes.size());
  }
  return figures;
}

}  // namespace penstock::train
