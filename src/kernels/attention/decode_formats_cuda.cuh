// How K and V of one tile come to shared memory and from there to the tensor cores, one struct per format.
// A tile is kTile places of one KV head; one warp works on it.
//
//   kWarps, kProducers  warps of a block that read tiles; that bring them
//   kCounts          rows 8 to 15 of the row aside add up the weights
//   kMoreRegisters   reading warps take registers of those that bring
//   kGrain           tokens that a bit of a tile's mask stands for: there or not
//   kRounds          tiles of each warp that the ring holds
//   kQuery           bytes that q takes in shared memory, as operands: [k-step][lane] of 16 bytes
//   fill             q, times scale, to that place; by kWarps warps together
//   Query            q as the scores take it: in shared memory, or in registers
//   place            where a slot lies in the planes
//   issue            starts the copies of a tile to `stage`; zeros where a token is not there
//   scores           w[t][2]: for tokens 8 t + 2 c, + 1, of query head g: q.k
//   values           o += weights x V; w[t]: the weights of tokens 8 t + 2 c, + 1. Channels are rows and
//                    heads columns: o[..][0, 1] and [2, 3] are two channels of heads 2 c, 2 c + 1
//   spill            the finished sums to shared memory as Sums lays them out; by all lanes
// Formats whose V has scales (kScaled) keep the sums in a unit that grows with them: `widest` is the unit
// with this tile, the same for all lanes, `inverse` one over it; kAside more rows of o are not in it.
#pragma once
#include "device/cuda/mma.cuh"
#include "kernels/attention/decode_items_cuda.cuh"

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
  int64_t item, scale_item;  // strides
};

// A place in the planes.
struct Place {
  int64_t at;        // of its K (and V) row
  int64_t scale_at;  // of its scale
};

// A tile as the lanes of a warp know it: lane `first` + i holds the place of the tile's i-th piece of
// 2^shift tokens, which lie one after another; bit l of mask: tokens kGrain l, .. are there.
struct Pieces {
  Place place;
  int first, shift;
  uint32_t mask;
  __device__ __forceinline__ int lane_of(int row) const { return first + (row >> shift); }
  __device__ __forceinline__ int within(int row) const { return row & ((1 << shift) - 1); }
};

__device__ __forceinline__ void copy4(uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0)
               : "memory");
}

// Copies the rows of a tile, K's to stage, V's kPlane on. Pieces of 16 tokens need one look at their place.
template <int kRow, int kTile>
__device__ __forceinline__ void copy_rows(uint32_t stage, const Planes& from, const Pieces& x, int lane) {
  constexpr int kPieces = kRow / 16, kRows = 32 / kPieces, kPlane = kTile * kRow;
  const int row = lane / kPieces, piece = lane % kPieces;
  const int64_t apart = from.v - from.k;
  if (x.shift == 4) {
    const int64_t step = kRows * from.item;
    uint32_t mask = x.mask >> row;
#pragma unroll 1
    for (int part = 0; part < kTile / 16; ++part) {
      const char* k = from.k + __shfl_sync(~0u, x.place.at, x.first + part) + row * from.item + piece * 16;
#pragma unroll
      for (int j = 0; j < 16 / kRows; ++j) {
        const uint32_t to = stage + part * 16 * kRow + place_in_tile<kRow>(j * kRows + row, piece);
        const bool ok = mask & 1;
        copy16(to, k, ok);
        copy16(to + kPlane, k + apart, ok);
        k += step, mask >>= kRows;
      }
    }
    return;
  }
#pragma unroll 1
  for (int j = 0; j < kTile / kRows; ++j) {
    const int r = j * kRows + row;
    const int64_t at = __shfl_sync(~0u, x.place.at, x.lane_of(r)) + x.within(r) * from.item + piece * 16;
    const bool ok = x.mask >> r & 1;
    const uint32_t to = stage + place_in_tile<kRow>(r, piece);
    const char* k = from.k + (ok ? at : 0);
    copy16(to, k, ok);
    copy16(to + kPlane, k + apart, ok);
  }
}

