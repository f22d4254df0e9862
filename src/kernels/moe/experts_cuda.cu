// Few rows are experts_few_cuda.cu's; these are two kernels for the others, and for what that does not take.
//
// Both kernels multiply tiles of 16 rows of weights by 256 of k: a chunk, two of which are under way ahead of
// the one in use. up_kernel: each block chooses for all rows anew from the router's logits, the first one
// also writes down what it chose; a tile is 8 rows of gate_proj over 8 of up_proj of one task; the warps of a
// block share out k. down_kernel: a block takes 16 output channels of all tasks; a unit is (task, 256 of
// inner), its result for a pair goes to a fixed place, and sums run in the order of the row's choices: who
// computed what does not show.
#include <cstdio>
#include <cstdlib>

#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/stream.h"
#include "kernels/moe/experts_few_cuda.h"
#include "kernels/moe/tables_cuda.cuh"

namespace se::cuda {
namespace {

constexpr int kUpWarps = 8, kDownWarps = 16;
constexpr int kUpStatic = 18 << 10, kMostShared = 200 << 10, kMostHeld = 90 << 10, kPad = 8;
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

// 16 bytes of each 64 of rows g and g + 8 of a tile, and the factors of its two blocks of k, for both halves.
struct Chunk {
  uint4 w[2][4];
  float factor[2][2];  // [block of k][rows 0-7, 8-15]
};
__device__ __forceinline__ void load_chunk(Chunk& x, const uint8_t* top, const uint8_t* low) {
#pragma unroll
  for (int j = 0; j < 4; ++j) x.w[0][j] = stream16(top + j * 64), x.w[1][j] = stream16(low + j * 64);
}
// all += chunk x activations; row: this lane's (pair g), at the chunk's first k and 16 c on.
__device__ __forceinline__ void use_chunk(float (&all)[4], const Chunk& x, const __half* row) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint4 b[2][2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      b[j][0] = *reinterpret_cast<const uint4*>(row + (2 * h + j) * 64);
      b[j][1] = *reinterpret_cast<const uint4*>(row + (2 * h + j) * 64 + 8);
    }
    float sum[4] = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) mma4(sum, x.w[0][2 * h + j], x.w[1][2 * h + j], b[j]);
#pragma unroll
    for (int i = 0; i < 4; ++i) all[i] += x.factor[h][i / 2] * sum[i];
  }
}

