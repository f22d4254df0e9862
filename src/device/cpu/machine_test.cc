#include "device/cpu/machine.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "device/device.h"

namespace se {
namespace {

using Ints = std::vector<int>;

// A system's files below a folder of its own.
class FakeSystem {
 public:
  FakeSystem() {
    static int count = 0;
    root_ = testing::TempDir() + "se_machine_" + std::to_string(::getpid()) + "_" + std::to_string(count++);
  }
  ~FakeSystem() { std::filesystem::remove_all(root_); }
  const std::string& root() const { return root_; }
  FakeSystem& put(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
    return *this;
  }
  // Two sockets of two cores with two hyperthreads, and a node of memory alone.
  FakeSystem& two_sockets() {
    put("/sys/devices/system/node/online", "0-2");
    put("/sys/devices/system/node/node0/cpulist", "0-1,4-5");
    put("/sys/devices/system/node/node1/cpulist", "2-3,6-7");
    put("/sys/devices/system/node/node2/cpulist", "");
    for (int cpu = 0; cpu < 8; ++cpu)
      put("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
          std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4));
    return *this;
  }

 private:
  std::string root_;
};

TEST(Machine, CpuListsAsTheSystemWritesThem) {
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11"), (Ints{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_cpu_list("5\n"), Ints{5});
  for (const char* bad : {"", "\n", "a", "1-", "-1", "3-1", "1,", "1;2", "1,,2", "99999999999"})
    EXPECT_EQ(parse_cpu_list(bad), Ints{}) << bad;
}

TEST(Machine, HyperthreadsOfACoreCountOnce) {
  const auto two_a_core = [](int cpu) { return std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4); };
  EXPECT_EQ(physical_cores({0, 1, 2, 3, 4, 5, 6, 7}, two_a_core), 4);
  EXPECT_EQ(physical_cores({1, 5}, two_a_core), 1);
  EXPECT_EQ(physical_cores({3, 9}, [](int) { return std::string(); }), 2);
  EXPECT_GE(available_cores(), 1);
}

TEST(Machine, NodesAreThoseOfTheCpusThatAreAllowed) {
  FakeSystem system;
  system.two_sockets();
  const auto all = cpu_nodes({0, 1, 2, 3, 4, 5, 6, 7}, system.root());
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].id, 0);
  EXPECT_EQ(all[0].cpus, (Ints{0, 1, 4, 5}));
  EXPECT_EQ(all[0].cores, 2);
  EXPECT_EQ(all[1].id, 1);
  EXPECT_EQ(all[1].cpus, (Ints{2, 3, 6, 7}));

  const auto some = cpu_nodes({2, 6}, system.root());  // taskset -c 2,6
  ASSERT_EQ(some.size(), 1u);
  EXPECT_EQ(some[0].id, 1);
  EXPECT_EQ(some[0].cpus, (Ints{2, 6}));
  EXPECT_EQ(some[0].cores, 1);

  const auto strange = cpu_nodes({0, 2, 99}, system.root());  // the system names no node for 99
  ASSERT_EQ(strange.size(), 2u);
  EXPECT_EQ(strange[0].cpus, (Ints{0, 99}));
}

TEST(Machine, WithoutNodesThereIsOne) {
  FakeSystem bare;
  const auto nodes = cpu_nodes({0, 1}, bare.root());
  ASSERT_EQ(nodes.size(), 1u);
  EXPECT_EQ(nodes[0].cpus, (Ints{0, 1}));
  EXPECT_EQ(nodes[0].cores, 2);
  EXPECT_EQ(cpu_nodes({}, bare.root()).size(), 1u);
  FakeSystem broken;
  broken.put("/sys/devices/system/node/online", "0-").put("/sys/devices/system/node/node0/cpulist", "0-1");
  EXPECT_EQ(cpu_nodes({0, 1}, broken.root()).size(), 1u);
}

