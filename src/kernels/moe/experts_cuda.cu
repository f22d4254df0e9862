// up_kernel: a block takes 16 gate and 16 up rows of one chosen expert, its warps share out k. down_kernel: a
// block takes 16 output channels of all chosen experts; a unit is (expert, 256 of inner), its result for a
// pair goes to a fixed place, and sums run in the order of the row's choices: who computed what does not
// show.
#include <cstdio>
#include <cstdlib>

#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/stream.h"
#include "kernels/moe/moe_cuda.h"

namespace se::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32, kSlots = 16;
constexpr float kShrink = 0x1p-6f, kGrow = 0x1p6f;

__device__ __forceinline__ void mma4(float (&sum)[4],
                                     const uint4& top,
                                     const uint4& low,
                                     const uint32_t (&b)[8]) {
  const uint32_t t[4] = {top.x, top.y, top.z, top.w}, l[4] = {low.x, low.y, low.z, low.w};
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    uint32_t a[4];
    e4m3_to_half(t[s], a[0], a[2]), e4m3_to_half(l[s], a[1], a[3]);
    mma(sum, a, b[2 * s], b[2 * s + 1], __half());
  }
}

// kChunks: chunks of 128 of k a warp takes; all of their weights are under way at once.
template <int kChunks>
__global__ __launch_bounds__(kThreads,
                             kChunks <= 2 ? 2 : 1) void up_kernel(const __grid_constant__ ExpertParams p) {
  __shared__ float sums[kWarps][32][kSlots + 1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  pdl_wait();
  pdl_release();
  const int a = blockIdx.y, first_row = blockIdx.x * 16;
  const int expert = p.routing.active[1 + min(a, p.experts - 1)];  // together with their number
  if (a >= p.routing.active[0]) return;
  const int from = p.routing.first[a], pairs = p.routing.first[a + 1] - from;
  for (int base = 0; base < pairs; base += kSlots) {
    uint4 w[kChunks][2][2][2];
    float factor[kChunks][2];
#pragma unroll
    for (int x = 0; x < kChunks; ++x)
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const int row = m * p.inner + first_row, k = (warp + x * kWarps) * 128;
        const uint8_t* at = p.up + (int64_t(expert) * 2 * p.inner + row + g) * p.k + k + c * 16;
#pragma unroll
        for (int j = 0; j < 2; ++j)
          w[x][m][0][j] = stream16(at + j * 64), w[x][m][1][j] = stream16(at + int64_t(8) * p.k + j * 64);
        factor[x][m] =
            __ldg(p.up_scale + (int64_t(expert) * 2 * p.inner + row) / 128 * (p.k / 128) + k / 128);
      }
    const int wide = pairs - base > 8 ? 2 : 1;
    float all[2][2][4] = {};
    for (int n = 0; n < wide; ++n) {
      const int pair = p.routing.pairs[from + min(base + n * 8 + g, pairs - 1)];
      const __half* row = p.h + int64_t(pair / p.top_k) * p.k;
#pragma unroll
      for (int x = 0; x < kChunks; ++x) {
        float sum[2][4] = {};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint4* at = reinterpret_cast<const uint4*>(row + (warp + x * kWarps) * 128 + j * 64 + c * 16);
          const uint4 u = at[0], v = at[1];
          const uint32_t b[8] = {u.x, u.y, u.z, u.w, v.x, v.y, v.z, v.w};
          mma4(sum[0], w[x][0][0][j], w[x][0][1][j], b), mma4(sum[1], w[x][1][0][j], w[x][1][1][j], b);
        }
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
          for (int i = 0; i < 4; ++i) (n == 0 ? all[m][0][i] : all[m][1][i]) += factor[x][m] * sum[m][i];
      }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (n < wide) sums[warp][m * 16 + i / 2 * 8 + g][n * 8 + 2 * c + i % 2] = all[m][n][i];
    __syncthreads();
    const int here = min(pairs - base, kSlots);
    for (int i = threadIdx.x; i < 16 * here; i += kThreads) {
      const int m = i % 16, s = i / 16;
      float gate = 0, up = 0;
#pragma unroll
      for (int x = 0; x < kWarps; ++x) gate += sums[x][m][s], up += sums[x][16 + m][s];
      const float silu = gate / (1 + expf(-gate));
      p.product[int64_t(p.routing.pairs[from + base + s]) * p.inner + first_row + m] = silu * up;
    }
    __syncthreads();
  }
}

