// Schedule files: read either form, write what was read and read it back, prove it under every
// transport, simulate it where it is legal, lower it.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "cost/cost_model.h"
#include "schedule/passes.h"
#include "schedule/text/text.h"
#include "schedule/validate.h"
#include "sim/simulate.h"

namespace penstock::schedule {
namespace {

void CheckWriting(const ScheduleText& read) {
  const std::string native = WriteNative(read.schedule);
  const auto again = ParseSchedule(native, "again");
  PENSTOCK_CHECK(again.ok(), "what was written can be read");
  PENSTOCK_CHECK(again->schedule == read.schedule, "and is the same");
  for (const Dialect dialect : {Dialect::kBw, Dialect::kPlain, Dialect::kWait}) {
    const auto csv = WriteCsv(read.schedule, dialect);
    if (!csv.ok()) {
      continue;
    }
    const auto back = ParseSchedule(csv.value(), "again.csv");
    if (!back.ok()) {
      continue;  // a schedule without any computation is no CSV
    }
    const auto twice = WriteCsv(back->schedule, back->dialect);
    PENSTOCK_CHECK(twice.ok(), "what a CSV says can be written as CSV");
  }
}

void CheckProof(const Schedule& schedule) {
  bool legal = false;
  for (const TransportKind kind : {TransportKind::kPosted, TransportKind::kBuffered,
                                   TransportKind::kCredits, TransportKind::kRendezvous}) {
    const Report report = Validate(schedule, {.transport = {kind, 1}, .activation_limit = {1e9}});
    PENSTOCK_CHECK(report.ok() == report.problems.empty(), "a refusal has a reason");
    PENSTOCK_CHECK(report.ok() == FormatProblems(schedule, report).empty(), "and a text");
    if (report.ok()) {
      const auto result = sim::Simulate(
          schedule, cost::MakeUniformCost({}, schedule.num_stages(), schedule.chunks()),
          {.transport = {kind, 1}, .period = false});
      PENSTOCK_CHECK(result.ok(), "what is proven can be simulated");
    }
    legal = kind == TransportKind::kCredits ? report.ok() : legal;
  }
  if (!legal || schedule.lowered) {
    return;
  }
  const auto lowered = AddCommunication(schedule);
  if (!lowered.ok()) {
    return;  // has messages without the flag, or FREE
  }
  PENSTOCK_CHECK(Validate(lowered.value()).ok(), "lowering a legal schedule gives a legal one");
}

void Run(std::string_view text) {
  TextPlace place;
  const auto read = ParseSchedule(text, "fuzz", &place);
  if (!read.ok()) {
    return;
  }
  CheckWriting(read.value());
  CheckProof(read->schedule);
}

}  // namespace
}  // namespace penstock::schedule

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::schedule::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
