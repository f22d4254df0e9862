// device/cpu/thread_pool.h -- the engine's own threads. Items are handed out one by one from a counter;
// what an item computes must not depend on which thread runs it, so results never depend on the count.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace se {

// Cores this process may use: the affinity mask, cut by the cgroup's CPU quota (v1 and v2), at least 1.
int available_cores();

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // threads >= 1; the caller is one of them
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  int threads() const { return int(workers_.size()) + 1; }

  // Runs fn(item, thread) for every item in [0, items), thread in [0, threads()). Returns when all are
  // done. Called by one thread at a time, not from within fn.
  void run(int64_t items, const std::function<void(int64_t item, int thread)>& fn);

 private:
  void work(int thread);
  void drain(int thread);
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  const std::function<void(int64_t, int)>* fn_ = nullptr;
  int64_t items_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> busy_{0};
  bool stop_ = false;
};

}  // namespace se
