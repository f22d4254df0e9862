// device/cpu/machine.h -- what this process may use of its machine: CPUs, physical cores, memory nodes
// (NUMA), the cgroup's quota; and how threads and memory are spread over the nodes. Read from the system's
// own files, below `root` ("" but for tests). Nothing here is needed for a right result: it is about where
// work and memory lie.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace se {

// CPUs of this process that are near one memory.
struct CpuNode {
  int id = 0;             // the system's number
  std::vector<int> cpus;  // ascending
  int cores = 1;          // physical ones among them
};

// "0-3,8,10-11" as the system writes it; empty for a text that is none.
std::vector<int> parse_cpu_list(std::string_view text);

// The affinity mask of the calling thread, which a cpuset narrows; ascending.
std::vector<int> allowed_cpus();

// Hyperthreads of a core counted once. siblings(cpu): those of its core as the system writes them, "0,4" or
// "2-3";
// "": not known, a core of its own.
int physical_cores(const std::vector<int>& cpus, const std::function<std::string(int cpu)>& siblings);

// The nodes that `cpus` belong to, ascending; CPUs that the system names no node for are near the first. One
// node (id 0) where it knows none; never empty.
std::vector<CpuNode> cpu_nodes(const std::vector<int>& cpus, const std::string& root = "");

// Whole cores that the quotas of this process's cgroup and of those above it grant, at least 1; 0: no quota.
// v2 (cpu.max) and v1 (cpu.cfs_quota_us).
int cgroup_cores(const std::string& root = "");

// The nodes of this process, read once.
const std::vector<CpuNode>& machine_nodes();
// Physical cores that this process may use, cut by the quota; at least 1.
int available_cores();

// Threads of each node, in proportion to cores, what is left over to the nodes with the largest rest (the
// first of equals). Their sum is `threads`; a node may get none.
std::vector<int> spread_threads(std::span<const CpuNode> nodes, int threads);

// Restricts the calling thread to these CPUs while this lives. No CPUs: does nothing.
class OnCpus {
 public:
  explicit OnCpus(std::span<const int> cpus);
  ~OnCpus();
  OnCpus(const OnCpus&) = delete;
  OnCpus& operator=(const OnCpus&) = delete;
  bool bound() const { return bound_; }

 private:
  std::vector<int> before_;
  bool bound_ = false;
};

// Pages of [p, p + bytes) that nobody has touched yet will come from these nodes in turn. p: at the beginning
// of a system page. False where the system refuses (containers often do): they then lie where they are first
// touched.
bool interleave(void* p, int64_t bytes, std::span<const CpuNode> nodes);

}  // namespace se
