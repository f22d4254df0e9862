#include "device/cpu/thread_pool.h"

#include "base/check.h"
#include "base/log.h"

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

ThreadPool::ThreadPool(int threads, std::span<const CpuNode> nodes) {
  SE_CHECK(threads >= 1 && threads <= 1024, "{} threads", threads);
  const std::vector<int> of_node = spread_threads(nodes, threads);
  int first = 0;
  for (size_t k = 0; k < nodes.size(); ++k) {
    if (of_node[k] > 0) nodes_.push_back({first, nodes[k].cpus});
    first += of_node[k];
  }
  queues_ = std::make_unique<Queue[]>(nodes_.size());
  begins_.resize(nodes_.size() + 1);
  for (int t = 1, node = 0; t < threads; ++t) {
    if (node + 1 < this->nodes() && nodes_[size_t(node + 1)].first_thread == t) ++node;
    workers_.emplace_back([this, t, node] { work(t, node); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  runs_.fetch_add(1, std::memory_order_release);
  runs_.notify_all();
  for (std::thread& w : workers_) w.join();
}

void ThreadPool::drain(int thread, int node) {
  for (int k = 0; k < nodes(); ++k) {  // its own node's share, then the others'
    Queue& queue = queues_[size_t((node + k) % nodes())];
    for (;;) {
      // Acquires fn_ and queue.first. They stay what they are until the last item handed out is done.
      const uint64_t t = queue.ticket.fetch_add(1, std::memory_order_acquire);
      const int64_t item = int64_t(t & 0xffffffff), items = int64_t(t >> 32);
      if (item >= items) break;
      (*fn_)(queue.first + item, thread);
      if (left_.fetch_sub(1, std::memory_order_release) == 1) left_.notify_one();
    }
  }
}

void ThreadPool::run(int64_t items, const std::function<void(int64_t, int)>& fn) {
  for (int k = 0; k <= nodes(); ++k) begins_[size_t(k)] = share_begin(k, items);
  run(begins_, fn);
}

void ThreadPool::run(std::span<const int64_t> begins, const std::function<void(int64_t, int)>& fn) {
  SE_CHECK(int(begins.size()) == nodes() + 1 && begins.front() == 0,
           "{} bounds of shares for {} nodes",
           begins.size(),
           nodes());
  const int64_t items = begins.back();
  if (items <= 0) return;
  if (items == 1 || workers_.empty()) {
    for (int64_t i = 0; i < items; ++i) fn(i, 0);
    return;
  }
  SE_CHECK(items < int64_t{1} << 31, "{} items", items);
  fn_ = &fn;
  left_.store(int32_t(items), std::memory_order_relaxed);
  for (int k = 0; k < nodes(); ++k) {
    Queue& queue = queues_[size_t(k)];
    queue.first = begins[size_t(k)];
    queue.ticket.store(uint64_t(begins[size_t(k + 1)] - queue.first) << 32, std::memory_order_release);
  }
  runs_.fetch_add(1, std::memory_order_release);
  runs_.notify_all();
  drain(0, 0);
  const auto done = [&] { return left_.load(std::memory_order_acquire) == 0; };
  if (spin_for(done)) return;
  for (int32_t left; (left = left_.load(std::memory_order_acquire)) != 0;) left_.wait(left);
}

void ThreadPool::work(int thread, int node) {
  const std::span<const int> cpus = cpus_of(node);
  const OnCpus on(cpus);
  if (!cpus.empty() && !on.bound()) SE_LOG(warn, "threads.node", "thread", thread, "not_bound_to", node);
  uint32_t seen = 0;
  for (;;) {
    if (!spin_for([&] { return runs_.load(std::memory_order_acquire) != seen; }))
      runs_.wait(seen, std::memory_order_acquire);
    seen = runs_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    drain(thread, node);
  }
}

}  // namespace se
