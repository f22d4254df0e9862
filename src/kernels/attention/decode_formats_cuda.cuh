// How K and V of one tile come to shared memory and from there to the tensor cores, one struct per format.
// A tile is kTile places of one KV head; a warp owns its tiles.
//
//   q_dim(s, x, c)   the channels whose pair lane c feeds as piece x (0, 1) of k-step s: (d, d + kApart)
//   issue            starts the copies of a tile to `stage`; x: lane l's place as a byte offset into the
//   planes, -1
//                    where there is no token (zeros are written then)
//   scores           s[t][2]: for tokens 8 t + 2 c, + 1, of query head g: q.k without the softmax scale
//   values           o += weights x V; a[k]: the weights as A operand of the tile's k-th 16 tokens
//   spill            the finished sums of head g to `to` [DIM]
#pragma once
#include "device/cuda/mma.cuh"
#include "kernels/attention/decode_params_cuda.h"

namespace se::cuda::decode {

// Row r of a tile of rows of kRow bytes lies at r * kRow; its 16-byte pieces are permuted against bank
// conflicts.
template <int kRow>
__device__ __forceinline__ int place_in_tile(int r, int piece) {
  if constexpr (kRow == 64) return r * kRow + (piece ^ (r >> 1 & 3)) * 16;
  return r * kRow + (piece ^ (r & 7)) * 16;
}

struct Planes {
  const char *k, *v;              // of this KV head
  const char *k_scale, *v_scale;  // FP8: scales; KIVI: steps
  const char *k_min, *v_min;
};

// A lane's place in the planes.
struct Place {
  int64_t at = -1;       // of its K (and V) row
  int64_t scale_at = 0;  // of its scale
};

// Copies the rows of a tile, K's to stage, V's kPlane on. `steady`: places 16 i .. 16 i + 15 lie in one run
// (or there are none), so that one place's offset gives those of the others; mask: bit l, place l is there.
template <int kRow, int kTile>
__device__ __forceinline__ void copy_rows(uint32_t stage,
                                          const Planes& from,
                                          const Place& x,
                                          uint32_t mask,
                                          bool steady,
                                          int64_t item_stride,
                                          int lane) {
  constexpr int kPieces = kRow / 16, kRows = 32 / kPieces, kPlane = kTile * kRow;
  const int row = lane / kPieces, piece = lane % kPieces;
  if (steady) {
#pragma unroll
    for (int part = 0; part < kTile / 16; ++part) {
      const int64_t first = __shfl_sync(~0u, x.at, part * 16);
      const char* k = from.k + (first < 0 ? 0 : first) + row * item_stride + piece * 16;
      const char* v = k + (from.v - from.k);
#pragma unroll
      for (int j = 0; j < 16 / kRows; ++j) {
        const int r = part * 16 + j * kRows + row;
        const bool ok = mask >> r & 1;
        const uint32_t to = stage + place_in_tile<kRow>(r, piece);
        copy16(to, k, ok);
        copy16(to + kPlane, v, ok);
        k += kRows * item_stride, v += kRows * item_stride;
      }
    }
    return;
  }
#pragma unroll 1
  for (int j = 0; j < kTile / kRows; ++j) {
    const int r = j * kRows + row;
    const int64_t at = __shfl_sync(~0u, x.at, r);
    const bool ok = at >= 0;
    const int64_t offset = (ok ? at : 0) + piece * 16;
    const uint32_t to = stage + place_in_tile<kRow>(r, piece);
    copy16(to, from.k + offset, ok);
    copy16(to + kPlane, from.v + offset, ok);
  }
}

template <typename Type, int DIM>
struct Plain {
  using T = Type;
  static constexpr int kTile = 16, kWarps = 8, kStages = 2, kApart = 1;
  static constexpr int kRow = DIM * 2, kPlane = kTile * kRow, kStage = 2 * kPlane;
  static constexpr bool kScaled = false;
  static __device__ __forceinline__ int q_dim(int s, int x, int c) { return s * 16 + x * 8 + 2 * c; }
  static __device__ __forceinline__ Place place(const DecodeParams& p, int64_t slot) {
    return {(slot >> p.page_shift) * p.page_stride + (slot & ((1 << p.page_shift) - 1)) * p.item_stride, 0};
  }
  static __device__ __forceinline__ void issue(uint32_t stage,
                                               const Planes& from,
                                               const Place& x,
                                               uint32_t mask,
                                               bool steady,
                                               int64_t item_stride,
                                               int lane) {
    copy_rows<kRow, kTile>(stage, from, x, mask, steady, item_stride, lane);
  }
  static __device__ __forceinline__ void scores(
      uint32_t stage, const char*, const uint32_t (&q)[DIM / 16][4], int lane, float (&out)[kTile / 8][2]) {
    float s[2][4] = {};  // [tokens 0-7, 8-15][head g: two tokens; the rest of q: two tokens]
    const int row = (lane & 7) + (lane >= 16 ? 8 : 0), piece = lane >> 3 & 1;
#pragma unroll
    for (int d = 0; d < DIM / 16; ++d) {
      uint32_t b[4];
      load_matrices<false>(b, stage + place_in_tile<kRow>(row, 2 * d + piece));
      mma(s[0], q[d], b[0], b[1], T());
      mma(s[1], q[d], b[2], b[3], T());
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) out[t][0] = s[t][0] + s[t][2], out[t][1] = s[t][1] + s[t][3];
  }
  static __device__ __forceinline__ void values(
      uint32_t stage, const char*, const uint32_t (&a)[kTile / 16][4], int lane, float (&o)[DIM / 8][4]) {
    const int row = lane & 15, piece = lane >> 4;
#pragma unroll
    for (int n = 0; n < DIM / 16; ++n) {
      uint32_t b[4];
      load_matrices<true>(b, stage + kPlane + place_in_tile<kRow>(row, 2 * n + piece));
      mma(o[2 * n], a[0], b[0], b[1], T());
      mma(o[2 * n + 1], a[0], b[2], b[3], T());
    }
  }
  static __device__ __forceinline__ void spill(const float (&o)[DIM / 8][4], int c, float* to) {
#pragma unroll
    for (int n = 0; n < DIM / 8; ++n)
      *reinterpret_cast<float2*>(to + n * 8 + 2 * c) = {o[n][0] + o[n][2], o[n][1] + o[n][3]};
  }
};

// FP8 codes with one f32 scale per token (and KV head) each for K and V; codes become halves exactly.
template <bool kE5M2, int DIM>
struct Fp8 {
  using T = __half;
  static constexpr int kTile = 32, kWarps = 8, kStages = 2, kApart = 1;
  static constexpr int kRow = DIM, kPlane = kTile * kRow, kStage = 2 * kPlane + 2 * kTile * 4;
  static constexpr bool kScaled = true;
  static __device__ __forceinline__ void widen(uint32_t four, uint32_t& first, uint32_t& second) {
    kE5M2 ? e5m2_to_half(four, first, second) : e4m3_to_half(four, first, second);
  }
  // Lane c reads 16 bytes, 64 channels further on again: k-step s is word s % 4 of piece s / 4.
  static __device__ __forceinline__ int q_dim(int s, int x, int c) {
    return s / 4 * 64 + c * 16 + s % 4 * 4 + 2 * x;
  }
  static __device__ __forceinline__ Place place(const DecodeParams& p, int64_t slot) {
    const int64_t page = (slot >> p.page_shift) * p.page_stride, item = slot & ((1 << p.page_shift) - 1);
    return {page + item * p.item_stride, page + item * p.scale_item};
  }
  static __device__ __forceinline__ void issue(uint32_t stage,
                                               const Planes& from,
                                               const Place& x,
                                               uint32_t mask,
                                               bool steady,
                                               int64_t item_stride,
                                               int lane) {
    copy_rows<kRow, kTile>(stage, from, x, mask, steady, item_stride, lane);
    const uint32_t to = stage + 2 * kPlane + lane * 4;
    const int bytes = x.at >= 0 ? 4 : 0;
    const int64_t at = x.at >= 0 ? x.scale_at : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from.k_scale + at), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to + kTile * 4),
                 "l"(from.v_scale + at),
                 "r"(bytes)
                 : "memory");
  }
  static __device__ __forceinline__ void scores(
      uint32_t, const char* tile, const uint32_t (&q)[DIM / 16][4], int lane, float (&out)[kTile / 8][2]) {
    const int g = lane / 4, c = lane % 4;
#pragma unroll
    for (int t = 0; t < kTile / 8; ++t) {
      float s[4] = {};
#pragma unroll
      for (int h = 0; h < DIM / 64; ++h) {
        const uint4 w = *reinterpret_cast<const uint4*>(tile + place_in_tile<kRow>(t * 8 + g, h * 4 + c));
        const uint32_t word[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          uint32_t b0, b1;
          widen(word[j], b0, b1);
          mma(s, q[h * 4 + j], b0, b1, T());
        }
      }
      const float2 scale = *reinterpret_cast<const float2*>(tile + 2 * kPlane + (t * 8 + 2 * c) * 4);
      out[t][0] = (s[0] + s[2]) * scale.x, out[t][1] = (s[1] + s[3]) * scale.y;
    }
  }
  // The scales of V, for tokens 8 t + 2 c, + 1.
  static __device__ __forceinline__ float2 v_scale(const char* tile, int t, int c) {
    return *reinterpret_cast<const float2*>(tile + 2 * kPlane + (kTile + t * 8 + 2 * c) * 4);
  }
  static __device__ __forceinline__ void values(
      uint32_t stage, const char*, const uint32_t (&a)[kTile / 16][4], int lane, float (&o)[DIM / 8][4]) {
    const int row = lane & 15, piece = lane >> 4;
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k) {
#pragma unroll
      for (int n = 0; n < DIM / 32; ++n) {
        uint32_t r[4];  // [16 channels][tokens 0-7, 8-15], two channels of a token side by side
        load_matrices<true>(r, stage + kPlane + place_in_tile<kRow>(k * 16 + row, 2 * n + piece));
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          uint32_t even0, odd0, even1, odd1;
          widen(__byte_perm(r[2 * x], 0, 0x3120), even0, odd0);
          widen(__byte_perm(r[2 * x + 1], 0, 0x3120), even1, odd1);
          mma(o[4 * n + 2 * x], a[k], even0, even1, T());
          mma(o[4 * n + 2 * x + 1], a[k], odd0, odd1, T());
        }
      }
    }
  }
  static __device__ __forceinline__ void spill(const float (&o)[DIM / 8][4], int c, float* to) {
#pragma unroll
    for (int b = 0; b < DIM / 16; ++b) {
      const float(&even)[4] = o[2 * b], (&odd)[4] = o[2 * b + 1];
      *reinterpret_cast<float4*>(to + b * 16 + 4 * c) = {
          even[0] + even[2], odd[0] + odd[2], even[1] + even[3], odd[1] + odd[3]};
    }
  }
};

