#include "device/cpu/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace se {
namespace {

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Microseconds of CPU per period that the cgroup grants, as a whole number of cores; 0: no limit.
int cgroup_cores() {
  double quota = -1, period = 0;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2) {
    std::string first;
    v2 >> first >> period;
    if (first != "max" && !first.empty()) quota = std::atof(first.c_str());
  } else {
    std::ifstream q("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), p("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    if (q && p) q >> quota, p >> period;
  }
  return quota > 0 && period > 0 ? std::max(1, int(quota / period)) : 0;
}

constexpr int kSpins = 4000;  // some 40-100 us: as long as the gap between two ops of a step

}  // namespace

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  if (const int limit = cgroup_cores()) cores = std::min(cores, limit);
  return std::max(1, cores);
}

ThreadPool::ThreadPool(int threads) {
  SE_CHECK(threads >= 1 && threads <= 1024, "{} threads", threads);
  for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  for (std::thread& w : workers_) w.join();
}

void ThreadPool::drain(int thread) {
  for (;;) {
    const int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
    if (item >= items_) return;
    (*fn_)(item, thread);
  }
}

void ThreadPool::run(int64_t items, const std::function<void(int64_t, int)>& fn) {
  if (items <= 0) return;
  if (items == 1 || workers_.empty()) {
    for (int64_t i = 0; i < items; ++i) fn(i, 0);
    return;
  }
  fn_ = &fn;
  items_ = items;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(int(workers_.size()), std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  drain(0);
  for (int spin = 0; busy_.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < kSpins)
      relax();
    else
      std::this_thread::yield();
  }
}

void ThreadPool::work(int thread) {
  uint64_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spin) relax();
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_) return;
    drain(thread);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace se
