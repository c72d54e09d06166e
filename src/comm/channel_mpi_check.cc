// The channel contract across processes: mpirun -n P penstock_channel_mpi_check CREDITS. Exit
// status 0 when every rank keeps it.

#include <cstdio>
#include <cstdlib>

#include "comm/channel_contract.h"

int main(int argc, char** argv) {
  auto channel = penstock::comm::CreateMpiChannel();
  if (!channel.ok() || argc != 2) {
    std::fprintf(stderr, "%s\n",
                 channel.ok() ? "usage: penstock_channel_mpi_check CREDITS"
                              : channel.error().message.c_str());
    return 2;
  }
  penstock::MemoryAccount account;
  penstock::comm::ContractSetup setup;
  setup.credits = std::atoi(argv[1]);
  const auto result = ChannelContract(*channel.value(), account, setup);
  if (!result.ok()) {
    std::fprintf(stderr, "rank %d: %s\n", channel.value()->rank(), result.error().message.c_str());
    penstock::comm::AbortMpi(1);
  }
  channel.value().reset();
  penstock::comm::FinalizeMpi();
  return 0;
}
