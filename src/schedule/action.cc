#include "schedule/action.h"

#include <array>
#include <charconv>
#include <optional>

#include "schedule/schedule.h"

namespace penstock::schedule {
namespace {

constexpr std::array<std::string_view, kOpKindCount> kNames = {".",
                                                               "F",
                                                               "B",
                                                               "I",
                                                               "W",
                                                               "SEND_F",
                                                               "RECV_F",
                                                               "SEND_B",
                                                               "RECV_B",
                                                               "WAIT_SEND_F",
                                                               "WAIT_SEND_B",
                                                               "R",
                                                               "FREE",
                                                               "UNSHARD",
                                                               "RESHARD",
                                                               "REDUCE_GRAD",
                                                               "WAIT_REDUCE_GRAD",
                                                               "OPT",
                                                               "BARRIER"};

// What follows the operation in the text form.
enum class MicroBatchRule { kNone, kOptional, kRequired };

MicroBatchRule RuleOf(OpKind kind) {
  switch (kind) {
    case OpKind::kIdle:
    case OpKind::kUnshard:
    case OpKind::kReshard:
      return MicroBatchRule::kNone;
    case OpKind::kReduceGrad:
    case OpKind::kWaitReduceGrad:
    case OpKind::kOptimizer:
    case OpKind::kBarrier:
      return MicroBatchRule::kOptional;
    default:
      return MicroBatchRule::kRequired;
  }
}

// Takes a decimal number without sign from the front of `text`; nothing when there is none or it
// does not fit.
std::optional<int32_t> TakeNumber(std::string_view& text, int32_t limit) {
  int32_t value = 0;
  if (text.empty() || text[0] < '0' || text[0] > '9')
    return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value > limit)
    return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

std::optional<OpKind> TakeKind(std::string_view& text) {
  size_t length = 0;
  while (length < text.size() &&
         ((text[length] >= 'A' && text[length] <= 'Z') || text[length] == '_'))
    ++length;
  for (int i = 1; i < kOpKindCount; ++i) {
    if (kNames[static_cast<size_t>(i)] == text.substr(0, length)) {
      text.remove_prefix(length);
      return static_cast<OpKind>(i);
    }
  }
  return std::nullopt;
}

Error Wrong(std::string_view cell, std::string_view wanted) {
  constexpr size_t kShown = 40;
  return MakeError(ErrorCode::kInvalidArgument, "[schedule.action] got '{}{}', wanted {}",
                   cell.substr(0, kShown), cell.size() > kShown ? "..." : "", wanted);
}

std::optional<uint16_t> FindValue(std::string_view name, std::span<const Edge> edges) {
  for (size_t i = 0; i < edges.size() && i < 65535; ++i) {
    if (edges[i].name == name)
      return static_cast<uint16_t>(i + 1);
  }
  return std::nullopt;
}

}  // namespace

std::string_view OpKindText(OpKind kind) {
  return kNames[static_cast<size_t>(kind)];
}

StageId PeerStage(const Action& action) {
  PENSTOCK_DCHECK(IsMessage(action.kind), "only messages have a peer");
  if (action.peer_stage >= 0)
    return StageId(action.peer_stage);
  const bool later = action.kind == OpKind::kSendForward || action.kind == OpKind::kRecvBackward;
  return StageId(action.stage.value() + (later ? 1 : -1));
}

void AppendActionText(std::string& out, const Action& action, std::span<const Edge> edges) {
  auto append_number = [&out](int32_t value) {
    char digits[12];
    out.append(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
  };
  if (action.stage.valid())
    append_number(action.stage.value());
  out += OpKindText(action.kind);
  if (action.micro_batch.valid())
    append_number(action.micro_batch.value());
  if (action.slice != 0) {
    out += '.';
    append_number(action.slice);
  }
  if (action.value != 0) {
    out += ':';
    if (action.value <= edges.size()) {
      out += edges[action.value - 1U].name;
    } else {
      out += '#';
      append_number(action.value);
    }
  }
  if (action.peer_stage >= 0) {
    out += '>';
    append_number(action.peer_stage);
  }
}

std::string ActionText(const Action& action, std::span<const Edge> edges) {
  std::string out;
  AppendActionText(out, action, edges);
  return out;
}

Result<Action> ParseAction(std::string_view cell, std::span<const Edge> edges) {
  std::string_view text = cell;
  Action action;
  if (text == ".")
    return action;
  if (!text.empty() && IsDigit(text[0])) {
    const auto stage = TakeNumber(text, kMaxStages - 1);
    if (!stage)
      return Wrong(cell, fmt::format("a stage below {}", kMaxStages));
    action.stage = StageId(*stage);
  }
  const auto kind = TakeKind(text);
  if (!kind)
    return Wrong(
        cell, "<stage><op><micro-batch> with op one of F B I W R SEND_F RECV_F SEND_B RECV_B ...");
  action.kind = *kind;
  if (action.stage.valid() == (*kind == OpKind::kBarrier)) {
    return Wrong(cell, *kind == OpKind::kBarrier ? "BARRIER without a stage"
                                                 : "a stage before the operation");
  }
  const MicroBatchRule rule = RuleOf(*kind);
  if (!text.empty() && IsDigit(text[0]) && rule != MicroBatchRule::kNone) {
    const auto micro_batch = TakeNumber(text, 0x7ffffffe);
    if (!micro_batch)
      return Wrong(cell, "a micro-batch below 2147483647");
    action.micro_batch = MicroBatchId(*micro_batch);
  } else if (rule == MicroBatchRule::kRequired) {
    return Wrong(cell, fmt::format("a micro-batch after {}", OpKindText(*kind)));
  }
  if (!text.empty() && text[0] == '.' && rule == MicroBatchRule::kRequired) {
    text.remove_prefix(1);
    const auto slice = TakeNumber(text, 65535);
    if (!slice)
      return Wrong(cell, "a slice below 65536 after '.'");
    action.slice = static_cast<uint16_t>(*slice);
  }
  const bool can_name = IsMessage(*kind) || *kind == OpKind::kRelease ||
                        *kind == OpKind::kReduceGrad || *kind == OpKind::kWaitReduceGrad ||
                        *kind == OpKind::kWaitSendForward;
  if (!text.empty() && text[0] == ':' && can_name) {
    const std::string_view name = text.substr(1, text.find('>') - 1);
    const auto value = FindValue(name, edges);
    if (!value)
      return Wrong(cell, "the name of one of the schedule's edges after ':'");
    action.value = *value;
    text.remove_prefix(1 + name.size());
  }
  if (!text.empty() && text[0] == '>' && (IsMessage(*kind) || *kind == OpKind::kWaitSendForward)) {
    text.remove_prefix(1);
    const auto peer = TakeNumber(text, kMaxStages - 1);
    if (!peer)
      return Wrong(cell, fmt::format("a stage below {} after '>'", kMaxStages));
    action.peer_stage = static_cast<int16_t>(*peer);
  }
  if (!text.empty())
    return Wrong(cell,
                 fmt::format("nothing after '{}'", cell.substr(0, cell.size() - text.size())));
  return action;
}

}  // namespace penstock::schedule
