// One kernel for both products, a block a processor. A warp copies: first tiles of up (8 rows of gate_proj, 8
// of up_proj, all of k), then the block's 16 output channels of down's matrices, through one ring of slots,
// so that memory has work while blocks wait for one another. Up: eight warps (k / 256) multiply, each its 256
// of k, two add up what they found. Down: units are (task, 256 of inner).
//
// There is no barrier of all blocks: products are their own signal. No half is all bits but where none has
// come yet. Launches take the halves of the scratch by turns, and each wipes what the launch before left in
// the other.
#include "device/cuda/hopper.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/stream.h"
#include "kernels/moe/experts_few_cuda.h"
#include "kernels/moe/tables_cuda.cuh"

namespace se::cuda {
namespace {

constexpr int kUpWarps = 8, kSumWarps = 2, kWorkers = 12, kThreads = (kWorkers + 1) * 32;
constexpr int kMostSlots = 4, kColumns = kTaskPairs + 1, kPad = 8;
constexpr int kMostShared = 226 << 10, kStatic = 8 << 10;
constexpr float kShrink = 0x1p-6f, kGrow = 0x1p6f;  // of the product, so that halves hold it
static_assert(kWorkers < kTableWarps && kWorkers > kUpWarps + kSumWarps);

struct Shape {
  int slots, slot_bytes, sets;                     // sets of warps that share out the slots of down
  int sums_at, parts_at, factors_at, products_at;  // bytes from the ring's begin
};

__device__ __forceinline__ uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
// 16 numbers of each 64 of this lane's column: 256 of k.
struct Column {
  uint4 x[8];
};
__device__ __forceinline__ void load_column(Column& b, const __half* from) {
#pragma unroll
  for (int j = 0; j < 8; ++j) b.x[j] = *reinterpret_cast<const uint4*>(from + j / 2 * 64 + j % 2 * 8);
}
// all += 16 rows of weights x columns, 256 of k: `top` is row g, `low` row g + 8; factor[block of k][half].
// The two blocks' products by turns: one does not wait for the other.
__device__ __forceinline__ void use_chunk(
    float (&all)[4], const uint8_t* top, const uint8_t* low, const float (&factor)[2][2], const Column& b) {
  float sum[2][4] = {};
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    uint4 w[2][2];  // [block of k][half]
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      w[h][0] = *reinterpret_cast<const uint4*>(top + (2 * h + j) * 64);
      w[h][1] = *reinterpret_cast<const uint4*>(low + (2 * h + j) * 64);
    }
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t a[4];
        e4m3_to_half(word(w[h][0], s), a[0], a[2]), e4m3_to_half(word(w[h][1], s), a[1], a[3]);
        const uint4& x = b.x[2 * (2 * h + j) + s / 2];
        mma(sum[h], a, word(x, s % 2 * 2), word(x, s % 2 * 2 + 1), __half());
      }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int i = 0; i < 4; ++i) all[i] += factor[h][i / 2] * sum[h][i];
}

__device__ __forceinline__ void arrive_warp(uint64_t* at) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(at));
}
// Weights, which nobody reads again: the first to leave L2.
__device__ __forceinline__ void copy_weights(
    uint32_t to, const void* from, uint32_t done, int bytes, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], "
      "%4;" ::"r"(to),
      "l"(from),
      "r"(bytes),
      "r"(done),
      "l"(policy)
      : "memory");
}
__device__ __forceinline__ void put_product(__half* at, __half x) {
  asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" ::"l"(at), "h"(__half_as_ushort(x)) : "memory");
}
// The products of all blocks, as they come: from device to shared memory, rows of inner + kPad. All workers.
__device__ __forceinline__ void take_products(const __half* from, __half* to, int pairs, int inner) {
  const int row = inner / 8;
#pragma unroll 2
  for (int i = threadIdx.x; i < pairs * row; i += kWorkers * 32) {
    uint4 v;
    do
      asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                   : "l"(from + int64_t(i) * 8)
                   : "memory");
    while (__vcmpeq2(v.x, ~0u) | __vcmpeq2(v.y, ~0u) | __vcmpeq2(v.z, ~0u) | __vcmpeq2(v.w, ~0u));
    *reinterpret_cast<uint4*>(to + i / row * (inner + kPad) + i % row * 8) = v;
  }
}

