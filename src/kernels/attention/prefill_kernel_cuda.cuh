// Prefill attention with warpgroup matrices. A block takes 128 packed query rows (positions x the heads of
// one KV head) and walks their keys in tiles of 128. Two warps bring the tiles (copy engine, two stages of K
// and two of V), two warpgroups take 64 query rows each: scores of the next tile and values of this one are
// under way while the softmax runs, and the two take turns at the tensor cores. Ladder: docs/performance.md.
#pragma once
#include "device/cuda/stream.h"
#include "kernels/attention/prefill_copy_cuda.cuh"

namespace se::cuda::prefill {

constexpr int kLeastRegisters = 56, kMostRegisters = 224;  // of warps that bring tiles, that compute

// This thread's two query rows: g and g + 8 of its warp's 16.
struct Rows {
  float top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
  int token[2];  // -1: no such row
  int first;     // the least token of the block's tile
};

// Scores of keys that are not there or not seen become -inf; means gain the logarithm of their block's
// tokens.
template <bool kSparse>
__device__ __forceinline__ void mask(const PrefillParams& p,
                                     const Work& w,
                                     const Shared& s,
                                     int stage,
                                     int item,
                                     const Rows& rows,
                                     float inverse_scale,
                                     int lane,
                                     float (&x)[64]) {
  int id = 0;
  uint4 there{0, 0, 0, 0};
  if (lane == 0) id = s.id[stage], there = *reinterpret_cast<const uint4*>(s.there[stage]);
  id = __shfl_sync(~0u, id, 0);
  there = {__shfl_sync(~0u, there.x, 0),
           __shfl_sync(~0u, there.y, 0),
           __shfl_sync(~0u, there.z, 0),
           __shfl_sync(~0u, there.w, 0)};
  const int c = lane % 4;
  const From from = source_of(w, id);
  const int base = from == From::kNow ? w.from + (id - w.past_tiles) * kTile : id * kTile;
  // From a token of the step to the least place, present token that it sees.
  const int low = from == From::kNow ? 1 - p.window : w.ahead + 1 - p.window;
  const float* bias = nullptr;
  if (kSparse && from == From::kMeans) {
    const int m = id - kMeanTile;
    there = *reinterpret_cast<const uint4*>(p.pruned + int64_t(item) * (p.mean_blocks / 32) + m * 4);
    bias = p.mean_bias + int64_t(w.listed * p.a.kv_heads + w.head) * p.mean_blocks + m * kTile;
  }
  const bool causal = from == From::kNow && base + kTile - 1 > rows.first;
  const bool windowed = !kSparse && p.window > 0 && base < rows.first + kTile - 1 + low;
  if (!causal && !bias && !windowed && (there.x & there.y & there.z & there.w) == ~0u) return;
  const int limit0 = causal ? rows.token[0] - base : kTile, limit1 = causal ? rows.token[1] - base : kTile;
  const int low0 = windowed ? rows.token[0] + low - base : 0;
  const int low1 = windowed ? rows.token[1] + low - base : 0;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const uint32_t word = j < 4 ? there.x : j < 8 ? there.y : j < 12 ? there.z : there.w;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int col = 8 * j + 2 * c + i;
      const bool ok = word >> (col & 31) & 1;
      float& a = x[4 * j + i];
      float& b = x[4 * j + 2 + i];
      if (kSparse && bias) {
        const float add = ok ? bias[col] * inverse_scale : 0;
        a += add, b += add;
      }
      if (!ok || col > limit0 || col < low0) a = -INFINITY;
      if (!ok || col > limit1 || col < low1) b = -INFINITY;
    }
  }
}

