// One entry of a schedule: what a rank does next.
//
// Text form: [stage] op [micro-batch ["." slice]] [":" value] [">" peer stage], for instance `2F0`,
// `1SEND_B3`, `2F0.1`, `0SEND_F3:block0>4`. The same string is the cell of a schedule file, the
// name of a trace slice and the key of a comparison row. docs/formats.md has the grammar.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/result.h"

namespace penstock::schedule {

struct Edge;

enum class OpKind : uint8_t {
  kIdle,             // "."  an empty cell of a grid; nothing is done
  kForward,          // F
  kBackward,         // B    full backward: I then W
  kBackwardInput,    // I    gradient of the input
  kBackwardWeight,   // W    gradient of the weights
  kSendForward,      // SEND_F  a value to a later stage; the neighbour unless `peer` says otherwise
  kRecvForward,      // RECV_F
  kSendBackward,     // SEND_B  input gradients to the stage before, with those of every long value
                     // that crosses there
  kRecvBackward,     // RECV_B
  kWaitSendForward,  // WAIT_SEND_F  the send's buffer is free after it
  kWaitSendBackward,  // WAIT_SEND_B
  kRecompute,         // R    F again, from the kept input, before B or I
  kRelease,           // FREE a long value is not needed on this rank any more
  kUnshard,           // UNSHARD  gather the weights of a stage
  kReshard,           // RESHARD  drop the gathered weights
  kReduceGrad,  // REDUCE_GRAD  over replicas, over the copies of a stage, or over the owners of a
                // tied weight (`value`)
  kWaitReduceGrad,  // WAIT_REDUCE_GRAD
  kOptimizer,       // OPT  optimizer step of a stage; the micro-batch is the step's number
  kBarrier,         // BARRIER  all ranks; no stage; the micro-batch is the step's number
};
inline constexpr int kOpKindCount = 19;

// "F", "SEND_F", ...
std::string_view OpKindText(OpKind kind);

// 16 bytes, trivially copyable: schedules hold millions.
struct Action {
  StageId stage;  // -1 for kIdle and kBarrier
  MicroBatchId
      micro_batch;  // -1 where the kind has none; counts on over the steps of an unrolled schedule
  int16_t peer_stage = -1;  // other end of a SEND or RECV that is not the neighbour, else -1
  uint16_t value = 0;       // 0: the chain's value; i: schedule.edges[i - 1]
  uint16_t slice = 0;       // sequence slice inside the micro-batch
  OpKind kind = OpKind::kIdle;
  bool joined = false;  // in the same cell as the action before it (an overlapped pair)

  friend constexpr bool operator==(const Action&, const Action&) = default;
};

static_assert(sizeof(Action) == 16);

inline Action MakeAction(OpKind kind, StageId stage, MicroBatchId micro_batch, int slice = 0) {
  Action action;
  action.stage = stage;
  action.micro_batch = micro_batch;
  action.slice = static_cast<uint16_t>(slice);
  action.kind = kind;
  return action;
}

// F, B, I, W and R: the actions that take time on a rank.
constexpr bool IsCompute(OpKind kind) {
  return (kind >= OpKind::kForward && kind <= OpKind::kBackwardWeight) ||
         kind == OpKind::kRecompute;
}

constexpr bool IsSend(OpKind kind) {
  return kind == OpKind::kSendForward || kind == OpKind::kSendBackward;
}

constexpr bool IsRecv(OpKind kind) {
  return kind == OpKind::kRecvForward || kind == OpKind::kRecvBackward;
}

constexpr bool IsMessage(OpKind kind) {
  return IsSend(kind) || IsRecv(kind);
}

// B, I or W.
constexpr bool IsBackward(OpKind kind) {
  return kind >= OpKind::kBackward && kind <= OpKind::kBackwardWeight;
}

// The stage at the other end of a SEND or RECV: peer_stage, or the neighbour that the kind implies.
// REQUIRES: IsMessage(action.kind).
StageId PeerStage(const Action& action);

// The text form. `edges` gives long values their names; without it they print as `#1`.
std::string ActionText(const Action& action, std::span<const Edge> edges = {});
void AppendActionText(std::string& out, const Action& action, std::span<const Edge> edges = {});

// Reads one whole text form, nothing may follow it. Errors: kInvalidArgument saying what was
// expected where. `joined` is false in the result. Cells with an overlapped pair are taken apart by
// the file readers.
Result<Action> ParseAction(std::string_view text, std::span<const Edge> edges = {});

}  // namespace penstock::schedule
