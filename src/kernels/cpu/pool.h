// A device's threads. Work is dealt in fixed shares, one per thread, and what is computed for one
// element never depends on the share it lies in, so results don't depend on the number of threads.
// Share t is thread t's, unless that thread has not begun when the caller is done with its own:
// then the caller takes it. On a machine that others use, too, a thread may be off its core for
// many milliseconds, many times as long as an operation; nobody waits for it then.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace penstock::kernels {

// One thread at a time may call Run; it takes part as thread 0. Waiting is a short spin and then a
// block in the kernel; with more threads than usable cores there is no spin at all.
class ThreadPool {
 public:
  // Starts threads - 1 threads. With `cores`, thread t is bound to cores[t % size] (the calling
  // thread too). REQUIRES: threads >= 1.
  ThreadPool(int threads, const std::vector<int>& cores);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int threads() const { return threads_; }

  // Calls body(share) once for each share in [0, threads) and returns when all are done. Bodies
  // must not wait for each other: one thread may run several, one after the other.
  template <class Body>
  void Run(Body&& body) {
    if (threads_ == 1) {
      body(0);
      return;
    }
    using Plain = std::remove_reference_t<Body>;
    RunErased([](void* context, int share) { (*static_cast<Plain*>(context))(share); },
              const_cast<void*>(static_cast<const void*>(&body)));
  }

  // Calls body(begin, end) with the contiguous share of [0, items) of each thread. `serial`: the
  // whole range on the calling thread, where waking the others would cost more than it gains.
  template <class Body>
  void Split(int64_t items, bool serial, Body&& body) {
    if (threads_ == 1 || serial || items <= 1) {
      if (items > 0) {
        body(int64_t{0}, items);
      }
      return;
    }
    Run([&](int thread) {
      const int64_t begin = items * thread / threads_;
      const int64_t end = items * (thread + 1) / threads_;
      if (begin < end) {
        body(begin, end);
      }
    });
  }

 private:
  using Entry = void (*)(void* context, int share);

  // The last round whose share was taken.
  struct alignas(64) Taken {
    std::atomic<uint32_t> round{0};
  };

  void RunErased(Entry entry, void* context);
  void Loop(int thread);
  // True for one caller per share and round. REQUIRES: the rounds before had all shares taken.
  bool Take(int share, uint32_t round);
  // Waits until `value` differs from `old`; returns the new value.
  uint32_t Await(const std::atomic<uint32_t>& value, uint32_t old) const;

  int threads_;
  bool spin_ = false;
  Entry entry_ = nullptr;
  void* context_ = nullptr;
  std::atomic<bool> stop_{false};
  std::unique_ptr<Taken[]> taken_;
  alignas(64) std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<uint32_t> running_{0};
  std::vector<std::thread> workers_;
};

}  // namespace penstock::kernels
