// Split decode attention over latents. Tiles of 64 keys are the rows of the matrix products and the heads
// their columns, so that 20 heads cost 24 columns: scores = keys x q (both pieces of q at once, 48 columns),
// values = keys turned x weights. One warp brings the tiles to two places; two warpgroups take every other
// tile each, with a running softmax of their own, and are merged at the end of a split. A second kernel
// merges the splits.
#include <algorithm>

#include "device/cuda/hopper.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/stream.h"
#include "kernels/attention/latent_decode_params_cuda.h"

namespace se::cuda {
namespace {

constexpr int kTile = 64, kWide = kLatentKey / 64, kHeads = kLatentHeads;
constexpr int kGroup = kWide * 1024;           // bytes of 8 keys: 9 x 8 rows of 128
constexpr int kKeys = kTile / 8 * kGroup;      // of a tile
constexpr int kQueryBlock = 2 * kHeads * 128;  // 64 channels of both pieces of all heads
constexpr int kWeights = kHeads * 128;         // one piece of a tile's weights
constexpr int kSumPitch = kLatentValue + 4;    // of a head's sums in the place of q
constexpr int kThreads = 384;

struct Shared {  // at a multiple of 1,024 bytes
  char k[2][kKeys];
  char q[kWide * kQueryBlock];
  char weights[2][2 * kWeights];
  float tops[2][4][kHeads], state[2][2][kHeads];  // of warps; top and total of a warpgroup
  uint64_t full[2], empty[2], added;              // added: the first warpgroup's sums lie in the place of q
  uint32_t there[2][2];
};

static_assert(sizeof(Shared::q) >= kHeads * kSumPitch * 4);

struct Item {
  int entry = -1, split_at = 0, splits = 0, row = 0, slice = 0, token = 0;
  int first = 0, last = 0, count = 0, tiles = 0;  // places
  int64_t start = 0, offset = 0;
};

// Items: listed rows in order, slices of heads, splits (at least one). All lanes of a warp; entry -1: no such
// item.
__device__ __forceinline__ Item find_item(const DecodeParams& p, int item, int lane) {
  const int slices = (p.group + kHeads - 1) / kHeads, n = *p.n;
  Item it;
  for (int base = 0; base < n; base += 32) {
    const int listed = base + lane;
    int row = 0, count = 0, split = 1, splits = 0;
    if (listed < n) {
      row = p.ids[listed], count = p.counts[row], split = p.split[row];
      splits = max(1, ((count << p.unit_shift) + split - 1) / split);
    }
    int sum = splits * slices;
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    const int all = __shfl_sync(~0u, sum, 31);
    if (item >= all) {
      item -= all;
      continue;
    }
    const int who = __popc(__ballot_sync(~0u, sum <= item));
    const int rest = item - __shfl_sync(~0u, sum - splits * slices, who);
    it.row = __shfl_sync(~0u, row, who), it.count = __shfl_sync(~0u, count, who);
    it.splits = __shfl_sync(~0u, splits, who);
    split = __shfl_sync(~0u, split, who);
    it.slice = rest / it.splits, it.split_at = rest - it.slice * it.splits;
    it.entry = (base + who) * slices + it.slice;
    it.first = it.split_at * split, it.last = min(it.first + split, it.count << p.unit_shift);
    it.tiles = max(0, (it.last - it.first + kTile - 1) / kTile);
    it.start = p.start[it.row], it.offset = p.offset ? p.offset[it.row] : 0, it.token = p.q_start[it.row];
    return it;
  }
  return it;
}

__device__ __forceinline__ int64_t slot_of(const DecodeParams& p, const Item& it, int place) {
  if (place >= it.last) return -1;
  const int64_t run = p.runs[it.start + (place >> p.unit_shift)];
  const int in = place & ((1 << p.unit_shift) - 1);
  return in < int(run & 0xffff) ? (run >> 16) + it.offset + in : -1;
}

__device__ __forceinline__ float power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// One warp. Lane l < 4 looks after the l-th 16 keys of a tile.
__device__ __forceinline__ void produce(const DecodeParams& p, const CUtensorMap& keys, Shared& s) {
  const int lane = threadIdx.x % 32;
  int stage = 0;
  uint32_t phase = 0;
  for (int item = blockIdx.x;; item += gridDim.x) {
    const Item it = find_item(p, item, lane);
    if (it.entry < 0) return;
    const auto piece_of =
        [&](int t) {  // its first slot; -1 unless all 16 are there, in one run of whole groups
          if (lane >= 4 || p.unit_shift < 4 || t >= it.tiles) return int64_t(-1);
          const int place = it.first + t * kTile + lane * 16;
          const int64_t a = slot_of(p, it, place), b = slot_of(p, it, place + 15);
          return a >= 0 && b == a + 15 && a % 8 == 0 ? a : int64_t(-1);
        };
    int64_t slot = piece_of(0);
    // Both warpgroups see the same number of tiles, so that stages are theirs: an odd one out is empty.
    for (int t = 0; t < (it.tiles + 1) / 2 * 2; ++t) {
      const int64_t next = piece_of(t + 1);
      barrier_wait(shared_address(&s.empty[stage]), phase ^ 1);
      const uint32_t whole = __ballot_sync(~0u, slot >= 0);
      uint32_t mask[2] = {(whole & 1 ? 0xffffu : 0) | (whole & 2 ? 0xffff0000u : 0),
                          (whole & 4 ? 0xffffu : 0) | (whole & 8 ? 0xffff0000u : 0)};
      if (whole != 15) {
#pragma unroll 1
        for (int r = 0; r < kTile && t < it.tiles; ++r) {
          if (whole >> (r / 16) & 1) continue;
          const int64_t at = slot_of(p, it, it.first + t * kTile + r);
          const char* from =
              p.k + (at >> p.page_shift) * p.page_stride + (at & ((1 << p.page_shift) - 1)) * p.item_stride;
          for (int c = lane; c < kWide * 8; c += 32) {
            const uint4 x = at >= 0 ? *reinterpret_cast<const uint4*>(from + c * 16) : uint4{0, 0, 0, 0};
            *reinterpret_cast<uint4*>(s.k[stage] + r / 8 * kGroup + c / 8 * 1024 + (r & 7) * 128 +
                                      ((c ^ r) & 7) * 16) = x;
          }
          if (at >= 0) mask[r / 32] |= 1u << (r % 32);
        }
        fence_shared_writes();
      }
      __syncwarp();
      const uint32_t full = shared_address(&s.full[stage]);
      if (lane == 0) {
        s.there[stage][0] = mask[0], s.there[stage][1] = mask[1];
        barrier_arrive_expecting(full, __popc(whole) * 2 * kGroup);
      }
      __syncwarp();
      if (slot >= 0)
        copy_box(shared_address(s.k[stage] + lane * 2 * kGroup),
                 keys,
                 full,
                 0,
                 0,
                 0,
                 (int(slot) & ((1 << p.page_shift) - 1)) / 8,
                 int(slot >> p.page_shift));
      slot = next;
      if (++stage == 2) stage = 0, phase ^= 1;
    }
  }
}

// The queries of a slice as two BF16 pieces, heads that are not there as zeros. 256 threads; all loads are
// under way at once.
__device__ __forceinline__ void take_queries(const DecodeParams& p, const Item& it, char* q, int thread) {
  constexpr int kPieces = kHeads * (kLatentKey / 8), kRounds = (kPieces + 255) / 256;
  float4 v[kRounds][2];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int at = i * 256 + thread, h = at / (kLatentKey / 8), c = at % (kLatentKey / 8);
    v[i][0] = v[i][1] = float4{0, 0, 0, 0};
    if (at < kPieces && it.slice * kHeads + h < p.group) {
      const float* from = p.q + it.token * p.q_token + (it.slice * kHeads + h) * p.q_head + c * 8;
      v[i][0] = *reinterpret_cast<const float4*>(from), v[i][1] = *reinterpret_cast<const float4*>(from + 4);
    }
  }
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int at = i * 256 + thread, h = at / (kLatentKey / 8), c = at % (kLatentKey / 8);
    if (at >= kPieces) break;
    const float4 a = v[i][0], b = v[i][1];
    uint4 high, rest;
    pieces<__nv_bfloat16>(a.x, a.y, high.x, rest.x), pieces<__nv_bfloat16>(a.z, a.w, high.y, rest.y);
    pieces<__nv_bfloat16>(b.x, b.y, high.z, rest.z), pieces<__nv_bfloat16>(b.z, b.w, high.w, rest.w);
    char* to = q + c / 8 * kQueryBlock + h / 8 * 1024 + (h & 7) * 128 + ((c ^ h) & 7) * 16;
    *reinterpret_cast<uint4*>(to) = high;
    *reinterpret_cast<uint4*>(to + kHeads * 128) = rest;
  }
}

