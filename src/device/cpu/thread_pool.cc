#include "device/cpu/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <set>
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

constexpr int kSpins = 2000;  // some 50 us: longer than the gap between two ops of a step

// Looks for `done` a while.
template <typename F>
bool spin_for(const F& done) {
  for (int i = 0; i < kSpins; ++i) {
    if (done()) return true;
    relax();
  }
  return done();
}

}  // namespace

int physical_cores(const std::vector<int>& cpus, const std::function<std::string(int)>& siblings) {
  std::set<std::string> cores;
  for (int cpu : cpus) {
    const std::string list = siblings(cpu);
    cores.insert(list.empty() ? std::to_string(cpu) : list);
  }
  return int(cores.size());
}

int available_cores() {
  // As large as the kernel wants it: a machine may have more CPUs than cpu_set_t has bits.
  std::vector<int> cpus;
  for (int bits = 1024; bits <= 1 << 16; bits *= 2) {
    cpu_set_t* set = CPU_ALLOC(bits);
    if (!set) break;
    const bool read = ::sched_getaffinity(0, CPU_ALLOC_SIZE(bits), set) == 0;
    for (int cpu = 0; read && cpu < bits; ++cpu) {
      if (CPU_ISSET_S(size_t(cpu), CPU_ALLOC_SIZE(bits), set)) cpus.push_back(cpu);
    }
    CPU_FREE(set);
    if (read) break;
  }
  int cores = physical_cores(cpus, [](int cpu) {
    std::ifstream f("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
    std::string list;
    std::getline(f, list);
    return list;
  });
  if (const int limit = cgroup_cores()) cores = std::min(cores, limit);
  return std::max(1, cores);
}

ThreadPool::ThreadPool(int threads) {
  SE_CHECK(threads >= 1 && threads <= 1024, "{} threads", threads);
  for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  runs_.fetch_add(1, std::memory_order_release);
  runs_.notify_all();
  for (std::thread& w : workers_) w.join();
}

void ThreadPool::drain(int thread) {
  for (;;) {
    // Acquires fn_. It stays what it is until the last item handed out is done.
    const uint64_t t = ticket_.fetch_add(1, std::memory_order_acquire);
    const int64_t item = int64_t(t & 0xffffffff), items = int64_t(t >> 32);
    if (item >= items) return;
    (*fn_)(item, thread);
    if (left_.fetch_sub(1, std::memory_order_release) == 1) left_.notify_one();
  }
}

void ThreadPool::run(int64_t items, const std::function<void(int64_t, int)>& fn) {
  if (items <= 0) return;
  if (items == 1 || workers_.empty()) {
    for (int64_t i = 0; i < items; ++i) fn(i, 0);
    return;
  }
  SE_CHECK(items < int64_t{1} << 31, "{} items", items);
  fn_ = &fn;
  left_.store(int32_t(items), std::memory_order_relaxed);
  ticket_.store(uint64_t(items) << 32, std::memory_order_release);
  runs_.fetch_add(1, std::memory_order_release);
  runs_.notify_all();
  drain(0);
  const auto done = [&] { return left_.load(std::memory_order_acquire) == 0; };
  if (spin_for(done)) return;
  for (int32_t left; (left = left_.load(std::memory_order_acquire)) != 0;) left_.wait(left);
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  for (;;) {
    if (!spin_for([&] { return runs_.load(std::memory_order_acquire) != seen; }))
      runs_.wait(seen, std::memory_order_acquire);
    seen = runs_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    drain(thread);
  }
}

}  // namespace se
