// device/cpu/thread_pool.h -- the engine's own threads. Items are handed out one by one from a counter;
// what an item computes must not depend on which thread runs it, so results never depend on the count.
// A thread without work looks for more for some 50 us, then sleeps. run() waits for items, not for threads:
// one that the system keeps off its core delays nobody.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace se {

// Cores this process may use: those of the affinity mask, hyperthreads of a core counted once, cut by the
// cgroup's CPU quota (v1 and v2); at least 1.
int available_cores();

// The same of a list of CPUs. siblings(cpu): the hyperthreads of its core as the system writes them, "0,4" or
// "2-3"; "": not known, a core of its own.
int physical_cores(const std::vector<int>& cpus, const std::function<std::string(int cpu)>& siblings);

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // threads >= 1; the caller is one of them
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  int threads() const { return int(workers_.size()) + 1; }

  // Runs fn(item, thread) for every item in [0, items), thread in [0, threads()). Returns when all are
  // done. Called by one thread at a time, not from within fn; items < 2^31.
  void run(int64_t items, const std::function<void(int64_t item, int thread)>& fn);

 private:
  void work(int thread);
  void drain(int thread);
  std::vector<std::thread> workers_;
  // Items of the run in the high half, the next one to hand out in the low half: a thread that comes late
  // either gets an item of the run that is on, or none. Items fit 31 bits.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int32_t> left_{0};   // items of the run that are not done
  alignas(64) std::atomic<uint32_t> runs_{0};  // what sleepers watch
  const std::function<void(int64_t, int)>* fn_ = nullptr;
  std::atomic<bool> stop_{false};
};

}  // namespace se
