// How K and V of one tile come to shared memory and from there to the tensor cores, one struct per format.
// A tile is kTile places of one KV head; a warp owns its tiles.
//
//   q_dim(s, x, c)   the channels whose pair lane c feeds as piece x (0, 1) of k-step s: (d, d + kApart)
//   issue            starts the copies of a tile to `stage`; x: lane l's place as a byte offset into the
//   planes, -1
//                    where there is no token (zeros are written then)
//   query            q of head g as the format's A operands, from the channels of q_dim
//   scores           s[t][2]: for tokens 8 t + 2 c, + 1, of query head g: q.k without the softmax scale
//   values           o += weights x V; w[t]: the weights of tokens 8 t + 2 c, + 1
//   spill            the finished sums of head g to `to` [DIM]; by all lanes
// Formats whose V has scales (kScaled) keep the sums in a unit that grows with them: `widest` is the unit
// with this tile, the same for all lanes of a head, `inverse` one over it; kAside more rows of o are not in
// it.
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

template <int DIM>
using Raw = float[DIM / 16][2][2];  // [k-step][piece][d, d + kApart]

// q as high and rest of 16 bits each.
template <typename T, int DIM>
struct QueryPieces {
  uint32_t a[DIM / 16][4];
  static __device__ __forceinline__ QueryPieces of(const Raw<DIM>& raw) {
    QueryPieces q;
#pragma unroll
    for (int s = 0; s < DIM / 16; ++s)
#pragma unroll
      for (int x = 0; x < 2; ++x) pieces<T>(raw[s][x][0], raw[s][x][1], q.a[s][2 * x], q.a[s][2 * x + 1]);
    return q;
  }
};

// Weights as A operands, 16 tokens each.
template <typename T, int kTile>
__device__ __forceinline__ void weight_pieces(const float (&w)[kTile / 8][2], uint32_t (&a)[kTile / 16][4]) {
#pragma unroll
  for (int t = 0; t < kTile / 8; ++t)
    pieces<T>(w[t][0], w[t][1], a[t / 2][t % 2 * 2], a[t / 2][t % 2 * 2 + 1]);
}