// x becomes weights relative to the new maximum; shrink: what older sums are to be multiplied by.
__device__ __forceinline__ void soften(Rows& rows, float scale, float (&x)[64], float (&shrink)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float most = x[2 * r];
#pragma unroll
    for (int j = 0; j < 16; ++j) most = fmaxf(most, fmaxf(x[4 * j + 2 * r], x[4 * j + 2 * r + 1]));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const float now = fmaxf(rows.top[r], most);
    const float base = now == -INFINITY ? 0 : now * scale;
    shrink[r] = power2(rows.top[r] * scale - base);
    rows.top[r] = now;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 16; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& y = x[4 * j + 2 * r + i];
        y = power2(y * scale - base);
        sum += y;
      }
    rows.total[r] = rows.total[r] * shrink[r] + sum;
  }
}

__device__ __forceinline__ void pack_weights(const float (&x)[64], uint32_t (&a)[32]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) a[i] = pack(x[2 * i], x[2 * i + 1], __nv_bfloat16());
}

// o += weights x v, 8 steps of 16 keys.
__device__ __forceinline__ void start_values(float (&o)[64], const uint32_t (&a)[32], uint32_t v) {
#pragma unroll
  for (int t = 0; t < 8; ++t) wgmma_128(o, a + 4 * t, operand(v + t * 2 * kGroup, kGroup, kHalf), 1);
}

__device__ __forceinline__ void write_rows(
    const DecodeParams& p, const Rows& rows, const int (&q_head)[2], const float (&o)[64], int c) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float total = rows.total[r];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    if (rows.token[r] < 0) continue;
    const float inverse = total > 0 ? 1 / total : 0;
#pragma unroll
    for (int j = 0; j < 16; ++j)
      write_pair(p,
                 rows.token[r],
                 q_head[r],
                 8 * j + 2 * c,
                 o[4 * j + 2 * r] * inverse,
                 o[4 * j + 2 * r + 1] * inverse);
    if (c == 0) write_lse(p, rows.token[r], q_head[r], rows.top[r] * p.scale, total);
  }
}

// A split's sums, for prefill_merge.
__device__ __forceinline__ void write_part(const PrefillParams& p,
                                           int item,
                                           int warp,
                                           const Rows& rows,
                                           float scale,
                                           const float (&o)[64],
                                           int lane) {
  float4* to = p.part_out + (int64_t(item) * 8 + warp) * 16 * 32 + lane;
#pragma unroll
  for (int j = 0; j < 16; ++j) to[j * 32] = {o[4 * j], o[4 * j + 1], o[4 * j + 2], o[4 * j + 3]};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float total = rows.total[r];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    if (lane % 4 == 0)
      p.part_sums[int64_t(item) * kTile + warp * 16 + lane / 4 + 8 * r] = {rows.top[r] * scale, total};
  }
}

template <bool kSparse>
__device__ __forceinline__ void consume(const PrefillParams& p, Shared& s) {
  const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int warp = threadIdx.x / 32 % 4;
  const float scale = p.a.scale * kLog2e, inverse_scale = 1 / scale;
  const uint32_t q_at = shared_address(s.q) + group * 8 * kGroup;
  const int own_turn = 2 + group, other_turn = 3 - group;
  if (group == 1) named_arrive(other_turn, 256);  // the first turn is the first warpgroup's
  Turn<kStages> keys, values;
  Items next_item;
  const auto release = [&](uint64_t& barrier) {
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&barrier));
  };
  for (;;) {
    const int item = next_item.take(s, lane);
    if (item < 0) break;
    const Work w = find_work(p, item);
    if (w.splits == 0) continue;
    const int tiles = kSparse ? p.list_n[item] : w.end - w.begin;
    named_sync(4 + group, 128);  // the last item's q is no longer read
    take_queries(p.a, w, s.q, group);
    fence_shared_writes();
    Rows rows;
    int q_head[2];
    rows.first = w.token + w.tile * kTile / p.a.group;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int packed = w.tile * kTile + group * 64 + warp * 16 + g + 8 * r, position = packed / p.a.group;
      rows.token[r] = position < w.tokens ? w.token + position : -1;
      q_head[r] = w.head * p.a.group + packed - position * p.a.group;
    }
    float o[64], x[64], shrink[2];
    uint32_t a[32];
