// Which blocks of 128 keys a tile of queries reads: means of all blocks, then per tile their energies and
// lists.
#include "device/cuda/stream.h"
#include "kernels/attention/prefill_tile_cuda.cuh"

namespace se::cuda {
namespace {

using namespace prefill;

constexpr int kThreads = 256, kWarps = kThreads / 32;

// The mean key and value of block b of (listed row, KV head), zeros and -inf where there is no such block.
// 16 threads a key, 8 channels each; 16 keys at once.
__global__ __launch_bounds__(kThreads) void means(const __grid_constant__ PrefillParams p) {
  __shared__ const char* from[2][kTile];
  __shared__ float sums[2][16][kDim];
  __shared__ int count;
  pdl_wait();
  pdl_release();
  const int b = blockIdx.x, head = blockIdx.y, listed = blockIdx.z, thread = threadIdx.x;
  if (listed >= *p.a.n) return;
  Work w{};
  w.row = p.a.ids[listed], w.head = head;
  find_past(p, w);
  const int end = p.a.q_start[w.row + 1], first = p.a.kv_from[w.row];
  if (thread == 0) count = 0;
  __syncthreads();
  if (thread < kTile) {
    const char *k = nullptr, *v = nullptr;
    if (b < w.past_tiles) {
      const int64_t slot = slot_of(p.a, w, b * kTile + thread);
      if (slot >= 0) {
        const int64_t restored = int64_t(listed * p.a.kv_heads + head) * p.past_rows + b * kTile + thread;
        const int64_t at = p.past_k ? restored * kDim * 2
                                    : (slot >> p.a.page_shift) * p.a.page_stride +
                                          (slot & ((1 << p.a.page_shift) - 1)) * p.a.item_stride +
                                          head * p.a.head_stride;
        k = (p.past_k ? reinterpret_cast<const char*>(p.past_k) : p.a.k) + at;
        v = (p.past_v ? reinterpret_cast<const char*>(p.past_v) : p.a.v) + at;
      }
    } else if (const int token = first + (b - w.past_tiles) * kTile + thread; token < end) {
      const int64_t at = (int64_t(head) * p.tokens + token) * kDim;
      k = reinterpret_cast<const char*>(p.now_k + at), v = reinterpret_cast<const char*>(p.now_v + at);
    }
    from[0][thread] = k, from[1][thread] = v;
    const uint32_t there = __ballot_sync(~0u, k != nullptr);
    if (thread % 32 == 0) atomicAdd(&count, __popc(there));
  }
  __syncthreads();
  const int c = thread % 16, part = thread / 16;
#pragma unroll
  for (int plane = 0; plane < 2; ++plane) {
    uint4 x[kTile / 16];
#pragma unroll
    for (int i = 0; i < kTile / 16; ++i) {
      const char* at = from[plane][i * 16 + part];
      x[i] = at ? *reinterpret_cast<const uint4*>(at + c * 16) : uint4{0, 0, 0, 0};
    }
    float sum[8] = {};
#pragma unroll
    for (int i = 0; i < kTile / 16; ++i) {
      const uint32_t words[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 two = unpack(words[j], __nv_bfloat16());
        sum[2 * j] += two.x, sum[2 * j + 1] += two.y;
      }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) sums[plane][part][c * 8 + j] = sum[j];
  }
  __syncthreads();
  const int plane = thread / kDim, channel = thread % kDim;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) sum += sums[plane][i][channel];
  const int64_t at = int64_t(listed * p.a.kv_heads + head) * p.mean_blocks + b;
  (plane ? p.mean_v : p.mean_k)[at * kDim + channel] = __float2bfloat16(count ? sum / count : 0);
  if (thread == 0) p.mean_bias[at] = count ? log2f(count) : -INFINITY;
}

struct ChooseShared {  // at a multiple of 1,024 bytes; energies follow, then chunks' tops
  char q[kTileBytes], k[2][kTileBytes];
  uint64_t full[2];
  float part[kWarps][kTile], warp_top[kWarps];
  int warp_count[kWarps], kept;
};

__global__ __launch_bounds__(kThreads) void choose(const __grid_constant__ PrefillParams p,
                                                   const __grid_constant__ PrefillMaps maps,
                                                   const BlockChoice o) {
  extern __shared__ char raw[];
  ChooseShared& s = *reinterpret_cast<ChooseShared*>(raw + (1024 - (shared_address(raw) & 1023)) % 1024);
  float* energy = reinterpret_cast<float*>(&s + 1);
  float* chunk_top = energy + p.mean_blocks;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, c = lane % 4;
  if (thread == 0) {
    barrier_init(shared_address(&s.full[0]), 1), barrier_init(shared_address(&s.full[1]), 1);
    barrier_init_done();
    s.kept = 0;
  }
  __syncthreads();
  pdl_wait();
  pdl_release();
  const int item = blockIdx.x;
  if (item >= p.items[*p.a.n].first) return;
  const Work w = find_work(p, item);
  const int blocks = w.tiles, row_tiles = tiles_of(p.a, w.tokens);
  const bool all = w.tokens <= o.min_len || w.tile >= row_tiles - o.last;
  const int first = w.token + w.tile * kTile / p.a.group;  // the tile's first and last query
  const int last = w.token + min(w.tokens - 1, (w.tile * kTile + kTile - 1) / p.a.group);
  const int active = all ? 0 : w.past_tiles + (last + 1 - w.from) / kTile;
  const int chunks = (active + kTile - 1) / kTile;
  const int64_t of_head = int64_t(w.listed * p.a.kv_heads + w.head) * p.mean_blocks;
  const auto bring = [&](int chunk) {  // thread 0
    const uint32_t full = shared_address(&s.full[chunk % 2]);
    barrier_arrive_expecting(full, kTileBytes);
    for (int i = 0; i < kPieces; ++i)
      copy_box(shared_address(s.k[chunk % 2] + i * 2 * kGroup),
               maps.mean_k,
               full,
               0,
               0,
               0,
               int(of_head) + chunk * kTile + i * kPiece,
               0);
  };
  if (chunks > 0) {
    if (thread == 0) {
      bring(0);
      if (chunks > 1) bring(1);
    }
    take_queries(p.a, w, s.q, thread / 128);
    fence_shared_writes();
    __syncthreads();
  }
  int seen[2];  // the last block whose first key this thread's query rows see
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int position = (w.tile * kTile + warp * 16 + g + 8 * r) / p.a.group;
    seen[r] = position < w.tokens ? w.past_tiles + (w.token + position - w.from) / kTile : -1;
  }
  const float scale = p.a.scale * kLog2e;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    float x[64];
    barrier_wait(shared_address(&s.full[chunk % 2]), chunk / 2 & 1);
    wgmma_begin();
    start_scores(x, shared_address(s.q) + thread / 128 * 8 * kGroup, shared_address(s.k[chunk % 2]));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_take(x);
    const float* bias = p.mean_bias + of_head + chunk * kTile + 2 * c;
    float top = -INFINITY;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const float2 there = *reinterpret_cast<const float2*>(bias + 8 * j);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int b = chunk * kTile + 8 * j + 2 * c + i % 2;
        if (b >= active || b > seen[i / 2] || (i % 2 ? there.y : there.x) == -INFINITY)
          x[4 * j + i] = -INFINITY;
        top = fmaxf(top, x[4 * j + i]);
      }
    }
    for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    if (lane == 0) s.warp_top[warp] = top;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kWarps; ++i) top = fmaxf(top, s.warp_top[i]);
    const float base = top == -INFINITY ? 0 : top * scale;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float sum = power2(x[4 * j + i] * scale - base) + power2(x[4 * j + 2 + i] * scale - base);
        sum += __shfl_xor_sync(~0u, sum, 4);
        sum += __shfl_xor_sync(~0u, sum, 8);
        sum += __shfl_xor_sync(~0u, sum, 16);
        if (g == 0) s.part[warp][8 * j + 2 * c + i] = sum;
      }
    }
    __syncthreads();
    if (thread == 0) {
      chunk_top[chunk] = top;
      if (chunk + 2 < chunks) bring(chunk + 2);
    }
    if (thread < kTile) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kWarps; ++i) sum += s.part[i][thread];
      energy[chunk * kTile + thread] = sum;
    }
  }
  __syncthreads();
  float most = -INFINITY;
  for (int i = 0; i < chunks; ++i) most = fmaxf(most, chunk_top[i]);
  float best = 0;
  for (int b = thread; b < active; b += kThreads) {
    const float top = chunk_top[b / kTile];
    const float e = top == -INFINITY ? 0 : energy[b] * power2((top - most) * scale);
    energy[b] = e, best = fmaxf(best, e);
  }
  for (int d = 16; d > 0; d /= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, d));
  if (lane == 0) s.part[0][warp] = best;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kWarps; ++i) best = fmaxf(best, s.part[0][i]);
  // Lists, 256 blocks at a time; a word of `pruned` a warp.
  const int own_first = w.past_tiles + (first - w.from) / kTile;  // the block of the tile's first query
  int32_t* list = p.list + item * p.list_cap;
  for (int begin = 0; begin < p.mean_blocks; begin += kThreads) {
    const int b = begin + thread;
    const bool keep = b < blocks && (all || b < o.sink || b > own_first - o.window ||
                                     (b < active && energy[b] >= o.threshold * best));
    const bool before = b < w.past_tiles || w.from + (b - w.past_tiles + 1) * kTile <= first;
    const bool pruned = o.correction && b < blocks && !keep && before && p.mean_bias[of_head + b] > -INFINITY;
    const uint32_t kept = __ballot_sync(~0u, keep), means_of = __ballot_sync(~0u, pruned);
    if (lane == 0) {
      s.warp_count[warp] = __popc(kept);
      if (b < p.mean_blocks) p.pruned[item * int64_t(p.mean_blocks / 32) + b / 32] = means_of;
      s.warp_top[warp] = means_of != 0;
    }
    __syncthreads();
    int at = s.kept;
    for (int i = 0; i < warp; ++i) at += s.warp_count[i];
    if (keep) list[at + __popc(kept & ((1u << lane) - 1))] = b;
    // Places in `part` remember which groups of 128 blocks have pruned ones.
    if (thread < 2) {
      const float* any = s.warp_top + thread * 4;
      s.part[1 + (begin / kTile + thread) / kTile][(begin / kTile + thread) % kTile] =
          any[0] + any[1] + any[2] + any[3];
    }
    __syncthreads();
    if (thread == 0)
      for (int i = 0; i < kWarps; ++i) s.kept += s.warp_count[i];
    __syncthreads();
  }
  if (thread == 0) {
    int n = s.kept;
    for (int m = 0; m < p.mean_blocks / kTile; ++m)
      if (s.part[1 + m / kTile][m % kTile] > 0) list[n++] = kMeanTile + m;
    p.list_n[item] = n;
  }
}

}  // namespace

void prefill_means(const PrefillParams& p, Stream& stream) {
  launch(means,
         dim3(unsigned(p.mean_blocks), unsigned(p.a.kv_heads), unsigned(p.a.cap)),
         kThreads,
         0,
         stream.get(),
         p);
}

void prefill_choose(
    const PrefillParams& p, const PrefillMaps& maps, const BlockChoice& choice, int items, Stream& stream) {
  const int bytes = int(sizeof(ChooseShared)) + 1024 + p.mean_blocks * 4 + p.mean_blocks / kTile * 4;
  SE_CUDA(cudaFuncSetAttribute(choose, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  launch(choose, dim3(unsigned(items)), kThreads, bytes, stream.get(), p, maps, choice);
}

}  // namespace se::cuda
