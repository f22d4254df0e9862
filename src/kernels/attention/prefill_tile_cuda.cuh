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

// One block's work: a tile of packed rows and a split of their keys.
struct Work {
  int listed, row, head, tile;
  int token, tokens, from;  // the row's first, how many; first present token seen
  int count, past_tiles;    // runs; tiles of keys of the past
  int tiles;                // of keys, up to the last query
  int begin, end;           // those of this item
  int splits;               // of this tile of queries; 0: none of its keys are this item's
  int shift;  // place of the row's first key: its position with a window, so that pages gone do not show
  int ahead;  // with a window: from a token of the step to its place
};

__device__ __forceinline__ int tiles_of(const DecodeParams& p, int tokens) {
  return (tokens * p.group + kTile - 1) / kTile;
}
__device__ __forceinline__ int split_tiles(const DecodeParams& p, int row) {
  const int split = p.split ? p.split[row] / kTile : 0;
  return split > 0 ? split : 1 << 24;
}

// The keys of KV head w.head of row w.row.
__device__ __forceinline__ void find_past(const PrefillParams& q, Work& w) {
  const DecodeParams& p = q.a;
  const int r = p.row_heads == 1 ? w.row : w.row * p.kv_heads + w.head;
  w.count = p.counts[r];
  w.shift = q.window > 0 ? int(q.first[r]) & -(1 << p.unit_shift) : 0;
  w.past_tiles = ((w.count << p.unit_shift) + w.shift + kTile - 1) / kTile;
}
// The first tile of keys that token t of the row sees; sets w.ahead.
__device__ __forceinline__ int lowest_tile(const PrefillParams& q, Work& w, int t) {
  w.ahead = 0;
  if (q.window == 0) return 0;
  const int r = q.a.row_heads == 1 ? w.row : w.row * q.a.kv_heads + w.head;
  w.ahead = q.pos[t] - t - int(q.first[r]) + w.shift;
  const int low = t - q.window + 1;
  if (q.a.new_k && low >= w.from) return w.past_tiles + (low - w.from) / kTile;
  return min(max(low + w.ahead, w.shift) / kTile, w.past_tiles);
}

__device__ __forceinline__ Work find_work(const PrefillParams& q, int item) {
  const DecodeParams& p = q.a;
  Work w;
  w.listed = 0;
  for (int end = *p.n; end - w.listed > 1;) {
    const int middle = (w.listed + end) / 2;
    (q.items[middle].first <= item ? w.listed : end) = middle;
  }
  const int4 of = *reinterpret_cast<const int4*>(q.items + w.listed);  // first, splits, base
  w.row = p.ids[w.listed], w.token = p.q_start[w.row];
  w.tokens = p.q_start[w.row + 1] - w.token;
  const int n = tiles_of(p, w.tokens);
  int rest = item - of.x;
  const int split = of.y > 1 ? of.z + rest / (n * p.kv_heads) : 0;
  if (of.y > 1) rest %= n * p.kv_heads;
  w.tile = n - 1 - rest / p.kv_heads, w.head = rest % p.kv_heads;
  find_past(q, w);
  const int first = w.token + w.tile * kTile / p.group;
  const int last = w.token + min(w.tokens - 1, (w.tile * kTile + kTile - 1) / p.group);
  w.from = p.new_k ? p.kv_from[w.row] : last + 1;
  w.tiles = w.past_tiles + (last - w.from + kTile) / kTile;
  w.begin = lowest_tile(q, w, first);
  w.end = w.tiles, w.splits = 1;
  if (of.y == 1) return w;
  const int length = split_tiles(p, w.row);
  const int s0 = w.begin < w.tiles ? w.begin / length : of.z, s1 = max(s0, (w.tiles - 1) / length);
  w.splits = split < s0 || split > s1 ? 0 : s1 - s0 + 1;
  w.begin = max(w.begin, split * length), w.end = min(w.tiles, (split + 1) * length);
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

// The slot of a place of the past (the row's first is w.shift), -1: none; of the first of n in one run.
__device__ __forceinline__ int64_t slot_of(const DecodeParams& p, const Work& w, int place, int n = 1) {
  const int r = p.row_heads == 1 ? w.row : w.row * p.kv_heads + w.head;
  place -= w.shift;
  const int e = place >> p.unit_shift, in = place & ((1 << p.unit_shift) - 1);
  if (e < 0 || e >= w.count) return -1;
  const int64_t run = p.runs[p.start[r] + e];
  return in + n <= int(run & 0xffff) ? (run >> 16) + (p.offset ? p.offset[r] : 0) + in : -1;
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

// Two channels of a query head's output; its logarithm of the sum `total` of exp(x - top).
__device__ __forceinline__ void write_pair(
    const DecodeParams& p, int token, int q_head, int channel, float a, float b) {
  const int64_t at = token * p.out_token + q_head * p.out_head + channel;
  if (p.out) *reinterpret_cast<float2*>(p.out + at) = {a, b};
  if (p.out16) *reinterpret_cast<uint32_t*>(p.out16 + at) = pack(a, b, __half());
}
__device__ __forceinline__ void write_lse(
    const DecodeParams& p, int token, int q_head, float top, float total) {
  if (p.lse) p.lse[token * p.lse_token + q_head * p.lse_head] = total > 0 ? top + logf(total) : -INFINITY;
}

}  // namespace se::cuda::prefill
