#include "runtime/train_reduce.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

namespace penstock::runtime {
namespace {

constexpr int64_t kPieceFloats = kReducePieceBytes / 4;
// The total of a piece comes while the next running sum is on its way.
constexpr int32_t kCredits = 3;

// Lane of the running sum from place `place` to the next one.
comm::Lane SumLane(const Reduction& r, size_t place) {
  return {comm::LaneKind::kReduce, r.ranks[place], r.ranks[place + 1],
          2 * (r.first_edge + static_cast<int32_t>(place))};
}

comm::Lane TotalLane(const Reduction& r, int32_t target) {
  return {comm::LaneKind::kReduce, r.ranks.back(), target, 2 * r.first_edge + 1};
}

// Ranks that get the total by message.
std::vector<int32_t> Others(const Reduction& r) {
  std::set<int32_t> others(r.ranks.begin(), r.ranks.end());
  others.erase(r.ranks.back());
  return {others.begin(), others.end()};
}

std::vector<comm::Lane> LanesOf(const Reduction& r, int32_t rank) {
  std::vector<comm::Lane> lanes;
  for (size_t place = 0; place + 1 < r.ranks.size(); ++place) {
    lanes.push_back(SumLane(r, place));
  }
  for (const int32_t other : Others(r)) {
    lanes.push_back(TotalLane(r, other));
  }
  std::erase_if(lanes, [&](const comm::Lane& l) { return l.source != rank && l.target != rank; });
  return lanes;
}

// All items one after the other, cut into pieces.
struct Piece {
  int64_t item = 0;
  int64_t begin = 0;
  int64_t count = 0;
};

Tensor Part(const Tensor& x, const Piece& piece) {
  return {x.All<float>().data() + piece.begin, DType::kF32, 1, piece.count};
}

class Runner {
 public:
  Runner(const Reduction& reduction, const ReductionTerms& terms, int64_t step,
         comm::Channel& channel, kernels::TrainingDevice& device, Tensor scratch, double deadline_s,
         double& waited_s)
      : r_(reduction),
        terms_(terms),
        step_(step),
        channel_(channel),
        device_(device),
        scratch_(static_cast<void*>(scratch.Bytes().data()), DType::kF32, 1, kPieceFloats),
        deadline_s_(deadline_s),
        waited_s_(waited_s),
        last_(reduction.ranks.back() == channel.rank()) {}

  Result<> Run() {
    for (int64_t item = 0; item < terms_.items; ++item) {
      const Tensor total = terms_.total(item);
      for (int64_t begin = 0; begin < total.rows() * total.columns(); begin += kPieceFloats) {
        pieces_.push_back(
            {item, begin, std::min(kPieceFloats, total.rows() * total.columns() - begin)});
      }
    }
    if (r_.Shared()) {
      return RunShared();
    }
    for (size_t i = 0; i <= pieces_.size(); ++i) {
      if (i < pieces_.size()) {
        PENSTOCK_TRY(AddOwn(i));
      }
      if (i > 0 && !last_) {
        PENSTOCK_TRY(TakeTotal(i - 1));
      }
    }
    return {};
  }

 private:
  // Round k is pieces 2k, whose total the second place makes, and 2k + 1, whose total the first
  // makes. The totals of a round are taken once the next one's pieces are on their way.
  Result<> RunShared() {
    const size_t place = last_ ? 1 : 0;
    const comm::Lane out = last_ ? TotalLane(r_, r_.ranks[0]) : SumLane(r_, 0);
    const comm::Lane in = last_ ? SumLane(r_, 0) : TotalLane(r_, r_.ranks[0]);
    const size_t rounds = (pieces_.size() + 1) / 2;
    for (size_t round = 0; round <= rounds; ++round) {
      const size_t given = 2 * round + (last_ ? 1 : 0);
      const size_t made = 2 * round + (last_ ? 0 : 1);
      if (round < rounds && given < pieces_.size()) {
        PENSTOCK_TRY(Send(out, given, OwnSum(place, given)));
      }
      if (round < rounds && made < pieces_.size()) {
        PENSTOCK_TRY(MakeTotal(place, made, in, out));
      }
      const size_t before = given - 2;
      if (round > 0 && before < pieces_.size()) {
        PENSTOCK_TRY(Receive(in, before, TotalOf(before)));
      }
    }
    return {};
  }

  Tensor TotalOf(size_t piece) const {
    return Part(terms_.total(pieces_[piece].item), pieces_[piece]);
  }

  // This place's terms: the only one as it is, or their sum in scratch.
  Tensor OwnSum(size_t place, size_t i) {
    const std::vector<Tensor> terms = terms_.terms(place, pieces_[i].item);
    PENSTOCK_CHECK(static_cast<int32_t>(terms.size()) == r_.terms[place],
                   "all holders know how many terms a place has");
    if (terms.size() == 1) {
      return Part(terms[0], pieces_[i]);
    }
    const Tensor sum = scratch_.Columns(0, pieces_[i].count);
    for (size_t t = 0; t < terms.size(); ++t) {
      device_.ScaleInto(Part(terms[t], pieces_[i]), 1.0F, t > 0, sum);
    }
    return sum;
  }