#pragma unroll
    for (int i = 0; i < 64; ++i) o[i] = 0;
    named_sync(4 + group, 128);
    if (tiles > 0) {
      barrier_wait(shared_address(&s.k_full[keys.stage]), keys.phase);
      wgmma_begin();
      start_scores(x, q_at, shared_address(s.k[keys.stage]));
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_take(x);
      mask<kSparse>(p, w, s, keys.stage, item, rows, inverse_scale, lane, x);
      release(s.k_empty[keys.stage]);
      keys.next();
      soften(rows, scale, x, shrink);
      pack_weights(x, a);
    }
    for (int t = 1; t < tiles; ++t) {
      barrier_wait(shared_address(&s.k_full[keys.stage]), keys.phase);
      named_sync(own_turn, 256);
      wgmma_begin();
      start_scores(x, q_at, shared_address(s.k[keys.stage]));
      wgmma_commit();
      barrier_wait(shared_address(&s.v_full[values.stage]), values.phase);
      start_values(o, a, shared_address(s.v[values.stage]));
      wgmma_commit();
      named_arrive(other_turn, 256);
      wgmma_wait<1>();
      wgmma_take(x);
      mask<kSparse>(p, w, s, keys.stage, item, rows, inverse_scale, lane, x);
      release(s.k_empty[keys.stage]);
      keys.next();
      soften(rows, scale, x, shrink);
      wgmma_wait<0>();
      wgmma_take(o);
      release(s.v_empty[values.stage]);
      values.next();
#pragma unroll
      for (int i = 0; i < 64; ++i) o[i] *= shrink[i / 2 % 2];
      pack_weights(x, a);
    }
    if (tiles > 0) {
      barrier_wait(shared_address(&s.v_full[values.stage]), values.phase);
      wgmma_begin();
      start_values(o, a, shared_address(s.v[values.stage]));
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_take(o);
      release(s.v_empty[values.stage]);
      values.next();
    }
    if (!kSparse && w.splits > 1)
      write_part(p, item, group * 4 + warp, rows, scale, o, lane);
    else
      write_rows(p.a, rows, q_head, o, c);
  }
  if (group == 0) named_sync(own_turn, 256);  // takes the turn that is left
}

template <bool kSparse>
__global__ __launch_bounds__(kThreads, 1) void kernel(const __grid_constant__ PrefillParams p,
                                                      const __grid_constant__ PrefillMaps maps) {
  extern __shared__ char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw + (1024 - (shared_address(raw) & 1023)) % 1024);
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(shared_address(&s.k_full[i]), 1), barrier_init(shared_address(&s.v_full[i]), 1);
      barrier_init(shared_address(&s.k_empty[i]), kConsumers * 4);
      barrier_init(shared_address(&s.v_empty[i]), kConsumers * 4);
    }
    for (int i = 0; i < kAhead; ++i) {
      barrier_init(shared_address(&s.item_full[i]), 1);
      barrier_init(shared_address(&s.item_empty[i]), kConsumers * 4 + 1);
    }
    barrier_init_done();
  }
  __syncthreads();
  pdl_wait();
  pdl_release();
  if (warp < 4) {
    registers_down<kLeastRegisters>();
    if (warp < 2) produce<kSparse>(p, maps, s, p.items[*p.a.n].first, warp == 1);
  } else {
    registers_up<kMostRegisters>();
    consume<kSparse>(p, s);
  }
}

template <bool kSparse>
void start(const PrefillParams& p, const PrefillMaps& maps, int grid, Stream& stream) {
  constexpr int kBytes = int(sizeof(Shared)) + 1024;
  const auto f = kernel<kSparse>;
  static const bool ready = [f] {
    SE_CUDA(cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    return true;
  }();
  (void)ready;
  launch(f, dim3(unsigned(grid)), kThreads, kBytes, stream.get(), p, maps);
}

}  // namespace se::cuda::prefill
