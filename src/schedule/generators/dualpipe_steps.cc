#include "schedule/generators/dualpipe_steps.h"

#include <deque>

namespace penstock::schedule {
namespace {

class Writer {
 public:
  Writer(std::vector<Action>& program, const DualStreams& streams)
      : program_(program), streams_(streams) {}

  void F(int stream) { Cell({{OpKind::kForward, stream}}); }

  void B(int stream) { Cell({{OpKind::kBackward, stream}}); }

  void I(int stream) {
    held_.push_back({stream, backward_[stream]});
    Cell({{OpKind::kBackwardInput, stream}});
  }

  // The oldest W that is outstanding.
  void W() {
    const auto [stream, micro_batch] = held_.front();
    held_.pop_front();
    Put(OpKind::kBackwardWeight, stream, micro_batch, false);
  }

  // F of one stream and B of the other, overlapped.
  void Pair(int forward, int backward) {
    Cell({{OpKind::kForward, forward}, {OpKind::kBackward, backward}});
  }

 private:
  struct Part {
    OpKind kind;
    int stream;
  };

  void Cell(std::initializer_list<Part> parts) {
    bool joined = false;
    for (const Part& part : parts) {
      int& next = part.kind == OpKind::kForward ? forward_[part.stream] : backward_[part.stream];
      joined = Put(part.kind, part.stream, next++, joined) || joined;
    }
  }

  // False where the stream has no such micro-batch.
  bool Put(OpKind kind, int stream, int micro_batch, bool joined) {
    if (micro_batch >= streams_.count[stream])
      return false;
    Action action = MakeAction(kind, StageId(streams_.stage[stream]),
                               MicroBatchId(streams_.first_micro_batch[stream] + micro_batch));
    action.joined = joined;
    program_.push_back(action);
    return true;
  }

  std::vector<Action>& program_;
  const DualStreams& streams_;
  int forward_[2] = {0, 0};
  int backward_[2] = {0, 0};
  std::deque<std::pair<int, int>> held_;
};

}  // namespace

void WriteDualPipe(Schedule& schedule, int rank, int depth, int position, int per_stream,
                   const DualStreams& streams) {
  Writer out(schedule.ranks[static_cast<size_t>(rank)], streams);
  const int to_turn = depth - position - 1;
  for (int i = 0; i < 2 * to_turn; ++i)
    out.F(0);
  for (int i = 0; i <= position; ++i) {
    out.F(0);
    out.F(1);
  }
  for (int i = 0; i < to_turn; ++i) {
    out.I(1);
    out.W();
    out.F(1);
  }
  const int main_steps = per_stream - 2 * depth + position + 1;
  for (int i = 0; i < main_steps; ++i) {
    if (i == 0 && to_turn == 0) {  // at the turn the first pair waits for itself: not overlapped
      out.F(0);
      out.B(1);
    } else {
      out.Pair(0, 1);
    }
    out.Pair(1, 0);
  }
  for (int i = 0; i < to_turn; ++i) {
    out.B(1);
    out.Pair(1, 0);
  }
  // The second half of this step splits its backwards; which stream is the first of them depends on
  // the position's parity.
  const int half = (position + 1) / 2;
  for (int i = 0; i <= position; ++i) {
    const bool split_1 = i > half || (i == half && position % 2 == 1);
    const bool split_0 = i >= half;
    split_1 ? out.I(1) : out.B(1);
    split_0 ? out.I(0) : out.B(0);
  }
  for (int i = 0; i < to_turn; ++i) {
    out.W();
    out.I(0);
  }
  for (int i = 0; i <= position; ++i)
    out.W();
}

}  // namespace penstock::schedule
