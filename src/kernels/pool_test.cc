// The thread pool: every share runs once, whatever the number of threads and cores.

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

#include "kernels/cpu/features.h"
#include "kernels/cpu/pool.h"
#include "kernels/device.h"

namespace penstock::kernels {
namespace {

TEST(ThreadPool, EveryItemRunsOnceForAnyNumberOfThreads) {
  for (const int threads : {1, 2, 3, 8, 32}) {
    ThreadPool pool(threads, {});
    for (const int64_t items : {0, 1, 2, 7, 64}) {
      for (int round = 0; round < 20; ++round) {
        std::vector<std::atomic<int>> runs(static_cast<size_t>(items));
        pool.Split(items, false, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            ++runs[static_cast<size_t>(i)];
          }
        });
        for (const std::atomic<int>& count : runs) {
          ASSERT_EQ(count.load(), 1) << items << " items, " << threads << " threads";
        }
      }
    }
  }
}

TEST(ThreadPool, ASleepingPoolWakesAndWhatItWroteIsSeen) {
  ThreadPool pool(3, {});
  std::vector<int64_t> values(3);
  for (int64_t round = 1; round <= 5; ++round) {
    // Longer than any spin.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pool.Run([&](int thread) { values[static_cast<size_t>(thread)] = round * 10 + thread; });
    for (int64_t t = 0; t < 3; ++t) {
      EXPECT_EQ(values[static_cast<size_t>(t)], round * 10 + t);
    }
  }
}

std::atomic<bool> held{false};
std::atomic<bool> let_go{false};

extern "C" void HoldThread(int /*signal*/) {
  held = true;
  while (!let_go) {
    sched_yield();
  }
}

TEST(ThreadPool, AThreadThatIsOffItsCoreIsNotWaitedFor) {
  ThreadPool pool(2, {});
  std::atomic<pthread_t> worker{};
  std::atomic<bool> known{false};
  pool.Run([&](int share) {
    if (share == 1) {
      worker = pthread_self();
      known = true;
    } else {
      while (!known) {
        std::this_thread::yield();
      }
    }
  });
  ASSERT_FALSE(pthread_equal(worker, pthread_self()));
  // Between two rounds the other thread is held inside a signal's handler, as a scheduler would.
  held = false;
  let_go = false;

  struct sigaction action {};

  struct sigaction before {};

  action.sa_handler = HoldThread;
  ASSERT_EQ(sigaction(SIGUSR2, &action, &before), 0);
  ASSERT_EQ(pthread_kill(worker, SIGUSR2), 0);
  while (!held) {
    std::this_thread::yield();
  }
  std::vector<int> runs(2);
  for (int round = 0; round < 100; ++round) {
    pool.Run([&](int share) {
      EXPECT_TRUE(pthread_equal(pthread_self(), worker) == 0);
      ++runs[static_cast<size_t>(share)];
    });
  }
  EXPECT_EQ(runs, (std::vector<int>{100, 100}));
  let_go = true;
  // It comes back to rounds that are over, and takes part in later ones.
  std::vector<std::atomic<int>> later(2);
  for (int round = 0; round < 100; ++round) {
    pool.Run([&](int share) { ++later[static_cast<size_t>(share)]; });
  }
  EXPECT_EQ(later[0].load(), 100);
  EXPECT_EQ(later[1].load(), 100);
  ASSERT_EQ(sigaction(SIGUSR2, &before, nullptr), 0);
}

TEST(ThreadPool, BindingToCoresThatDoNotExistIsOnlyAWish) {
  std::thread([] {
    ThreadPool pool(2, {0, 1000});
    int sum = 0;
    std::atomic<int> all{0};
    pool.Run([&](int thread) { all += thread + 1; });
    sum = all;
    EXPECT_EQ(sum, 3);
  }).join();
}

TEST(CpuFeatures, AnUnknownCapIsAnErrorThatListsTheLegalOnes) {
  const auto isa = DetectIsa("avx10");
  ASSERT_FALSE(isa.ok());
  EXPECT_EQ(isa.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(isa.error().message.find("avx2, avx512_vnni, avx512 or amx"), std::string::npos);
  const auto floor = DetectIsa("avx2");
  ASSERT_TRUE(floor.ok());
  EXPECT_EQ(floor.value(), Isa::kAvx2);
}

TEST(CpuFeatures, EachMachineTakesTheBestSetThatItHasAndItsCapAllows) {
  constexpr CpuFacts kHaswell = {.vnni = false, .bf16 = false, .tiles = false};
  constexpr CpuFacts kIceLake = {.vnni = true, .bf16 = false, .tiles = false};
  constexpr CpuFacts kZen4 = {.vnni = true, .bf16 = true, .tiles = false};
  constexpr CpuFacts kSapphireRapids = {.vnni = true, .bf16 = true, .tiles = true};
  EXPECT_EQ(BestIsa(kHaswell, Isa::kAmx), Isa::kAvx2);
  EXPECT_EQ(BestIsa(kIceLake, Isa::kAmx), Isa::kAvx512Vnni);
  EXPECT_EQ(BestIsa(kZen4, Isa::kAmx), Isa::kAvx512);
  EXPECT_EQ(BestIsa(kSapphireRapids, Isa::kAmx), Isa::kAmx);
  EXPECT_EQ(BestIsa(kSapphireRapids, Isa::kAvx512), Isa::kAvx512);
  EXPECT_EQ(BestIsa(kSapphireRapids, Isa::kAvx2), Isa::kAvx2);
  EXPECT_EQ(BestIsa({.vnni = false, .bf16 = true, .tiles = true}, Isa::kAmx), Isa::kAvx2);
}

TEST(CpuFeatures, WithTilesTheKernelsOfAvx512RunAndGiveResultsTheirName) {
  EXPECT_EQ(KernelIsa(Isa::kAmx), Isa::kAvx512);
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512Vnni, Isa::kAvx512}) {
    EXPECT_EQ(KernelIsa(isa), isa);
  }
  const auto best = DetectIsa("");
  ASSERT_TRUE(best.ok());
  const auto device = CreateCpuDevice({});
  ASSERT_TRUE(device.ok());
  const char* cap = std::getenv("PENSTOCK_MAX_ISA");
  if (cap == nullptr) {
    EXPECT_EQ(device.value()->InstructionSet(), IsaName(KernelIsa(best.value())));
  }
  EXPECT_NE(device.value()->InstructionSet(), "amx");
}

TEST(CpuDevice, ZeroThreadsAreRefused) {
  CpuOptions options;
  options.threads = 0;
  EXPECT_FALSE(CreateCpuDevice(options).ok());
}

}  // namespace
}  // namespace penstock::kernels
