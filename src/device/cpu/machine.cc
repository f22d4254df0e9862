#include "device/cpu/machine.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <set>
#include <utility>

#include "base/check.h"

namespace se {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream f(path);
  std::string line;
  std::getline(f, line);
  return line;
}

// A set of CPUs as the kernel wants it: a machine may have more than cpu_set_t has bits.
class CpuSet {
 public:
  explicit CpuSet(int bits) : bits_(bits), words_(size_t(bits) / (8 * sizeof(unsigned long))) {}
  size_t bytes() const { return words_.size() * sizeof(unsigned long); }
  cpu_set_t* get() { return reinterpret_cast<cpu_set_t*>(words_.data()); }
  std::vector<int> cpus() const {
    std::vector<int> out;
    for (int cpu = 0; cpu < bits_; ++cpu) {
      if (CPU_ISSET_S(size_t(cpu), bytes(), reinterpret_cast<const cpu_set_t*>(words_.data())))
        out.push_back(cpu);
    }
    return out;
  }

 private:
  int bits_;
  std::vector<unsigned long> words_;
};

bool set_affinity(std::span<const int> cpus) {
  if (cpus.empty()) return false;
  CpuSet set((*std::max_element(cpus.begin(), cpus.end()) / 1024 + 1) * 1024);
  for (int cpu : cpus) CPU_SET_S(size_t(cpu), set.bytes(), set.get());
  return ::sched_setaffinity(0, set.bytes(), set.get()) == 0;
}

// Cores that one group's files grant; 0: no quota there.
double quota_v2(const std::string& folder) {
  std::ifstream f(folder + "/cpu.max");
  std::string quota;
  double period = 0;
  f >> quota >> period;
  return quota.empty() || quota == "max" || period <= 0 ? 0 : std::atof(quota.c_str()) / period;
}
double quota_v1(const std::string& folder) {
  std::ifstream q(folder + "/cpu.cfs_quota_us"), p(folder + "/cpu.cfs_period_us");
  double quota = -1, period = 0;
  if (q && p) q >> quota, p >> period;
  return quota > 0 && period > 0 ? quota / period : 0;
}

