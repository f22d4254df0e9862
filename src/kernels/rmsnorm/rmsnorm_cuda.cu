// One block a row; the row stays in registers between the sum of squares and the scaling.
#include <cstdio>
#include <cstdlib>

#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/stream.h"
#include "kernels/rmsnorm/rmsnorm_cuda.h"

namespace se::cuda {
namespace {

constexpr int kThreads = 256, kQuads = 8;  // 8,192 channels a row in registers

__global__ __launch_bounds__(kThreads) void norm_kernel(const __grid_constant__ NormParams p) {
  __shared__ float sums[kThreads / 32];
  float4 w[kQuads], v[kQuads];
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const int at = (i * kThreads + threadIdx.x) * 4;
    if (at < p.k) w[i] = __ldg(reinterpret_cast<const float4*>(p.w + at));
  }
  pdl_wait();
  pdl_release();
  const int64_t row = int64_t(blockIdx.x) * p.k;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const int at = (i * kThreads + threadIdx.x) * 4;
    if (at >= p.k) continue;
    v[i] = *reinterpret_cast<const float4*>(p.x + row + at);
    if (p.add) {
      const float4 a = *reinterpret_cast<const float4*>(p.add + row + at);
      v[i].x += a.x, v[i].y += a.y, v[i].z += a.z, v[i].w += a.w;
    }
    if (p.sum) *reinterpret_cast<float4*>(p.sum + row + at) = v[i];
    sum += (v[i].x * v[i].x + v[i].y * v[i].y) + (v[i].z * v[i].z + v[i].w * v[i].w);
  }
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (int i = 0; i < kThreads / 32; ++i) sum += sums[i];
  const float f = 1 / sqrtf(sum / float(p.k) + p.eps);
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const int at = (i * kThreads + threadIdx.x) * 4;
    if (at >= p.k) continue;
    const float4 y{v[i].x * f * w[i].x, v[i].y * f * w[i].y, v[i].z * f * w[i].z, v[i].w * f * w[i].w};
    if (p.out) *reinterpret_cast<float4*>(p.out + row + at) = y;
    if (p.out16)
      *reinterpret_cast<uint2*>(p.out16 + row + at) = {pack(y.x, y.y, __half()), pack(y.z, y.w, __half())};
    if (p.out_bf16)
      *reinterpret_cast<uint2*>(p.out_bf16 + row + at) = {pack(y.x, y.y, __nv_bfloat16()),
                                                          pack(y.z, y.w, __nv_bfloat16())};
  }
}

}  // namespace

void add_rms_norm(const NormParams& p, Stream& stream) {
  if (p.rows < 1) return;
  if (p.k < 4 || p.k % 4 != 0 || p.k > kThreads * kQuads * 4) {
    std::fprintf(
        stderr, "add_rms_norm: rows of %d: expected a multiple of 4 up to %d\n", p.k, kThreads * kQuads * 4);
    std::abort();
  }
  launch(norm_kernel, dim3(unsigned(p.rows)), kThreads, 0, stream.get(), p);
}

}  // namespace se::cuda
