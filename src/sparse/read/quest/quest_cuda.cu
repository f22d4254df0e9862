// One warp per KV head takes 8 units at a time: a lane reads 16-byte pieces of one unit's bounds straight
// into the B operand (the channels of a step are permuted alike in q, so no shuffle is needed) and the warps'
// maxima meet in shared memory.
#include <cuda_bf16.h>

#include <cstdio>
#include <cstdlib>

#include "device/cuda/launch.h"
#include "device/cuda/stream.h"
#include "sparse/read/quest/quest_cuda.h"

namespace se::quest::cuda {
namespace {

#ifndef SE_QUEST_TILES
#define SE_QUEST_TILES 3
#endif
constexpr int kDim = 128, kTile = 8, kTiles = SE_QUEST_TILES, kMostWarps = 4;
constexpr int kBlock = kTiles * kTile;  // units of a block

__device__ __forceinline__ void pieces(float a, float b, uint32_t& high, uint32_t& rest) {
  const __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
  const float2 f = __bfloat1622float2(h);
  const __nv_bfloat162 r = __floats2bfloat162_rn(a - f.x, b - f.y);
  high = reinterpret_cast<const uint32_t&>(h), rest = reinterpret_cast<const uint32_t&>(r);
}

// The A operands of max(q, 0) and min(q, 0), made anew for each tile: registers are dearer here.
__device__ __forceinline__ void by_sign(const uint32_t (&high)[2],
                                        const uint32_t (&rest)[2],
                                        uint32_t (&pos)[4],
                                        uint32_t (&neg)[4]) {
#pragma unroll
  for (int x = 0; x < 2; ++x) {
    const uint32_t sign = __hlt2_mask(reinterpret_cast<const __nv_bfloat162&>(high[x]), __nv_bfloat162{});
    pos[2 * x] = high[x] & ~sign, pos[2 * x + 1] = rest[x] & ~sign;
    neg[2 * x] = high[x] & sign, neg[2 * x + 1] = rest[x] & sign;
  }
}

__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint4 load16(const char* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

__global__ __launch_bounds__(kMostWarps * 32, 4) void score_kernel(const __grid_constant__ ScoreParams p) {
  __shared__ float best[kMostWarps][kBlock];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int g = lane / 4, c = lane % 4;
  se::cuda::pdl_wait();
  se::cuda::pdl_release();
  // All tables together: those of the row that a list in order would name are read before the list is known,
  // and, for the first row, whose runs begin the pool, the runs too.
  const int listed = blockIdx.y, guess = min(listed, p.rows - 1),
            per_page_shift = p.page_shift - p.unit_shift;
  const int row = p.ids[listed], n = *p.n;
  int units = p.units[guess], token = p.q_start[guess];
  int64_t begin = p.start[guess], offset = p.offset ? p.offset[guess] : 0, ahead[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int64_t at = int(blockIdx.x * kBlock + t * kTile + g) >> per_page_shift;
    ahead[t] = guess == 0 && at < p.pool ? p.runs[at] : 0;
  }
  if (listed >= n) return;
  if (row != guess) {
    units = p.units[row], token = p.q_start[row], begin = p.start[row];
    offset = p.offset ? p.offset[row] : 0;
  }
  const bool is_ahead = row == 0 && guess == 0 && begin == 0;
  const int64_t* runs = p.runs + begin;

  for (int block = blockIdx.x; block * kBlock < units; block += gridDim.x) {
    for (int x = lane; x < kBlock; x += 32) best[warp][x] = -INFINITY;
    __syncwarp();
    for (int head = warp; head < p.kv_heads; head += warps) {
      // Loads first: runs of all tiles and q together, then two tiles of bounds, always one ahead.
      int64_t at[kTiles];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const int unit = block * kBlock + t * kTile + g;
        at[t] = is_ahead && block == int(blockIdx.x) && unit < units && unit >> per_page_shift < p.pool
                    ? ahead[t]
                    : runs[min(unit, units - 1) >> per_page_shift];
      }
      const float* q = p.q + token * p.q_token + (head * p.group + min(g, p.group - 1)) * p.q_head;
      float4 raw[kDim / 16];
#pragma unroll
      for (int s = 0; s < kDim / 16; ++s)
        raw[s] = *reinterpret_cast<const float4*>(q + s / 2 * 32 + c * 8 + s % 2 * 4);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const int unit = min(block * kBlock + t * kTile + g, units - 1);
        at[t] = (((at[t] >> 16) + offset) >> p.page_shift) * p.page_stride +
                (unit & ((1 << per_page_shift) - 1)) * p.item_stride + head * p.head_stride + c * 16;
      }
      uint4 lo[2][kDim / 32], hi[2][kDim / 32];
      const auto load = [&](int t) {
#pragma unroll
        for (int b = 0; b < kDim / 32; ++b)
          lo[t % 2][b] = load16(p.lo + at[t] + b * 64), hi[t % 2][b] = load16(p.hi + at[t] + b * 64);
      };
      load(0), load(1);
      uint32_t high[kDim / 16][2], rest[kDim / 16][2];
#pragma unroll
      for (int s = 0; s < kDim / 16; ++s) {
        pieces(raw[s].x, raw[s].y, high[s][0], rest[s][0]);
        pieces(raw[s].z, raw[s].w, high[s][1], rest[s][1]);
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        float up[4] = {}, down[4] = {};
#pragma unroll
        for (int b = 0; b < kDim / 32; ++b) {
          const uint4 &h = hi[t % 2][b], &l = lo[t % 2][b];
          uint32_t pos[4], neg[4];
          by_sign(high[2 * b], rest[2 * b], pos, neg);
          mma(up, pos, h.x, h.y), mma(down, neg, l.x, l.y);
          by_sign(high[2 * b + 1], rest[2 * b + 1], pos, neg);
          mma(up, pos, h.z, h.w), mma(down, neg, l.z, l.w);
        }
        if (t + 2 < kTiles) load(t + 2);
        float m[2];  // of units 2c, 2c + 1 of the tile, query head g
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          m[x] = g < p.group ? (up[x] + up[x + 2]) + (down[x] + down[x + 2]) : -INFINITY;
          for (int d = 4; d < 32; d *= 2) m[x] = fmaxf(m[x], __shfl_xor_sync(~0u, m[x], d));
        }
        if (g == 0) {
          float* b = best[warp] + t * kTile + 2 * c;
          b[0] = fmaxf(b[0], m[0]), b[1] = fmaxf(b[1], m[1]);
        }
      }
    }
    __syncthreads();
    if (threadIdx.x < kBlock && block * kBlock + int(threadIdx.x) < units) {
      float m = -INFINITY;
      for (int w = 0; w < warps; ++w) m = fmaxf(m, best[w][threadIdx.x]);
      p.score[listed * p.score_row + block * kBlock + threadIdx.x] = m;
    }
    __syncthreads();
  }
}

}  // namespace

void score_units(const ScoreParams& p, se::cuda::Stream& stream) {
  if (p.group < 1 || p.group > 8 || p.cap < 1) {
    std::fprintf(
        stderr, "quest scores: group %d of %d rows: expected 1 to 8 query heads a KV head\n", p.group, p.cap);
    std::abort();
  }
  const int64_t blocks = (p.most_units + kBlock - 1) / kBlock, share = 2048 / p.cap;
  const int64_t grid = blocks < 1 ? 1 : blocks < share ? blocks : share < 1 ? 1 : share;
  const int warps = p.kv_heads < kMostWarps ? p.kv_heads : kMostWarps;
  se::cuda::launch(score_kernel, dim3(unsigned(grid), unsigned(p.cap)), warps * 32, 0, stream.get(), p);
}

}  // namespace se::quest::cuda
