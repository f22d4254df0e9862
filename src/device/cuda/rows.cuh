// device/cuda/rows.cuh -- f32 rows, RMS-normalised on the way to where they are wanted. Device code only.
#pragma once
#include <cstdint>

namespace se::cuda {

// Rows first .. first + kRows - 1 (rows past `rows` repeat the last) of x f32 [rows, k], times norm[i] / rms
// if `norm` is set, handed to put(row of the group, channel, float4 of channels channel .. + 3). k is a
// multiple of 4. `sums` f32 [warps][kRows], used with `norm`. All threads of the block; ends without a
// barrier.
template <int kRows, typename Put>
__device__ __forceinline__ void take_rows(
    const float* x, int k, int first, int rows, const float* norm, float eps, float* sums, const Put& put) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int round = blockDim.x * 8;  // channels of all threads at once: two quads each
  float4 v[kRows][2];
  int at[2];
  const auto load = [&](int base) {
#pragma unroll
    for (int i = 0; i < 2; ++i) at[i] = base + (i * blockDim.x + threadIdx.x) * 4;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        v[r][i] = at[i] < k
                      ? *reinterpret_cast<const float4*>(x + int64_t(min(first + r, rows - 1)) * k + at[i])
                      : float4{0, 0, 0, 0};
  };
  float f[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) f[r] = norm ? 0 : 1;
  if (norm) {
    for (int base = 0; base < k; base += round) {
      load(base);
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          f[r] += (v[r][i].x * v[r][i].x + v[r][i].y * v[r][i].y) +
                  (v[r][i].z * v[r][i].z + v[r][i].w * v[r][i].w);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      for (int d = 16; d > 0; d /= 2) f[r] += __shfl_xor_sync(~0u, f[r], d);
      if (lane == 0) sums[warp * kRows + r] = f[r];
    }
    const float share = __frcp_rn(float(k));
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float sum = 0;
      for (int i = 0; i < warps; ++i) sum += sums[i * kRows + r];
      f[r] = rsqrtf(sum * share + eps);
    }
  }
  for (int base = 0; base < k; base += round) {
    if (!norm || k > round) load(base);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (at[i] >= k) continue;
      const float4 w = norm ? __ldg(reinterpret_cast<const float4*>(norm + at[i])) : float4{1, 1, 1, 1};
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        put(r,
            at[i],
            float4{v[r][i].x * f[r] * w.x,
                   v[r][i].y * f[r] * w.y,
                   v[r][i].z * f[r] * w.z,
                   v[r][i].w * f[r] * w.w});
    }
  }
}

}  // namespace se::cuda