// kHeld: h of all rows lies in shared memory.
template <bool kHeld>
__global__ __launch_bounds__(kUpWarps * 32, 2) void up_kernel(const __grid_constant__ ExpertParams p) {
  extern __shared__ __align__(16) __half held_h[];  // [rows][k + kPad]
  __shared__ Tables tables;
  __shared__ union {
    Work work;
    float sums[2][kUpWarps][16][kTaskPairs + 1];
  } shared;
  auto& sums = shared.sums;
  const int warps = blockDim.x / 32, lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4,
            c = lane % 4;
  pdl_wait();
  // down_kernel may start once all blocks are here, and waits for the tables: not for those of the launch
  // before.
  if (blockIdx.x == 0) {
    if (threadIdx.x == 0) *static_cast<volatile uint32_t*>(p.tables) = 0, __threadfence();
    __syncthreads();
  }
  pdl_release();
  make_tables(p, tables, shared.work);
  if (blockIdx.x == 0) {
    for (int i = threadIdx.x; i < int(sizeof(Tables) / 4); i += blockDim.x)
      p.tables[1 + i] = reinterpret_cast<const uint32_t*>(&tables)[i];
    __syncthreads();
    if (threadIdx.x == 0) asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(p.tables) : "memory");
  }
  if (kHeld) {
#pragma unroll 1
    for (int r = 0; r < p.rows; ++r)
      for (int i = threadIdx.x * 8; i < p.k; i += blockDim.x * 8)
        copy16(uint32_t(__cvta_generic_to_shared(held_h + r * (p.k + kPad) + i)),
               p.h + int64_t(r) * p.k + i,
               true);
  }
  // Neighbouring tiles, which share activations, go to one block.
  const int per_task = p.inner / 8;
  const unsigned tiles = tables.tasks * per_task, from_tile = tiles * blockIdx.x / gridDim.x;
  const int end = int(tiles * (blockIdx.x + 1) / gridDim.x);
  // Where a warp reads next: tile `row / 8` of a task, chunk `chunk` of k.
  struct Cursor {
    int tile, task, row, chunk;
  };
  Cursor ahead{int(from_tile), int(from_tile / per_task), int(from_tile % per_task) * 8, warp}, here = ahead;
  const auto advance = [&](Cursor& x) {  // whether the tile is done
    x.chunk += warps;
    if (x.chunk * 256 < p.k) return false;
    x.chunk = warp, ++x.tile, x.row += 8;
    if (x.row == p.inner) x.row = 0, ++x.task;
    return true;
  };
  const auto load = [&](Chunk& x) {
    if (ahead.tile >= end) return;
    const int64_t gate = int64_t(tables.experts[ahead.task]) * 2 * p.inner + ahead.row;
    const int k = ahead.chunk * 256;
    const uint8_t* at = p.up + (gate + g) * p.k + k + c * 16;
    load_chunk(x, at, at + int64_t(p.inner) * p.k);
    const float* f = p.up_scale + gate / 128 * (p.k / 128) + k / 128;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      x.factor[i / 2][i % 2] = __ldg(f + i % 2 * (p.inner / 128 * (p.k / 128)) + i / 2);
    advance(ahead);
  };
  Chunk held[2];
  load(held[0]), load(held[1]);
  if (kHeld) {
    asm volatile("cp.async.wait_all;" ::: "memory");
  }
  __syncthreads();
  float all[4] = {};
  int parity = 0;
  const auto use = [&](Chunk& x) {
    const int from = tables.first[here.task], pairs = tables.first[here.task + 1] - from;
    const int k = here.chunk * 256, tile_row = here.row;
    const int row = tables.rows[from + min(g, pairs - 1)];
    use_chunk(all, x, (kHeld ? held_h + row * (p.k + kPad) : p.h + int64_t(row) * p.k) + k + c * 16);
    load(x);
    if (!advance(here)) return;
    auto& to = sums[parity];
    parity ^= 1;
#pragma unroll
    for (int i = 0; i < 4; ++i) to[warp][i / 2 * 8 + g][2 * c + i % 2] = all[i], all[i] = 0;
    __syncthreads();  // the other half of `sums` is free by the next one
    for (int i = threadIdx.x; i < 8 * pairs; i += blockDim.x) {
      const int m = i % 8, s = i / 8;
      float gates[4] = {}, ups[4] = {};  // of a quarter of the warps
#pragma unroll
      for (int q = 0; q < 4; ++q)
        for (int w = q * warps / 4; w < (q + 1) * warps / 4; ++w)
          gates[q] += to[w][m][s], ups[q] += to[w][8 + m][s];
      const float gate = (gates[0] + gates[1]) + (gates[2] + gates[3]);
      const float up = (ups[0] + ups[1]) + (ups[2] + ups[3]);
      const float silu = __fdividef(gate, 1 + __expf(-gate));
      p.product[int64_t(tables.pairs[from + s]) * p.inner + tile_row + m] = __float2half(silu * up * kShrink);
    }
  };
  while (here.tile < end) {
    use(held[0]);
    if (here.tile < end) use(held[1]);
  }
}

__global__ __launch_bounds__(kDownWarps * 32) void down_kernel(const __grid_constant__ ExpertParams p) {
  extern __shared__ float parts[];  // [pair][piece of inner][16]
  __shared__ Tables tables;
  __shared__ float weights[kMostPairs];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int first_row = blockIdx.x * 16, pieces = p.inner / 256;
  // up_kernel's first block has them long before the wait below ends: weights may be asked for ahead of it.
  if (threadIdx.x == 0) {
    uint32_t there;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(p.tables) : "memory");
    while (there == 0);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < int(sizeof(Tables) / 4); i += kDownWarps * 32)
    reinterpret_cast<uint32_t*>(&tables)[i] = __ldcg(p.tables + 1 + i);
  __syncthreads();
  // Units are (task, piece), every kDownWarps-th is this warp's.
  const int tasks = tables.tasks, task_step = kDownWarps / pieces, piece_step = kDownWarps % pieces;
  struct Cursor {
    int task, piece;
  };
  Cursor ahead{warp / pieces, warp % pieces}, here = ahead;
  const auto advance = [&](Cursor& x) {
    x.task += task_step, x.piece += piece_step;
    if (x.piece >= pieces) x.piece -= pieces, ++x.task;
  };
  Chunk held[2];
  const auto load = [&](Chunk& x) {
    if (ahead.task >= tasks) return;
    const int64_t row = int64_t(tables.experts[ahead.task]) * p.k + first_row, k = ahead.piece * 256;
    const uint8_t* at = p.down + (row + g) * p.inner + k + c * 16;
    load_chunk(x, at, at + int64_t(8) * p.inner);
    const float* f = p.down_scale + row / 128 * (p.inner / 128) + k / 128;
#pragma unroll
    for (int i = 0; i < 4; ++i) x.factor[i / 2][i % 2] = __ldg(f + i / 2);
    advance(ahead);
  };
  const auto use = [&](Chunk& x) {
    const int from = tables.first[here.task], pairs = tables.first[here.task + 1] - from, piece = here.piece;
    const int pair = tables.pairs[from + min(g, pairs - 1)];
    float all[4] = {};
    use_chunk(all, x, p.product + int64_t(pair) * p.inner + piece * 256 + c * 16);
    load(x);
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // columns 2 c, 2 c + 1 are the task's pairs
      if (2 * c + i >= pairs) continue;
      float* to = parts + (tables.pairs[from + 2 * c + i] * pieces + piece) * 16 + g;
      to[0] = all[i], to[8] = all[2 + i];
    }
    advance(here);
  };
  load(held[0]), load(held[1]);
