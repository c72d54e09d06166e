#include "train/links.h"

#include <algorithm>
#include <cstring>

namespace penstock::train {
namespace {

using comm::Lane;
using comm::LaneKind;
using comm::LaneOptions;

constexpr int32_t kPostCredits = 2;
constexpr int32_t kReportCredits = 3;
constexpr int32_t kNoteCredits = 4;
constexpr int64_t kNoteBytes = 16 << 10;
constexpr int64_t kPieceBytes = 256 << 10;
constexpr int32_t kPieceCredits = 2;

// Edges of control lanes, apart from those of others.
enum : int32_t { kSumsEdge = 1001, kReportEdge, kNoteEdge, kPiecesEdge };

Lane LaneOf(int32_t edge, int32_t source, int32_t target) {
  return {LaneKind::kControl, source, target, edge};
}

std::vector<double> Numbers(const comm::Message& message) {
  std::vector<double> numbers(message.payload().size() / sizeof(double));
  std::memcpy(numbers.data(), message.payload().data(), numbers.size() * sizeof(double));
  return numbers;
}

}  // namespace

Links::Links(comm::Channel& channel, int32_t ranks_per_replica, int64_t sums, int64_t report,
             double deadline_s)
    : channel_(channel),
      ranks_(ranks_per_replica),
      sums_(sums),
      report_(report),
      deadline_s_(deadline_s) {}

std::vector<Links::Use> Links::LanesOf(int32_t rank, int32_t size, int32_t ranks, int64_t sums,
                                       int64_t report) {
  std::vector<Use> uses;
  const auto both = [&](int32_t edge, int32_t other, LaneOptions options) {
    uses.push_back({LaneOf(edge, rank, other), options});
    uses.push_back({LaneOf(edge, other, rank), options});
  };
  for (int32_t other = 0; other < size; ++other) {
    if (other == rank) {
      continue;
    }
    both(kSumsEdge, other, {std::max<int64_t>(1, sums) * 8, kPostCredits});
    if (rank == 0 || other == 0) {
      const int32_t from = rank == 0 ? other : rank;
      uses.push_back(
          {LaneOf(kReportEdge, from, 0), {std::max<int64_t>(1, report) * 8, kReportCredits}});
      uses.push_back({LaneOf(kNoteEdge, from, 0), {kNoteBytes, kNoteCredits}});
    }
    if (rank == 0 || other == 0 || rank % ranks == other % ranks) {
      both(kPiecesEdge, other, {kPieceBytes, kPieceCredits});
    }
  }
  return uses;
}

int64_t Links::PlannedBytes(int32_t rank, int32_t size, int32_t ranks_per_replica, int64_t sums,
                            int64_t report, bool across_processes) {
  int64_t bytes = 0;
  for (const Use& use : LanesOf(rank, size, ranks_per_replica, sums, report)) {
    bytes += comm::LaneBufferBytes(use.options, use.lane.target == rank, across_processes);
  }
  return bytes;
}

Result<> Links::Open(MemoryAccount& account) {
  for (const Use& use : LanesOf(rank(), size(), ranks_, sums_, report_)) {
    PENSTOCK_TRY(channel_.Open(use.lane, use.options, account));
  }
  return {};
}

Result<> Links::AwaitPatiently(const Lane& lane) {
  const bool with_first = lane.source == 0 || lane.target == 0;
  return watch_ != nullptr && with_first ? watch_->AwaitMessage(lane) : Result<>();
}

Result<> Links::Send(const Lane& lane, int64_t step, std::span<const std::byte> bytes) {
  comm::MessageHeader header;
  header.lane = lane;
  header.tag = {step, 0};
  header.type = DType::kU8;
  header.rows = static_cast<int64_t>(bytes.size());
  header.columns = 1;
  if (watch_ != nullptr && (lane.source == 0 || lane.target == 0)) {
    return watch_->Send(header, std::span(&bytes, 1));
  }
  return channel_.Send(header, std::span(&bytes, 1), deadline_s_);
}

Result<> Links::Post(int64_t step, std::span<const double> numbers) {
  PENSTOCK_CHECK(static_cast<int64_t>(numbers.size()) <= sums_, "no more numbers than announced");
  for (int32_t other = 0; other < size(); ++other) {
    if (other != rank()) {
      PENSTOCK_TRY(Send(LaneOf(kSumsEdge, rank(), other), step, std::as_bytes(numbers)));
    }
  }
  return {};
}

Result<std::vector<std::vector<double>>> Links::Collect(int64_t step, std::span<const double> own) {
  std::vector<std::vector<double>> all(static_cast<size_t>(size()));
  for (int32_t other = 0; other < size(); ++other) {
    auto& numbers = all[static_cast<size_t>(other)];
    if (other == rank()) {
      numbers.assign(own.begin(), own.end());
      continue;
    }
    PENSTOCK_TRY_ASSIGN(const comm::Message message,
                        channel_.Receive(LaneOf(kSumsEdge, other, rank()), {step, 0}, deadline_s_));
    numbers = Numbers(message);
  }
  return all;
}

Result<> Links::SendReport(int64_t step, std::span<const double> numbers) {
  PENSTOCK_CHECK(static_cast<int64_t>(numbers.size()) <= report_, "no more numbers than announced");
  return Send(LaneOf(kReportEdge, rank(), 0), step, std::as_bytes(numbers));
}

Result<std::vector<double>> Links::ReceiveReport(int32_t source, int64_t step) {
  PENSTOCK_TRY_ASSIGN(const comm::Message message,
                      channel_.Receive(LaneOf(kReportEdge, source, 0), {step, 0}, deadline_s_));
  return Numbers(message);
}

Result<> Links::SendNote(std::string_view text) {
  text = text.substr(0, kNoteBytes);
  return Send(LaneOf(kNoteEdge, rank(), 0), 0, std::as_bytes(std::span(text.data(), text.size())));
}

Result<std::optional<std::string>> Links::TakeNote(int32_t source, bool wait) {
  const Lane lane = LaneOf(kNoteEdge, source, 0);
  if (!wait && !channel_.Ready(lane)) {
    return std::optional<std::string>();
  }
  PENSTOCK_TRY(AwaitPatiently(lane));
  PENSTOCK_TRY_ASSIGN(const comm::Message message, channel_.ReceiveNext(lane, deadline_s_));
  const auto payload = message.payload();
  return std::optional<std::string>(
      std::string(reinterpret_cast<const char*>(payload.data()), payload.size()));
}

Result<> Links::SendBytes(int32_t target, std::span<const std::byte> bytes) {
  for (size_t done = 0; done < bytes.size(); done += kPieceBytes) {
    const size_t piece = std::min<size_t>(kPieceBytes, bytes.size() - done);
    PENSTOCK_TRY(Send(LaneOf(kPiecesEdge, rank(), target), 0, bytes.subspan(done, piece)));
  }
  return {};
}

Result<> Links::ReceiveBytes(int32_t source, int64_t bytes, const Sink& sink) {
  const Lane lane = LaneOf(kPiecesEdge, source, rank());
  while (bytes > 0) {
    PENSTOCK_TRY(AwaitPatiently(lane));
    PENSTOCK_TRY_ASSIGN(const comm::Message message, channel_.ReceiveNext(lane, deadline_s_));
    const auto size = static_cast<int64_t>(message.payload().size());
    if (size == 0 || size > bytes) {
      return MakeError(ErrorCode::kInternal,
                       "[train.links] rank {} sends {} bytes, wanted at most {}", source, size,
                       bytes);
    }
    sink(message.payload());
    bytes -= size;
  }
  return {};
}

Result<> Links::Part() {
  const std::byte bye{1};
  if (rank() > 0) {
    return ReceiveBytes(0, 1, [](std::span<const std::byte>) {});
  }
  for (int32_t other = 1; other < size(); ++other) {
    PENSTOCK_TRY(SendBytes(other, std::span(&bye, 1)));
  }
  return {};
}

Result<> Links::SendBlob(int32_t target, std::span<const std::byte> bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  PENSTOCK_TRY(SendBytes(target, std::as_bytes(std::span(&size, 1))));
  return SendBytes(target, bytes);
}

Result<std::vector<std::byte>> Links::ReceiveBlob(int32_t source, int64_t limit_bytes) {
  int64_t size = -1;
  PENSTOCK_TRY(ReceiveBytes(source, sizeof(size), [&](std::span<const std::byte> piece) {
    if (piece.size() == sizeof(size)) {
      std::memcpy(&size, piece.data(), sizeof(size));
    }
  }));
  if (size < 0 || size > limit_bytes) {
    return MakeError(ErrorCode::kInternal,
                     "[train.links] rank {} announces {} bytes, wanted at most {}", source, size,
                     limit_bytes);
  }
  std::vector<std::byte> bytes;
  bytes.reserve(static_cast<size_t>(size));
  PENSTOCK_TRY(ReceiveBytes(source, size, [&](std::span<const std::byte> piece) {
    bytes.insert(bytes.end(), piece.begin(), piece.end());
  }));
  return bytes;
}

Result<> Links::ShareParts(std::span<std::byte> whole, std::span<const int64_t> starts) {
  const int32_t mine = replica();
  const int32_t within = rank() % ranks_;
  std::vector<int64_t> done(static_cast<size_t>(replicas()), 0);
  const auto part = [&](int32_t k) {
    const auto at = static_cast<size_t>(k);
    return whole.subspan(static_cast<size_t>(starts[at]),
                         static_cast<size_t>(starts[at + 1] - starts[at]));
  };
  int64_t longest = 0;
  for (int32_t k = 0; k < replicas(); ++k) {
    longest = std::max(longest, static_cast<int64_t>(part(k).size()));
  }
  // Piece by piece, so that nobody sends further ahead than there are credits.
  for (int64_t at = 0; at < longest; at += kPieceBytes) {
    const auto piece = [&](std::span<std::byte> of) {
      const auto begin = std::min<size_t>(static_cast<size_t>(at), of.size());
      return of.subspan(begin, std::min<size_t>(kPieceBytes, of.size() - begin));
    };
    const std::span<std::byte> own = piece(part(mine));
    for (int32_t k = 0; k < replicas() && !own.empty(); ++k) {
      if (k != mine) {
        PENSTOCK_TRY(SendBytes(k * ranks_ + within, own));
      }
    }
    for (int32_t k = 0; k < replicas(); ++k) {
      const std::span<std::byte> theirs = piece(part(k));
      if (k == mine || theirs.empty()) {
        continue;
      }
      PENSTOCK_TRY(ReceiveBytes(k * ranks_ + within, static_cast<int64_t>(theirs.size()),
                                [&](std::span<const std::byte> bytes) {
                                  std::memcpy(theirs.data(), bytes.data(), bytes.size());
                                }));
    }
  }
  return {};
}

}  // namespace penstock::train
