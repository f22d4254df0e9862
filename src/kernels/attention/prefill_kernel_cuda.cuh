// Prefill attention with warpgroup matrices. A block takes 128 packed query rows (positions x the heads of
// one KV head) and walks their keys in tiles of 128. Two warps bring the tiles (copy engine, two stages of K
// and two of V), two warpgroups take 64 query rows each: scores of the next tile and values of this one are
// under way while the softmax runs, and the two take turns at the tensor cores. Ladder: docs/performance.md.
#pragma once
#include "device/cuda/stream.h"
#include "kernels/attention/prefill_tile_cuda.cuh"

namespace se::cuda::prefill {

constexpr int kStages = 2, kAhead = 2;  // tiles of K and of V; items
constexpr int kConsumers = 2, kThreads = (kConsumers + 1) * 128;
constexpr int kLeastRegisters = 56, kMostRegisters = 224;

struct Shared {  // at a multiple of 1,024 bytes
  char q[kTileBytes], k[kStages][kTileBytes], v[kStages][kTileBytes];
  uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
  alignas(16) uint32_t there[kStages][kTile / 32];  // of the tile in k: which keys are
  int32_t id[kStages];                              // of the tile in k
  uint64_t item_full[kAhead], item_empty[kAhead];
  int32_t item[kAhead];
};
constexpr int kSharedBytes = int(sizeof(Shared)) + 1024;

__device__ __forceinline__ const int32_t* list_of(const PrefillParams& p, int item) {
  return p.list + item * p.list_cap;
}

// Lane l < 8: the l-th 16 keys of a tile.
struct Piece {
  int here = 0;        // keys there are; 16: the copy engine brings them, fewer: the warp does
  int c3 = 0, c4 = 0;  // where they are in the tensor map
};

__device__ __forceinline__ Piece find_piece(const PrefillParams& q, const Work& w, int id, int lane) {
  const DecodeParams& p = q.a;
  Piece x;
  if (lane >= kPieces) return x;
  const From from = source_of(w, id);
  if (from == From::kMeans) {
    x.here = kPiece;
    x.c3 = (w.listed * p.kv_heads + w.head) * q.mean_blocks + (id - kMeanTile) * kTile + lane * kPiece;
  } else if (from == From::kNow) {
    const int token = w.from + (id - w.past_tiles) * kTile + lane * kPiece;
    x.c3 = w.head * q.tokens + token;
    x.here = max(0, min(kPiece, w.token + w.tokens - token));
  } else if (p.unit_shift >= 4) {
    const int place = id * kTile + lane * kPiece;
    const int64_t slot = slot_of(p, w, place), last = slot_of(p, w, place + kPiece - 1);
    if (slot >= 0 && last >= 0 && slot % 8 == 0) {
      x.here = kPiece;
      x.c4 = int(slot >> p.page_shift);
      x.c3 = w.head * q.head_groups + (int(slot) & ((1 << p.page_shift) - 1)) / 8;
    }
  }
  return x;
}

// 16 keys' rows by ordinary loads and stores, zeros where there is none; returns which there are. All lanes.
__device__ __forceinline__ uint32_t
copy_piece(const PrefillParams& p, const Work& w, int id, int piece, bool value, char* to, int lane) {
  const bool now = source_of(w, id) == From::kNow;
  uint32_t there = 0;
#pragma unroll 1
  for (int i = 0; i < kPiece / 2; ++i) {
    const int r = 2 * i + lane / 16, c = lane % 16;
    const char* from = nullptr;
    if (now) {
      const int token = w.from + (id - w.past_tiles) * kTile + piece * kPiece + r;
      if (token < w.token + w.tokens)
        from = reinterpret_cast<const char*>((value ? p.now_v : p.now_k) +
                                             (int64_t(w.head) * p.tokens + token) * kDim);
    } else {
      const int64_t slot = slot_of(p.a, w, id * kTile + piece * kPiece + r);
      if (slot >= 0)
        from = (value ? p.a.v : p.a.k) + (slot >> p.a.page_shift) * p.a.page_stride +
               (slot & ((1 << p.a.page_shift) - 1)) * p.a.item_stride + w.head * p.a.head_stride;
    }
    const uint4 x = from ? *reinterpret_cast<const uint4*>(from + c * 16) : uint4{0, 0, 0, 0};
    const int row = piece * kPiece + r;
    *reinterpret_cast<uint4*>(to + place_in_tile(row, c)) = x;
    const uint32_t votes = __ballot_sync(~0u, from != nullptr);
    there |= ((votes & 1) | (votes >> 16 & 1) << 1) << (2 * i);
  }
  return there;
}

// Brings one plane of a tile to `to`; ends with the barrier `full` armed.
__device__ __forceinline__ void bring(const PrefillParams& p,
                                      const PrefillMaps& maps,
                                      const Work& w,
                                      int id,
                                      const Piece& x,
                                      bool value,
                                      char* to,
                                      uint32_t* there,
                                      uint32_t full,
                                      int lane) {
  const uint32_t whole = __ballot_sync(~0u, x.here == kPiece) & ((1 << kPieces) - 1);
  uint32_t mine = x.here == kPiece ? 0xffff : 0;
  if (whole != (1 << kPieces) - 1) {
#pragma unroll 1
    for (int i = 0; i < kPieces; ++i) {
      if (whole >> i & 1) continue;
      const uint32_t bits = copy_piece(p, w, id, i, value, to, lane);
      if (lane == i) mine = bits;
    }
    fence_shared_writes();
  }
  if (there) {
    const uint32_t pair = mine | __shfl_down_sync(~0u, mine, 1) << 16;
    const uint4 all{pair, __shfl_sync(~0u, pair, 2), __shfl_sync(~0u, pair, 4), __shfl_sync(~0u, pair, 6)};
    if (lane == 0) *reinterpret_cast<uint4*>(there) = all;
  }
  __syncwarp();
  if (lane == 0) barrier_arrive_expecting(full, __popc(whole) * kPiece * kDim * 2);
  __syncwarp();
  if (lane >= kPieces || !(whole >> lane & 1)) return;
  const From from = source_of(w, id);
  const CUtensorMap& map = from == From::kPast  ? (value ? maps.past_v : maps.past_k)
                           : from == From::kNow ? (value ? maps.now_v : maps.now_k)
                                                : (value ? maps.mean_v : maps.mean_k);
  copy_box(shared_address(to + lane * 2 * kGroup), map, full, 0, 0, 0, x.c3, x.c4);
}

// The next item of this block, as the warp that brings keys hands them out; -1: no more.
struct Items {
  Turn<kAhead> turn;
  __device__ __forceinline__ int take(Shared& s, int lane) {
    barrier_wait(shared_address(&s.item_full[turn.stage]), turn.phase);
    int item = 0;
    if (lane == 0) {  // the thread that reads is the one that gives back
      item = s.item[turn.stage];
      barrier_arrive(shared_address(&s.item_empty[turn.stage]));
    }
    turn.next();
    return __shfl_sync(~0u, item, 0);
  }
  __device__ __forceinline__ int hand_out(Shared& s, int items, int32_t* taken, bool first, int lane) {
    int item = 0;
    barrier_wait(shared_address(&s.item_empty[turn.stage]), turn.phase ^ 1);
    if (lane == 0) {
      item = first ? int(blockIdx.x) : int(gridDim.x) + atomicAdd(taken, 1);
      if (item >= items) item = -1;
      s.item[turn.stage] = item;
      barrier_arrive(shared_address(&s.item_full[turn.stage]));
    }
    turn.next();
    return __shfl_sync(~0u, item, 0);
  }
};

// One warp brings the keys, another the values.
template <bool kSparse>
__device__ __forceinline__ void produce(
    const PrefillParams& p, const PrefillMaps& maps, Shared& s, int items, bool value) {
  const int lane = threadIdx.x % 32;
  uint64_t *full = value ? s.v_full : s.k_full, *empty = value ? s.v_empty : s.k_empty;
  Turn<kStages> turn;
  Items next_item;
  for (bool first = true;; first = false) {
    const int item = value ? next_item.take(s, lane) : next_item.hand_out(s, items, p.taken, first, lane);
    if (item < 0) return;
    const Work w = find_work(p.a, item);
    const int tiles = kSparse ? p.list_n[item] : w.tiles;
    const auto id_of = [&](int t) { return kSparse ? list_of(p, item)[t] : t; };
    int id = tiles > 0 ? id_of(0) : 0;
    Piece x = find_piece(p, w, id, lane);
    for (int t = 0; t < tiles; ++t) {
      const int st = turn.stage;
      const int next_id = t + 1 < tiles ? id_of(t + 1) : id;
      const Piece next = find_piece(p, w, next_id, lane);
      barrier_wait(shared_address(&empty[st]), turn.phase ^ 1);
      if (lane == 0 && !value) s.id[st] = id;
      bring(p,
            maps,
            w,
            id,
            x,
            value,
            value ? s.v[st] : s.k[st],
            value ? nullptr : s.there[st],
            shared_address(&full[st]),
            lane);
      id = next_id, x = next;
      turn.next();
    }
  }
}

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
  const int base = w.from + (id - w.past_tiles) * kTile;
  const float* bias = nullptr;
  if (kSparse && from == From::kMeans) {
    const int m = id - kMeanTile;
    there = *reinterpret_cast<const uint4*>(p.pruned + int64_t(item) * (p.mean_blocks / 32) + m * 4);
    bias = p.mean_bias + int64_t(w.listed * p.a.kv_heads + w.head) * p.mean_blocks + m * kTile;
  }
  const bool causal = from == From::kNow && base + kTile - 1 > rows.first;
  if (!causal && !bias && (there.x & there.y & there.z & there.w) == ~0u) return;
  const int limit0 = causal ? rows.token[0] - base : kTile, limit1 = causal ? rows.token[1] - base : kTile;
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
      if (!ok || col > limit0) a = -INFINITY;
      if (!ok || col > limit1) b = -INFINITY;
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
    const DecodeParams& p, const Work& w, Rows& rows, const int (&q_head)[2], const float (&o)[64], int c) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float total = rows.total[r];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    if (rows.token[r] < 0) continue;
    const float inverse = total > 0 ? 1 / total : 0;
    const int64_t at = rows.token[r] * p.out_token + q_head[r] * p.out_head + 2 * c;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const float a = o[4 * j + 2 * r] * inverse, b = o[4 * j + 2 * r + 1] * inverse;
      if (p.out) *reinterpret_cast<float2*>(p.out + at + 8 * j) = {a, b};
      if (p.out16) *reinterpret_cast<uint32_t*>(p.out16 + at + 8 * j) = pack(a, b, __half());
    }
    if (p.lse && c == 0)
      p.lse[rows.token[r] * p.lse_token + q_head[r] * p.lse_head] =
          total > 0 ? rows.top[r] * p.scale + logf(total) : -INFINITY;
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
    const Work w = find_work(p.a, item);
    const int tiles = kSparse ? p.list_n[item] : w.tiles;
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
    write_rows(p.a, w, rows, q_head, o, c);
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
    if (warp < 2) produce<kSparse>(p, maps, s, tiles_of_head(p.a) * p.a.kv_heads, warp == 1);
  } else {
    registers_up<kMostRegisters>();
    consume<kSparse>(p, s);
  }
}

template <bool kSparse>
void start(const PrefillParams& p, const PrefillMaps& maps, int grid, Stream& stream) {
  const auto f = kernel<kSparse>;
  static const bool ready = [f] {
    SE_CUDA(cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
    return true;
  }();
  (void)ready;
  launch(f, dim3(unsigned(grid)), kThreads, kSharedBytes, stream.get(), p, maps);
}

}  // namespace se::cuda::prefill