// Channels (d, d + apart) of query head g, times scale.
__device__ __forceinline__ float2
query_pair(const DecodeParams& p, const Item& it, int g, int d, int apart, float scale) {
  const float* from = p.q + it.of.token * p.q_token + (it.q_head + min(g, it.heads - 1)) * p.q_head + d;
  return {from[0] * scale, from[apart] * scale};
}

// q as high and rest of 16 bits each, for the formats that need no more; warp w takes k-steps w, w + kWarps,
// ..
template <typename F, int DIM, int kWarps>
__device__ __forceinline__ void fill_pieces(
    const DecodeParams& p, const Item& it, char* to, int warp, int lane) {
  const float scale = p.scale * kLog2e;
#pragma unroll
  for (int s = warp; s < DIM / 16; s += kWarps) {
    const float2 a = query_pair(p, it, lane / 4, F::q_dim(s, 0, lane % 4), 1, scale);
    const float2 b = query_pair(p, it, lane / 4, F::q_dim(s, 1, lane % 4), 1, scale);
    uint4 x;
    pieces<typename F::T>(a.x, a.y, x.x, x.y), pieces<typename F::T>(b.x, b.y, x.z, x.w);
    reinterpret_cast<uint4*>(to)[s * 32 + lane] = x;
  }
}

// An operand of k-step s.
__device__ __forceinline__ void take_operand(uint32_t (&a)[4], const char* from, int s, int lane) {
  const uint4 x = reinterpret_cast<const uint4*>(from)[s * 32 + lane];
  a[0] = x.x, a[1] = x.y, a[2] = x.z, a[3] = x.w;
}

// q's operands where they are.
struct SharedQuery {
  const char* at;
  __device__ __forceinline__ SharedQuery(const char* from, int) : at(from) {}
};

// The weights of 16 tokens as operands, high and rest.
template <typename T>
struct Weights {
  uint32_t high[2], rest[2];
  __device__ __forceinline__ Weights(const float (&a)[2], const float (&b)[2]) {
    pieces<T>(a[0], a[1], high[0], rest[0]), pieces<T>(b[0], b[1], high[1], rest[1]);
  }
  __device__ __forceinline__ void add(float (&o)[4], const uint32_t (&v)[4]) const {
    mma(o, v, high[0], high[1], T());
    mma(o, v, rest[0], rest[1], T());
  }
};