// Two units are under way ahead of the one in use.
__global__ __launch_bounds__(kThreads) void down_kernel(const __grid_constant__ ExpertParams p) {
  extern __shared__ float parts[];  // [pair][piece of inner][16]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int first_row = blockIdx.x * 16, pieces = p.inner / 256;
  // The routing was complete before up_kernel, which lets this one start only after its own wait: weights may
  // be asked for ahead of pdl_wait.
  const int units = p.routing.active[0] * pieces;
  struct Unit {
    uint4 w[2][4];
    float factor[2];
  } held[2];
  const auto load = [&](Unit& u, int unit) {
    if (unit >= units) return;
    const int expert = p.routing.active[1 + unit / pieces], k = unit % pieces * 256;
    const uint8_t* at = p.down + (int64_t(expert) * p.k + first_row + g) * p.inner + k + c * 16;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      u.w[0][j] = stream16(at + j * 64), u.w[1][j] = stream16(at + int64_t(8) * p.inner + j * 64);
    const float* f = p.down_scale + (int64_t(expert) * p.k + first_row) / 128 * (p.inner / 128) + k / 128;
    u.factor[0] = __ldg(f), u.factor[1] = __ldg(f + 1);
  };
  const auto use = [&](const Unit& u, int unit) {
    if (unit >= units) return;
    const int a = unit / pieces, piece = unit % pieces;
    const int from = p.routing.first[a], pairs = p.routing.first[a + 1] - from;
    for (int base = 0; base < pairs; base += 8) {
      const int pair = p.routing.pairs[from + min(base + g, pairs - 1)];
      const float* row = p.product + int64_t(pair) * p.inner + piece * 256 + c * 16;
      float all[4] = {};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float sum[4] = {};
#pragma unroll
        for (int j = 2 * h; j < 2 * h + 2; ++j) {
          uint32_t b[8];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float4 v = *reinterpret_cast<const float4*>(row + j * 64 + i * 4);
            b[2 * i] = pack(v.x * kShrink, v.y * kShrink, __half());
            b[2 * i + 1] = pack(v.z * kShrink, v.w * kShrink, __half());
          }
          mma4(sum, u.w[0][j], u.w[1][j], b);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) all[i] += u.factor[h] * sum[i];
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // columns 2 c, 2 c + 1 are pairs base + 2 c, + 1
        const int other = __shfl_sync(~0u, pair, (2 * c + i) * 4);
        if (base + 2 * c + i >= pairs) continue;
        float* to = parts + (other * pieces + piece) * 16 + g;
        to[0] = all[i], to[8] = all[2 + i];
      }
    }
  };
  load(held[0], warp), load(held[1], warp + kWarps);
  pdl_wait();
  pdl_release();
  for (int unit = warp; unit < units; unit += 2 * kWarps) {
    use(held[0], unit), load(held[0], unit + 2 * kWarps);
    use(held[1], unit + kWarps), load(held[1], unit + 3 * kWarps);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 16 * p.rows; i += kThreads) {
    const int m = i % 16, row = i / 16;
    const int64_t at = int64_t(row) * p.k + first_row + m;
    float y = 0;
    for (int j = 0; j < p.top_k; ++j) {
      float sum = 0;
      for (int x = 0; x < pieces; ++x) sum += parts[((row * p.top_k + j) * pieces + x) * 16 + m];
      y += p.routing.weight[row * p.top_k + j] * (sum * kGrow);
    }
    p.y[at] = p.x[at] + y;
  }
}

}  // namespace

void moe_experts(const ExpertParams& p, Stream& stream) {
  const int pairs = p.rows * p.top_k, down_bytes = pairs * (p.inner / 256) * 16 * 4, chunks = p.k / 1024;
  if (p.rows < 1 || p.rows > kMoeRows || p.inner % 256 != 0 || p.k % 1024 != 0 || chunks < 1 || chunks > 4 ||
      down_bytes > (200 << 10)) {
    std::fprintf(
        stderr,
        "moe_experts: %d rows of %d, inner %d: expected at most %d rows of a multiple of 1024 up to 4096, "
        "inner a multiple of 256\n",
        p.rows,
        p.k,
        p.inner,
        kMoeRows);
    std::abort();
  }
  static const bool once = [] {
    SE_CUDA(cudaFuncSetAttribute(down_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10));
    return true;
  }();
  (void)once;
  const int most = pairs < p.experts ? pairs : p.experts;
  const dim3 grid(unsigned(p.inner / 16), unsigned(most));
  void (*const up[])(ExpertParams) = {up_kernel<1>, up_kernel<2>, up_kernel<3>, up_kernel<4>};
  launch(up[chunks - 1], grid, kThreads, 0, stream.get(), p);
  launch(down_kernel, dim3(unsigned(p.k / 16)), kThreads, down_bytes, stream.get(), p);
}

}  // namespace se::cuda