__device__ __forceinline__ void consume(const DecodeParams& p, Shared& s) {
  const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int warp = threadIdx.x / 32 % 4, own = 2 + group;
  const float scale = p.scale * kLog2e;
  uint32_t phase = 0, item_phase = 0;
  const uint32_t added = shared_address(&s.added);
  const uint32_t k_at = shared_address(s.k[group]), q_at = shared_address(s.q),
                 w_at = shared_address(s.weights[group]);
  for (int item = blockIdx.x;; item += gridDim.x) {
    const Item it = find_item(p, item, lane);
    if (it.entry < 0) return;
    named_sync(1, 256);  // the last item's q and sums are no longer read
    take_queries(p, it, s.q, threadIdx.x - 128);
    fence_shared_writes();
    named_sync(1, 256);
    float o[8][12];
#pragma unroll
    for (int m = 0; m < 8; ++m)
#pragma unroll
      for (int i = 0; i < 12; ++i) o[m][i] = 0;
    float top[6], total[6];  // of heads 8 (j / 2) + 2 c + j % 2; total: of this thread's keys
#pragma unroll
    for (int j = 0; j < 6; ++j) top[j] = -INFINITY, total[j] = 0;
    for (int t = group; t < (it.tiles + 1) / 2 * 2; t += 2) {
      barrier_wait(shared_address(&s.full[group]), phase);
      phase ^= 1;
      uint32_t there = 0;  // bits: this thread's two keys
      {
        uint32_t bits = 0;
        if (lane == 0) bits = s.there[group][warp / 2];
        bits = __shfl_sync(~0u, bits, 0) >> (warp % 2 * 16);
        there = (bits >> g & 1) | (bits >> (g + 8) & 1) << 1;
      }
      if (t < it.tiles) {
        float x[24];
        wgmma_begin();
#pragma unroll
        for (int d = 0; d < kLatentKey / 16; ++d)
          wgmma_48(x,
                   operand(k_at + d / 4 * 1024 + d % 4 * 32, kGroup),
                   operand(q_at + d / 4 * kQueryBlock + d % 4 * 32, 1024),
                   d > 0);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_take(x);
        float y[6][2], most[6];
#pragma unroll
        for (int j = 0; j < 6; ++j) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int at = j / 2 * 4 + r * 2 + j % 2;
            y[j][r] = there >> r & 1 ? (x[at] + x[at + 12]) * scale : -INFINITY;
          }
          most[j] = fmaxf(y[j][0], y[j][1]);
          for (int d = 4; d < 32; d *= 2) most[j] = fmaxf(most[j], __shfl_xor_sync(~0u, most[j], d));
        }
        if (g == 0)
#pragma unroll
          for (int j = 0; j < 6; j += 2)
            *reinterpret_cast<float2*>(&s.tops[group][warp][j * 4 + 2 * c]) = {most[j], most[j + 1]};
        named_sync(own, 128);
        float shrink[6];
        bool same = true;
#pragma unroll
        for (int j = 0; j < 6; j += 2) {
          float2 now{top[j], top[j + 1]};
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            const float2 other = *reinterpret_cast<const float2*>(&s.tops[group][w][j * 4 + 2 * c]);
            now.x = fmaxf(now.x, other.x), now.y = fmaxf(now.y, other.y);
          }
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float new_top = i ? now.y : now.x, base = new_top == -INFINITY ? 0 : new_top;
            shrink[j + i] = power2(top[j + i] - base);
            same = same && new_top == top[j + i];
            top[j + i] = new_top;
            const float a = power2(y[j + i][0] - base), b = power2(y[j + i][1] - base);
            total[j + i] = total[j + i] * shrink[j + i] + a + b;
            const int h = j * 4 + 2 * c + i;
            uint32_t high, rest;
            pieces<__nv_bfloat16>(a, b, high, rest);
            // Key 16 warp + g, then + 8: the next 16 bytes of the row.
            char* row = s.weights[group] + h / 8 * 1024 + (h & 7) * 128 + g * 2;
            char* first = row + ((2 * warp) ^ (h & 7)) * 16;
            char* second = row + ((2 * warp + 1) ^ (h & 7)) * 16;
            *reinterpret_cast<uint16_t*>(first) = uint16_t(high);
            *reinterpret_cast<uint16_t*>(second) = uint16_t(high >> 16);
            *reinterpret_cast<uint16_t*>(first + kWeights) = uint16_t(rest);
            *reinterpret_cast<uint16_t*>(second + kWeights) = uint16_t(rest >> 16);
          }
        }
        if (__any_sync(~0u, !same))
