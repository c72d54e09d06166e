// The contract that every Channel keeps, as a program: each rank runs ChannelContract on its end
// and gets the first broken promise. Used with threads by channel_test.cc and across processes by
// channel_mpi_check.cc.

#pragma once

#include <array>
#include <cstring>
#include <numeric>

#include "comm/channel.h"

namespace penstock::comm {

struct ContractSetup {
  int messages = 50;
  int32_t credits = 2;
  double deadline_s = 10;
};

inline MessageHeader NumbersHeader(const Lane& lane, int64_t step, int32_t micro_batch,
                                   int64_t count) {
  return {lane, {step, micro_batch}, DType::kI32, count, 1};
}

inline Result<> SendNumbers(Channel& channel, const MessageHeader& header, int32_t seed,
                            double deadline_s) {
  std::vector<int32_t> numbers(static_cast<size_t>(header.rows));
  std::iota(numbers.begin(), numbers.end(), seed);
  // In two parts, the first of them empty now and then.
  const auto bytes = std::as_bytes(std::span(numbers));
  const size_t cut = bytes.size() / 3 / 4 * 4;
  const std::array<std::span<const std::byte>, 2> parts = {bytes.first(cut), bytes.subspan(cut)};
  return channel.Send(header, parts, deadline_s);
}

inline Result<> ExpectNumbers(const Message& message, const MessageHeader& want, int32_t seed) {
  if (!(message.header().tag == want.tag) || message.header().rows != want.rows ||
      message.header().type != want.type) {
    return MakeError(ErrorCode::kInternal, "another message: step {}, micro-batch {}, {} rows",
                     message.header().tag.step, message.header().tag.micro_batch,
                     message.header().rows);
  }
  for (int64_t i = 0; i < want.rows; ++i) {
    int32_t number = 0;
    std::memcpy(&number, message.payload().data() + i * 4, 4);
    if (number != seed + static_cast<int32_t>(i)) {
      return MakeError(ErrorCode::kInternal, "step {}: number {} is {}, wanted {}", want.tag.step,
                       i, number, seed + i);
    }
  }
  return {};
}

// A ring of ranks: each sends to the next and receives from the one before; then tags are taken in
// another order than they were sent; then both neighbours send first (legal with credits); then a
// lane of a rank to itself.
inline Result<> ChannelContract(Channel& channel, MemoryAccount& account,
                                const ContractSetup& setup) {
  const int p = channel.size();
  const int rank = channel.rank();
  const Lane out{LaneKind::kForward, rank, (rank + 1) % p, rank};
  const Lane in{LaneKind::kForward, (rank + p - 1) % p, rank, (rank + p - 1) % p};
  const LaneOptions options{4 * 1000, setup.credits};
  PENSTOCK_TRY(channel.Open(out, options, account));
  if (p > 1) {
    PENSTOCK_TRY(channel.Open(in, options, account));
  }
  for (int i = 0; i < setup.messages; ++i) {
    const int64_t count = 1 + (i * 37) % 1000;
    PENSTOCK_TRY(
        SendNumbers(channel, NumbersHeader(out, i, 0, count), rank * 100000 + i, setup.deadline_s));
    PENSTOCK_TRY_ASSIGN(const Message message, channel.Receive(in, {i, 0}, setup.deadline_s));
    PENSTOCK_TRY(ExpectNumbers(message, NumbersHeader(in, i, 0, count), in.source * 100000 + i));
  }
  for (int round = 0; round < 5; ++round) {
    const int64_t step = 1000 + round;
    for (int32_t m = 0; m < setup.credits; ++m) {
      PENSTOCK_TRY(SendNumbers(channel, NumbersHeader(out, step, m, 10), m, setup.deadline_s));
    }
    for (int32_t m = setup.credits - 1; m >= 0; --m) {
      PENSTOCK_TRY_ASSIGN(const Message message, channel.Receive(in, {step, m}, setup.deadline_s));
      PENSTOCK_TRY(ExpectNumbers(message, NumbersHeader(in, step, m, 10), m));
    }
  }
  const Lane self{LaneKind::kResult, rank, rank, 0};
  PENSTOCK_TRY(channel.Open(self, options, account));
  PENSTOCK_TRY(SendNumbers(channel, NumbersHeader(self, 7, 1, 5), 3, setup.deadline_s));
  if (!channel.Ready(self)) {
    return MakeError(ErrorCode::kInternal, "a message to oneself is ready at once");
  }
  PENSTOCK_TRY_ASSIGN(const Message message, channel.ReceiveNext(self, setup.deadline_s));
  return ExpectNumbers(message, NumbersHeader(self, 7, 1, 5), 3);
}

}  // namespace penstock::comm
