// Split-KV decode attention. A block takes one split of one KV head at a time: four warps bring its tiles to
// a ring in shared memory (running ahead into the next split), eight take every eighth tile each, with a
// running softmax of their own, and are merged in order at the end of the split.
//
// The ring holds rounds of one tile for each of the warps that read it. A place in it is always filled by the
// same warp and always read by the same one, so that neither can be two of its uses ahead of the other, which
// the barriers could not tell apart. The last round of a split may have empty places.
//
// Tensor-core shape m16n8k16. Scores: rows 0-7 of A are the 8 query heads' high pieces, rows 8-15 the rest,
// columns are tokens; what comes out is where the weights must be as the columns of the second product,
// whose rows are channels. Ladder and figures: docs/performance.md.
#pragma once
#include <cstdio>
#include <cstdlib>

#include "device/cuda/stream.h"
#include "kernels/attention/decode_formats_cuda.cuh"

namespace se::cuda::decode {

template <typename F>
constexpr int kThreads = (F::kWarps + F::kProducers) * 32;
constexpr int kKeeps = 128;  // entries kept in shared memory

template <typename F, int DIM>
struct Shared {
  static constexpr int kStages = F::kRounds * F::kWarps;
  char ring[kStages][F::kStage];
  float results[F::kWarps][Sums<DIM>::kFloats];
  alignas(16) char query[F::kQuery];
  PresentToken<DIM> present;
  Entry kept[kKeeps];
  uint64_t full[kStages], empty[kStages];
  uint32_t there[kStages];
  int carry[F::kWarps + F::kProducers];
  static_assert(F::kStage % 128 == 0);
};

// A place in the ring: of the block's n-th tile, empty ones counted. Steps of at most kStages.
template <int kStages>
struct Turn {
  int stage;
  uint32_t phase;
  __device__ __forceinline__ explicit Turn(int n) : stage(n % kStages), phase(n / kStages & 1) {}
  __device__ __forceinline__ void step(int by) {
    stage += by;
    if (stage >= kStages) stage -= kStages, phase ^= 1;
  }
};

struct Places {  // of an item
  int first, last;
  __device__ __forceinline__ Places(const DecodeParams& p, const Item& it)
      : first(it.split_at * it.of.split), last(min(first + it.of.split, it.of.count << p.unit_shift)) {}
  __device__ __forceinline__ int rounds(int places) const {  // of so many places
    return max(1, (last - first + places - 1) / places);
  }
};

// Brings the tiles own, own + F::kProducers, .. of each item. Lane l holds the run of one piece of at most 16
// tokens (which one run holds), of as many tiles as there are lanes for.
template <typename F, int DIM>
__device__ __forceinline__ void produce(
    const DecodeParams& p, const Entries& entries, Shared<F, DIM>& s, const int* prefix, int items) {
  constexpr int kTile = F::kTile, kBits = kTile / F::kGrain;
  const int lane = threadIdx.x % 32, own = threadIdx.x / 32 - F::kWarps;
  const uint32_t ring = shared_address(s.ring), full = shared_address(s.full),
                 empty = shared_address(s.empty);
  int done = 0;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const Item it = find_item(p, entries, item, prefix, s.kept, kKeeps);
    const Places places(p, it);
    const int tiles = places.rounds(kTile * F::kWarps) * F::kWarps;  // empty ones too
    const int64_t* runs = p.runs + it.of.start;
    const int shift = min(min(4, p.unit_shift), __ffs(it.of.split) - 1);
    const int pieces = kTile >> shift, batch = 32 / pieces;
    const auto place_of = [&](int b) {  // of this lane's piece, b: the first of the warp's tiles in the batch
      return places.first + (own + (b + (lane << shift) / kTile) * F::kProducers) * kTile +
             ((lane & (pieces - 1)) << shift);
    };
    const auto fetch = [&](int b) -> int64_t {
      const int place = place_of(b);
      return place < places.last ? runs[place >> p.unit_shift] : 0;
    };
    int64_t next = fetch(0);
    Planes planes;
    planes.k = p.k + it.head * p.head_stride, planes.v = p.v + it.head * p.head_stride;
    planes.k_scale = p.k_scale + it.head * p.scale_head, planes.v_scale = p.v_scale + it.head * p.scale_head;
    planes.k_min = p.k_min + it.head * p.scale_head, planes.v_min = p.v_min + it.head * p.scale_head;
    planes.item = p.item_stride, planes.scale_item = p.scale_item;
    Turn<Shared<F, DIM>::kStages> turn(done + own);
    for (int b = 0; own + b * F::kProducers < tiles; b += batch) {
      const int64_t run = next;
      next = fetch(b + batch);
      const int in_run = place_of(b) & ((1 << p.unit_shift) - 1);
      const int there =
          int(run & 0xffff) - in_run;  // tokens of this lane's piece (or less than none, or more)
      Pieces x;
      x.place = F::place(p, (run >> 16) + it.of.offset + in_run), x.shift = shift;
      for (int i = 0; i < batch && own + (b + i) * F::kProducers < tiles; ++i) {
        x.first = i * pieces;
        const int row = lane % kBits * F::kGrain;
        x.mask = __ballot_sync(~0u, x.within(row) < __shfl_sync(~0u, there, x.lane_of(row)) && lane < kBits);
        const uint32_t ready = full + turn.stage * 8;
        barrier_wait(empty + turn.stage * 8, turn.phase ^ 1);
        if (x.mask != 0) F::issue(ring + turn.stage * F::kStage, planes, x, lane);
        barrier_arrive_copied(ready);
        if (lane == 0) s.there[turn.stage] = x.mask, barrier_arrive(ready);
        turn.step(F::kProducers);
      }
    }
    done += tiles;
  }
  asm volatile("cp.async.wait_all;" ::: "memory");  // a warp does not end before its copies
}