#pragma unroll 1
  for (int r = warp; r < p.rows; r += kDownWarps)
    weigh(p.logits + r * p.experts,
          p.experts,
          p.top_k,
          p.over_chosen,
          tables.chosen + r * p.top_k,
          weights + r * p.top_k);
  __syncthreads();
  pdl_wait();
  pdl_release();
  if (blockIdx.x == 0)
    for (int i = threadIdx.x; i < p.rows * p.top_k; i += kDownWarps * 32)
      p.expert[i] = tables.chosen[i], p.weight[i] = weights[i];
  // The end: eight threads an output, one for each choice; what they need is read ahead.
  const int j = threadIdx.x % 8, m = threadIdx.x / 8 % 16, row0 = threadIdx.x / 128;
  float weight = 0, residual = 0;
  if (row0 < p.rows) {
    if (j < p.top_k) weight = weights[row0 * p.top_k + j];
    residual = p.x[int64_t(row0) * p.k + first_row + m];
  }
  while (here.task < tasks) {
    use(held[0]);
    if (here.task < tasks) use(held[1]);
  }
  __syncthreads();
  for (int row = row0; row < p.rows; row += kDownWarps * 32 / 128) {
    const int64_t at = int64_t(row) * p.k + first_row + m;
    if (row != row0) {
      weight = j < p.top_k ? weights[row * p.top_k + j] : 0;
      residual = p.x[at];
    }
    float sum = 0;
    for (int x = 0; x < pieces && j < p.top_k; ++x) sum += parts[((row * p.top_k + j) * pieces + x) * 16 + m];
    sum *= weight;
#pragma unroll
    for (int d = 1; d < 8; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (j == 0) p.y[at] = residual + sum * kGrow;
  }
}

template <bool kHeld>
void start_up(const ExpertParams& p, Stream& stream) {
  const auto kernel = up_kernel<kHeld>;
  const int warps = p.k / 256 % kUpWarps == 0 ? kUpWarps : kUpWarps / 2;
  const int bytes = kHeld ? p.rows * (p.k + kPad) * 2 : 0;
  static const int processors = [kernel] {
    int device = 0, n = 0;
    SE_CUDA(cudaGetDevice(&device));
    SE_CUDA(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device));
    SE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostHeld));
    return n;
  }();
  int blocks = 0;
  SE_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, warps * 32, size_t(bytes)));
  const int pairs = p.rows * p.top_k, tasks = (pairs < p.experts ? pairs : p.experts) + pairs / kTaskPairs;
  const int tiles = tasks * (p.inner / 8), most = processors * (blocks < 1 ? 1 : blocks);
  const int64_t processor = (blocks < 1 ? 1 : blocks) * int64_t(bytes + kUpStatic);
  launch_clusters(
      kernel, dim3(unsigned(tiles < most ? tiles : most)), 1, warps * 32, bytes, processor, stream.get(), p);
}

}  // namespace

void moe_experts(const ExpertParams& params, Stream& stream) {
  ExpertParams p = params;
  p.product += int64_t(2 * kFewPairs) * p.inner, p.tables += 4;  // what goes before is for few rows
  const int down_bytes = p.rows * p.top_k * (p.inner / 256) * 16 * 4;
  if (p.rows < 1 || p.rows > kMoeRows || p.top_k < 1 || p.top_k > kMoeChosen || p.top_k > p.experts ||
      p.experts > kMoeExperts || p.inner % 256 != 0 || p.k % 1024 != 0 || down_bytes > kMostShared) {
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
  if (moe_experts_few(params, stream)) return;
  static const bool once = [] {
    SE_CUDA(cudaFuncSetAttribute(down_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared));
    return true;
  }();
  (void)once;
  p.rows*(p.k + kPad) * 2 <= kMostHeld ? start_up<true>(p, stream) : start_up<false>(p, stream);
  launch_clusters(down_kernel,
                  dim3(unsigned(p.k / 16)),
                  1,
                  kDownWarps * 32,
                  down_bytes,
                  down_bytes + int64_t(sizeof(Tables)) + 1024,
                  stream.get(),
                  p);
}

}  // namespace se::cuda
