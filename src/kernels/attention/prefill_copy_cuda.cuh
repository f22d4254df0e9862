// How tiles of keys and values come to shared memory: items are handed out, the copy engine brings the rest.
#pragma once
#include "kernels/attention/prefill_tile_cuda.cuh"

namespace se::cuda::prefill {

constexpr int kStages = 2, kAhead = 2;                            // tiles of K and of V; items
constexpr int kConsumers = 2, kThreads = (kConsumers + 1) * 128;  // warpgroups that compute

struct Shared {  // at a multiple of 1,024 bytes
  char q[kTileBytes], k[kStages][kTileBytes], v[kStages][kTileBytes];
  uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
  alignas(16) uint32_t there[kStages][kTile / 32];  // of the tile in k: which keys are
  int32_t id[kStages];                              // of the tile in k
  uint64_t item_full[kAhead], item_empty[kAhead];
  int32_t item[kAhead];
};
__device__ __forceinline__ const int32_t* list_of(const PrefillParams& p, int item) {
  return p.list + item * p.list_cap;
}

// 16 keys of a tile.
struct Piece {
  int id = 0;          // of the tile
  uint32_t keys = 0;   // which there are; kWhole: the copy engine brings them, else the warp does
  int c3 = 0, c4 = 0;  // where they are in the tensor map
};
constexpr uint32_t kWhole = 1 << kPiece, kAllKeys = kWhole - 1;

__device__ __forceinline__ Piece find_piece(const PrefillParams& q, const Work& w, int id, int piece) {
  const DecodeParams& p = q.a;
  Piece x;
  x.id = id;
  const From from = source_of(w, id);
  if (from == From::kMeans) {
    x.keys = kWhole | kAllKeys;
    x.c3 = (w.listed * p.kv_heads + w.head) * q.mean_blocks + (id - kMeanTile) * kTile + piece * kPiece;
  } else if (from == From::kNow) {
    const int token = w.from + (id - w.past_tiles) * kTile + piece * kPiece;
    x.c3 = w.head * q.tokens + token;
    if (token + kPiece <= w.token + w.tokens) x.keys = kWhole | kAllKeys;
  } else if (q.past_k) {
    const int row = (id - w.shift / kTile) * kTile + piece * kPiece;
    const int64_t at = int64_t(w.listed * p.kv_heads + w.head) * q.past_rows + row;
    x.c3 = int(at);
    x.keys = kWhole | (q.past_there[at / 32] >> at % 32 & kAllKeys);
  } else if (p.unit_shift >= 4) {
    const int place = id * kTile + piece * kPiece;  // all of it in one run
    const int64_t slot = slot_of(p, w, place, kPiece);
    if (slot >= 0 && slot % 8 == 0) {
      x.keys = kWhole | kAllKeys;
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

// Brings one plane of a tile to `to`, lane l < 8 knowing its l-th piece; ends with the barrier `full` armed.
__device__ __forceinline__ void bring(const PrefillParams& p,
                                      const PrefillMaps& maps,
                                      const Work& w,
                                      const Piece& x,
                                      bool value,
                                      char* to,
                                      uint32_t* there,
                                      uint32_t full,
                                      int lane) {
  constexpr uint32_t kAll = (1 << kPieces) - 1;
  const uint32_t whole = __ballot_sync(~0u, x.keys & kWhole) & kAll;
  uint32_t mine = x.keys & kAllKeys;
  if (whole != kAll) {
#pragma unroll 1
    for (int i = 0; i < kPieces; ++i) {
      if (whole >> i & 1) continue;
      const uint32_t bits = copy_piece(p, w, x.id, i, value, to, lane);
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
  if (!(whole >> lane & 1)) return;
  const From from = source_of(w, x.id);
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

constexpr int kTogether = 32 / kPieces;  // tiles whose pieces a warp looks up at once

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
    const Work w = find_work(p, item);
    const int tiles = kSparse ? p.list_n[item] : w.end - w.begin;
    const auto id_of = [&](int t) { return kSparse ? list_of(p, item)[t] : w.begin + t; };
    // Pieces of tiles t .. t + 3, eight lanes each.
    const auto find = [&](int t) {
      return find_piece(p, w, id_of(min(t + lane / kPieces, tiles - 1)), lane % kPieces);
    };
    Piece four;
    for (int t = 0; t < tiles; ++t) {
      if (t % kTogether == 0) four = find(t);
      const int lane_of = t % kTogether * kPieces + lane % kPieces;
      const Piece x{__shfl_sync(~0u, four.id, lane_of),
                    __shfl_sync(~0u, four.keys, lane_of),
                    __shfl_sync(~0u, four.c3, lane_of),
                    __shfl_sync(~0u, four.c4, lane_of)};
      const int st = turn.stage;
      barrier_wait(shared_address(&empty[st]), turn.phase ^ 1);
      if (lane == 0 && !value) s.id[st] = x.id;
      bring(p,
            maps,
            w,
            x,
            value,
            value ? s.v[st] : s.k[st],
            value ? nullptr : s.there[st],
            shared_address(&full[st]),
            lane);
      turn.next();
    }
  }
}

}  // namespace se::cuda::prefill
