// up_kernel: a block takes 16 gate and 16 up rows of one task at a time, its warps share out k. down_kernel:
// a block takes 16 output channels of all tasks; a unit is (task, 256 of inner), its result for a pair goes
// to a fixed place, and sums run in the order of the row's choices: who computed what does not show. Both
// keep two loads of weights under way ahead of the one in use.
#include <cstdio>
#include <cstdlib>

#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/stream.h"
#include "kernels/moe/moe_cuda.h"

namespace se::cuda {
namespace {

constexpr int kUpWarps = 8, kDownWarps = 16, kMostTasks = kMoeExperts + kMoeRows * kMoeChosen / kMoeTaskPairs;
constexpr int kMostShared = 200 << 10;
constexpr float kShrink = 0x1p-6f, kGrow = 0x1p6f;  // of the product, so that halves hold it

// Four k-steps of 16: 16 codes of a row each for rows g and g + 8, and the activations' permuted alike.
__device__ __forceinline__ void mma4(float (&sum)[4],
                                     const uint4& top,
                                     const uint4& low,
                                     const uint4 (&b)[2]) {
  const uint32_t t[4] = {top.x, top.y, top.z, top.w}, l[4] = {low.x, low.y, low.z, low.w};
  const uint32_t x[8] = {b[0].x, b[0].y, b[0].z, b[0].w, b[1].x, b[1].y, b[1].z, b[1].w};
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    uint32_t a[4];
    e4m3_to_half(t[s], a[0], a[2]), e4m3_to_half(l[s], a[1], a[3]);
    mma(sum, a, x[2 * s], x[2 * s + 1], __half());
  }
}

struct Tables {
  int32_t experts[kMostTasks], first[kMostTasks + 1], pairs[kMoeRows * kMoeChosen], tasks;
};
// All threads; ends without a barrier.
__device__ __forceinline__ void read_tables(const ExpertParams& p, Tables& t) {
  const int most = min(kMostTasks, p.most_tasks);
  for (int i = threadIdx.x; i < most; i += blockDim.x) t.experts[i] = p.routing.tasks[1 + i];
  for (int i = threadIdx.x; i < most + 1; i += blockDim.x) t.first[i] = p.routing.first[i];
  for (int i = threadIdx.x; i < p.rows * p.top_k; i += blockDim.x) t.pairs[i] = p.routing.pairs[i];
  if (threadIdx.x == 0) t.tasks = p.routing.tasks[0];
}

// kWide: tiles of 8 pairs of a task.
template <int kWide>
__global__ __launch_bounds__(kUpWarps * 32, 2) void up_kernel(const __grid_constant__ ExpertParams p) {
  __shared__ Tables tables;
  __shared__ float sums[2][kUpWarps][32][8 * kWide + 1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  pdl_wait();
  pdl_release();
  read_tables(p, tables);
  __syncthreads();
  const int per_task = p.inner / 16, tiles = tables.tasks * per_task, chunks = p.k / 128 / kUpWarps;
  const int mine = int(blockIdx.x) < tiles ? (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
  const int steps = mine * chunks;
  struct Chunk {
    uint4 w[2][2][2];
    float factor[2];
  } held[2];
  const auto load = [&](Chunk& x, int step) {
    if (step >= steps) return;
    const int tile = blockIdx.x + step / chunks * gridDim.x, k = (warp + kUpWarps * (step % chunks)) * 128;
    const int64_t expert = tables.experts[tile / per_task];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const int64_t row = (expert * 2 + m) * p.inner + tile % per_task * 16;
      const uint8_t* at = p.up + (row + g) * p.k + k + c * 16;
#pragma unroll
      for (int j = 0; j < 2; ++j)
        x.w[m][0][j] = stream16(at + j * 64), x.w[m][1][j] = stream16(at + int64_t(8) * p.k + j * 64);
      x.factor[m] = __ldg(p.up_scale + row / 128 * (p.k / 128) + k / 128);
    }
  };
  float all[2][kWide][4] = {};
  int parity = 0;
  const auto use = [&](Chunk& x, int step) {
    const int tile = blockIdx.x + step / chunks * gridDim.x, k = (warp + kUpWarps * (step % chunks)) * 128;
    const int task = tile / per_task, from = tables.first[task], pairs = tables.first[task + 1] - from;
    uint4 b[kWide][2][2];
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      const int pair = tables.pairs[from + min(n * 8 + g, pairs - 1)];
      const uint4* at = reinterpret_cast<const uint4*>(p.h + int64_t(pair / p.top_k) * p.k + k + c * 16);
#pragma unroll
      for (int j = 0; j < 2; ++j) b[n][j][0] = at[j * 8], b[n][j][1] = at[j * 8 + 1];
    }
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      if (n * 8 >= pairs) break;
      float sum[2][4] = {};
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int j = 0; j < 2; ++j) mma4(sum[m], x.w[m][0][j], x.w[m][1][j], b[n][j]);
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) all[m][n][i] += x.factor[m] * sum[m][i];
    }
    load(x, step + 2);
    if ((step + 1) % chunks != 0) return;
    auto& to = sums[parity];
    parity ^= 1;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < kWide; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          to[warp][m * 16 + i / 2 * 8 + g][n * 8 + 2 * c + i % 2] = all[m][n][i], all[m][n][i] = 0;
    __syncthreads();  // the other half of `sums` is free by the next one
    for (int i = threadIdx.x; i < 16 * pairs; i += kUpWarps * 32) {
      const int m = i % 16, s = i / 16;
      float gate = 0, up = 0;
#pragma unroll
      for (int w = 0; w < kUpWarps; ++w) gate += to[w][m][s], up += to[w][16 + m][s];
      const float silu = gate / (1 + expf(-gate));
      p.product[int64_t(tables.pairs[from + s]) * p.inner + tile % per_task * 16 + m] =
          __float2half(silu * up * kShrink);
    }
  };
  load(held[0], 0), load(held[1], 1);
  for (int step = 0; step < steps; step += 2) {
    use(held[0], step);
    if (step + 1 < steps) use(held[1], step + 1);
  }
}