template <typename Type, int DIM>
struct Plain {
  using T = Type;
  static constexpr int kWarps = 8, kProducers = 4;
  static constexpr int kGrain = 1, kTile = 16, kRounds = 2 * 128 / DIM, kQuery = DIM * 32;
  static constexpr int kRow = DIM * 2, kPlane = kTile * kRow, kStage = 2 * kPlane;
  using Query = SharedQuery;
  static constexpr bool kScaled = false, kCounts = false, kMoreRegisters = false;
  static constexpr int kSums = DIM / 16, kAside = 0;
  static __device__ __forceinline__ int q_dim(int s, int x, int c) { return s * 16 + x * 8 + 2 * c; }
  static __device__ __forceinline__ void fill(
      const DecodeParams& p, const Item& it, char* to, int warp, int lane) {
    fill_pieces<Plain, DIM, kWarps>(p, it, to, warp, lane);
  }
  static __device__ __forceinline__ Place place(const DecodeParams& p, int64_t slot) {
    return {(slot >> p.page_shift) * p.page_stride + (slot & ((1 << p.page_shift) - 1)) * p.item_stride, 0};
  }
  static __device__ __forceinline__ void issue(uint32_t stage,
                                               const Planes& from,
                                               const Pieces& x,
                                               int lane) {
    copy_rows<kRow, kTile>(stage, from, x, lane);
  }
  static __device__ __forceinline__ void scores(
      uint32_t stage, const char*, const Query& q, int lane, float (&out)[kTile / 8][2]) {
    float s[2][4] = {};  // [tokens 0-7, 8-15][head g: two tokens; the rest of q: two tokens]
    const int row = (lane & 7) + (lane >= 16 ? 8 : 0), piece = lane >> 3 & 1;
#pragma unroll
    for (int d = 0; d < DIM / 16; ++d) {
      uint32_t a[4], b[4];
      take_operand(a, q.at, d, lane);
      load_matrices<false>(b, stage + place_in_tile<kRow>(row, 2 * d + piece));
      mma(s[0], a, b[0], b[1], T());
      mma(s[1], a, b[2], b[3], T());
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) out[t][0] = s[t][0] + s[t][2], out[t][1] = s[t][1] + s[t][3];
  }
  static __device__ __forceinline__ void values(
      uint32_t stage, const char*, const float (&w)[kTile / 8][2], float, int lane, float (&o)[kSums][4]) {
    const Weights<T> weights(w[0], w[1]);
    const int row = (lane & 7) + (lane >= 16 ? 8 : 0), piece = lane >> 3 & 1;
#pragma unroll
    for (int n = 0; n < DIM / 16; ++n) {
      uint32_t v[4];  // [tokens 0-7, 8-15][channels 0-7, 8-15]
      load_matrices<true>(v, stage + kPlane + place_in_tile<kRow>(row, 2 * n + piece));
      weights.add(o[n], v);
    }
  }
  static __device__ __forceinline__ void spill(const float (&o)[kSums][4], int lane, float* to) {
    float* own = to + lane % 4 * 2 * Sums<DIM>::kPitch + lane / 4;
#pragma unroll
    for (int n = 0; n < DIM / 16; ++n)
#pragma unroll
      for (int x = 0; x < 4; ++x) own[x % 2 * Sums<DIM>::kPitch + n * 16 + x / 2 * 8] = o[n][x];
  }
};

