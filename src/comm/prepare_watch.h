// Before a run is set up, rank 0 alone has work: it reads what is asked for, perhaps from a person
// who types, and the others wait for its first word. It sends them beats meanwhile, so that what
// counts is whether it is there, not how long it takes.

#pragma once

#include <memory>

#include "comm/channel.h"

namespace penstock::comm {

// Rank 0's channel with a thread that sends a beat to every other rank, five times per deadline,
// until the channel is used for anything else (or destroyed); from then on it is the channel
// itself. rank(), size() and across_processes() use nothing. Errors: those of opening the lanes.
// REQUIRES: nothing else uses the channel's transport meanwhile.
Result<std::unique_ptr<Channel>> BeatUntilUsed(std::unique_ptr<Channel> channel, double deadline_s);

// Another rank: opens the lane of the beats and returns when a message of `lane`, which comes from
// rank 0 and is open, is there; it is not taken. Errors: kDeadlineExceeded when neither it nor a
// beat came for the length of the deadline; kPeerLost; the account's.
Result<> AwaitWhileBeating(Channel& channel, const Lane& lane, double deadline_s,
                           MemoryAccount& account);

}  // namespace penstock::comm
