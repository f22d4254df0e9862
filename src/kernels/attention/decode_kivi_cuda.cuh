// KIVI's 4 bits as a format of decode_formats_cuda.cuh.
#pragma once
#include "kernels/attention/decode_formats_cuda.cuh"

namespace se::cuda::decode {

// Two matrices transposed, at the addresses of lanes 0-15.
__device__ __forceinline__ void load_two_transposed(uint32_t (&r)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

// KIVI, 4 bits, groups of 32: a tile is two groups, which share the operands of q. Codes feed the tensor
// cores as they are: nibbles in the low bits of a half are subnormals, exactly n 2^-24, or n 2^-20 four bits
// further up. Minimum and step are taken to the other operand:
//   q.k = sum (q step) n + q.min   once a group: q step in halves, high and rest; q.min in BF16 pieces
//   p V = sum (p step) n + p.min   per token and 32 channels; p.min summed aside, in BF16 pieces
// No number is rounded to fewer than 16 bits. Halves hold all of it: q is scaled to below 1/2 by a power of
// two (steps of K up to 8,188), weights to 2^15 over a power of two above all steps of V so far.
template <int DIM>
struct Kivi4 {
  using T = __half;
  static constexpr int kWarps = 8, kProducers = 4;
  static constexpr int kGrain = 32, kGroups = 2, kTile = kGroups * kGrain, kRounds = 2;
  static constexpr int kRow = DIM / 2, kPlane = kGrain * kRow, kMeta = DIM * 2;
  static constexpr int kGroup = 2 * kPlane + 4 * kMeta;  // codes, then K step, K min, V step, V min
  static constexpr int kStage = kGroups * kGroup;
  static constexpr int kSteps = DIM * 32, kBack = 2 * kSteps;
  static constexpr int kQuery = kBack + (1 + DIM / 32) * kHeads * 4;  // q for codes, for minima, back, tops
  static constexpr bool kScaled = true, kCounts = true, kMoreRegisters = true;
  // Aside: p.min of 32 channels a row, of even and odd tokens; below them the weights themselves.
  static constexpr int kSums = DIM / 16, kAside = 1;
  static constexpr float kLeastUnit = 1, kWeight = 32768;
  static constexpr uint32_t kOnes = 0x3f803f80;  // two of BF16
  static_assert(DIM == 128, "the lanes' shares are laid out for 128 channels");
  // The channels of a pair are four apart: (d, d + 4).
  static __device__ __forceinline__ int q_dim(int s, int x, int c) {
    return c * 32 + s / 2 * 8 + s % 2 * 2 + x;
  }
  // Even channels 16 times; for minima in the order of memory, four channels a k-step. Warps 0 to 3 take two
  // k-steps each; all kWarps warps meet at barrier 1 in between.
  static __device__ __forceinline__ void fill(
      const DecodeParams& p, const Item& it, char* to, int warp, int lane) {
    constexpr int kFillers = DIM / 32;
    const int g = lane / 4, c = lane % 4;
    float* tops = reinterpret_cast<float*>(to + kBack) + kHeads;
    float2 two[2][2];  // [k-step 2 warp, 2 warp + 1]
    if (warp < kFillers) {
      float most = 0;
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          two[i][x] = query_pair(p, it, g, q_dim(2 * warp + i, x, c), 4, p.scale * kLog2e);
          most = fmaxf(most, fmaxf(fabsf(two[i][x].x), fabsf(two[i][x].y)));
        }
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      if (c == 0) tops[warp * kHeads + g] = most;
    }
    named_sync(1, kWarps * 32);
    if (warp >= kFillers) return;
    float most = 0;
#pragma unroll
    for (int w = 0; w < kFillers; ++w) most = fmaxf(most, tops[w * kHeads + g]);
    const uint32_t exponent = __float_as_uint(most) & 0x7f800000u;
    const float down = __uint_as_float(0x7f000000u - exponent) * 0.25f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 a = two[i][0], b = two[i][1];
      const float low[4] = {i ? two[0][0].y : two[0][0].x,
                            i ? two[0][1].y : two[0][1].x,
                            i ? two[1][0].y : two[1][0].x,
                            i ? two[1][1].y : two[1][1].x};
      uint4 x;
      pieces<T>(a.x * (16 * down), a.y * (16 * down), x.x, x.y);
      pieces<T>(b.x * down, b.y * down, x.z, x.w);
      reinterpret_cast<uint4*>(to)[(2 * warp + i) * 32 + lane] = x;
      pieces<__nv_bfloat16>(low[0], low[1], x.x, x.y);
      pieces<__nv_bfloat16>(low[2], low[3], x.z, x.w);
      reinterpret_cast<uint4*>(to + kSteps)[(2 * warp + i) * 32 + lane] = x;
    }
    if (warp == 0 && c == 0)  // 2^20 / down
      reinterpret_cast<float*>(to + kBack)[g] = __uint_as_float(exponent) * 0x1p22f;
  }
  static __device__ __forceinline__ Place place(const DecodeParams& p, int64_t slot) {
    const int64_t page = (slot >> p.page_shift) * p.page_stride;
    const int group = int(unsigned(slot & ((1 << p.page_shift) - 1)) / kGrain);
    return {page + group * p.item_stride, page + group * p.scale_item};
  }
  // Where piece i of 16 bytes of steps or minima lies, such that both groups' lanes meet no bank conflict.
  static __device__ __forceinline__ int meta_at(int group, int i) { return (i ^ (i >> 3) ^ group << 1) * 16; }
  static __device__ __forceinline__ void issue(uint32_t stage,
                                               const Planes& from,
                                               const Pieces& x,
                                               int lane) {
    const uint32_t row = place_in_tile<kRow>(lane / 4, lane % 4);  // rows repeat every eight
#pragma unroll 1
    for (int j = 0; j < kGroups; ++j, stage += kGroup) {
      const bool ok = x.mask >> j & 1;
      const int64_t at = __shfl_sync(~0u, x.place.at, x.first + 2 * j) + lane * 16;
      const int64_t meta = __shfl_sync(~0u, x.place.scale_at, x.first + 2 * j) + lane % 16 * 16;
#pragma unroll
      for (int i = 0; i < kPlane / 512; ++i) {
        copy16(stage + row + i * 512, from.k + at + i * 512, ok);
        copy16(stage + row + kPlane + i * 512, from.v + at + i * 512, ok);
      }
      const uint32_t to = stage + 2 * kPlane + lane / 16 * kMeta + meta_at(j, lane % 16);
      copy16(to, (lane < 16 ? from.k_scale : from.k_min) + meta, ok);
      copy16(to + 2 * kMeta, (lane < 16 ? from.v_scale : from.v_min) + meta, ok);
    }
  }
  static __device__ __forceinline__ __half2 half2_of(uint32_t x) { return reinterpret_cast<__half2&>(x); }
  static __device__ __forceinline__ uint32_t bits_of(__half2 x) { return reinterpret_cast<uint32_t&>(x); }
  // (high + rest) step as high and rest again: what rounding the first product lost is exact in a half.
  static __device__ __forceinline__ void times(
      uint32_t high, uint32_t rest, uint32_t step, uint32_t& to_high, uint32_t& to_rest) {
    const __half2 h = half2_of(high), s = half2_of(step), product = __hmul2_rn(h, s);
    to_high = bits_of(product);
    to_rest = bits_of(__hfma2(half2_of(rest), s, __hfma2(h, s, __hneg2(product))));
  }
  struct Query {
    uint32_t codes[DIM / 16][4], minima[DIM / 16][4];
    float back;
    __device__ __forceinline__ Query(const char* from, int lane)
        : back(reinterpret_cast<const float*>(from + kBack)[lane / 4]) {
#pragma unroll
      for (int s = 0; s < DIM / 16; ++s) {
        take_operand(codes[s], from, s, lane);
        take_operand(minima[s], from + kSteps, s, lane);
      }
    }
  };
  static __device__ __forceinline__ void scores(
      uint32_t, const char* tile, const Query& q, int lane, float (&out)[kTile / 8][2]) {
    constexpr int kEach = kGrain / 8;
    const int g = lane / 4, c = lane % 4, mine = g % kGroups;
    uint4 codes[kTile / 8];
#pragma unroll
    for (int t = 0; t < kTile / 8; ++t)
      codes[t] = *reinterpret_cast<const uint4*>(tile + t / kEach * kGroup +
                                                 place_in_tile<kRow>(t % kEach * 8 + g, c));
    float s[kTile / 8][4] = {},
                    lows[4] = {};  // lows: q.min of one group in even columns, of the other in odd
    const char* meta = tile + 2 * kPlane;
#pragma unroll
    for (int m = 0; m < 4; ++m) {  // eight channels: one word of codes
      const uint4 low4 =
          *reinterpret_cast<const uint4*>(meta + mine * kGroup + kMeta + meta_at(mine, c * 4 + m));
      const uint32_t low[4] = {low4.x, low4.y, low4.z, low4.w};
      uint32_t step[kGroups][4];
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const uint4 step4 = *reinterpret_cast<const uint4*>(meta + j * kGroup + meta_at(j, c * 4 + m));
        step[j][0] = step4.x, step[j][1] = step4.y, step[j][2] = step4.z, step[j][3] = step4.w;
      }
#pragma unroll
      for (int y = 0; y < 2; ++y) {  // the pairs (2 y, 2 y + 4), (2 y + 1, 2 y + 5)
        const uint32_t(&from)[4] = q.codes[2 * m + y];
        mma(lows, q.minima[2 * m + y], low[2 * y], low[2 * y + 1], __nv_bfloat16());
#pragma unroll
        for (int j = 0; j < kGroups; ++j) {
          uint32_t a[4];
          times(from[0], from[1], __byte_perm(step[j][y], step[j][y + 2], 0x5410), a[0], a[1]);
          times(from[2], from[3], __byte_perm(step[j][y], step[j][y + 2], 0x7632), a[2], a[3]);
#pragma unroll
          for (int i = 0; i < kEach; ++i) {
            const int t = j * kEach + i;
            const uint32_t word = m == 0   ? codes[t].x
                                  : m == 1 ? codes[t].y
                                  : m == 2 ? codes[t].z
                                           : codes[t].w;
            const uint32_t four = word >> (8 * y);
            mma(s[t], a, four & 0x000f000fu, four & 0x00f000f0u, T());
          }
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kTile / 8; ++t) {
      const int j = t / kEach;
      out[t][0] = fmaf(s[t][0] + s[t][2], q.back, lows[j] + lows[j + 2]);
      out[t][1] = fmaf(s[t][1] + s[t][3], q.back, lows[j] + lows[j + 2]);
    }
  }
  // A power of two, at least 1, above all steps of V so far.
  static __device__ __forceinline__ float widest(const char* tile, int lane, float unit) {
    const uint4 s =
        *reinterpret_cast<const uint4*>(tile + lane / 16 * kGroup + 2 * kPlane + 2 * kMeta + lane % 16 * 16);
    const __half2 two = __hmax2(__hmax2(__habs2(half2_of(s.x)), __habs2(half2_of(s.y))),
                                __hmax2(__habs2(half2_of(s.z)), __habs2(half2_of(s.w))));
    const uint32_t most = __reduce_max_sync(~0u, max(bits_of(two) & 0xffffu, bits_of(two) >> 16));
    return fmaxf(unit, __uint_as_float((most >> 10) + 113 << 23));
  }
  static __device__ __forceinline__ float inverse(float unit) {
    return __uint_as_float(0x7f000000u - __float_as_uint(unit));
  }
  static __device__ __forceinline__ void values(uint32_t stage,
                                                const char* tile,
                                                const float (&w)[kTile / 8][2],
                                                float inverse,
                                                int lane,
                                                float (&o)[kSums + kAside][4]) {
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
      values_of_group(j, stage + j * kGroup, tile + j * kGroup, w + j * (kGrain / 8), inverse, lane, o);
  }
  static __device__ __forceinline__ void values_of_group(int j,
                                                         uint32_t stage,
                                                         const char* tile,
                                                         const float (*w)[2],
                                                         float inverse,
                                                         int lane,
                                                         float (&o)[kSums + kAside][4]) {
    const int c = lane % 4, row = lane & 15, piece = lane >> 4;
    const char* meta = tile + 2 * kPlane + 2 * kMeta;
    // Minima: token pair r = 4 t + c is a row of eight numbers, those of its even and of its odd token.
    uint32_t low[2];
    const int pair = (lane >> 3 & 1) * 8 + (lane & 1) * 4 + (lane >> 1 & 3);
    load_two_transposed(low, stage + 2 * kPlane + 3 * kMeta + meta_at(j, pair));
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {  // rows 0-3 take even tokens, rows 4-7 odd ones
      const float first[2] = {w[0][odd], w[1][odd]}, second[2] = {w[2][odd], w[3][odd]};
      const bool mine = lane >> 4 == odd;
      const uint32_t v[4] = {mine ? low[0] : 0, kOnes, mine ? low[1] : 0, kOnes};
      Weights<__nv_bfloat16>(first, second).add(o[kSums], v);
    }
    const float up = inverse * kWeight;
#pragma unroll
    for (int k = 0; k < kGrain / 16; ++k) {
      float scaled[2][2];
#pragma unroll
      for (int x = 0; x < 2; ++x) scaled[x][0] = w[2 * k + x][0] * up, scaled[x][1] = w[2 * k + x][1] * up;
      const Weights<T> plain(scaled[0], scaled[1]);
      uint32_t step[2][4];  // [tokens 2c.., 2c + 8..][32 channels]
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const uint4 s = *reinterpret_cast<const uint4*>(meta + meta_at(j, k * 8 + x * 4 + c));  // two tokens
        step[x][0] = __byte_perm(s.x, s.z, 0x5410), step[x][1] = __byte_perm(s.x, s.z, 0x7632);
        step[x][2] = __byte_perm(s.y, s.w, 0x5410), step[x][3] = __byte_perm(s.y, s.w, 0x7632);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        uint32_t r[4];  // [32 channels][tokens 0-7, 8-15], four channels of a token side by side
        load_matrices<true>(r, stage + kPlane + place_in_tile<kRow>(k * 16 + row, 2 * n + piece));
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          const int block = 2 * n + x;
          Weights<T> weights = plain;
#pragma unroll
          for (int y = 0; y < 2; ++y)
            times(plain.high[y], plain.rest[y], step[y][block], weights.high[y], weights.rest[y]);
#pragma unroll
          for (int y = 0; y < 2; ++y) {  // channels 4 g + 2 y, and 16 times the next
            const uint32_t first = r[2 * x] >> (8 * y), second = r[2 * x + 1] >> (8 * y);
            const uint32_t v[4] = {
                first & 0x000f000fu, first & 0x00f000f0u, second & 0x000f000fu, second & 0x00f000f0u};
            weights.add(o[2 * block + y], v);
          }
        }
      }
    }
  }
  static __device__ __forceinline__ void spill(const float (&o)[kSums + kAside][4], int lane, float* to) {
    constexpr float kEven = 0x1p24f / kWeight, kOdd = kEven / 16;
    float* own = to + lane % 4 * 2 * Sums<DIM>::kPitch + lane / 4 * 4;
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const float both = o[kSums][x] + __shfl_xor_sync(~0u, o[kSums][x], 16);
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const float add = __shfl_sync(~0u, both, b * 4 + lane % 4);
        const float(&even)[4] = o[2 * b], (&next)[4] = o[2 * b + 1];
        *reinterpret_cast<float4*>(own + x * Sums<DIM>::kPitch + b * 32) = {fmaf(even[x], kEven, add),
                                                                            fmaf(even[x + 2], kOdd, add),
                                                                            fmaf(next[x], kEven, add),
                                                                            fmaf(next[x + 2], kOdd, add)};
      }
    }
  }
};

}  // namespace se::cuda::decode
