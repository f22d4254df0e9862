// device/cuda/launch.h -- one way to launch a kernel, with programmatic dependent launch: the kernel may
// start while its predecessor drains, so it must call pdl_wait() before it touches what the predecessor
// writes (or overwrites what the predecessor reads), and calls pdl_release() once its own successor may
// start.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "device/cuda/check.h"

namespace se::cuda {

// `cluster` blocks along x are placed together and may reach each other's shared memory.
template <typename... Formal, typename... Actual>
void launch_clusters(void (*kernel)(Formal...),
                     dim3 grid,
                     int cluster,
                     int threads,
                     int64_t shared_bytes,
                     cudaStream_t stream,
                     Actual&&... args) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {unsigned(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = dim3(unsigned(threads)), config.stream = stream;
  config.dynamicSmemBytes = size_t(shared_bytes), config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  SE_CUDA(cudaLaunchKernelEx(&config, kernel, static_cast<Formal>(args)...));
}

template <typename... Formal, typename... Actual>
void launch(void (*kernel)(Formal...),
            dim3 grid,
            int threads,
            int64_t shared_bytes,
            cudaStream_t stream,
            Actual&&... args) {
  launch_clusters(kernel, grid, 1, threads, shared_bytes, stream, static_cast<Actual&&>(args)...);
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
