#include "comm/meeting_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>

namespace penstock::comm {
namespace {

using std::chrono::milliseconds;

TEST(MeetingWatch, SaysOnceThatAMeetingTakesTooLong) {
  std::promise<Error> said;
  std::atomic<int> times = 0;
  const MeetingWatch watch({0.1,
                            [&](const Error& error) {
                              if (times++ == 0) {
                                said.set_value(error);
                              }
                            }},
                           "to start");
  const Error error = said.get_future().get();
  EXPECT_EQ(error.code, ErrorCode::kDeadlineExceeded);
  EXPECT_NE(error.message.find("waited 0.1 s for all ranks to start"), std::string::npos)
      << error.message;
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_EQ(times, 1);
}

TEST(MeetingWatch, IsSilentAboutMeetingsInTimeAndWithoutALimit) {
  std::atomic<int> times = 0;
  const auto count = [&](const Error&) { ++times; };
  { const MeetingWatch in_time({0.5, count}, "to start"); }
  {
    const MeetingWatch without_limit({0, count}, "to start");
    std::this_thread::sleep_for(milliseconds(700));
  }
  EXPECT_EQ(times, 0);
}

// A rank of a job as its launcher starts it, which runs `sleep`.
class SleepingRank {
 public:
  SleepingRank(const std::string& job, int rank) : pid_(::fork()) {
    if (pid_ == 0) {
      const std::string environment[] = {"PMIX_NAMESPACE=" + job,
                                         "PMIX_RANK=" + std::to_string(rank)};
      const char* const block[] = {environment[0].c_str(), environment[1].c_str(), nullptr};
      ::execle("/bin/sleep", "sleep", "100", nullptr, block);
      ::_exit(127);
    }
  }

  ~SleepingRank() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  SleepingRank(const SleepingRank&) = delete;
  SleepingRank& operator=(const SleepingRank&) = delete;

  std::string pid() const { return std::to_string(pid_); }

  void Stop() const {
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }

 private:
  pid_t pid_;
};

TEST(AbsentRanks, AreNamedWithWhatTheirProcessesDo) {
  const std::string job = "penstock-test-" + std::to_string(::getpid());
  ::setenv("PMIX_NAMESPACE", job.c_str(), 1);
  ::setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  ::setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
  ::setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "4", 1);
  const SleepingRank other_program(job, 1);
  const SleepingRank stopped(job, 2);
  const SleepingRank of_another_job(job + "-other", 3);
  std::this_thread::sleep_for(milliseconds(200));  // until they are `sleep`
  stopped.Stop();
  const std::string two = "rank 1: its process " + other_program.pid() +
                          " runs another program (sleep); rank 2: its process " + stopped.pid() +
                          " (sleep) is stopped";
  EXPECT_EQ(AbsentRanksText(), two + "; rank 3: its process has ended");
  ::setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "3", 1);  // one may be on another machine
  EXPECT_EQ(AbsentRanksText(), two);
  ::unsetenv("PMIX_NAMESPACE");
  EXPECT_EQ(AbsentRanksText(), "");
}

}  // namespace
}  // namespace penstock::comm