__global__ __launch_bounds__(kDownWarps * 32) void down_kernel(const __grid_constant__ ExpertParams p) {
  extern __shared__ float parts[];  // [pair][piece of inner][16]
  __shared__ Tables tables;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int first_row = blockIdx.x * 16, pieces = p.inner / 256;
  // The routing was complete before up_kernel, which lets this one start only after its own wait: weights may
  // be asked for ahead of pdl_wait.
  read_tables(p, tables);
  __syncthreads();
  const int units = tables.tasks * pieces;
  struct Unit {
    uint4 w[2][4];
    float factor[2];
  } held[2];
  const auto load = [&](Unit& u, int unit) {
    if (unit >= units) return;
    const int64_t expert = tables.experts[unit / pieces], k = unit % pieces * 256;
    const uint8_t* at = p.down + (expert * p.k + first_row + g) * p.inner + k + c * 16;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      u.w[0][j] = stream16(at + j * 64), u.w[1][j] = stream16(at + int64_t(8) * p.inner + j * 64);
    const float* f = p.down_scale + (expert * p.k + first_row) / 128 * (p.inner / 128) + k / 128;
    u.factor[0] = __ldg(f), u.factor[1] = __ldg(f + 1);
  };
  const auto use = [&](Unit& u, int unit) {
    if (unit >= units) return;
    const int task = unit / pieces, piece = unit % pieces;
    const int from = tables.first[task], pairs = tables.first[task + 1] - from;
    for (int base = 0; base < pairs; base += 8) {
      const int pair = tables.pairs[from + min(base + g, pairs - 1)];
      const uint4* row =
          reinterpret_cast<const uint4*>(p.product + int64_t(pair) * p.inner + piece * 256 + c * 16);
      uint4 b[4][2];
#pragma unroll
      for (int j = 0; j < 4; ++j) b[j][0] = row[j * 8], b[j][1] = row[j * 8 + 1];
      float all[4] = {};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float sum[4] = {};
        mma4(sum, u.w[0][2 * h], u.w[1][2 * h], b[2 * h]);
        mma4(sum, u.w[0][2 * h + 1], u.w[1][2 * h + 1], b[2 * h + 1]);
#pragma unroll
        for (int i = 0; i < 4; ++i) all[i] += u.factor[h] * sum[i];
      }
      if (base + 8 >= pairs) load(u, unit + 2 * kDownWarps);
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // columns 2 c, 2 c + 1 are pairs base + 2 c, + 1
        const int column = base + 2 * c + i;
        if (column >= pairs) continue;
        float* to = parts + (tables.pairs[from + column] * pieces + piece) * 16 + g;
        to[0] = all[i], to[8] = all[2 + i];
      }
    }
  };
  load(held[0], warp), load(held[1], warp + kDownWarps);
  pdl_wait();
  pdl_release();
  for (int unit = warp; unit < units; unit += 2 * kDownWarps)
    use(held[0], unit), use(held[1], unit + kDownWarps);
  __syncthreads();
  for (int i = threadIdx.x; i < 16 * p.rows; i += kDownWarps * 32) {
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

template <int kWide>
void start_up(const ExpertParams& p, Stream& stream) {
  static const int most = [] {
    int device = 0, processors = 0, blocks = 0;
    SE_CUDA(cudaGetDevice(&device));
    SE_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    SE_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, up_kernel<kWide>, kUpWarps * 32, 0));
    return processors * blocks;
  }();
  const int tiles = p.most_tasks * (p.inner / 16);
  launch(up_kernel<kWide>, dim3(unsigned(tiles < most ? tiles : most)), kUpWarps * 32, 0, stream.get(), p);
}

}  // namespace

void moe_experts(const ExpertParams& params, Stream& stream) {
  ExpertParams p = params;
  p.most_tasks = moe_tasks(p.rows, p.experts, p.top_k);
  const int down_bytes = p.rows * p.top_k * (p.inner / 256) * 16 * 4;
  if (p.rows < 1 || p.rows > kMoeRows || p.top_k > kMoeChosen || p.experts > kMoeExperts ||
      p.inner % 256 != 0 || p.k % 1024 != 0 || down_bytes > kMostShared) {
    std::fprintf(
        stderr,
        "moe_experts: %d rows of %d, %d of %d experts of %d: expected at most %d rows of a multiple of "
        "1024, %d of %d experts of a multiple of 256\n",
        p.rows,
        p.k,
        p.top_k,
        p.experts,
        p.inner,
        kMoeRows,
        kMoeChosen,
        kMoeExperts);
    std::abort();
  }
  static const bool once = [] {
    SE_CUDA(cudaFuncSetAttribute(down_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared));
    return true;
  }();
  (void)once;
  p.rows <= 8 ? start_up<1>(p, stream) : start_up<2>(p, stream);
  launch(down_kernel, dim3(unsigned(p.k / 16)), kDownWarps * 32, down_bytes, stream.get(), p);
}

}  // namespace se::cuda
