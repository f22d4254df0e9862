#include "device/cuda/device.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>

#include "base/fmt.h"
#include "device/cuda/check.h"
#include "device/cuda/probe.h"

namespace se::cuda {
namespace {

std::string version(int v) { return format("{}.{}", v / 1000, v % 1000 / 10); }

Status no_driver(cudaError_t error, int driver, int runtime) {
  if (error == cudaErrorInsufficientDriver && driver > 0)
    return unsupported(
        format("the NVIDIA driver speaks CUDA {}, this build needs {} or newer: update the driver",
               version(driver),
               version(runtime)));
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver)
    return unsupported(
        "no CUDA device found: is a GPU there and its driver loaded? --device cpu works without");
  return unsupported(format("CUDA does not start: {}", cudaGetErrorString(error)));
}

}  // namespace

void call_failed(const char* file, int line, const char* call, cudaError_t error) {
  std::fprintf(stderr,
               "%s:%d: CUDA call failed: %s: %s (%s)\n",
               file,
               line,
               call,
               cudaGetErrorString(error),
               cudaGetErrorName(error));
  std::abort();
}

Result<int> parse_device(std::string_view name) {
  if (name == "cuda") return 0;
  int index = -1;
  if (name.substr(0, 5) == "cuda:") {
    const char *begin = name.data() + 5, *end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(begin, end, index);
    if (error != std::errc() || stop != end) index = -1;
  }
  if (index < 0) return invalid(format("device '{}': expected 'cuda' or 'cuda:N'", name));
  return index;
}

Result<DeviceFacts> open_device(std::string_view name) {
  SE_ASSIGN(const int index, parse_device(name));
  DeviceFacts f;
  f.index = index;
  cudaDriverGetVersion(&f.driver);
  cudaRuntimeGetVersion(&f.runtime);
  int count = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&count); e != cudaSuccess || count == 0)
    return no_driver(e == cudaSuccess ? cudaErrorNoDevice : e, f.driver, f.runtime);
  if (index >= count)
    return invalid(format("device 'cuda:{}': this machine has {} CUDA device{} (cuda:0{})",
                          index,
                          count,
                          count == 1 ? "" : "s",
                          count == 1 ? "" : format(" to cuda:{}", count - 1)));
  cudaDeviceProp prop{};
  SE_CUDA(cudaGetDeviceProperties(&prop, index));
  f.name = prop.name, f.major = prop.major, f.minor = prop.minor, f.processors = prop.multiProcessorCount;
  f.shared_per_block = int64_t(prop.sharedMemPerBlockOptin), f.l2_bytes = prop.l2CacheSize;
  if (const cudaError_t e = cudaSetDevice(index); e != cudaSuccess)
    return unsupported(format("device 'cuda:{}' ({}): {}", index, f.name, cudaGetErrorString(e)));
  size_t free = 0, total = 0;
  if (const cudaError_t e = cudaMemGetInfo(&free, &total); e != cudaSuccess)
    return unsupported(format("device 'cuda:{}' ({}): {}", index, f.name, cudaGetErrorString(e)));
  f.free_bytes = int64_t(free), f.total_bytes = int64_t(total);
  if (!has_code_for_current_device())
    return unsupported(format("device 'cuda:{}' ({}) is sm_{}{}: this build has code for {} only",
                              index,
                              f.name,
                              f.major,
                              f.minor,
                              built_architectures()));
  return f;
}

std::string to_string(const DeviceFacts& f) {
  return format("{}, {} processors, {:.1f} GiB, sm_{}{}, driver {}, runtime {}",
                f.name,
                f.processors,
                double(f.total_bytes) / double(1 << 30),
                f.major,
                f.minor,
                version(f.driver),
                version(f.runtime));
}

}  // namespace se::cuda