template <typename F, int DIM>
__device__ __forceinline__ void consume(
    const DecodeParams& p, const Entries& entries, Shared<F, DIM>& s, const int* prefix, int items) {
  constexpr int kTile = F::kTile, kSums = F::kSums;
  constexpr uint32_t kAll = uint32_t((uint64_t(1) << kTile / F::kGrain) - 1);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = lane % 4;
  const uint32_t ring = shared_address(s.ring), full = shared_address(s.full),
                 empty = shared_address(s.empty);
  int done = 0;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const Item it = find_item(p, entries, item, prefix, s.kept, kKeeps);
    const int rounds = Places(p, it).rounds(kTile * F::kWarps);
    F::fill(p, it, s.query, warp, lane);
    read_present<DIM, F::kWarps>(p, it, s.present);
    named_sync(1, F::kWarps * 32);

    const typename F::Query q(s.query, lane);
    float o[kSums + F::kAside][4] = {};
    float top = -INFINITY, total = 0, unit = 0, inverse = 1;  // unit: V counts in it (formats with scales)
    if constexpr (F::kScaled) unit = F::kLeastUnit, inverse = F::inverse(unit);
    Turn<Shared<F, DIM>::kStages> turn(done + warp);
    for (int round = 0; round < rounds; ++round, turn.step(F::kWarps)) {
      barrier_wait(full + turn.stage * 8, turn.phase);
      const uint32_t stage = ring + turn.stage * F::kStage, mask = s.there[turn.stage];
      const char* tile = s.ring[turn.stage];
      if (mask != 0) {          // the same for the whole warp
        float w[kTile / 8][2];  // of tokens 8 t + 2 c, + 1
        F::scores(stage, tile, q, lane, w);
        if (mask != kAll) {
#pragma unroll
          for (int i = 0; i < kTile / 4; ++i)
            if (!(mask >> (i / 2 * 8 + 2 * c + i % 2) / F::kGrain & 1)) w[i / 2][i % 2] = -INFINITY;
        }
        float now = top;
#pragma unroll
        for (int i = 0; i < kTile / 4; ++i) now = fmaxf(now, w[i / 2][i % 2]);
        now = fmaxf(now, __shfl_xor_sync(~0u, now, 1));
        now = fmaxf(now, __shfl_xor_sync(~0u, now, 2));
        bool same = now == top;
        float wide = unit;
        if constexpr (F::kScaled) wide = F::widest(tile, lane, unit), same = same && wide == unit;
        if (__any_sync(~0u, !same)) {
          const float old = power2(top - now);
          total *= old, top = now;
          float shrink = 1;
          if constexpr (F::kScaled) inverse = F::inverse(wide), shrink = unit * inverse, unit = wide;
          const float own[2] = {__shfl_sync(~0u, old, c * 8), __shfl_sync(~0u, old, c * 8 + 4)};
#pragma unroll
          for (int n = 0; n < kSums; ++n)
#pragma unroll
            for (int x = 0; x < 4; ++x) o[n][x] *= own[x % 2] * shrink;
#pragma unroll
          for (int n = kSums; n < kSums + F::kAside; ++n)
#pragma unroll
            for (int x = 0; x < 4; ++x) o[n][x] *= own[x % 2];
        }
#pragma unroll
        for (int i = 0; i < kTile / 4; ++i) {
          float& x = w[i / 2][i % 2];
          x = power2(x - now);
          if constexpr (!F::kCounts) total += x;
        }
        F::values(stage, tile, w, inverse, lane, o);
      }
      barrier_arrive(empty + turn.stage * 8);
    }
    done += rounds * F::kWarps;
    if constexpr (F::kCounts) {
      const float two[2] = {__shfl_sync(~0u, o[kSums][2], lane / 8), __shfl_sync(~0u, o[kSums][3], lane / 8)};
      total = lane / 4 % 2 == 0 ? two[0] : two[1];
    } else {
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
    }
    if constexpr (F::kScaled)
#pragma unroll
      for (int n = 0; n < kSums; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) o[n][x] *= unit;
    float* result = s.results[warp];
    F::spill(o, lane, result);
    if (c == 0) result[Sums<DIM>::kTop + lane / 4] = top, result[Sums<DIM>::kTotal + lane / 4] = total;
    finish_item<DIM, F::kWarps>(p, it, s.present, s.results);
  }
  merge_splits<DIM, F::kWarps>(p, entries, prefix, s.kept, kKeeps, s.results);
}