#pragma unroll
          for (int m = 0; m < 8; ++m)
#pragma unroll
            for (int i = 0; i < 12; ++i) o[m][i] *= shrink[i / 4 * 2 + i % 2];
        fence_shared_writes();
        named_sync(own, 128);
        wgmma_begin();
#pragma unroll
        for (int m = 0; m < 8; ++m)
#pragma unroll
          for (int t16 = 0; t16 < 4; ++t16) {
            const uint64_t v = operand(k_at + m * 1024 + t16 * 2 * kGroup, kGroup);
            wgmma_24_turned(o[m], v, operand(w_at + t16 * 32, 1024), 1);
            wgmma_24_turned(o[m], v, operand(w_at + kWeights + t16 * 32, 1024), 1);
          }
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (int m = 0; m < 8; ++m) wgmma_take(o[m]);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(shared_address(&s.empty[group]));
    }
    // Totals over the keys of the warpgroup, then both warpgroups together.
#pragma unroll
    for (int j = 0; j < 6; ++j)
      for (int d = 4; d < 32; d *= 2) total[j] += __shfl_xor_sync(~0u, total[j], d);
    named_sync(own, 128);  // tops are read
    if (g == 0)
#pragma unroll
      for (int j = 0; j < 6; ++j) s.tops[group][warp][j / 2 * 8 + 2 * c + j % 2] = total[j];
    if (warp == 0 && g == 0)
