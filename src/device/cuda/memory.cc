#include "device/cuda/memory.h"

#include "base/check.h"
#include "device/cuda/check.h"

namespace se::cuda {

Result<Buffer> Buffer::allocate(int64_t bytes, MemoryKind kind) {
  SE_CHECK(bytes >= 0, "{} bytes", bytes);
  Buffer b;
  b.kind_ = kind;
  if (bytes == 0) return b;
  void* p = nullptr;
  const cudaError_t e = kind == MemoryKind::kDevice ? cudaMalloc(&p, size_t(bytes))
                                                    : cudaHostAlloc(&p, size_t(bytes), cudaHostAllocDefault);
  if (e != cudaSuccess) {
    (void)cudaGetLastError();  // an allocation that fails is no sticky error
    size_t free = 0, total = 0;
    (void)cudaMemGetInfo(&free, &total);
    return exhausted(
        format("cannot allocate {:.1f} MiB of {} memory: {} ({:.1f} of {:.1f} MiB free on the device)",
               double(bytes) / 1048576,
               kind == MemoryKind::kDevice ? "device" : "pinned host",
               cudaGetErrorString(e),
               double(free) / 1048576,
               double(total) / 1048576));
  }
  b.data_ = static_cast<char*>(p), b.bytes_ = bytes;
  return b;
}

char* Workspace::raw(int64_t bytes) {
  const int64_t at = (used_ + 255) / 256 * 256;
  SE_CHECK(at + bytes <= memory_.bytes(), "workspace: {} bytes at {} of {}", bytes, at, memory_.bytes());
  used_ = at + bytes;
  return memory_.data() + at;
}

Buffer::~Buffer() {
  if (!data_) return;
  if (kind_ == MemoryKind::kDevice)
    SE_CUDA(cudaFree(data_));
  else
    SE_CUDA(cudaFreeHost(data_));
}

}  // namespace se::cuda
