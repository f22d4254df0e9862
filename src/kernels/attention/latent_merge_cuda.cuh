// kernels/attention/latent_merge_cuda.cuh -- how blocks of latent_decode_cuda.cu leave the sums of a split to
// one another, and merge them. Device code only.
#pragma once
#include "device/cuda/hopper.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "kernels/attention/latent_items_cuda.cuh"
#include "kernels/attention/parts_cuda.cuh"

namespace se::cuda {
namespace {

// One split's sums as the threads hold them: a warp (of 8) and m (of 4) are a column of 16 channels, for
// which lane 4 g + c has heads 8 e + 2 c, + 1 (of one channel, then of the one 8 after it); and each column's
// own copy of tops and totals of these two heads.
constexpr int kEights = kHeads / 8, kColumns = 32;

struct Parts {
  float4* at;
  __device__ __forceinline__ Parts(const DecodeParams& p, int entry, int split)
      : at(reinterpret_cast<float4*>(p.part_out) +
           (int64_t(entry) * p.max_splits + split) * (kLatentPart / 4)) {}
  __device__ __forceinline__ float4* sums(int m, int e, int warp, int lane) const {
    return at + (m * kEights + e) * 256 + warp * 32 + lane;
  }
  __device__ __forceinline__ float4* state(int m, int e, int warp, int c) const {
    return at + kHeads * kLatentValue / 4 + (m * kEights + e) * 32 + warp * 4 + c;
  }
};

__device__ __forceinline__ float4 look_at(const float4* at) {
  float4 x;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "l"(at)
               : "memory");
  return x;
}
__device__ __forceinline__ bool is_there(const float4& x) {
  return __float_as_uint(x.x) != kNotYet && __float_as_uint(x.y) != kNotYet &&
         __float_as_uint(x.z) != kNotYet && __float_as_uint(x.w) != kNotYet;
}
__device__ __forceinline__ void forget(float4* at) {
  *reinterpret_cast<uint4*>(at) = {kNotYet, kNotYet, kNotYet, kNotYet};
}

// What a block merges at once: eight heads of a listed row, some columns.
struct Unit {
  int entry = 0, token = 0, from = 0, splits = 0;  // from: the first present token, above `token` if none
  int head = 0, column = 0;
  bool there = false;
};
__device__ __forceinline__ Unit find_unit(const DecodeParams& p, int unit, int columns) {
  const int eights = (p.group + 7) / 8, of_row = eights * (kColumns / columns), listed = unit / of_row;
  const int rest = unit - listed * of_row;
  Unit u;
  if (listed >= *p.n) return u;
  const int row = p.ids[listed], split = p.split[row];
  u.there = true, u.token = p.q_start[row], u.from = p.new_k ? p.kv_from[row] : u.token + 1;
  u.splits = max(1, ((p.counts[row] << p.unit_shift) + split - 1) / split);
  u.head = rest % eights * 8, u.column = rest / eights * columns;
  u.entry = listed * ((p.group + kHeads - 1) / kHeads) + u.head / kHeads;
  return u;
}

// Base-2 scores of a head of the unit with a present token. All lanes of a warp.
__device__ __forceinline__ float dot_with(const DecodeParams& p, const Unit& u, int h, int j) {
  if (u.head + h >= p.group) return 0;
  const int lane = threadIdx.x % 32;
  const float* q = p.q + u.token * p.q_token + (u.head + h) * p.q_head;
  float dot = 0;
#pragma unroll 6
  for (int d = 0; d < kLatentKey; d += 32) dot += q[d + lane] * p.new_k[j * p.new_token + d + lane];
  for (int d = 16; d > 0; d /= 2) dot += __shfl_xor_sync(~0u, dot, d);
  return dot * p.scale * kLog2e;
}

// Of lane 4 g + c: heads 2 c, + 1 of a unit.
struct Merged {
  float top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
  float4 sum{0, 0, 0, 0};  // both heads of one channel, then of another

  __device__ __forceinline__ void move(float to0, float to1) {
    const float f0 = to0 == -INFINITY ? 1 : power2(top[0] - to0);
    const float f1 = to1 == -INFINITY ? 1 : power2(top[1] - to1);
    top[0] = to0, top[1] = to1, total[0] *= f0, total[1] *= f1;
    sum.x *= f0, sum.y *= f1, sum.z *= f0, sum.w *= f1;
  }
  __device__ __forceinline__ void add(float f0, float f1, const float4& v) {
    sum.x += f0 * v.x, sum.y += f1 * v.y, sum.z += f0 * v.z, sum.w += f1 * v.w;
  }
  // Of a weight over base `of`, over ours.
  __device__ __forceinline__ float factor(int i, float of) const {
    return top[i] == -INFINITY ? 0 : power2(of - top[i]);
  }
};

// Splits first, first + step, .. of one column, 16 of them under way at once, as they come. `mine`: this lane
// has heads.
__device__ __forceinline__ Merged
add_splits(const Parts& parts, int m, int e, int w, int first, int step, int splits, bool mine) {
  constexpr int kBatch = 16;
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  Merged x;
  for (int base = first; base < splits; base += step * kBatch) {
    float4* sums = parts.sums(m, e, w, lane) + int64_t(base) * (kLatentPart / 4);
    float4 *state[2], s[2], v[kBatch];
    bool own[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // a lane has the states of splits g and g + 8
      const int at = base + (g + i * 8) * step;
      own[i] = mine && at < splits, state[i] = parts.state(m, e, w, c) + int64_t(at) * (kLatentPart / 4);
      s[i] = own[i] ? look_at(state[i]) : float4{-INFINITY, 0, -INFINITY, 0};
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      v[i] = mine && base + i * step < splits ? look_at(sums + int64_t(i) * step * (kLatentPart / 4))
                                              : float4{0, 0, 0, 0};
    while (true) {  // all that is missing, at once
      bool all = true;
#pragma unroll
      for (int i = 0; i < 2; ++i) all = all && is_there(s[i]);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) all = all && is_there(v[i]);
      if (all) break;
      __nanosleep(50);
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (!is_there(s[i])) s[i] = look_at(state[i]);
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        if (!is_there(v[i])) v[i] = look_at(sums + int64_t(i) * step * (kLatentPart / 4));
    }
    __syncwarp();
    float most0 = fmaxf(x.top[0], fmaxf(s[0].x, s[1].x)), most1 = fmaxf(x.top[1], fmaxf(s[0].z, s[1].z));
#pragma unroll
    for (int d = 4; d < 32; d *= 2) {
      most0 = fmaxf(most0, __shfl_xor_sync(~0u, most0, d));
      most1 = fmaxf(most1, __shfl_xor_sync(~0u, most1, d));
    }
    x.move(most0, most1);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float f0 = x.factor(0, s[i].x), f1 = x.factor(1, s[i].z);
      x.total[0] += f0 * s[i].y, x.total[1] += f1 * s[i].w;
      if (own[i]) forget(state[i]);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int at = i * 8 + k;
        float4* from = sums + int64_t(at) * step * (kLatentPart / 4);
        x.add(__shfl_sync(~0u, f0, k * 4 + c), __shfl_sync(~0u, f1, k * 4 + c), v[at]);
        if (mine && base + at * step < splits) forget(from);
      }
    }
  }