// KIVI, 4 bits, groups of 32: a tile is one group. Codes become halves exactly (1024 + n has n in its low
// bits); min + n * step is rounded to a half.
template <int DIM>
struct Kivi4 {
  using T = __half;
  static constexpr int kTile = 32, kWarps = 8, kStages = 3, kApart = 4;
  static constexpr int kRow = DIM / 2, kPlane = kTile * kRow, kMeta = DIM * 2;
  static constexpr int kStage = 2 * kPlane + 4 * kMeta;  // codes, then K step, K min, V step, V min
  static constexpr bool kScaled = false;
  static_assert(DIM == 128, "the lanes' shares are laid out for 128 channels");
  static __device__ __forceinline__ int q_dim(int s, int x, int c) {
    return c * 32 + s / 2 * 8 + s % 2 * 2 + x;
  }
  static __device__ __forceinline__ Place place(const DecodeParams& p, int64_t slot) {
    const int64_t page = (slot >> p.page_shift) * p.page_stride;
    const int64_t group = (slot & ((1 << p.page_shift) - 1)) / kTile;
    return {page + group * p.item_stride, page + group * p.scale_item};
  }
  static __device__ __forceinline__ void issue(
      uint32_t stage, const Planes& from, const Place& x, uint32_t, bool, int64_t, int lane) {
    const int64_t at = __shfl_sync(~0u, x.at, 0), meta = __shfl_sync(~0u, x.scale_at, 0);  // of the group
    const bool ok = at >= 0;
#pragma unroll
    for (int j = 0; j < kPlane / 512; ++j) {
      const int r = (j * 32 + lane) / 4, piece = lane % 4;
      const int64_t offset = (ok ? at : 0) + (j * 32 + lane) * 16;
      const uint32_t to = stage + place_in_tile<kRow>(r, piece);
      copy16(to, from.k + offset, ok);
      copy16(to + kPlane, from.v + offset, ok);
    }
    const int64_t offset = (ok ? meta : 0) + lane % 16 * 16;
    const uint32_t to = stage + 2 * kPlane + lane * 16;
    copy16(to, (lane < 16 ? from.k_scale : from.k_min) + offset, ok);
    copy16(to + 2 * kMeta, (lane < 16 ? from.v_scale : from.v_min) + offset, ok);
  }
  static __device__ __forceinline__ __half2 half2_of(uint32_t x) { return reinterpret_cast<__half2&>(x); }
  static __device__ __forceinline__ uint32_t bits_of(__half2 x) { return reinterpret_cast<uint32_t&>(x); }
  // Codes at nibbles i and i + 4 of `word`, as numbers.
  static __device__ __forceinline__ uint32_t number(uint32_t word, int i, uint32_t step, uint32_t low) {
    const uint32_t n = (word >> (4 * i) & 0x000f000fu) | 0x64006400u;
    return bits_of(__hfma2(__hsub2(half2_of(n), half2_of(0x64006400u)), half2_of(step), half2_of(low)));
  }
  static __device__ __forceinline__ uint32_t bf16_to_half(uint32_t two) {
    const float2 f = unpack(two, __nv_bfloat16());
    return pack(f.x, f.y, __half());
  }
  static __device__ __forceinline__ void scores(
      uint32_t, const char* tile, const uint32_t (&q)[DIM / 16][4], int lane, float (&out)[kTile / 8][2]) {
    const int g = lane / 4, c = lane % 4;
    uint4 codes[kTile / 8];
#pragma unroll
    for (int t = 0; t < kTile / 8; ++t)
      codes[t] = *reinterpret_cast<const uint4*>(tile + place_in_tile<kRow>(t * 8 + g, c));
    float s[kTile / 8][4] = {};
    const char* meta = tile + 2 * kPlane + c * 64;
#pragma unroll
    for (int m = 0; m < 4; ++m) {  // eight channels: one word of codes
      const uint4 step4 = *reinterpret_cast<const uint4*>(meta + m * 16);
      const uint4 low4 = *reinterpret_cast<const uint4*>(meta + kMeta + m * 16);
      const uint32_t step[4] = {step4.x, step4.y, step4.z, step4.w};
      const uint32_t low[4] = {
          bf16_to_half(low4.x), bf16_to_half(low4.y), bf16_to_half(low4.z), bf16_to_half(low4.w)};
#pragma unroll
      for (int y = 0; y < 2; ++y) {  // the pairs (2 y, 2 y + 4), (2 y + 1, 2 y + 5)
        const uint32_t step0 = __byte_perm(step[y], step[y + 2], 0x5410),
                       low0 = __byte_perm(low[y], low[y + 2], 0x5410);
        const uint32_t step1 = __byte_perm(step[y], step[y + 2], 0x7632),
                       low1 = __byte_perm(low[y], low[y + 2], 0x7632);
#pragma unroll
        for (int t = 0; t < kTile / 8; ++t) {
          const uint32_t word = m == 0 ? codes[t].x : m == 1 ? codes[t].y : m == 2 ? codes[t].z : codes[t].w;
          mma(s[t],
              q[2 * m + y],
              number(word, 2 * y, step0, low0),
              number(word, 2 * y + 1, step1, low1),
              T());
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kTile / 8; ++t) out[t][0] = s[t][0] + s[t][2], out[t][1] = s[t][1] + s[t][3];
  }
  static __device__ __forceinline__ void values(uint32_t stage,
                                                const char* tile,
                                                const uint32_t (&a)[kTile / 16][4],
                                                int lane,
                                                float (&o)[DIM / 8][4]) {
    const int c = lane % 4, row = lane & 15, piece = lane >> 4;
    const char* meta = tile + 2 * kPlane + 2 * kMeta;
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k) {
      uint32_t step[2][4], low[2][4];  // [tokens 2c.., 2c + 8..][32 channels]
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const char* at = meta + (k * 16 + x * 8 + 2 * c) * 8;  // four numbers a token
        const uint4 s = *reinterpret_cast<const uint4*>(at), l = *reinterpret_cast<const uint4*>(at + kMeta);
        step[x][0] = __byte_perm(s.x, s.z, 0x5410), step[x][1] = __byte_perm(s.x, s.z, 0x7632);
        step[x][2] = __byte_perm(s.y, s.w, 0x5410), step[x][3] = __byte_perm(s.y, s.w, 0x7632);
        low[x][0] = bf16_to_half(__byte_perm(l.x, l.z, 0x5410));
        low[x][1] = bf16_to_half(__byte_perm(l.x, l.z, 0x7632));
        low[x][2] = bf16_to_half(__byte_perm(l.y, l.w, 0x5410));
        low[x][3] = bf16_to_half(__byte_perm(l.y, l.w, 0x7632));
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        uint32_t r[4];  // [32 channels][tokens 0-7, 8-15], four channels of a token side by side
        load_matrices<true>(r, stage + kPlane + place_in_tile<kRow>(k * 16 + row, 2 * n + piece));
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          const int block = 2 * n + x;
#pragma unroll
          for (int i = 0; i < 4; ++i)
            mma(o[4 * block + i],
                a[k],
                number(r[2 * x], i, step[0][block], low[0][block]),
                number(r[2 * x + 1], i, step[1][block], low[1][block]),
                T());
        }
      }
    }
  }
  static __device__ __forceinline__ void spill(const float (&o)[DIM / 8][4], int c, float* to) {
#pragma unroll
    for (int b = 0; b < 4; ++b)
#pragma unroll
      for (int x = 0; x < 2; ++x)
        *reinterpret_cast<float4*>(to + b * 32 + 8 * c + 4 * x) = {o[4 * b][x] + o[4 * b][x + 2],
                                                                   o[4 * b + 1][x] + o[4 * b + 1][x + 2],
                                                                   o[4 * b + 2][x] + o[4 * b + 2][x + 2],
                                                                   o[4 * b + 3][x] + o[4 * b + 3][x + 2]};
  }
};

}  // namespace se::cuda::decode