// The least quota of a group and those above it, `path` being its place below `mount`.
template <typename Quota>
double least_quota(const std::string& mount, std::string path, const Quota& quota) {
  double least = 0;
  for (;;) {
    const double here = quota(mount + path);
    if (here > 0 && (least == 0 || here < least)) least = here;
    if (path.empty()) return least;
    path.resize(path.find_last_of('/'));
  }
}

}  // namespace

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> out;
  const char *p = text.data(), *end = p + text.size();
  while (end > p && (end[-1] == '\n' || end[-1] == ' ')) --end;
  while (p < end) {
    int first = 0, last = 0;
    auto got = std::from_chars(p, end, first);
    if (got.ec != std::errc() || first < 0) return {};
    last = first, p = got.ptr;
    if (p < end && *p == '-') {
      got = std::from_chars(p + 1, end, last);
      if (got.ec != std::errc() || last < first) return {};
      p = got.ptr;
    }
    for (int cpu = first; cpu <= last; ++cpu) out.push_back(cpu);
    if (p == end) break;
    if (*p++ != ',' || p == end) return {};
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<int> allowed_cpus() {
  for (int bits = 1024; bits <= 1 << 16; bits *= 2) {
    CpuSet set(bits);
    if (::sched_getaffinity(0, set.bytes(), set.get()) == 0) return set.cpus();
  }
  return {};
}

int physical_cores(const std::vector<int>& cpus, const std::function<std::string(int)>& siblings) {
  std::set<std::string> cores;
  for (int cpu : cpus) {
    const std::string list = siblings(cpu);
    cores.insert(list.empty() ? std::to_string(cpu) : list);
  }
  return int(cores.size());
}

std::vector<CpuNode> cpu_nodes(const std::vector<int>& cpus, const std::string& root) {
  const std::string system = root + "/sys/devices/system/";
  std::vector<CpuNode> nodes;
  std::set<int> left(cpus.begin(), cpus.end());
  for (int id : parse_cpu_list(first_line(system + "node/online"))) {
    CpuNode node{id, {}, 1};
    for (int cpu : parse_cpu_list(first_line(system + "node/node" + std::to_string(id) + "/cpulist"))) {
      if (left.erase(cpu)) node.cpus.push_back(cpu);
    }
    if (!node.cpus.empty()) nodes.push_back(std::move(node));  // others are memory alone, or not ours
  }
  if (nodes.empty()) nodes.push_back({});
  std::vector<int>& first = nodes.front().cpus;
  first.insert(first.end(), left.begin(), left.end());
  std::sort(first.begin(), first.end());
  for (CpuNode& node : nodes) {
    const int cores = physical_cores(node.cpus, [&](int cpu) {
      return first_line(system + "cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
    });
    node.cores = std::max(1, cores);
  }
  return nodes;
}

int cgroup_cores(const std::string& root) {
  const std::string mount = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");
  double least = 0;
  const auto take = [&](double quota) {
    if (quota > 0 && (least == 0 || quota < least)) least = quota;
  };
  // In a container the place may be one outside it: what is mounted is then its root, which is always looked
  // at.
  for (std::string line; std::getline(groups, line);) {  // "0::/place" (v2), "4:cpu,cpuacct:/place" (v1)
    const size_t a = line.find(':'), b = a == std::string::npos ? a : line.find(':', a + 1);
    if (b == std::string::npos) continue;
    const std::string names = "," + line.substr(a + 1, b - a - 1) + ",";
    std::string place = line.substr(b + 1);
    if (place == "/" || !place.starts_with('/')) place.clear();
    if (names == ",,") take(least_quota(mount, place, quota_v2));
    if (names.find(",cpu,") != std::string::npos) take(least_quota(mount + "/cpu", place, quota_v1));
  }
  take(quota_v2(mount)), take(quota_v1(mount + "/cpu"));
  return least > 0 ? std::max(1, int(least)) : 0;
}

const std::vector<CpuNode>& machine_nodes() {
  static const std::vector<CpuNode> nodes = cpu_nodes(allowed_cpus());
  return nodes;
}

int available_cores() {
  int cores = 0;
  for (const CpuNode& node : machine_nodes()) cores += node.cores;
  if (const int limit = cgroup_cores()) cores = std::min(cores, limit);
  return std::max(1, cores);
}

std::vector<int> spread_threads(std::span<const CpuNode> nodes, int threads) {
  SE_CHECK(!nodes.empty() && threads >= 0, "{} threads over {} nodes", threads, nodes.size());
  int64_t cores = 0;
  for (const CpuNode& node : nodes) cores += node.cores;
  std::vector<int> out;
  for (const CpuNode& node : nodes) out.push_back(int(int64_t(threads) * node.cores / cores));
  std::vector<size_t> order(nodes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return int64_t(threads) * nodes[a].cores % cores > int64_t(threads) * nodes[b].cores % cores;
  });
  const int rest = threads - std::accumulate(out.begin(), out.end(), 0);
  for (int i = 0; i < rest; ++i) ++out[order[size_t(i)]];
  return out;
}

OnCpus::OnCpus(std::span<const int> cpus) {
  if (cpus.empty()) return;
  before_ = allowed_cpus();
  bound_ = set_affinity(cpus);
}

OnCpus::~OnCpus() {
  if (bound_) set_affinity(before_);
}

bool interleave(void* p, int64_t bytes, std::span<const CpuNode> nodes) {
  constexpr int kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask;
  for (const CpuNode& node : nodes) {
    mask.resize(std::max(mask.size(), size_t(node.id / kBits + 1)));
    mask[size_t(node.id / kBits)] |= 1ul << node.id % kBits;
  }
  // The kernel takes one bit less than it is told.
  return ::syscall(SYS_mbind, p, size_t(bytes), MPOL_INTERLEAVE, mask.data(), mask.size() * kBits + 1, 0u) ==
         0;
}

}  // namespace se