__global__ __launch_bounds__(kThreads, 1) void few_kernel(const __grid_constant__ ExpertParams p,
                                                          const __grid_constant__ Shape shape) {
  extern __shared__ __align__(128) uint8_t ring[];
  __shared__ __align__(16) Tables tables;
  __shared__ float weights[kFewPairs];
  __shared__ int shared_turn, shared_old;
  __shared__ __align__(8) uint64_t full[kMostSlots], used_up[kMostSlots], used_down[kMostSlots], summed[2],
      drained[2], filled[kFewPairs / 2];  // the last: of each fill by down, whoever comes to it
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int warps = p.k / 256, slots = shape.slots, pairs = p.rows * p.top_k;
  const int pieces = p.inner / 256, units = 2 * pieces, side_size = warps * 16 * kColumns;
  const int k_blocks = p.k / 128, inner_blocks = p.inner / 128, first_row = blockIdx.x * 16;
  float* sums = reinterpret_cast<float*>(ring + shape.sums_at);        // [2][warps][16][kColumns], after work
  float* parts = reinterpret_cast<float*>(ring + shape.parts_at);      // of down: [pair][piece of inner][16]
  float* factors = reinterpret_cast<float*>(ring + shape.factors_at);  // of down: [task][inner_blocks]
  __half* products = reinterpret_cast<__half*>(ring + shape.products_at);  // [pair][inner + kPad]
  if (threadIdx.x == 0) {
    for (int i = 0; i < slots; ++i) {
      barrier_init(shared_address(full + i), 1);
      barrier_init(shared_address(used_up + i), warps), barrier_init(shared_address(used_down + i), units);
    }
    for (int i = 0; i < kFewPairs / 2; ++i) barrier_init(shared_address(filled + i), 1);
    for (int i = 0; i < 2; ++i)
      barrier_init(shared_address(summed + i), warps), barrier_init(shared_address(drained + i), 1);
    barrier_init_done();
  }
  pdl_wait();
  pdl_release();
  // p.tables: whose turn it is, the pairs of the launch before, blocks that know.
  if (threadIdx.x == 0) {
    volatile uint32_t* state = p.tables;
    shared_turn = int(state[0]), shared_old = int(state[1]);
    atomicAdd(p.tables + 2, uint32_t(1 + min(shared_old, 0)));  // not before they are read
  }
  make_tables(p, tables, *reinterpret_cast<Work*>(sums));
  const int turn = shared_turn;
  __half* product = p.product + int64_t(turn) * kFewPairs * p.inner;
  // Neighbouring tiles, which share activations, go to one block.
  const int per_task = p.inner / 8, tasks = tables.tasks;
  const unsigned all_tiles = tasks * per_task;
  const int from_tile = int(all_tiles * blockIdx.x / gridDim.x);
  const int tiles = int(all_tiles * (blockIdx.x + 1) / gridDim.x) - from_tile;
  const int fills = first_row < p.k ? (tasks + 1) / 2 : 0;  // of slots, by down: two tasks each
  int task = from_tile / per_task, row = from_tile % per_task * 8;
  const auto advance = [&] {
    if ((row += 8) == p.inner) row = 0, ++task;
  };
  if (warp == kWorkers) {
    if (lane == 0) {
      uint64_t policy;
      asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
      int slot = 0, round = 0;
      const auto next = [&] {
        if (++slot == slots) slot = 0, ++round;
      };
      const int tile_bytes = 16 * p.k, factor_bytes = k_blocks * 4, down_bytes = 16 * p.inner;
      for (int i = 0; i < tiles; ++i) {
        const uint32_t done = shared_address(full + slot),
                       to = shared_address(ring + slot * shape.slot_bytes);
        if (round > 0) barrier_wait(shared_address(used_up + slot), (round - 1) & 1);
        barrier_arrive_expecting(done, tile_bytes + 2 * factor_bytes);
        const int64_t gate = int64_t(tables.experts[task]) * 2 * p.inner + row;
        const uint8_t* from = p.up + gate * p.k;
        const float* f = p.up_scale + gate / 128 * k_blocks;
        copy_weights(to, from, done, tile_bytes / 2, policy);
        copy_weights(to + tile_bytes / 2, from + int64_t(p.inner) * p.k, done, tile_bytes / 2, policy);
        copy_weights(to + tile_bytes, f, done, factor_bytes, policy);
        copy_weights(to + tile_bytes + factor_bytes, f + inner_blocks * k_blocks, done, factor_bytes, policy);
        next(), advance();
      }
      for (int i = 0; i < fills; ++i) {
        const uint32_t done = shared_address(filled + i), to = shared_address(ring + slot * shape.slot_bytes);
        if (i >= slots)
          barrier_wait(shared_address(used_down + slot), (i / slots - 1) & 1);
        else if (round > 0)
          barrier_wait(shared_address(used_up + slot), (round - 1) & 1);
        const int here = min(2, tasks - 2 * i);
        barrier_arrive_expecting(done, here * down_bytes);
        for (int j = 0; j < here; ++j)
          copy_weights(to + j * down_bytes,
                       p.down + (int64_t(tables.experts[2 * i + j]) * p.k + first_row) * p.inner,
                       done,
                       down_bytes,
                       policy);
        next();
      }
    }
    return;
  }
  for (int i = threadIdx.x; i < tasks * inner_blocks && fills > 0; i += kWorkers * 32)
    factors[i] =
        __ldg(p.down_scale +
              (int64_t(tables.experts[i / inner_blocks]) * k_blocks + first_row / 128) * inner_blocks +
              i % inner_blocks);
  if (warp < warps) {
    int slot = 0, parity = 0;
    Column b;
    for (int i = 0; i < tiles; ++i) {
      if (i == 0 || row == 0) {
        const int from = tables.first[task], own = tables.first[task + 1] - from;
        load_column(b, p.h + int64_t(tables.rows[from + min(g, own - 1)]) * p.k + warp * 256 + c * 16);
      }
      advance();
      const uint8_t* at = ring + slot * shape.slot_bytes;
      barrier_wait(shared_address(full + slot), parity);
      const float* f = reinterpret_cast<const float*>(at + 16 * p.k) + 2 * warp;
      const float factor[2][2] = {{f[0], f[k_blocks]}, {f[1], f[k_blocks + 1]}};
      const uint8_t* top = at + g * p.k + warp * 256 + c * 16;
      float all[4] = {};
      use_chunk(all, top, top + 8 * p.k, factor, b);
      arrive_warp(used_up + slot);
      if (++slot == slots) slot = 0, parity ^= 1;
      const int side = i % 2;
      barrier_wait(shared_address(drained + side), ~(i / 2) & 1);
      float* to = sums + side * side_size + warp * 16 * kColumns;
#pragma unroll
      for (int j = 0; j < 4; ++j) to[(j / 2 * 8 + g) * kColumns + 2 * c + j % 2] = all[j];
      arrive_warp(summed + side);
    }
  } else if (warp < warps + kSumWarps) {
    // Four lanes an output, each a quarter of the warps' sums: the order in which the other kernel adds.
    const int m = lane % 8, quarter = warps / 4, first = lane / 8 * quarter;
    for (int i = 0; i < tiles; ++i, advance()) {
      if (i % kSumWarps != warp - warps) continue;
      const int from = tables.first[task], own = tables.first[task + 1] - from, side = i % 2;
      barrier_wait(shared_address(summed + side), i / 2 & 1);
      const float* at = sums + side * side_size + (first * 16 + m) * kColumns;
#pragma unroll 2
      for (int s = 0; s < own; ++s) {
        float gate = 0, up = 0;
        for (int w = 0; w < quarter; ++w)
          gate += at[w * 16 * kColumns + s], up += at[(w * 16 + 8) * kColumns + s];
#pragma unroll
        for (int d = 8; d < 32; d *= 2)
          gate += __shfl_xor_sync(~0u, gate, d), up += __shfl_xor_sync(~0u, up, d);
        const float silu = __fdividef(gate, 1 + __expf(-gate));
        if (lane < 8)
          put_product(product + int64_t(tables.pairs[from + s]) * p.inner + row + m,
                      __float2half(silu * up * kShrink));
      }
      arrive_warp(drained + side);
    }
  } else if (warp == warps + kSumWarps) {
    uint4* old = reinterpret_cast<uint4*>(p.product + int64_t(turn ^ 1) * kFewPairs * p.inner);
    for (int i = blockIdx.x * 32 + lane; i < shared_old * p.inner / 8; i += gridDim.x * 32)
      old[i] = uint4{~0u, ~0u, ~0u, ~0u};
#pragma unroll 1
    for (int r = 0; r < p.rows; ++r)
      weigh(p.logits + r * p.experts,
            p.experts,
            p.top_k,
            p.over_chosen,
            tables.chosen + r * p.top_k,
            weights + r * p.top_k);
    if (blockIdx.x == 0 && lane == 0) {
      volatile uint32_t* state = p.tables;
      while (state[2] != gridDim.x) {
      }
      state[0] = uint32_t(turn ^ 1), state[1] = uint32_t(pairs), state[2] = 0;
    }
    __syncwarp();
  }
  named_sync(1, kWorkers * 32);
  if (fills == 0) return;
  // Eight threads an output at the end, one for each choice; what they need is read ahead.
  const int j = lane % 8, m = threadIdx.x / 8 % 16, row0 = threadIdx.x / 128;
  float residual = row0 < p.rows ? p.x[int64_t(row0) * p.k + first_row + m] : 0;
  take_products(product, products, pairs, p.inner);
  named_sync(1, kWorkers * 32);
  const int set = warp / units, unit = warp % units, piece = unit % pieces;
  if (set < shape.sets) {
    int slot = (tiles + set) % slots;
    for (int i = set; i < fills; i += shape.sets) {
      const int task = 2 * i + unit / pieces;
      if (task < tasks) {
        const int from = tables.first[task], own = tables.first[task + 1] - from;
        Column b;
        load_column(
            b, products + tables.pairs[from + min(g, own - 1)] * (p.inner + kPad) + piece * 256 + c * 16);
        const float* f = factors + task * inner_blocks + 2 * piece;
        const float factor[2][2] = {{f[0], f[0]}, {f[1], f[1]}};
        barrier_wait(shared_address(filled + i), 0);
        const uint8_t* top =
            ring + slot * shape.slot_bytes + (unit / pieces * 16 + g) * p.inner + piece * 256 + c * 16;
        float all[4] = {};
        use_chunk(all, top, top + 8 * p.inner, factor, b);
#pragma unroll
        for (int x = 0; x < 2; ++x) {  // columns 2 c, 2 c + 1 are the task's pairs
          if (2 * c + x >= own) continue;
          float* to = parts + (tables.pairs[from + 2 * c + x] * pieces + piece) * 16 + g;
          to[0] = all[x], to[8] = all[2 + x];
        }
      }
      arrive_warp(used_down + slot);
      slot += shape.sets;
      if (slot >= slots) slot -= slots;
    }
  }
  named_sync(1, kWorkers * 32);
  if (blockIdx.x == 0 && int(threadIdx.x) < pairs)
    p.expert[threadIdx.x] = tables.chosen[threadIdx.x], p.weight[threadIdx.x] = weights[threadIdx.x];
  for (int row = row0; row < p.rows && row0 < kWorkers / 4; row += kWorkers / 4) {
    const int64_t at = int64_t(row) * p.k + first_row + m;
    const float weight = j < p.top_k ? weights[row * p.top_k + j] : 0;
    if (row != row0) residual = p.x[at];
    float sum = 0;
    for (int x = 0; x < pieces && j < p.top_k; ++x) sum += parts[((row * p.top_k + j) * pieces + x) * 16 + m];
    sum *= weight;
#pragma unroll
    for (int d = 1; d < 8; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (j == 0) p.y[at] = residual + sum * kGrow;
  }
}

}  // namespace