// FP8 codes with one f32 scale per token (and KV head) each for K and V; codes become halves exactly.
template <bool kE5M2, int DIM>
struct Fp8 {
  using T = __half;
  static constexpr int kWarps = 8, kProducers = 4;
  static constexpr int kGrain = 1, kTile = 32, kRounds = 2, kQuery = DIM * 32;
  static constexpr int kRow = DIM, kPlane = kTile * kRow, kStage = 2 * kPlane + 2 * kTile * 4;
  using Query = SharedQuery;
  static constexpr bool kScaled = true, kCounts = false, kMoreRegisters = false;
  static constexpr int kSums = DIM / 16, kAside = 0;
  static constexpr float kLeastUnit = 0;
  static __device__ __forceinline__ void widen(uint32_t four, uint32_t& first, uint32_t& second) {
    kE5M2 ? e5m2_to_half(four, first, second) : e4m3_to_half(four, first, second);
  }
  // Lane c reads 16 bytes, 64 channels further on again: k-step s is word s % 4 of piece s / 4.
  static __device__ __forceinline__ int q_dim(int s, int x, int c) {
    return s / 4 * 64 + c * 16 + s % 4 * 4 + 2 * x;
  }
  static __device__ __forceinline__ void fill(
      const DecodeParams& p, const Item& it, char* to, int warp, int lane) {
    fill_pieces<Fp8, DIM, kWarps>(p, it, to, warp, lane);
  }
  static __device__ __forceinline__ Place place(const DecodeParams& p, int64_t slot) {
    const int64_t page = (slot >> p.page_shift) * p.page_stride, item = slot & ((1 << p.page_shift) - 1);
    return {page + item * p.item_stride, page + item * p.scale_item};
  }
  static __device__ __forceinline__ void issue(uint32_t stage,
                                               const Planes& from,
                                               const Pieces& x,
                                               int lane) {
    copy_rows<kRow, kTile>(stage, from, x, lane);
    const int row = lane % kTile;
    const int64_t at = __shfl_sync(~0u, x.place.scale_at, x.lane_of(row)) + x.within(row) * from.scale_item;
    if (kTile < 32 && lane >= kTile) return;
    const bool ok = x.mask >> row & 1;
    const uint32_t to = stage + 2 * kPlane + row * 4;
    copy4(to, from.k_scale + (ok ? at : 0), ok);
    copy4(to + kTile * 4, from.v_scale + (ok ? at : 0), ok);
  }
  static __device__ __forceinline__ void scores(
      uint32_t, const char* tile, const Query& q, int lane, float (&out)[kTile / 8][2]) {
    const int g = lane / 4, c = lane % 4;
    float s[kTile / 8][4] = {};
#pragma unroll
    for (int h = 0; h < DIM / 64; ++h) {
      uint4 codes[kTile / 8];
#pragma unroll
      for (int t = 0; t < kTile / 8; ++t)
        codes[t] = *reinterpret_cast<const uint4*>(tile + place_in_tile<kRow>(t * 8 + g, h * 4 + c));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t a[4];
        take_operand(a, q.at, h * 4 + j, lane);
#pragma unroll
        for (int t = 0; t < kTile / 8; ++t) {
          const uint32_t word = j == 0 ? codes[t].x : j == 1 ? codes[t].y : j == 2 ? codes[t].z : codes[t].w;
          uint32_t b0, b1;
          widen(word, b0, b1);
          mma(s[t], a, b0, b1, T());
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kTile / 8; ++t) {
      const float2 scale = *reinterpret_cast<const float2*>(tile + 2 * kPlane + (t * 8 + 2 * c) * 4);
      out[t][0] = (s[t][0] + s[t][2]) * scale.x, out[t][1] = (s[t][1] + s[t][3]) * scale.y;
    }
  }
  static __device__ __forceinline__ float widest(const char* tile, int lane, float unit) {
    const float own = *reinterpret_cast<const float*>(tile + 2 * kPlane + (kTile + lane % kTile) * 4);
    return fmaxf(unit, __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(fabsf(own)))));
  }
  static __device__ __forceinline__ float inverse(float unit) { return unit > 0 ? 1 / unit : 0; }
  static __device__ __forceinline__ void values(uint32_t stage,
                                                const char* tile,
                                                const float (&w)[kTile / 8][2],
                                                float inverse,
                                                int lane,
                                                float (&o)[kSums][4]) {
    const int row = lane & 15, piece = lane >> 4;
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k) {
      float scaled[2][2];
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const float2 s =
            *reinterpret_cast<const float2*>(tile + 2 * kPlane + (kTile + k * 16 + x * 8 + lane % 4 * 2) * 4);
        scaled[x][0] = w[2 * k + x][0] * (s.x * inverse), scaled[x][1] = w[2 * k + x][1] * (s.y * inverse);
      }
      const Weights<T> weights(scaled[0], scaled[1]);
#pragma unroll
      for (int n = 0; n < DIM / 32; ++n) {
        uint32_t r[4];  // [16 channels][tokens 0-7, 8-15], two channels of a token side by side
        load_matrices<true>(r, stage + kPlane + place_in_tile<kRow>(k * 16 + row, 2 * n + piece));
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          uint32_t v[4];  // [tokens 0-7, 8-15][even channels, odd channels]
          widen(__byte_perm(r[2 * x], 0, 0x3120), v[0], v[1]);
          widen(__byte_perm(r[2 * x + 1], 0, 0x3120), v[2], v[3]);
          weights.add(o[2 * n + x], v);
        }
      }
    }
  }
  static __device__ __forceinline__ void spill(const float (&o)[kSums][4], int lane, float* to) {
    float* own = to + lane % 4 * 2 * Sums<DIM>::kPitch + lane / 4 * 2;
#pragma unroll
    for (int n = 0; n < DIM / 16; ++n)
#pragma unroll
      for (int x = 0; x < 2; ++x)
        *reinterpret_cast<float2*>(own + x * Sums<DIM>::kPitch + n * 16) = {o[n][x], o[n][x + 2]};
  }
};

}  // namespace se::cuda::decode
