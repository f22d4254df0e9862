// Split-KV decode attention. A block takes one split of one KV head: each of its warps walks tiles (warp,
// warp
// + warps, ..), keeps its own ring of tiles in shared memory (cp.async, no block barrier in the loop) and its
// own running softmax; the warps are merged in order at the end of the split.
//
// Tensor-core shape m16n8k16: rows 0-7 of A are the 8 query heads' high pieces, rows 8-15 the rest, first of
// q (QK), then of the weights (PV). Ladder and figures: docs/performance.md.
#pragma once
#include <cstdio>
#include <cstdlib>

#include "device/cuda/stream.h"
#include "kernels/attention/decode_formats_cuda.cuh"
#include "kernels/attention/decode_items_cuda.cuh"

namespace se::cuda::decode {

template <typename F, int DIM>
struct Ring {
  static constexpr int kResult = kHeads * DIM + 2 * kHeads;  // floats
  static constexpr int kLoads = F::kStages * F::kStage;
  static constexpr int kKeeps = 256;  // entries kept in shared memory
  static constexpr int kBytes = ((kLoads > kResult * 4 ? kLoads : kResult * 4) + 127) / 128 * 128;
};

template <typename F, int DIM>
__global__ __launch_bounds__(F::kWarps * 32, 1) void kernel(const __grid_constant__ DecodeParams p) {
  using T = typename F::T;
  using R = Ring<F, DIM>;
  constexpr int kTile = F::kTile, kWarps = F::kWarps, kStages = F::kStages, kTokens = kTile / 4;
  extern __shared__ __align__(1024) char shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  char* ring = shared + warp * R::kBytes;
  const uint32_t ring_at = uint32_t(__cvta_generic_to_shared(ring));
  Entry* kept = reinterpret_cast<Entry*>(shared + kWarps * R::kBytes);
  int* prefix = reinterpret_cast<int*>(kept + R::kKeeps);
  __shared__ int carry[kWarps];
  __shared__ uint32_t valid[kWarps][kStages];

  pdl_wait();
  pdl_release();
  Entries entries{(p.group + kHeads - 1) / kHeads, p.kv_heads, 0};
  count_items<kWarps>(p, entries, prefix, kept, R::kKeeps, carry);
  const int items = entries.all == 0 ? 0 : prefix[entries.all - 1];

  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const Item it = find_item(p, entries, item, prefix, kept, R::kKeeps);
    const int64_t* runs = p.runs + it.of.start;
    const int64_t offset = it.of.offset;
    const int first = it.split_at * it.of.split, last = min(first + it.of.split, it.of.count << p.unit_shift);
    const bool steady = p.unit_shift >= 4 && it.of.split % 16 == 0;
    const int tiles = (last - first + kTile - 1) / kTile;
    const int mine = tiles > warp ? (tiles - warp + kWarps - 1) / kWarps : 0;
    Planes planes;
    planes.k = p.k + it.head * p.head_stride, planes.v = p.v + it.head * p.head_stride;
    planes.k_scale = p.k_scale + it.head * p.scale_head, planes.v_scale = p.v_scale + it.head * p.scale_head;
    planes.k_min = p.k_min + it.head * p.scale_head, planes.v_min = p.v_min + it.head * p.scale_head;

    // Lane l looks after place l of a tile (lanes beyond a short tile repeat): the run first, a step ahead of
    // its use, then the address.
    const auto place_of = [&](int i) { return first + (warp + kWarps * i) * kTile + lane % kTile; };
    const auto fetch = [&](int i) -> int64_t {
      const int place = place_of(i);
      return i < mine && place < last ? runs[place >> p.unit_shift] : 0;
    };
    const auto issue = [&](int i, int64_t r16) {
      if (i < mine) {
        const int in_run = place_of(i) & ((1 << p.unit_shift) - 1);
        const bool there = in_run < int(r16 & 0xffff);
        Place place;
        if (there) place = F::place(p, (r16 >> 16) + offset + in_run);
        const uint32_t mask = __ballot_sync(~0u, there);
        if (lane == 0) valid[warp][i % kStages] = mask;
        F::issue(ring_at + (i % kStages) * F::kStage, planes, place, mask, steady, p.item_stride, lane);
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
    };

    // All loads of the start are under way before the first is waited for: runs, q, then the first tiles.
    int64_t early[kStages];
#pragma unroll
    for (int i = 0; i < kStages; ++i) early[i] = fetch(i);
    float q_raw[DIM / 16][2][2];
    const float* q_from = p.q + it.of.token * p.q_token + (it.q_head + min(g, it.heads - 1)) * p.q_head;
#pragma unroll
    for (int s = 0; s < DIM / 16; ++s)
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const float* from = q_from + F::q_dim(s, x, c);
        if constexpr (F::kApart == 1) {
          const float2 pair = *reinterpret_cast<const float2*>(from);
          q_raw[s][x][0] = pair.x, q_raw[s][x][1] = pair.y;
        } else {
          q_raw[s][x][0] = from[0], q_raw[s][x][1] = from[F::kApart];
        }
      }
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) issue(i, early[i]);
    int64_t next = early[kStages - 1];
    const auto present = read_present<DIM, kWarps>(p, it);

