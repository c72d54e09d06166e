// A build without MPI.

#include "comm/channel.h"
#include "comm/meeting_watch.h"

namespace penstock::comm {

bool LaunchedByMpi() {
  return false;
}

Result<std::unique_ptr<Channel>> CreateMpiChannel() {
  return CreateMpiChannel(MeetingLimit());
}

Result<std::unique_ptr<Channel>> CreateMpiChannel(const MeetingLimit&) {
  return MakeError(ErrorCode::kUnsupported,
                   "[comm.mpi] this build has no MPI; configure with -DPENSTOCK_MPI=ON");
}

void FinalizeMpi() {}

void FinalizeMpi(const MeetingLimit&) {}

void TellMpiRanksOfFailure() {}

void AbortMpi(int) {}

}  // namespace penstock::comm