__device__ __forceinline__ void wait() {
  pdl_wait();
  pdl_release();
}

template <typename F, int DIM>
__global__ __launch_bounds__(kThreads<F>, 1) void kernel(const __grid_constant__ DecodeParams p) {
  extern __shared__ __align__(1024) char raw[];
  Shared<F, DIM>& s = *reinterpret_cast<Shared<F, DIM>*>(raw);
  int* prefix = reinterpret_cast<int*>(raw + sizeof(Shared<F, DIM>));
  // The runs will be asked for when the tables are there: from DRAM to L2 meanwhile.
  const int64_t run = (int64_t(blockIdx.x) * kThreads<F> + threadIdx.x) * 16;
  if (run < p.run_count) asm volatile("prefetch.global.L2 [%0];" ::"l"(p.runs + run));
  if (p.ahead == DecodeAhead::kNothing) wait();
  Entries entries{(p.group + kHeads - 1) / kHeads, p.kv_heads, 0, p.by_row};
  const FirstRead read = read_first(p, entries);
  if (threadIdx.x % 32 == 0)  // a few of them a warp: one takes its time
    for (int i = threadIdx.x / 32; i < Shared<F, DIM>::kStages; i += F::kWarps + F::kProducers) {
      barrier_init(shared_address(&s.full[i]), 33);  // 32 lanes' copies, and what is there
      barrier_init(shared_address(&s.empty[i]), 32);
    }
  count_items<F::kWarps + F::kProducers>(p, entries, read, prefix, s.kept, kKeeps, s.carry);
  if (p.ahead == DecodeAhead::kTables) wait();
  const int items = entries.all == 0 ? 0 : prefix[entries.all - 1];
  if (threadIdx.x >= F::kWarps * 32) {
    if constexpr (F::kMoreRegisters) registers_down<72>();
    produce(p, entries, s, prefix, items);
  } else {
    if constexpr (F::kMoreRegisters) registers_up<216>();
    if (p.ahead == DecodeAhead::kPast) wait();  // q and the present come now
    consume(p, entries, s, prefix, items);
  }
}

constexpr int kUsualEntries = 256, kMostEntries = 2048, kMostInRow = 512;

// What Shared holds, then one number per entry.
template <typename F, int DIM>
int shared_bytes(int entries) {
  return int(sizeof(Shared<F, DIM>)) + (entries * 4 + 1023) / 1024 * 1024;
}

template <typename F, int DIM>
int grid_of() {
  const int bytes = shared_bytes<F, DIM>(kUsualEntries), most = shared_bytes<F, DIM>(kMostEntries);
  SE_CUDA(cudaFuncSetAttribute(kernel<F, DIM>, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
  int device = 0, processors = 0, blocks = 0;
  SE_CUDA(cudaGetDevice(&device));
  SE_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  SE_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel<F, DIM>, kThreads<F>, size_t(bytes)));
  return processors * blocks;
}

template <typename F, int DIM>
void start(DecodeParams p, int grid, Stream& stream) {
  const int in_row = p.kv_heads * decode_slices(p.group), entries = p.cap * in_row;
  if (entries < 1) return;
  if (entries > kMostEntries || in_row > kMostInRow) {
    std::fprintf(stderr,
                 "decode attention: %d rows x KV heads, %d a row: expected at most %d, %d\n",
                 entries,
                 in_row,
                 kMostEntries,
                 kMostInRow);
    std::abort();
  }
  p.by_row = ((1u << 20) + uint32_t(in_row) - 1) / uint32_t(in_row);
  const int64_t most = int64_t(entries) * p.max_splits;  // no more blocks than there can be items
  launch(kernel<F, DIM>,
         dim3(unsigned(most < grid ? most : grid)),
         kThreads<F>,
         shared_bytes<F, DIM>(entries),
         stream.get(),
         p);
}

}  // namespace se::cuda::decode