#pragma unroll
  for (int d = 4; d < 32; d *= 2) {
    x.total[0] += __shfl_xor_sync(~0u, x.total[0], d);
    x.total[1] += __shfl_xor_sync(~0u, x.total[1], d);
  }
  return x;
}

constexpr int kDots = 16;  // present tokens whose products are worked out before

struct MergeSpace {
  float4 sums[8][32], states[8][32];
};

// Eight warps, which meet at barrier 1: a unit. Up to eight warps share the splits of a column, as many as a
// row has eights of splits, and are added in their order, then the present.
__device__ __forceinline__ void merge(
    const DecodeParams& p, const Unit& u, int columns, const float (&dots)[kDots][8], MergeSpace& space) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int eights = (u.splits + 7) / 8,
            shares = eights > 4   ? 8
                     : eights > 2 ? 4
                                  : eights,
            share = warp % shares;
  const int head = u.head + 2 * c;
  const Parts parts(p, u.entry, 0);
  for (int done = 0; done < columns; done += 8 / shares) {
    const int column = u.column + done + warp / shares;
    const bool mine = done + warp / shares < columns;
    const int m = column / 8, w = column % 8, channel = w / 4 * 256 + m * 64 + w % 4 * 16 + g;
    Merged x;
    float2 key{0, 0};  // of the first present token, usually the only one
    const auto take_key = [&](int j) {
      const float* k = p.new_k + j * p.new_token + channel;
      key = {k[0], k[8]};
    };
    if (mine && share == 0 && u.from <= u.token) take_key(u.from);
    if (mine) x = add_splits(parts, m, u.head % kHeads / 8, w, share, shares, u.splits, head < p.group);
    if (shares > 1) {
      named_sync(1, 256);  // the place is free
      space.sums[warp][lane] = x.sum, space.states[warp][lane] = {x.top[0], x.top[1], x.total[0], x.total[1]};
      named_sync(1, 256);
    }
    if (!mine || share > 0) continue;
    float top0 = x.top[0], top1 = x.top[1];
    for (int i = 1; i < shares; ++i)
      top0 = fmaxf(top0, space.states[warp + i][lane].x), top1 = fmaxf(top1, space.states[warp + i][lane].y);
    x.move(top0, top1);
    for (int i = 1; i < shares; ++i) {
      const float4 s = space.states[warp + i][lane];
      const float f0 = x.factor(0, s.x), f1 = x.factor(1, s.y);
      x.total[0] += f0 * s.z, x.total[1] += f1 * s.w;
      x.add(f0, f1, space.sums[warp + i][lane]);
    }
    for (int j = u.from; j <= u.token; ++j) {
      float d0 = 0, d1 = 0;
      if (j - u.from < kDots)
        d0 = dots[j - u.from][2 * c], d1 = dots[j - u.from][2 * c + 1];
      else
        for (int h = 0; h < 8; ++h) {
          const float dot = dot_with(p, u, h, j);
          if (h == 2 * c) d0 = dot;
          if (h == 2 * c + 1) d1 = dot;
        }
      if (j > u.from) take_key(j);
      x.move(fmaxf(x.top[0], d0), fmaxf(x.top[1], d1));
      const float f0 = x.factor(0, d0), f1 = x.factor(1, d1);
      x.total[0] += f0, x.total[1] += f1;
      x.add(f0, f1, {key.x, key.x, key.y, key.y});
    }
    float* out = p.out + u.token * p.out_token + head * p.out_head + channel;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (head + i >= p.group) break;
      const float total = x.total[i], inverse = total > 0 ? 1 / total : 0;
      out[i * p.out_head] = (i ? x.sum.y : x.sum.x) * inverse;
      out[i * p.out_head + 8] = (i ? x.sum.w : x.sum.z) * inverse;
      if (column == 0 && g == 0)
        p.lse[u.token * p.lse_token + (head + i) * p.lse_head] =
            total > 0 ? x.top[i] * kLn2 + logf(total) : -INFINITY;
    }
  }
}

}  // namespace
}  // namespace se::cuda
