#include "comm/peer_watch.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>

namespace penstock::comm {

ProcessName ProcessName::Mine() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);

  struct stat space {};

  if (boot.empty() || ::stat("/proc/self/ns/pid", &space) != 0) {
    return {};
  }
  const char* named = std::getenv("PENSTOCK_MACHINE");
  const std::string machine = boot + std::to_string(space.st_ino) + (named != nullptr ? named : "");
  return {std::hash<std::string>()(machine), ::getpid()};
}

PeerWatch::PeerWatch(std::span<const ProcessName> names, int rank) : handles_(names.size(), -1) {
  const uint64_t here = names[static_cast<size_t>(rank)].machine;
  for (size_t other = 0; other < names.size(); ++other) {
    if (here != 0 && names[other].machine == here && static_cast<int>(other) != rank) {
      handles_[other] =
          static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(names[other].pid), 0));
    }
  }
}

PeerWatch::~PeerWatch() {
  for (const int handle : handles_) {
    if (handle >= 0) {
      ::close(handle);
    }
  }
}

int PeerWatch::Ended(int preferred) {
  // A handle becomes readable when its process ends.
  std::vector<pollfd> polled;
  for (const int handle : handles_) {
    polled.push_back({handle, POLLIN, 0});  // negative ones are skipped
  }
  if (::poll(polled.data(), polled.size(), 0) <= 0) {
    return -1;
  }
  int ended = -1;
  for (size_t rank = 0; rank < polled.size(); ++rank) {
    if ((polled[rank].revents & POLLIN) != 0 &&
        (ended < 0 || static_cast<int>(rank) == preferred)) {
      ended = static_cast<int>(rank);
    }
  }
  return ended;
}

}  // namespace penstock::comm
