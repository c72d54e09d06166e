#include "text/stop.h"

#include <algorithm>

namespace penstock::text {
namespace {

constexpr size_t kMaxStops = 64;

// failure[i]: length of the longest proper prefix of `word` that is a suffix of its first i + 1
// bytes.
std::vector<size_t> Failure(std::string_view word) {
  std::vector<size_t> failure(word.size(), 0);
  for (size_t i = 1; i < word.size(); ++i) {
    size_t length = failure[i - 1];
    while (length > 0 && word[i] != word[length]) {
      length = failure[length - 1];
    }
    failure[i] = length + (word[i] == word[length] ? 1 : 0);
  }
  return failure;
}

}  // namespace

Result<StopFilter> StopFilter::Make(std::vector<std::string> stops) {
  if (stops.size() > kMaxStops) {
    return MakeError(ErrorCode::kInvalidArgument, "[text.stop] {} stop strings, wanted up to {}",
                     stops.size(), kMaxStops);
  }
  for (const std::string& stop : stops) {
    if (stop.empty()) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[text.stop] an empty stop string, wanted at least one character");
    }
  }
  return StopFilter(std::move(stops));
}

StopFilter::StopFilter(std::vector<std::string> stops)
    : stops_(std::move(stops)), progress_(stops_.size(), 0) {
  for (const std::string& stop : stops_) {
    failures_.push_back(Failure(stop));
  }
}

std::string StopFilter::Add(std::string_view text) {
  if (stopped()) {
    return {};
  }
  for (const char c : text) {
    held_ += c;
    for (size_t i = 0; i < stops_.size(); ++i) {
      const std::string& stop = stops_[i];
      size_t& length = progress_[i];
      while (length > 0 && stop[length] != c) {
        length = failures_[i][length - 1];
      }
      length += stop[length] == c ? 1 : 0;
      const bool longer = !stopped() || stop.size() > stops_[static_cast<size_t>(matched_)].size();
      if (length == stop.size() && longer) {
        matched_ = static_cast<int>(i);
      }
    }
    if (stopped()) {
      // held_ still has every byte that a stop string may have begun with.
      held_.resize(held_.size() - stops_[static_cast<size_t>(matched_)].size());
      return std::exchange(held_, {});
    }
  }
  size_t keep = 0;
  for (const size_t length : progress_) {
    keep = std::max(keep, length);
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

std::string StopFilter::Finish() {
  return stopped() ? std::string() : std::exchange(held_, {});
}

const std::string& StopFilter::matched() const {
  PENSTOCK_CHECK(stopped(), "matched() before a stop string came");
  return stops_[static_cast<size_t>(matched_)];
}

}  // namespace penstock::text
