#include "device/device.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <numeric>
#include <thread>

#include "device/cpu/isa.h"
#include "device/cpu/thread_pool.h"

namespace se {
namespace {

TEST(TensorView, StridesOfBlockTypesCountBytes) {
  char data[4096] = {};
  const TensorView w = TensorView::of(data, DType::kQ4_1, {3, 64});
  EXPECT_EQ(w.stride[1], 20);
  EXPECT_EQ(w.stride[0], 40);
  EXPECT_EQ(w.at<char>(2) - data, 80);
  EXPECT_EQ(bytes_of(DType::kQ8_0, 64), 68);
  EXPECT_TRUE(w.contiguous());
  EXPECT_EQ(to_string(w.index(1)), "q4_1[64]");
}

TEST(TensorView, SlicesAndIndicesKeepTheBytes) {
  float data[24];
  std::iota(data, data + 24, 0.f);
  const TensorView t = TensorView::of(data, DType::kF32, {2, 3, 4});
  EXPECT_EQ(*t.at<float>(1, 2, 3), 23);
  EXPECT_EQ(*t.index(1).slice(1, 3).at<float>(0, 0), 16);
  EXPECT_FALSE(t.index(0).slice(0, 2).empty());
  TensorView gap = t;
  gap.stride[1] = 32;
  EXPECT_FALSE(gap.contiguous());
}

TEST(Arena, AddressesStayUntilRewindAndBlocksAreReused) {
  Arena a;
  const auto first = a.take<float>(10);
  const auto mark = a.mark();
  const TensorView big = a.take(DType::kF32, {1 << 20});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(big.data) % 64, 0u);
  a.rewind(mark);
  const int64_t reserved = a.reserved_bytes();
  for (int i = 0; i < 100; ++i) {
    a.rewind(mark);
    a.take(DType::kF32, {1 << 20});
  }
  EXPECT_EQ(a.reserved_bytes(), reserved);
  first[9] = 1;
  EXPECT_EQ(first[9], 1);
}

TEST(ThreadPool, EveryItemRunsOnceOnAnyNumberOfThreads) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int64_t items : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> hits(size_t(std::max<int64_t>(items, 1)));
      pool.run(items, [&](int64_t i, int t) {
        EXPECT_LT(t, threads);
        hits[size_t(i)]++;
      });
      for (int64_t i = 0; i < items; ++i) EXPECT_EQ(hits[size_t(i)], 1);
    }
    for (int round = 0; round < 2000; ++round) {
      std::atomic<int64_t> sum{0};
      pool.run(8, [&](int64_t i, int) { sum += i; });
      ASSERT_EQ(sum, 28);
    }
  }
}

// Two nodes that are the same CPU: the rules are those of two.
std::vector<CpuNode> twins(int first_cores, int second_cores) {
  const int cpu = allowed_cpus().front();
  return {{0, {cpu}, first_cores}, {1, {cpu}, second_cores}};
}

TEST(ThreadPool, EveryItemRunsOnceOnSeveralNodes) {
  for (int threads : {1, 2, 5}) {
    const auto nodes = twins(1, 3);
    ThreadPool pool(threads, nodes);
    EXPECT_EQ(pool.nodes(), threads == 1 ? 1 : 2);
    const OnCpus bound = pool.bind_caller();
    for (int64_t items : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> hits(size_t(std::max<int64_t>(items, 1)));
      pool.run(items, [&](int64_t i, int) { hits[size_t(i)]++; });
      for (int64_t i = 0; i < items; ++i) EXPECT_EQ(hits[size_t(i)], 1);
    }
    for (int round = 0; round < 2000; ++round) {
      std::atomic<int64_t> sum{0};
      pool.run(8, [&](int64_t i, int) { sum += i; });
      ASSERT_EQ(sum, 28);
    }
  }
}

TEST(ThreadPool, SharesOfNodesFollowTheirThreadsAndLeaveNothingOut) {
  const auto nodes = twins(1, 3);
  ThreadPool pool(4, nodes);
  for (int64_t n : {0, 1, 3, 4, 100, 1001}) {
    EXPECT_EQ(pool.share_begin(0, n), 0);
    EXPECT_EQ(pool.share_begin(1, n), n / 4);
    EXPECT_EQ(pool.share_begin(2, n), n);
  }
}

// Each item waits for the other, so that two threads run them: whose share an item is decides which one. A
// pool's first run, for a thread still leaving the run before may help with the next one's first share.
TEST(ThreadPool, AnItemIsItsNodesThreadsUnlessTheyAreLate) {
  const auto nodes = twins(1, 1);
  for (int round = 0; round < 50; ++round) {
    ThreadPool pool(2, nodes);
    std::atomic<int> here{0};
    int thread_of[2] = {-1, -1};
    const int64_t begins[] = {0, 1, 2};
    pool.run(begins, [&](int64_t i, int thread) {
      thread_of[i] = thread;
      for (++here; here < 2;) std::this_thread::yield();
    });
    EXPECT_EQ(thread_of[0], 0);
    EXPECT_EQ(thread_of[1], 1);
  }
}

TEST(ThreadPool, WorksAfterItsThreadsFellAsleep) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int64_t> sum{0};
    pool.run(100, [&](int64_t i, int) { sum += i; });
    ASSERT_EQ(sum, 4950);
  }
}

TEST(Isa, UnknownAndMissingLevelsAreRefused) {
  ::setenv("SE_ISA", "sse9", 1);
  EXPECT_EQ(cpu::wanted_isa().status().code(), Code::kInvalid);
  ::setenv("SE_ISA", "baseline", 1);
  EXPECT_EQ(*cpu::wanted_isa(), cpu::Isa::kBaseline);
  ::unsetenv("SE_ISA");
  EXPECT_EQ(*cpu::wanted_isa(), cpu::best_isa());
}

}  // namespace
}  // namespace se
