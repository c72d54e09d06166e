#include "plan/serving_rules.h"

#include <algorithm>

namespace penstock::plan {
namespace {

constexpr int64_t kMaxChunk = 512;
constexpr int64_t kMinChunk = 32;

}  // namespace

int64_t PrefillChunk(int64_t longest_prompt, int64_t stages, int64_t sequences) {
  if (stages == 1 || sequences >= 2 * stages) {
    return std::clamp<int64_t>(longest_prompt, kMinChunk, kMaxChunk);
  }
  // c chunks of n/c tokens take (c + S - 1) / c of the time of one stage's share; 4 per stage
  // leaves a fifth idle at S = 2.
  const int64_t wanted = (longest_prompt + 4 * stages - 1) / (4 * stages);
  return std::clamp<int64_t>(wanted, std::min<int64_t>(64, std::max<int64_t>(longest_prompt, 1)),
                             kMaxChunk);
}

}  // namespace penstock::plan
