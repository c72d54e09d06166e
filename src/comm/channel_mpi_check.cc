// The channel contract across processes: mpirun -n P penstock_channel_mpi_check CREDITS. Exit
// status 0 when every rank keeps it. A rank with `stop` behind CREDITS stops its process where the
// others end; they must say so after a second.

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "comm/channel_contract.h"
#include "comm/meeting_watch.h"

int main(int argc, char** argv) {
  auto channel = penstock::comm::CreateMpiChannel();
  if (!channel.ok() || argc < 2) {
    std::fprintf(stderr, "%s\n",
                 channel.ok() ? "usage: penstock_channel_mpi_check CREDITS [stop]"
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
  if (argc > 2 && std::string_view(argv[2]) == "stop") {
    std::raise(SIGSTOP);
  }
  penstock::comm::FinalizeMpi(
      penstock::comm::MeetingLimit{1, [](const penstock::Error& error) {
                                     std::fprintf(stderr, "%s\n", error.message.c_str());
                                     std::fflush(stderr);
                                     std::this_thread::sleep_for(std::chrono::milliseconds(500));
                                     ::_exit(3);
                                   }});
  return 0;
}
