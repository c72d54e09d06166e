// Rules that the engine serves by, here because a plan must foretell what a run will do.

#pragma once

#include <cstdint>

namespace penstock::plan {

// Tokens of a prompt per micro-batch where nobody says: enough chunks to keep the stages busy, none
// so small that its fixed cost shows.
int64_t PrefillChunk(int64_t longest_prompt, int64_t stages, int64_t sequences);

}  // namespace penstock::plan
