// device/cuda/launch.h -- one way to launch a kernel, with programmatic dependent launch: the kernel may
// start while its predecessor drains, so it must call pdl_wait() before it touches what the predecessor
// writes (or overwrites what the predecessor reads), and calls pdl_release() once its own successor may
// start.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "device/cuda/check.h"

namespace se::cuda {

inline constexpr int64_t kProcessorShared = 228 << 10;  // L1 and shared memory together have 28 KiB more

// `cluster` blocks along x are placed together and may reach each other's shared memory. processor_bytes: the
// shared memory that a processor should set aside (what all its blocks take), the rest being L1; below 0:
// what the driver chooses, which may be what a kernel before left, even if that was all of it. Kernels that
// read by many loads into registers should say it: those loads land in L1.
template <typename... Formal, typename... Actual>
void launch_clusters(void (*kernel)(Formal...),
                     dim3 grid,
                     int cluster,
                     int threads,
                     int64_t shared_bytes,
                     int64_t processor_bytes,
                     cudaStream_t stream,
                     Actual&&... args) {
  cudaLaunchAttribute attributes[3]{};
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = dim3(unsigned(threads)), config.stream = stream;
  config.dynamicSmemBytes = size_t(shared_bytes), config.attrs = attributes;
  attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  if (cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {unsigned(cluster), 1, 1};
  }
  if (processor_bytes >= 0) {
    const int64_t percent = (processor_bytes * 100 + kProcessorShared - 1) / kProcessorShared;
    attributes[config.numAttrs].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attributes[config.numAttrs++].val.sharedMemCarveout = unsigned(percent < 100 ? percent : 100);
  }
  SE_CUDA(cudaLaunchKernelEx(&config, kernel, static_cast<Formal>(args)...));
}

template <typename... Formal, typename... Actual>
void launch(void (*kernel)(Formal...),
            dim3 grid,
            int threads,
            int64_t shared_bytes,
            cudaStream_t stream,
            Actual&&... args) {
  launch_clusters(kernel, grid, 1, threads, shared_bytes, -1, stream, static_cast<Actual&&>(args)...);
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

// A barrier of the blocks of a cluster, in two halves. All threads. The first pair makes sure that the others
// have begun, before their shared memory is touched.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// Stores to the shared memory of another block of the cluster, at the place that `to` has in this one.
__device__ __forceinline__ void store_in_block(float* to, unsigned rank, float x) {
#if __CUDA_ARCH__ >= 900
  uint32_t at;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(at)
               : "r"(uint32_t(__cvta_generic_to_shared(to))), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
#endif
}
#endif

}  // namespace se::cuda
