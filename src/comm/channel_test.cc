#include "comm/channel.h"

#include <gtest/gtest.h>

#include <thread>

#include "comm/channel_contract.h"

namespace penstock::comm {
namespace {

std::vector<Result<>> RunRanks(int size,
                               const std::function<Result<>(Channel&, MemoryAccount&)>& body,
                               bool spin = false) {
  auto channels = CreateInProcessChannels(size, spin);
  std::vector<Result<>> results(static_cast<size_t>(size));
  std::vector<MemoryAccount> accounts(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] = body(*channels[rank], accounts[rank]);
      if (!results[rank].ok()) {
        channels[rank]->Fail(results[rank].error());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  channels.clear();
  return results;
}

class InProcess : public ::testing::TestWithParam<std::tuple<int, int, bool>> {};

TEST_P(InProcess, KeepsTheContract) {
  const auto [size, credits, spin] = GetParam();
  ContractSetup setup;
  setup.credits = credits;
  const auto body = [&setup](Channel& c, MemoryAccount& a) { return ChannelContract(c, a, setup); };
  for (const Result<>& result : RunRanks(size, body, spin)) {
    EXPECT_TRUE(result.ok()) << result.error().message;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, InProcess,
                         ::testing::Combine(::testing::Values(1, 2, 3, 5),
                                            ::testing::Values(1, 2, 4), ::testing::Bool()));

TEST(Channel, NamesLaneTagAndPeerWhenTheDeadlinePasses) {
  const auto results = RunRanks(2, [](Channel& channel, MemoryAccount& account) -> Result<> {
    const Lane lane{LaneKind::kForward, 0, 1, 0};
    PENSTOCK_TRY(channel.Open(lane, {64, 1}, account));
    if (channel.rank() == 1) {
      PENSTOCK_TRY(channel.Receive(lane, {4, 2}, 0.05));
    }
    return {};
  });
  ASSERT_FALSE(results[1].ok());
  EXPECT_EQ(results[1].error().code, ErrorCode::kDeadlineExceeded);
  for (const char* part : {"boundary 0", "step 4", "micro-batch 2", "rank 0"}) {
    EXPECT_NE(results[1].error().message.find(part), std::string::npos)
        << results[1].error().message;
  }
}

TEST(Channel, SenderWaitsForCreditsAndSaysSo) {
  const auto results = RunRanks(2, [](Channel& channel, MemoryAccount& account) -> Result<> {
    const Lane lane{LaneKind::kForward, 0, 1, 0};
    PENSTOCK_TRY(channel.Open(lane, {64, 2}, account));
    if (channel.rank() == 0) {
      PENSTOCK_TRY(SendNumbers(channel, NumbersHeader(lane, 0, 0, 4), 0, 1));
      PENSTOCK_TRY(SendNumbers(channel, NumbersHeader(lane, 1, 0, 4), 0, 1));
      return SendNumbers(channel, NumbersHeader(lane, 2, 0, 4), 0, 0.05);
    }
    return {};
  });
  ASSERT_FALSE(results[0].ok());
  EXPECT_NE(results[0].error().message.find("to take"), std::string::npos);
}

TEST(Channel, AFailedRankEndsTheWaitsOfTheOthersWithItsError) {
  const auto results = RunRanks(3, [](Channel& channel, MemoryAccount& account) -> Result<> {
    const Lane lane{LaneKind::kForward, 0, channel.rank(), 0};
    if (channel.rank() == 0) {
      return MakeError(ErrorCode::kInternal, "stage 0 lost its disk");
    }
    PENSTOCK_TRY(channel.Open(lane, {64, 1}, account));
    PENSTOCK_TRY(channel.Receive(lane, {0, 0}, 20));
    return {};
  });
  for (int rank = 1; rank < 3; ++rank) {
    ASSERT_FALSE(results[rank].ok());
    EXPECT_EQ(results[rank].error().code, ErrorCode::kPeerLost);
    EXPECT_EQ(results[rank].error().message, "stage 0 lost its disk");
  }
}

TEST(Message, HeaderSurvivesTheRoundTripAndRefusesDamage) {
  const MessageHeader header{
      {LaneKind::kBackward, 1, 2, 3}, {1234567890123, 7}, DType::kBF16, 12, 34};
  auto bytes = EncodeHeader(header);
  const auto decoded = DecodeHeader(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->lane, header.lane);
  EXPECT_EQ(decoded->tag, header.tag);
  EXPECT_EQ(decoded->payload_bytes(), 12 * 34 * 2);
  EXPECT_FALSE(DecodeHeader(std::span(bytes).first(63)).ok());
  for (const size_t place : {0, 4, 6, 7, 60}) {
    auto damaged = bytes;
    damaged[place] = std::byte{0xEE};
    EXPECT_FALSE(DecodeHeader(damaged).ok()) << place;
  }
  for (const size_t place : {15, 31, 39, 47}) {
    auto damaged = bytes;
    damaged[place] = std::byte{0xFF};
    EXPECT_FALSE(DecodeHeader(damaged).ok()) << place;
  }
}

}  // namespace
}  // namespace penstock::comm