#pragma unroll
      for (int j = 0; j < 6; ++j) s.state[group][0][j / 2 * 8 + 2 * c + j % 2] = top[j];
    named_sync(own, 128);
    const int h0 = threadIdx.x % 128;
    if (h0 < kHeads)
      s.state[group][1][h0] =
          (s.tops[group][0][h0] + s.tops[group][1][h0]) + (s.tops[group][2][h0] + s.tops[group][3][h0]);
    named_sync(1, 256);
    float f[6];
    const int64_t part = (int64_t(it.entry) * p.max_splits + it.split_at) * kHeads;
#pragma unroll
    for (int j = 0; j < 6; ++j) {
      const int h = j / 2 * 8 + 2 * c + j % 2;
      const float a = s.state[0][0][h], b = s.state[1][0][h], both = fmaxf(a, b);
      const float base = both == -INFINITY ? 0 : both;
      f[j] = power2((group ? b : a) - base);
      if (group == 0 && warp == 0 && g == 0)
        reinterpret_cast<float2*>(p.part_lse)[part + h] = {
            both, s.state[0][1][h] * power2(a - base) + s.state[1][1][h] * power2(b - base)};
    }
    // One warpgroup's sums in the place of q, then the other's added, then out by rows.
    float* sums = reinterpret_cast<float*>(s.q);
