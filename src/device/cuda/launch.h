// device/cuda/launch.h -- one way to launch a kernel, with programmatic dependent launch: the kernel may
// start while its predecessor drains, so it must call pdl_wait() before it touches what the predecessor
// writes (or overwrites what the predecessor reads), and calls pdl_release() once its own successor may
// start.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "device/cuda/check.h"

namespace se::cuda {

template <typename... Formal, typename... Actual>
void launch(void (*kernel)(Formal...),
            dim3 grid,
            int threads,
            int64_t shared_bytes,
            cudaStream_t stream,
            Actual&&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = dim3(unsigned(threads)), config.stream = stream;
  config.dynamicSmemBytes = size_t(shared_bytes), config.attrs = &attribute, config.numAttrs = 1;
  SE_CUDA(cudaLaunchKernelEx(&config, kernel, static_cast<Formal>(args)...));
}

#ifdef __CUDACC__
// All earlier kernels of the stream are done and their writes are seen.
__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel's blocks may start as soon as every block of this one has come here.
__device__ __forceinline__ void pdl_release() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

}  // namespace se::cuda
