#include "kernels/cpu/pool.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/cores.h"
#include "kernels/device.h"

namespace penstock::kernels {
namespace {

// Long enough to bridge the serial work between two operations of one layer, short against a time
// slice of the scheduler.
constexpr auto kSpin = std::chrono::microseconds(60);

void BindTo(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(core), &set);
  // A core outside the allowed set leaves the thread where it is: a wish, not a need.
  (void)pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

}  // namespace

int UsableCores() {
  return penstock::UsableCores();
}

ThreadPool::ThreadPool(int threads, const std::vector<int>& cores)
    : threads_(threads),
      spin_(threads <= UsableCores()),
      taken_(std::make_unique<Taken[]>(static_cast<size_t>(std::max(threads, 1)))) {
  PENSTOCK_CHECK(threads >= 1, "a pool has a thread");
  if (!cores.empty()) {
    BindTo(cores[0]);
  }
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int t = 1; t < threads; ++t) {
    const int core = cores.empty() ? -1 : cores[static_cast<size_t>(t) % cores.size()];
    workers_.emplace_back([this, t, core] {
      if (core >= 0) {
        BindTo(core);
      }
      Loop(t);
    });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) {
    worker.join();
  }
}

uint32_t ThreadPool::Await(const std::atomic<uint32_t>& value, uint32_t old) const {
  uint32_t now = value.load(std::memory_order_acquire);
  if (spin_ && now == old) {
    const auto end = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < 64 && now == old; ++i) {
        _mm_pause();
        now = value.load(std::memory_order_acquire);
      }
    } while (now == old && std::chrono::steady_clock::now() < end);
  }
  while (now == old) {
    value.wait(old, std::memory_order_acquire);
    now = value.load(std::memory_order_acquire);
  }
  return now;
}

bool ThreadPool::Take(int share, uint32_t round) {
  uint32_t before = round - 1;
  return taken_[static_cast<size_t>(share)].round.compare_exchange_strong(
      before, round, std::memory_order_acq_rel, std::memory_order_relaxed);
}

void ThreadPool::RunErased(Entry entry, void* context) {
  entry_ = entry;
  context_ = context;
  running_.store(static_cast<uint32_t>(threads_ - 1), std::memory_order_relaxed);
  const uint32_t round = round_.fetch_add(1, std::memory_order_release) + 1;
  round_.notify_all();
  entry(context, 0);
  for (int share = 1; share < threads_; ++share) {
    if (Take(share, round)) {
      entry(context, share);
      running_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  for (uint32_t left = running_.load(std::memory_order_acquire); left != 0;) {
    left = Await(running_, left);
  }
}

void ThreadPool::Loop(int thread) {
  uint32_t seen = 0;
  for (;;) {
    seen = Await(round_, seen);
    if (stop_.load(std::memory_order_relaxed)) {
      return;
    }
    if (!Take(thread, seen)) {
      continue;
    }
    entry_(context_, thread);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      running_.notify_one();
    }
  }
}

}  // namespace penstock::kernels