    const typename F::Query q = F::query(q_raw);
    float o[DIM / 8 + F::kAside][4] = {};
    float top = -INFINITY, total = 0, unit = 0;  // unit: V counts in it (formats with scales)
    if constexpr (F::kScaled) unit = F::kLeastUnit;
    const float scale = p.scale * kLog2e;

    for (int i = 0; i < mine; ++i) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
      __syncwarp();
      issue(i + kStages - 1, next);
      next = fetch(i + kStages);
      const char* tile = ring + (i % kStages) * F::kStage;
      const uint32_t stage = ring_at + (i % kStages) * F::kStage, mask = valid[warp][i % kStages];
      if (mask == 0) continue;  // the same for the whole warp

      float w[kTile / 8][2];  // of tokens 8 t + 2 c, + 1
      F::scores(stage, tile, q, lane, w);
      float most = -INFINITY;
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const bool there = mask >> (t / 2 * 8 + 2 * c + t % 2) & 1;
        float& x = w[t / 2][t % 2];
        x = there ? x * scale : -INFINITY;
        most = fmaxf(most, x);
      }
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const float now = fmaxf(top, most), old = power2(top - now);
      float shrink = old, inverse = 1;
      bool same = now == top;
      if constexpr (F::kScaled) {
        const float wide = F::widest(tile, lane, unit);
        inverse = F::inverse(wide);
        same = same && wide == unit;
        shrink *= unit * inverse, unit = wide;
      }
      if (__any_sync(~0u, !same)) {
        total *= old;
#pragma unroll
        for (int n = 0; n < DIM / 8; ++n)
#pragma unroll
          for (int x = 0; x < 4; ++x) o[n][x] *= shrink;
#pragma unroll
        for (int n = DIM / 8; n < DIM / 8 + F::kAside; ++n)
#pragma unroll
          for (int x = 0; x < 4; ++x) o[n][x] *= old;
      }
      top = now;
#pragma unroll
      for (int t = 0; t < kTile / 8; ++t) {
        w[t][0] = power2(w[t][0] - now), w[t][1] = power2(w[t][1] - now);
        total += w[t][0] + w[t][1];
      }
      F::values(stage, tile, w, inverse, lane, o);
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncwarp();
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    if constexpr (F::kScaled)
#pragma unroll
      for (int n = 0; n < DIM / 8; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) o[n][x] *= unit;
    float* result = reinterpret_cast<float*>(ring);  // [8 heads, DIM], then top and total of each head
    F::spill(o, c, result + g * DIM);
    if (c == 0) result[kHeads * DIM + g] = top, result[kHeads * DIM + kHeads + g] = total;
    finish_item<DIM, kWarps>(p, it, present, reinterpret_cast<const float*>(shared), R::kBytes / 4);
  }
}

constexpr int kUsualEntries = 256, kMostEntries = 2048;

// The rings, the kept entries, then one number per entry.
template <typename F, int DIM>
int shared_bytes(int entries) {
  return F::kWarps * Ring<F, DIM>::kBytes + Ring<F, DIM>::kKeeps * int(sizeof(Entry)) +
         (entries * 4 + 1023) / 1024 * 1024;
}

template <typename F, int DIM>
int grid_of() {
  const int bytes = shared_bytes<F, DIM>(kUsualEntries), most = shared_bytes<F, DIM>(kMostEntries);
  SE_CUDA(cudaFuncSetAttribute(kernel<F, DIM>, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
  int device = 0, processors = 0, blocks = 0;
  SE_CUDA(cudaGetDevice(&device));
  SE_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  SE_CUDA(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel<F, DIM>, F::kWarps * 32, size_t(bytes)));
  return processors * blocks;
}

template <typename F, int DIM>
void start(const DecodeParams& p, int grid, Stream& stream) {
  const int entries = p.cap * p.kv_heads * decode_slices(p.group);
  if (entries < 1) return;
  if (entries > kMostEntries) {
    std::fprintf(
        stderr, "decode attention: %d rows x KV heads: expected at most %d\n", entries, kMostEntries);
    std::abort();
  }
  const int64_t most = int64_t(entries) * p.max_splits;  // no more blocks than there can be items
  launch(kernel<F, DIM>,
         dim3(unsigned(most < grid ? most : grid)),
         F::kWarps * 32,
         shared_bytes<F, DIM>(entries),
         stream.get(),
         p);
}

}  // namespace se::cuda::decode
