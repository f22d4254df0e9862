// Candidates are keys: the order-preserving bits of the logit, then the complement of the id.
#include "device/cuda/launch.h"
#include "device/cuda/stream.h"
#include "kernels/sample/argmax_cuda.h"

namespace se::cuda {
namespace {

constexpr int kThreads = 512;

__device__ __forceinline__ uint64_t key_of(float x, int64_t id) {
  if (x != x) return uint32_t(~uint32_t(id));  // below every number
  const uint32_t u = __float_as_uint(x == 0 ? 0.f : x);
  const uint32_t order = u & 0x80000000u ? ~u : u | 0x80000000u;
  return uint64_t(order) << 32 | uint32_t(~uint32_t(id));
}

__device__ __forceinline__ uint64_t block_max(uint64_t key, uint64_t* warps) {
  for (int d = 16; d > 0; d /= 2) key = max(key, __shfl_xor_sync(~0u, key, d));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = key;
  __syncthreads();
  key = threadIdx.x < kThreads / 32 ? warps[threadIdx.x] : 0;
  for (int d = 16; d > 0; d /= 2) key = max(key, __shfl_xor_sync(~0u, key, d));
  return key;  // of warp 0
}

__global__ __launch_bounds__(kThreads) void argmax_kernel(const __grid_constant__ ArgmaxParams p) {
  __shared__ uint64_t warps[kThreads / 32];
  __shared__ bool last_one;
  pdl_wait();
  pdl_release();
  const int row = blockIdx.y;
  const float* logits = p.logits + row * p.vocab;
  uint64_t key = 0;
  for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < p.vocab; i += kArgmaxBlocks * kThreads)
    key = max(key, key_of(logits[i], i));
  key = block_max(key, warps);
  if (threadIdx.x == 0) {
    __stcg(reinterpret_cast<unsigned long long*>(p.best) + row * kArgmaxBlocks + blockIdx.x, key);
    __threadfence();
    last_one = atomicAdd(p.ready + row, 1) == kArgmaxBlocks - 1;
    if (last_one) p.ready[row] = 0;
  }
  __syncthreads();
  if (!last_one || threadIdx.x >= 32) return;
  __threadfence();
  key = __ldcg(reinterpret_cast<unsigned long long*>(p.best) + row * kArgmaxBlocks + threadIdx.x);
  for (int d = 16; d > 0; d /= 2) key = max(key, __shfl_xor_sync(~0u, key, d));
  if (threadIdx.x == 0) p.token[row] = int32_t(~uint32_t(key));
}

}  // namespace

void argmax(const ArgmaxParams& p, Stream& stream) {
  if (p.rows < 1) return;
  launch(argmax_kernel, dim3(kArgmaxBlocks, unsigned(p.rows)), kThreads, 0, stream.get(), p);
}

}  // namespace se::cuda