  Result<> MakeTotal(size_t place, size_t i, const comm::Lane& in, const comm::Lane& out) {
    const Tensor total = TotalOf(i);
    {
      PENSTOCK_TRY_ASSIGN(const comm::Message message, Take(in, i, total.columns()));
      const Tensor own = OwnSum(place, i);
      if (own.Bytes().data() != total.Bytes().data()) {
        device_.ScaleInto(own, 1.0F, false, total);
      }
      auto* theirs = const_cast<std::byte*>(message.payload().data());
      device_.ScaleInto({theirs, DType::kF32, 1, total.columns()}, 1.0F, true, total);
    }
    return Send(out, i, total);
  }

  Result<> Send(const comm::Lane& lane, size_t piece, const Tensor& x) {
    const std::span<const std::byte> part = x.Bytes();
    return channel_.Send({lane,
                          {step_, static_cast<int32_t>(piece)},
                          DType::kF32,
                          1,
                          x.columns(),
                          comm::Clock::now().time_since_epoch().count()},
                         std::span(&part, 1), deadline_s_);
  }

  Result<comm::Message> Take(const comm::Lane& lane, size_t piece, int64_t numbers) {
    const comm::Clock::time_point start = comm::Clock::now();
    PENSTOCK_TRY_ASSIGN(comm::Message message,
                        channel_.Receive(lane, {step_, static_cast<int32_t>(piece)}, deadline_s_));
    if (std::exchange(alone_, false)) {
      waited_s_ += std::chrono::duration<double>(comm::Clock::now() - start).count();
    }
    if (message.header().columns != numbers || message.header().type != DType::kF32) {
      return MakeError(ErrorCode::kInternal,
                       "[runtime.reduce] got {} numbers from rank {}, wanted {}",
                       message.header().columns, lane.source, numbers);
    }
    return message;
  }

  Result<> Receive(const comm::Lane& lane, size_t piece, const Tensor& to) {
    PENSTOCK_TRY_ASSIGN(const comm::Message message, Take(lane, piece, to.columns()));
    std::memcpy(to.Bytes().data(), message.payload().data(), to.Bytes().size());
    return {};
  }

  Result<> AddOwn(size_t i) {
    const Piece& piece = pieces_[i];
    const Tensor sum = scratch_.Columns(0, piece.count);
    for (size_t place = 0; place < r_.ranks.size(); ++place) {
      if (r_.ranks[place] != channel_.rank()) {
        continue;
      }
      bool there = place > 0;
      if (there) {
        PENSTOCK_TRY(Receive(SumLane(r_, place - 1), i, sum));
      }
      for (const Tensor& term : terms_.terms(place, piece.item)) {
        device_.ScaleInto(Part(term, piece), 1.0F, there, sum);
        there = true;
      }
      if (place + 1 < r_.ranks.size()) {
        PENSTOCK_TRY(Send(SumLane(r_, place), i, sum));
        continue;
      }
      for (const int32_t other : Others(r_)) {
        PENSTOCK_TRY(Send(TotalLane(r_, other), i, sum));
      }
      std::memcpy(Part(terms_.total(piece.item), piece).Bytes().data(), sum.Bytes().data(),
                  sum.Bytes().size());
    }
    return {};
  }

  Result<> TakeTotal(size_t i) {
    return Receive(TotalLane(r_, channel_.rank()), i,
                   Part(terms_.total(pieces_[i].item), pieces_[i]));
  }

  const Reduction& r_;
  const ReductionTerms& terms_;
  int64_t step_;
  comm::Channel& channel_;
  kernels::TrainingDevice& device_;
  Tensor scratch_;
  double deadline_s_;
  double& waited_s_;
  bool alone_ = true;
  bool last_;
  std::vector<Piece> pieces_;
};

}  // namespace

bool Reduction::Holds(int32_t rank) const {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

size_t AddPlace(Reduction& reduction, int32_t rank, int32_t terms) {
  if (reduction.ranks.empty() || reduction.ranks.back() != rank) {
    reduction.ranks.push_back(rank);
    reduction.terms.push_back(0);
  }
  reduction.terms.back() += terms;
  return reduction.ranks.size() - 1;
}

int64_t ReductionBufferBytes(const Reduction& reduction, int32_t rank, bool across_processes) {
  int64_t bytes = 0;
  for (const comm::Lane& lane : LanesOf(reduction, rank)) {
    bytes +=
        comm::LaneBufferBytes({kReducePieceBytes, kCredits}, lane.target == rank, across_processes);
  }
  return bytes;
}

Result<> OpenReduction(const Reduction& reduction, comm::Channel& channel, MemoryAccount& account) {
  for (const comm::Lane& lane : LanesOf(reduction, channel.rank())) {
    PENSTOCK_TRY(channel.Open(lane, {kReducePieceBytes, kCredits}, account));
  }
  return {};
}

Result<> RunReduction(const Reduction& reduction, const ReductionTerms& terms, int64_t step,
                      comm::Channel& channel, kernels::TrainingDevice& device, Tensor scratch,
                      double deadline_s, double& waited_s) {
  if (reduction.ranks.size() == 1) {
    for (int64_t item = 0; item < terms.items; ++item) {
      const Tensor total = terms.total(item);
      bool there = false;
      for (const Tensor& term : terms.terms(0, item)) {
        // The first term may be where the total goes.
        if (there || term.Bytes().data() != total.Bytes().data()) {
          device.ScaleInto(term, 1.0F, there, total);
        }
        there = true;
      }
    }
    return {};
  }
  return Runner(reduction, terms, step, channel, device, scratch, deadline_s, waited_s).Run();
}

}  // namespace penstock::runtime