bool moe_experts_few(const ExpertParams& p, Stream& stream) {
  static const int processors = [] {
    int device = 0, n = 0;
    SE_CUDA(cudaGetDevice(&device));
    SE_CUDA(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device));
    SE_CUDA(
        cudaFuncSetAttribute(few_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared - kStatic));
    return n;
  }();
  const int pairs = p.rows * p.top_k, pieces = p.inner / 256, units = 2 * pieces, warps = p.k / 256;
  if (pairs > kFewPairs || p.rows > kTaskPairs || p.k / 16 > processors || units > kWorkers ||
      (warps != kUpWarps && warps != kUpWarps / 2))
    return false;
  const auto most = [](int a, int b) { return a > b ? a : b; };
  const auto up = [](int bytes) { return (bytes + 127) / 128 * 128; };
  const int sums = most(int(sizeof(Work)), 2 * warps * 16 * kColumns * 4), parts = pairs * pieces * 16 * 4;
  const int factors = pairs * (p.inner / 128) * 4, products = pairs * (p.inner + kPad) * 2;
  Shape shape;
  shape.slot_bytes = up(most(16 * p.k + p.k / 128 * 8, 2 * 16 * p.inner));
  shape.slots =
      (kMostShared - kStatic - up(sums) - up(parts) - up(factors) - up(products)) / shape.slot_bytes;
  if (shape.slots > kMostSlots) shape.slots = kMostSlots;
  if (shape.slots < 2) return false;
  shape.sets = kWorkers / units < shape.slots ? kWorkers / units : shape.slots;
  shape.sums_at = shape.slots * shape.slot_bytes, shape.parts_at = shape.sums_at + up(sums);
  shape.factors_at = shape.parts_at + up(parts), shape.products_at = shape.factors_at + up(factors);
  launch_clusters(few_kernel,
                  dim3(unsigned(processors)),
                  1,
                  kThreads,
                  shape.products_at + up(products),
                  kProcessorShared,
                  stream.get(),
                  p,
                  shape);
  return true;
}

}  // namespace se::cuda
