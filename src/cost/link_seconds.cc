#include "cost/link_seconds.h"

namespace penstock::cost {

schedule::LinkSeconds LinkSecondsOf(const CostModel& model) {
  return [all = model.link, links = model.links](RankId from, RankId to, int64_t bytes) {
    const auto it = links.find({from.value(), to.value()});
    const LinkCost& link = it != links.end() ? it->second : all;
    return link.latency_s + link.TransferSeconds(bytes);
  };
}

}  // namespace penstock::cost