#pragma unroll
    for (int turn = 0; turn < 2; ++turn) {
      if (turn == 1 && group == 0) barrier_arrive(added);
      if (turn == 1 && group == 1) barrier_wait(added, item_phase);
      if (group == turn)
#pragma unroll
        for (int m = 0; m < 8; ++m)
#pragma unroll
          for (int i = 0; i < 12; ++i) {
            const int h = i / 4 * 8 + 2 * c + i % 2;
            float* to = sums + h * kSumPitch + m * 64 + warp * 16 + g + i / 2 % 2 * 8;
            const float x = o[m][i] * f[i / 4 * 2 + i % 2];
            *to = turn == 0 ? x : *to + x;
          }
    }
    item_phase ^= 1;
    named_sync(1, 256);
    const int heads = min(kHeads, p.group - it.slice * kHeads);
    for (int i = threadIdx.x - 128; i < heads * (kLatentValue / 4); i += 256) {
      const int h = i / (kLatentValue / 4), at = i % (kLatentValue / 4) * 4;
      __stcg(reinterpret_cast<float4*>(p.part_out + (part + h) * kLatentValue + at),
             *reinterpret_cast<const float4*>(sums + h * kSumPitch + at));
    }
  }
}

__global__ __launch_bounds__(kThreads, 1) void latent_kernel(const __grid_constant__ DecodeParams p,
                                                             const __grid_constant__ CUtensorMap keys) {
  extern __shared__ char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw + (1024 - (shared_address(raw) & 1023)) % 1024);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i)
      barrier_init(shared_address(&s.full[i]), 1), barrier_init(shared_address(&s.empty[i]), 4);
    barrier_init(shared_address(&s.added), 128);
    barrier_init_done();
  }
  __syncthreads();
  pdl_wait();
  pdl_release();
  if (threadIdx.x < 128) {
    registers_down<56>();
    if (threadIdx.x < 32) produce(p, keys, s);
  } else {
    registers_up<224>();
    consume(p, s);
  }
}

constexpr int kMergeWarps = 16, kMergeSlices = 4, kMergeBatch = 8;

