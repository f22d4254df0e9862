// device/cuda/device.h -- finding and opening a CUDA device. Every way it can fail is one clear line.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace se::cuda {

struct DeviceFacts {
  int index = 0, major = 0, minor = 0;
  int processors = 0;            // multiprocessors
  int64_t shared_per_block = 0;  // bytes a block may opt in to
  int64_t l2_bytes = 0, total_bytes = 0, free_bytes = 0;
  int driver = 0, runtime = 0;  // as CUDA counts: 13000 = 13.0
  std::string name;
};

// "cuda" (device 0) or "cuda:N". kInvalid for anything else.
Result<int> parse_device(std::string_view name);

// Makes device `name` current in this thread and returns its facts. kUnsupported: no GPU, a driver older than
// this build's runtime, an architecture this build has no code for; kInvalid: no such index.
Result<DeviceFacts> open_device(std::string_view name);

// "NVIDIA H200, 132 processors, 139.8 GiB, sm_90, driver 13.0, runtime 13.0"
std::string to_string(const DeviceFacts& facts);

}  // namespace se::cuda
