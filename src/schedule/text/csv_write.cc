// PyTorch's CSV, out.

#include <set>

#include "schedule/passes.h"
#include "schedule/text/text.h"

namespace penstock::schedule {
namespace {

// What the form can't say, in words; empty when it can say all.
std::vector<std::string> CannotSay(const Schedule& s) {
  std::vector<std::string> found;
  for (const Edge& edge : s.edges) {
    std::string text =
        fmt::format("{} {} -> ", edge.kind == EdgeKind::kTied ? "tied weights" : "edge", edge.name);
    text = fmt::format("{} '{}' {} ->", edge.kind == EdgeKind::kTied ? "tied weights" : "edge",
                       edge.name, edge.from);
    for (const StageId to : edge.to)
      text += fmt::format(" {}", to);
    found.push_back(text);
  }
  if (s.slices > 1)
    found.push_back(fmt::format("{} sequence slices", s.slices));
  if (s.steps > 1)
    found.push_back(fmt::format("{} steps", s.steps));
  std::set<OpKind> kinds;
  for (const auto& program : s.ranks) {
    for (const Action& a : program) {
      const bool foreign = a.kind == OpKind::kRecompute || a.kind == OpKind::kRelease ||
                           a.kind == OpKind::kOptimizer || a.kind == OpKind::kBarrier;
      if (foreign && kinds.insert(a.kind).second) {
        found.push_back(fmt::format("{} actions ({})", OpKindText(a.kind), ActionText(a, s.edges)));
      }
      if (IsMessage(a.kind) && a.peer_stage >= 0 && s.edges.empty() &&
          kinds.insert(a.kind).second) {
        found.push_back(
            fmt::format("messages between stages that are not neighbours ({})", ActionText(a)));
      }
    }
  }
  return found;
}

void AppendAction(std::string& out, Action a, Dialect dialect) {
  if (a.kind == OpKind::kReduceGrad || a.kind == OpKind::kWaitReduceGrad)
    a.micro_batch = MicroBatchId();
  if (dialect == Dialect::kBw && a.kind == OpKind::kBackwardInput) {
    a.kind = OpKind::kBackward;
  } else if (dialect == Dialect::kBw && a.kind == OpKind::kBackward) {
    out += fmt::format("{}BW{}", a.stage, a.micro_batch);
    return;
  }
  AppendActionText(out, a);
}

void AppendRow(std::string& out, const std::vector<Action>& program, Dialect dialect) {
  size_t end = program.size();
  while (end > 0 && program[end - 1].kind == OpKind::kIdle)
    --end;
  if (end == 0)
    out += "\"\"";
  for (size_t i = 0; i < end;) {
    size_t next = i + 1;
    while (next < end && program[next].joined)
      ++next;
    if (i > 0)
      out += ',';
    if (next > i + 1)
      out += '(';
    for (size_t k = i; k < next; ++k) {
      if (k > i)
        out += ';';
      if (program[k].kind != OpKind::kIdle)
        AppendAction(out, program[k], dialect);
    }
    if (next > i + 1)
      out += ")OVERLAP_F_B";
    i = next;
  }
  out += '\n';
}

}  // namespace

Result<std::string> WriteCsv(const Schedule& schedule, Dialect dialect) {
  if (dialect == Dialect::kNative) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[schedule.csv] the native dialect is no CSV, wanted bw, plain or wait");
  }
  if (const auto found = CannotSay(schedule); !found.empty()) {
    return MakeError(ErrorCode::kUnsupported,
                     "[schedule.csv] {}: PyTorch's CSV can't say {}\nwrite the native form",
                     schedule.name, fmt::join(found, "; "));
  }
  Schedule changed;
  if (dialect == Dialect::kWait && schedule.lowered) {
    PENSTOCK_TRY_ASSIGN(changed, AddWaits(schedule));
  } else if (dialect == Dialect::kWait) {
    changed = schedule;
  } else {
    PENSTOCK_TRY_ASSIGN(changed, RemoveWaits(schedule));
  }
  std::string out;
  for (const auto& program : changed.ranks)
    AppendRow(out, program, dialect);
  return out;
}

}  // namespace penstock::schedule
