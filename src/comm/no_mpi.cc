// A build without MPI.

#include "comm/channel.h"

namespace penstock::comm {

bool LaunchedByMpi() {
  return false;
}

Result<std::unique_ptr<Channel>> CreateMpiChannel() {
  return MakeError(ErrorCode::kUnsupported,
                   "[comm.mpi] this build has no MPI; configure with -DPENSTOCK_MPI=ON");
}

void FinalizeMpi() {}

void TellMpiRanksOfFailure() {}

void AbortMpi(int) {}

}  // namespace penstock::comm
