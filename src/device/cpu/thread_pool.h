// device/cpu/thread_pool.h -- the engine's own threads. Items are handed out one by one from a counter;
// what an item computes must not depend on which thread runs it, so results never depend on the count.
// A thread without work looks for more for some 50 us, then sleeps. run() waits for items, not for threads:
// one that the system keeps off its core delays nobody.
//
// On a machine of several memory nodes (NUMA) threads are spread over them (machine.h) and each stays on the
// CPUs of its node; the system places them there, for a core of one's own may be another process's too. Every
// node has a counter and a share of the items of a run that depends on the threads alone. So memory that item
// i of n writes first is near the threads that read it as item i of n later. A thread that finds its node's
// share done helps others.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "device/cpu/machine.h"

namespace se {

class ThreadPool {
 public:
  // threads >= 1; the caller is one of them, on the first node. nodes: those of the machine, but for tests.
  explicit ThreadPool(int threads, std::span<const CpuNode> nodes = machine_nodes());
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  int threads() const { return int(workers_.size()) + 1; }

  // Nodes that have threads.
  int nodes() const { return int(nodes_.size()); }
  // Of n things in a row, where node k's share begins, k <= nodes(): in proportion to its threads.
  int64_t share_begin(int node, int64_t n) const {
    return n * (node < nodes() ? nodes_[size_t(node)].first_thread : threads()) / threads();
  }
  // Keeps the calling thread on the first node's CPUs while the result lives, as the workers are kept on
  // theirs. For the thread that calls run() for the life of an engine. Does nothing where there is one node.
  OnCpus bind_caller() const { return OnCpus(cpus_of(0)); }

  // Runs fn(item, thread) for every item in [0, items), thread in [0, threads()). Returns when all are
  // done. Called by one thread at a time, not from within fn; items < 2^31.
  void run(int64_t items, const std::function<void(int64_t item, int thread)>& fn);
  // The same with node k's share being items [begins[k], begins[k + 1]); begins: nodes() + 1 ascending, from
  // 0 on.
  void run(std::span<const int64_t> begins, const std::function<void(int64_t item, int thread)>& fn);

 private:
  struct Node {
    int first_thread = 0;
    std::vector<int> cpus;
  };
  // Items of the run in the high half, the next one to hand out in the low half: a thread that comes late
  // either gets an item of the run that is on, or none. Items fit 31 bits.
  struct alignas(64) Queue {
    std::atomic<uint64_t> ticket{0};
    int64_t first = 0;  // item 0 of them
  };
  std::span<const int> cpus_of(int node) const {
    return nodes() > 1 ? std::span<const int>(nodes_[size_t(node)].cpus) : std::span<const int>();
  }
  void work(int thread, int node);
  void drain(int thread, int node);
  std::vector<Node> nodes_;
  std::unique_ptr<Queue[]> queues_;  // one a node
  std::vector<int64_t> begins_;      // of a run in shares by threads
  std::vector<std::thread> workers_;
  alignas(64) std::atomic<int32_t> left_{0};   // items of the run that are not done
  alignas(64) std::atomic<uint32_t> runs_{0};  // what sleepers watch
  const std::function<void(int64_t, int)>* fn_ = nullptr;
  std::atomic<bool> stop_{false};
};

}  // namespace se