TEST(Machine, ThreadsAreSpreadByCores) {
  const auto spread = [](Ints cores, int threads) {
    std::vector<CpuNode> nodes;
    for (int c : cores) nodes.push_back({int(nodes.size()), {}, c});
    return spread_threads(nodes, threads);
  };
  EXPECT_EQ(spread({8}, 3), Ints{3});
  EXPECT_EQ(spread({8, 8}, 16), (Ints{8, 8}));
  EXPECT_EQ(spread({8, 8}, 5), (Ints{3, 2}));
  EXPECT_EQ(spread({8, 8}, 1), (Ints{1, 0}));
  EXPECT_EQ(spread({2, 6}, 8), (Ints{2, 6}));
  EXPECT_EQ(spread({2, 6}, 1), (Ints{0, 1}));
  EXPECT_EQ(spread({4, 4, 4, 4}, 64), (Ints{16, 16, 16, 16}));  // more than cores
}

TEST(Machine, QuotasOfTheGroupAndOfThoseAboveIt) {
  EXPECT_EQ(cgroup_cores(FakeSystem().root()), 0);
  FakeSystem container;  // sees itself as the root
  container.put("/proc/self/cgroup", "0::/").put("/sys/fs/cgroup/cpu.max", "350000 100000");
  EXPECT_EQ(cgroup_cores(container.root()), 3);
  FakeSystem small;
  small.put("/proc/self/cgroup", "0::/").put("/sys/fs/cgroup/cpu.max", "50000 100000");
  EXPECT_EQ(cgroup_cores(small.root()), 1);
  FakeSystem service;  // the slice above it is the one with a quota
  service.put("/proc/self/cgroup", "0::/work.slice/job.service");
  service.put("/sys/fs/cgroup/work.slice/job.service/cpu.max", "max 100000");
  service.put("/sys/fs/cgroup/work.slice/cpu.max", "400000 100000");
  EXPECT_EQ(cgroup_cores(service.root()), 4);
  service.put("/sys/fs/cgroup/work.slice/job.service/cpu.max", "200000 100000");
  EXPECT_EQ(cgroup_cores(service.root()), 2);
  FakeSystem old;  // v1, a group below the root
  old.put("/proc/self/cgroup", "5:memory:/job\n4:cpu,cpuacct:/job");
  old.put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1").put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(cgroup_cores(old.root()), 0);
  old.put("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "600000");
  old.put("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000");
  EXPECT_EQ(cgroup_cores(old.root()), 6);
  FakeSystem outside;  // a container whose place is named as the host sees it
  outside.put("/proc/self/cgroup", "4:cpu:/docker/abc");
  outside.put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000");
  outside.put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(cgroup_cores(outside.root()), 2);
}

TEST(Machine, AThreadIsBoundWhileTheGuardLives) {
  const Ints before = allowed_cpus();
  {
    const OnCpus nothing(Ints{});
    EXPECT_FALSE(nothing.bound());
    const Ints last{before.back()};
    const OnCpus on(last);
    ASSERT_TRUE(on.bound());
    EXPECT_EQ(allowed_cpus(), last);
  }
  EXPECT_EQ(allowed_cpus(), before);
}

TEST(Machine, MemoryIsInterleavedWhereTheSystemAllowsIt) {
  const int64_t bytes = int64_t{1} << 20;
  const Buffer buffer = Buffer::allocate(bytes).take();
  const CpuNode& node = machine_nodes().front();
  const bool done = interleave(buffer.data(), bytes, std::span(&node, 1));
  buffer.data()[0] = buffer.data()[bytes - 1] = 1;  // usable either way
  if (!done) GTEST_SKIP() << "the system refuses to place memory";
  int policy = -1;
  ASSERT_EQ(::syscall(SYS_get_mempolicy, &policy, nullptr, 0ul, buffer.data(), MPOL_F_ADDR), 0);
  EXPECT_EQ(policy, MPOL_INTERLEAVE);
  CpuNode missing;
  missing.id = 1000;
  EXPECT_FALSE(interleave(buffer.data(), bytes, std::span(&missing, 1)));
}

}  // namespace
}  // namespace se