// A block a (listed row, head, 128 channels), a lane four of them. Warp w takes splits w, w + 16, ..; the
// warps' sums are added in their order, then the present. With fewer warps there are no more splits than
// warps: the same sums. What latent_kernel does not write is read ahead of the wait for it, which itself
// waited for that.
__global__ __launch_bounds__(kMergeWarps * 32) void latent_merge(const __grid_constant__ DecodeParams p) {
  __shared__ float4 sums[kMergeWarps][32];
  __shared__ float totals[kMergeWarps], dots;
  const int listed = blockIdx.x, head = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warps = blockDim.x / 32;
  if (listed >= *p.n) return pdl_wait();
  const int row = p.ids[listed], slices = (p.group + kHeads - 1) / kHeads, token = p.q_start[row];
  const int split = p.split[row], splits = max(1, ((p.counts[row] << p.unit_shift) + split - 1) / split);
  const int64_t first = (int64_t(listed * slices + head / kHeads) * p.max_splits) * kHeads + head % kHeads;
  const float2* state = reinterpret_cast<const float2*>(p.part_lse) + first;
  const int channel = blockIdx.z * 128 + lane * 4;
  const float* part = p.part_out + first * kLatentValue + channel;
  const float* q = p.q + token * p.q_token + head * p.q_head;
  const auto dot_with = [&](int j) {  // all lanes of a warp
    float dot = 0;
#pragma unroll
    for (int d = 0; d < kLatentKey; d += 32) dot += q[d + lane] * p.new_k[j * p.new_token + d + lane];
    for (int d = 16; d > 0; d /= 2) dot += __shfl_xor_sync(~0u, dot, d);
    return dot;
  };
  const int from = p.new_k ? p.kv_from[row] : token + 1;
  if (warp == warps - 1 && from <= token) {
    const float dot = dot_with(from);
    if (lane == 0) dots = dot;
  }
  pdl_wait();
  pdl_release();
  float top = -INFINITY, total = 0;
  float4 acc{0, 0, 0, 0};
  for (int i = lane; i < splits; i += 32) top = fmaxf(top, __ldcg(state + i * kHeads).x);
  for (int base = warp; base < splits; base += kMergeWarps * kMergeBatch) {
    float4 v[kMergeBatch];
    float2 s[kMergeBatch];
#pragma unroll
    for (int i = 0; i < kMergeBatch; ++i) {
      const int at = base + i * kMergeWarps;
      v[i] = at < splits ? __ldcg(reinterpret_cast<const float4*>(part + int64_t(at * kHeads) * kLatentValue))
                         : float4{0, 0, 0, 0};
      s[i] = at < splits ? __ldcg(state + at * kHeads) : float2{-INFINITY, 0};
    }
    if (base == warp)
      for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
#pragma unroll
    for (int i = 0; i < kMergeBatch; ++i) {
      const float f = top > -INFINITY ? power2(s[i].x - top) : 0;
      total += f * s[i].y;
      acc.x += f * v[i].x, acc.y += f * v[i].y, acc.z += f * v[i].z, acc.w += f * v[i].w;
    }
  }
  if (warp >= splits)
    for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
  sums[warp][lane] = acc;
  if (lane == 0) totals[warp] = total;
  __syncthreads();
  if (warp > 0) return;
  total = 0, acc = {0, 0, 0, 0};
  for (int w = 0; w < warps; ++w) {
    const float4 x = sums[w][lane];
    total += totals[w];
    acc.x += x.x, acc.y += x.y, acc.z += x.z, acc.w += x.w;
  }
  for (int j = from; j <= token; ++j) {
    const float dot = j == from ? dots : dot_with(j);
    const float x = dot * p.scale * kLog2e, now = fmaxf(top, x);
    const float old = power2(top - now), f = power2(x - now);
    const float4 v = *reinterpret_cast<const float4*>(p.new_k + j * p.new_token + channel);
    total = total * old + f, top = now;
    acc.x = acc.x * old + f * v.x, acc.y = acc.y * old + f * v.y;
    acc.z = acc.z * old + f * v.z, acc.w = acc.w * old + f * v.w;
  }
  const float inverse = total > 0 ? 1 / total : 0;
  *reinterpret_cast<float4*>(p.out + token * p.out_token + head * p.out_head + channel) = {
      acc.x * inverse, acc.y * inverse, acc.z * inverse, acc.w * inverse};
  if (lane == 0 && blockIdx.z == 0)
    p.lse[token * p.lse_token + head * p.lse_head] = total > 0 ? top * kLn2 + logf(total) : -INFINITY;
}

}  // namespace

void latent_decode(const DecodeParams& p, const CUtensorMap& keys, int grid, Stream& stream) {
  constexpr int kBytes = int(sizeof(Shared)) + 1024;
  static const bool ready = [] {
    SE_CUDA(cudaFuncSetAttribute(latent_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    return true;
  }();
  (void)ready;
  launch(latent_kernel, dim3(unsigned(grid)), kThreads, kBytes, stream.get(), p, keys);
  launch(latent_merge,
         dim3(unsigned(p.cap), unsigned(p.group), kMergeSlices),
         std::min(kMergeWarps, p.max_splits) * 32,
         0,
         stream.get(),
         p);
}

}  // namespace se::cuda
