// What the kernels of prefill attention share: which tile of queries a block takes, where its keys are, and
// how both come to the tensor cores.
#pragma once
#include "device/cuda/hopper.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "kernels/attention/prefill_params_cuda.h"

namespace se::cuda::prefill {

constexpr int kTile = kPrefillTile, kDim = 128;
// A tile: groups of 8 rows, each two halves of 64 channels, 8 x 128 bytes a half.
constexpr int kHalf = 1024, kGroup = 2 * kHalf, kTileBytes = kTile / 8 * kGroup;
constexpr int kPiece = 16, kPieces = kTile / kPiece;

// Where the c-th 16 bytes of row r lie in a tile.
__device__ __forceinline__ int place_in_tile(int r, int c) {
  return r / 8 * kGroup + c / 8 * kHalf + (r & 7) * 128 + ((c ^ r) & 7) * 16;
}

// One block's work: a tile of packed rows.
struct Work {
  int listed, row, head, tile;
  int token, tokens;             // the row's first, how many
  int from, now_tiles;           // first present token seen; tiles of the present up to the last query
  int count, past_tiles, tiles;  // runs
};

__device__ __forceinline__ int tiles_of(const DecodeParams& p, int tokens) {
  return (tokens * p.group + kTile - 1) / kTile;
}

// Tiles of one KV head over all listed rows.
__device__ __forceinline__ int tiles_of_head(const DecodeParams& p) {
  int all = 0;
  for (int i = 0, n = *p.n; i < n; ++i) {
    const int row = p.ids[i];
    all += tiles_of(p, p.q_start[row + 1] - p.q_start[row]);
  }
  return all;
}

// Long tiles first: those of a row from the last to the first.
__device__ __forceinline__ Work find_work(const DecodeParams& p, int item) {
  Work w;
  int rest = item / p.kv_heads;
  w.head = item - rest * p.kv_heads;
  for (w.listed = 0;; ++w.listed) {
    w.row = p.ids[w.listed], w.token = p.q_start[w.row];
    w.tokens = p.q_start[w.row + 1] - w.token;
    const int n = tiles_of(p, w.tokens);
    if (rest < n) {
      w.tile = n - 1 - rest;
      break;
    }
    rest -= n;
  }
  const int r = p.row_heads == 1 ? w.row : w.row * p.kv_heads + w.head;
  w.count = p.counts[r];
  w.past_tiles = ((w.count << p.unit_shift) + kTile - 1) / kTile;
  const int last = w.token + min(w.tokens - 1, (w.tile * kTile + kTile - 1) / p.group);
  w.from = p.new_k ? p.kv_from[w.row] : last + 1;
  w.now_tiles = (last - w.from + kTile) / kTile;
  w.tiles = w.past_tiles + w.now_tiles;
  return w;
}

// A place in a ring of stages, and which round it is in as the phase of its barriers.
template <int kStages>
struct Turn {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

enum class From : int { kPast, kNow, kMeans };

__device__ __forceinline__ From source_of(const Work& w, int id) {
  return id >= kMeanTile ? From::kMeans : id < w.past_tiles ? From::kPast : From::kNow;
}

// The slot of a place of the past, -1: none.
__device__ __forceinline__ int64_t slot_of(const DecodeParams& p, const Work& w, int place) {
  const int r = p.row_heads == 1 ? w.row : w.row * p.kv_heads + w.head;
  const int e = place >> p.unit_shift, in = place & ((1 << p.unit_shift) - 1);
  if (e >= w.count) return -1;
  const int64_t run = p.runs[p.start[r] + e];
  return in < int(run & 0xffff) ? (run >> 16) + (p.offset ? p.offset[r] : 0) + in : -1;
}

__device__ __forceinline__ float power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// scores = q k^T, 8 steps of 16 channels; to be committed by the caller.
__device__ __forceinline__ void start_scores(float (&x)[64], uint32_t q, uint32_t k) {
#pragma unroll
  for (int d = 0; d < 8; ++d)
    wgmma_128(x,
              operand(q + d / 4 * kHalf + d % 4 * 32, kGroup),
              operand(k + d / 4 * kHalf + d % 4 * 32, kGroup),
              d > 0);
}
// The 64 query rows of this warpgroup in BF16 to shared memory; rows that are not there: zeros.
__device__ __forceinline__ void take_queries(const DecodeParams& p, const Work& w, char* q, int group) {
  const int thread = threadIdx.x % 128;
#pragma unroll 4
  for (int i = 0; i < 8; ++i) {  // 16 threads a row, 8 channels each
    const int r = group * 64 + i * 8 + thread / 16, c = thread % 16;
    const int packed = w.tile * kTile + r, position = packed / p.group;
    uint4 x{0, 0, 0, 0};
    if (position < w.tokens) {
      const float* from = p.q + (w.token + position) * p.q_token +
                          (w.head * p.group + packed - position * p.group) * p.q_head + c * 8;
      const float4 a = *reinterpret_cast<const float4*>(from), b = *reinterpret_cast<const float4*>(from + 4);
      x = {pack(a.x, a.y, __nv_bfloat16()),
           pack(a.z, a.w, __nv_bfloat16()),
           pack(b.x, b.y, __nv_bfloat16()),
           pack(b.z, b.w, __nv_bfloat16())};
    }
    *reinterpret_cast<uint4*>(q + place_in_tile(r, c)) = x;
  }
}

}  // namespace se::cuda::prefill