template <typename Type, int DIM>
struct Plain {
  using T = Type;
  static constexpr int kTile = 16, kWarps = 8, kStages = 2, kApart = 1;
  static constexpr int kRow = DIM * 2, kPlane = kTile * kRow, kStage = 2 * kPlane;
  static constexpr bool kScaled = false;
  static constexpr int kAside = 0;
  using Query = QueryPieces<T, DIM>;
  static __device__ __forceinline__ Query query(const Raw<DIM>& raw) { return Query::of(raw); }
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
      uint32_t stage, const char*, const Query& q, int lane, float (&out)[kTile / 8][2]) {
    float s[2][4] = {};  // [tokens 0-7, 8-15][head g: two tokens; the rest of q: two tokens]
    const int row = (lane & 7) + (lane >= 16 ? 8 : 0), piece = lane >> 3 & 1;
#pragma unroll
    for (int d = 0; d < DIM / 16; ++d) {
      uint32_t b[4];
      load_matrices<false>(b, stage + place_in_tile<kRow>(row, 2 * d + piece));
      mma(s[0], q.a[d], b[0], b[1], T());
      mma(s[1], q.a[d], b[2], b[3], T());
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) out[t][0] = s[t][0] + s[t][2], out[t][1] = s[t][1] + s[t][3];
  }
  static __device__ __forceinline__ void values(
      uint32_t stage, const char*, const float (&w)[kTile / 8][2], float, int lane, float (&o)[DIM / 8][4]) {
    const int row = lane & 15, piece = lane >> 4;
    uint32_t a[kTile / 16][4];
    weight_pieces<T, kTile>(w, a);
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
  static constexpr int kAside = 0;
  static constexpr float kLeastUnit = 0;
  using Query = QueryPieces<T, DIM>;
  static __device__ __forceinline__ Query query(const Raw<DIM>& raw) { return Query::of(raw); }
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
      uint32_t, const char* tile, const Query& q, int lane, float (&out)[kTile / 8][2]) {
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
          mma(s, q.a[h * 4 + j], b0, b1, T());
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
  static __device__ __forceinline__ float widest(const char* tile, int lane, float unit) {
#pragma unroll
    for (int t = 0; t < kTile / 8; ++t) {
      const float2 s = v_scale(tile, t, lane % 4);
      unit = fmaxf(unit, fmaxf(s.x, s.y));
    }
    unit = fmaxf(unit, __shfl_xor_sync(~0u, unit, 1));
    return fmaxf(unit, __shfl_xor_sync(~0u, unit, 2));
  }
  static __device__ __forceinline__ float inverse(float unit) { return unit > 0 ? 1 / unit : 0; }
  static __device__ __forceinline__ void values(uint32_t stage,
                                                const char* tile,
                                                const float (&w)[kTile / 8][2],
                                                float inverse,
                                                int lane,
                                                float (&o)[DIM / 8][4]) {
    const int row = lane & 15, piece = lane >> 4;
    float scaled[kTile / 8][2];
#pragma unroll
    for (int t = 0; t < kTile / 8; ++t) {
      const float2 s = v_scale(tile, t, lane % 4);
      scaled[t][0] = w[t][0] * (s.x * inverse), scaled[t][1] = w[t][1] * (s.y * inverse);
    }
    uint32_t a[kTile / 16][4];
    weight_pieces<T, kTile>(scaled, a);
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

// Two matrices transposed, at the addresses of lanes 0-15.
__device__ __forceinline__ void load_two_transposed(uint32_t (&r)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

// KIVI, 4 bits, groups of 32: a tile is one group. Codes feed the tensor cores as they are: nibbles in the
// low bits of a half are subnormals, exactly n 2^-24, or n 2^-20 four bits further up. Minimum and step are
// taken to the other operand:
//   q.k = sum (q step) n + q.min   once a group: q step in halves, high and rest; q.min in BF16 pieces
//   p V = sum (p step) n + p.min   per token and 32 channels; p.min summed aside, in BF16 pieces
// No number is rounded to fewer than 16 bits. Halves hold all of it: q is scaled to below 1/2 by a power of
// two (steps of K up to 8,188), weights to 2^15 over a power of two above all steps of V so far.
template <int DIM>
struct Kivi4 {
  using T = __half;
  static constexpr int kTile = 32, kWarps = 4, kStages = 4, kApart = 4;
  static constexpr int kRow = DIM / 2, kPlane = kTile * kRow, kMeta = DIM * 2;
  static constexpr int kStage = 2 * kPlane + 4 * kMeta;  // codes, then K step, K min, V step, V min
  static constexpr bool kScaled = true;
  static constexpr int kAside = 2;  // rows of o: p.min of even tokens, of odd tokens
  static constexpr float kLeastUnit = 1, kWeight = 32768;
  static_assert(DIM == 128, "the lanes' shares are laid out for 128 channels");
  struct Query {
    uint32_t steps[DIM / 16][4],
        low[DIM / 16][4];  // for codes: halves, even channels 16 times; for minima: BF16
    float back;
  };
  static __device__ __forceinline__ int q_dim(int s, int x, int c) {
    return c * 32 + s / 2 * 8 + s % 2 * 2 + x;
  }
  static __device__ __forceinline__ Query query(const Raw<DIM>& raw) {
    float most = 0;
#pragma unroll
    for (int s = 0; s < DIM / 16; ++s)
#pragma unroll
      for (int x = 0; x < 2; ++x) most = fmaxf(most, fmaxf(fabsf(raw[s][x][0]), fabsf(raw[s][x][1])));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const uint32_t exponent = __float_as_uint(most) & 0x7f800000u;
    const float down = __uint_as_float(0x7f000000u - exponent) * 0.25f;
    Query q;
    q.back = __uint_as_float(exponent) * 0x1p22f;  // 2^20 / down
#pragma unroll
    for (int s = 0; s < DIM / 16; ++s) {
      pieces<T>(raw[s][0][0] * (16 * down), raw[s][0][1] * (16 * down), q.steps[s][0], q.steps[s][1]);
      pieces<T>(raw[s][1][0] * down, raw[s][1][1] * down, q.steps[s][2], q.steps[s][3]);
      // In the order of memory: (d, d + 1), then (d + 4, d + 5).
      pieces<__nv_bfloat16>(raw[s][0][0], raw[s][1][0], q.low[s][0], q.low[s][1]);
      pieces<__nv_bfloat16>(raw[s][0][1], raw[s][1][1], q.low[s][2], q.low[s][3]);
    }
    return q;
  }
  static __device__ __forceinline__ Place place(const DecodeParams& p, int64_t slot) {
    const int64_t page = (slot >> p.page_shift) * p.page_stride;
    const int group = int(unsigned(slot & ((1 << p.page_shift) - 1)) / kTile);
    return {page + group * p.item_stride, page + group * p.scale_item};
  }
  // A group that is not there has no token: its tile is skipped and nothing need be copied.
  static __device__ __forceinline__ void issue(
      uint32_t stage, const Planes& from, const Place& x, uint32_t mask, bool, int64_t, int lane) {
    if (mask == 0) return;
    const int64_t at = __shfl_sync(~0u, x.at, 0) + lane * 16;
    const int64_t meta = __shfl_sync(~0u, x.scale_at, 0) + lane % 16 * 16;
    const uint32_t to = stage + place_in_tile<kRow>(lane / 4, lane % 4);  // rows repeat every eight
#pragma unroll
    for (int j = 0; j < kPlane / 512; ++j) {
      copy16(to + j * 512, from.k + at + j * 512, true);
      copy16(to + kPlane + j * 512, from.v + at + j * 512, true);
    }
    const uint32_t meta_to = stage + 2 * kPlane + lane * 16;
    copy16(meta_to, (lane < 16 ? from.k_scale : from.k_min) + meta, true);
    copy16(meta_to + 2 * kMeta, (lane < 16 ? from.v_scale : from.v_min) + meta, true);
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
  static __device__ __forceinline__ void scores(
      uint32_t, const char* tile, const Query& q, int lane, float (&out)[kTile / 8][2]) {
    const int g = lane / 4, c = lane % 4;
    uint4 codes[kTile / 8];
#pragma unroll
    for (int t = 0; t < kTile / 8; ++t)
      codes[t] = *reinterpret_cast<const uint4*>(tile + place_in_tile<kRow>(t * 8 + g, c));
    float s[kTile / 8][4] = {}, lows[4] = {};  // lows: q.min, the same for every token
    const char* meta = tile + 2 * kPlane + c * 64;
#pragma unroll
    for (int m = 0; m < 4; ++m) {  // eight channels: one word of codes
      const uint4 step4 = *reinterpret_cast<const uint4*>(meta + m * 16);
      const uint4 low4 = *reinterpret_cast<const uint4*>(meta + kMeta + m * 16);
      const uint32_t step[4] = {step4.x, step4.y, step4.z, step4.w};
      const uint32_t low[4] = {low4.x, low4.y, low4.z, low4.w};
#pragma unroll
      for (int y = 0; y < 2; ++y) {  // the pairs (2 y, 2 y + 4), (2 y + 1, 2 y + 5)
        const uint32_t(&from)[4] = q.steps[2 * m + y];
        uint32_t a[4];
        times(from[0], from[1], __byte_perm(step[y], step[y + 2], 0x5410), a[0], a[1]);
        times(from[2], from[3], __byte_perm(step[y], step[y + 2], 0x7632), a[2], a[3]);
        mma(lows, q.low[2 * m + y], low[y], low[y + 2], __nv_bfloat16());
#pragma unroll
        for (int t = 0; t < kTile / 8; ++t) {
          const uint32_t word = m == 0 ? codes[t].x : m == 1 ? codes[t].y : m == 2 ? codes[t].z : codes[t].w;
          const uint32_t four = word >> (8 * y);
          mma(s[t], a, four & 0x000f000fu, four & 0x00f000f0u, T());
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kTile / 8; ++t) {
      out[t][0] = fmaf(s[t][0] + s[t][2], q.back, lows[0] + lows[2]);
      out[t][1] = fmaf(s[t][1] + s[t][3], q.back, lows[1] + lows[3]);
    }
  }
  // A power of two, at least 1, above all steps of V so far.
  static __device__ __forceinline__ float widest(const char* tile, int lane, float unit) {
    const uint2 s = *reinterpret_cast<const uint2*>(tile + 2 * kPlane + 2 * kMeta + lane * 8);
    const uint32_t two = bits_of(__hmax2(__habs2(half2_of(s.x)), __habs2(half2_of(s.y))));
    const uint32_t most = __reduce_max_sync(~0u, max(two & 0xffffu, two >> 16));
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
                                                float (&o)[DIM / 8 + kAside][4]) {
    const int c = lane % 4, row = lane & 15, piece = lane >> 4;
    const char* meta = tile + 2 * kPlane + 2 * kMeta;
    // Minima: token pair r = 4 t + c is a row of eight numbers, those of its even and of its odd token.
    uint32_t low[2];
    const int pair = (lane >> 3 & 1) * 8 + (lane & 1) * 4 + (lane >> 1 & 3);
    load_two_transposed(low, stage + 2 * kPlane + 3 * kMeta + pair * 16);
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      uint32_t a[4];
      pieces<__nv_bfloat16>(w[0][odd], w[1][odd], a[0], a[1]);
      pieces<__nv_bfloat16>(w[2][odd], w[3][odd], a[2], a[3]);
      mma(o[DIM / 8 + odd], a, low[0], low[1], __nv_bfloat16());
    }
    const float up = inverse * kWeight;
    float scaled[kTile / 8][2];
#pragma unroll
    for (int t = 0; t < kTile / 8; ++t) scaled[t][0] = w[t][0] * up, scaled[t][1] = w[t][1] * up;
    uint32_t a[kTile / 16][4];
    weight_pieces<T, kTile>(scaled, a);
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k) {
      uint32_t step[2][4];  // [tokens 2c.., 2c + 8..][32 channels]
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const uint4 s = *reinterpret_cast<const uint4*>(meta + (k * 16 + x * 8 + 2 * c) * 8);  // two tokens
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
          uint32_t b[4];
          times(a[k][0], a[k][1], step[0][block], b[0], b[1]);
          times(a[k][2], a[k][3], step[1][block], b[2], b[3]);
#pragma unroll
          for (int y = 0; y < 2; ++y) {
            const uint32_t first = r[2 * x] >> (8 * y), second = r[2 * x + 1] >> (8 * y);
            mma(o[4 * block + 2 * y], b, first & 0x000f000fu, second & 0x000f000fu, T());
            mma(o[4 * block + 2 * y + 1], b, first & 0x00f000f0u, second & 0x00f000f0u, T());
          }
        }
      }
    }
  }
  static __device__ __forceinline__ void spill(const float (&o)[DIM / 8 + kAside][4], int c, float* to) {
    constexpr float kEven = 0x1p24f / kWeight, kOdd = kEven / 16;
    // Columns 0-3 of the first row aside and 4-7 of the second are the sums of 32 channels each.
    const float(&own)[4] = o[DIM / 8], (&other)[4] = o[DIM / 8 + 1];
    float low[2];
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      low[x] = c < 2 ? own[x] + own[x + 2] : other[x] + other[x + 2];
      low[x] += __shfl_xor_sync(~0u, low[x], 2);
    }
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const float add = __shfl_sync(~0u, low[b % 2], b / 2, 4);
#pragma unroll
      for (int x = 0; x < 2; ++x)
        *reinterpret_cast<float4*>(to + b * 32 + 8 * c + 4 * x) = {
            fmaf(o[4 * b][x] + o[4 * b][x + 2], kEven, add),
            fmaf(o[4 * b + 1][x] + o[4 * b + 1][x + 2], kOdd, add),
            fmaf(o[4 * b + 2][x] + o[4 * b + 2][x + 2], kEven, add),
            fmaf(o[4 * b + 3][x] + o[4 * b + 3][x + 2], kOdd, add)};
    }
  }
};

}  // namespace se::cuda::decode
