#include "comm/meeting_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace penstock::comm {
namespace {

constexpr auto kTick = std::chrono::milliseconds(50);
// More than this between two looks, and it was this process that did not run.
constexpr auto kLongestTick = std::chrono::milliseconds(200);

int NumberFrom(std::initializer_list<const char*> names, int otherwise) {
  for (const char* name : names) {
    if (const char* text = std::getenv(name); text != nullptr) {
      return std::atoi(text);
    }
  }
  return otherwise;
}

std::string FileText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The value of NAME in a block of "NAME=value" that end with a zero each.
std::string ValueIn(const std::string& block, std::string_view name) {
  for (size_t at = 0; at < block.size();) {
    const std::string_view entry(block.c_str() + at);
    if (entry.size() > name.size() && entry[name.size()] == '=' && entry.starts_with(name)) {
      return std::string(entry.substr(name.size() + 1));
    }
    at += entry.size() + 1;
  }
  return "";
}

// A process of this job on this machine.
struct Member {
  int rank = 0;
  int pid = 0;
  std::string name;
  bool stopped = false;
  bool same_program = false;
};

bool SameFile(const std::string& a, const std::string& b) {
  struct stat first {};

  struct stat second {};

  return ::stat(a.c_str(), &first) == 0 && ::stat(b.c_str(), &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

std::optional<Member> MemberFrom(const std::string& folder, const std::string& job) {
  const std::string environment = FileText(folder + "/environ");
  const std::string rank = ValueIn(environment, "PMIX_RANK");
  if (rank.empty() || ValueIn(environment, "PMIX_NAMESPACE") != job) {
    return std::nullopt;
  }
  // "123 (name) T ...", where the name may hold anything.
  const std::string line = FileText(folder + "/stat");
  const size_t open = line.find('(');
  const size_t close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close + 2 >= line.size()) {
    return std::nullopt;
  }
  const char state = line[close + 2];
  if (state == 'Z' || state == 'X') {
    return std::nullopt;
  }
  return Member{std::atoi(rank.c_str()), std::atoi(line.c_str()),
                line.substr(open + 1, close - open - 1), state == 'T' || state == 't',
                SameFile(folder + "/exe", "/proc/self/exe")};
}

std::vector<Member> MembersHere(const std::string& job) {
  std::vector<Member> members;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", code)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    if (auto member = MemberFrom(entry.path().string(), job)) {
      members.push_back(std::move(*member));
    }
  }
  return members;
}

// Why this rank does not come, as far as can be seen: a wrapper's process may stand beside the
// program's own. Empty: nothing against it.
std::string AbsenceOf(int rank, const std::vector<Member>& members, bool all_here) {
  const Member* other = nullptr;
  bool here = false;
  for (const Member& member : members) {
    if (member.rank != rank) {
      continue;
    }
    if (member.stopped) {
      return fmt::format("rank {}: its process {} ({}) is stopped", rank, member.pid, member.name);
    }
    here = here || member.same_program;
    other = &member;
  }
  if (here || (other == nullptr && !all_here)) {
    return "";
  }
  if (other == nullptr) {
    return fmt::format("rank {}: its process has ended", rank);
  }
  return fmt::format("rank {}: its process {} runs another program ({})", rank, other->pid,
                     other->name);
}

}  // namespace

LaunchedRank LaunchedRank::Mine() {
  return {NumberFrom({"OMPI_COMM_WORLD_RANK", "PMI_RANK"}, 0),
          std::max(1, NumberFrom({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, 1))};
}

std::string AbsentRanksText() {
  const char* job = std::getenv("PMIX_NAMESPACE");
  if (job == nullptr) {
    return "";
  }
  const LaunchedRank mine = LaunchedRank::Mine();
  const bool all_here = NumberFrom({"OMPI_COMM_WORLD_LOCAL_SIZE"}, 0) == mine.ranks;
  const std::vector<Member> members = MembersHere(job);
  std::vector<std::string> absent;
  for (int rank = 0; rank < mine.ranks; ++rank) {
    std::string why = rank == mine.rank ? "" : AbsenceOf(rank, members, all_here);
    if (!why.empty()) {
      absent.push_back(std::move(why));
    }
  }
  return fmt::format("{}", fmt::join(absent, "; "));
}

MeetingWatch::MeetingWatch(MeetingLimit limit, std::string meeting)
    : limit_(std::move(limit)), meeting_(std::move(meeting)) {
  if (limit_.seconds > 0 && limit_.on_late) {
    thread_ = std::thread([this] { Watch(); });
  }
}

MeetingWatch::~MeetingWatch() {
  {
    const std::lock_guard lock(mutex_);
    met_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void MeetingWatch::Watch() {
  using Clock = std::chrono::steady_clock;
  Clock::duration waited{};
  Clock::time_point before = Clock::now();
  std::unique_lock lock(mutex_);
  while (std::chrono::duration<double>(waited).count() < limit_.seconds) {
    if (changed_.wait_for(lock, kTick, [this] { return met_; })) {
      return;
    }
    const Clock::time_point now = Clock::now();
    waited += std::min<Clock::duration>(now - before, kLongestTick);
    before = now;
  }
  lock.unlock();
  const LaunchedRank mine = LaunchedRank::Mine();
  const std::string absent = AbsentRanksText();
  limit_.on_late(MakeError(
      ErrorCode::kDeadlineExceeded, "[comm.mpi] rank {} of {} waited {:.1f} s for all ranks {}; {}",
      mine.rank, mine.ranks, limit_.seconds, meeting_,
      absent.empty() ? "one does not come; those of this machine run" : "missed: " + absent));
}

}  // namespace penstock::comm
