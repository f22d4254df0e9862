// Two passes over the keys. A block takes a split of one KV head's row and up to eight of its query heads, a
// warp each: 32 queries at a time, their two pieces in registers, against tiles of 64 keys in shared memory.
// The first pass leaves the softmax of each (query, head, split); the second, with those merged in order,
// turns products into probabilities, folds them over the queries within a warp and over the heads between
// warps. Last, what KV heads and slices of heads left is folded into the scores.
#include "device/cuda/hopper.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/stream.h"
#include "kernels/attn_scores/attn_scores_params_cuda.h"

namespace se::cuda {
namespace {

constexpr int kThreads = kScoreHeads * 32, kTile = 64, kRows = 32, kStages = 3;
enum : int { kMax, kMean, kSum };  // as Reduce

__device__ __forceinline__ float fold2(int how, float a, float b) {
  return how == kMax ? fmaxf(a, b) : a + b;
}

struct PartTable {
  const char* k;
  const int64_t* runs;
  int64_t offset;
  int first, end;  // ordinals
};

template <int DIM>
struct Keys {
  static constexpr int kRowBytes = DIM * 2, kStage = kTile * kRowBytes, kPieces = DIM / 8;
  static constexpr int kOwn = kPieces / 4;  // four threads a key
  const ScoresParams& p;
  const PartTable* table;
  uint32_t ring;
  int from, end, head;
  int64_t next;  // run of this thread's key, a tile ahead of its use
  int part;

  __device__ __forceinline__ int ordinal(int tile) const {
    return from + tile * kTile + int(threadIdx.x) / 4;
  }
  __device__ __forceinline__ void fetch(int tile) {
    const int o = ordinal(tile);
    next = 0;
    if (o >= end) return;
    part = 0;
    while (part + 1 < p.n_parts && o >= table[part].end) ++part;
    if (o < table[part].end) next = table[part].runs[(o - table[part].first) >> p.parts[part].unit_shift];
  }
  // Starts the copies of `tile`, whose run was fetched; zeros where no key is.
  __device__ __forceinline__ void issue(int tile) {
    const int o = ordinal(tile), key = threadIdx.x / 4;
    const ScorePart& x = p.parts[part];
    const int in_run = (o - table[part].first) & ((1 << x.unit_shift) - 1);
    const bool there = o < end && in_run < int(next & 0xffff);
    const int64_t slot = (next >> 16) + table[part].offset + in_run;
    const char* at = x.k;
    if (there)
      at += (slot >> x.page_shift) * x.page_stride + (slot & ((1 << x.page_shift) - 1)) * x.item_stride +
            head * x.head_stride;
    const uint32_t to = ring + tile % kStages * kStage + key * kRowBytes;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int piece = threadIdx.x % 4 + 4 * i;
      copy16(to + ((piece ^ (key & 7)) << 4), at + piece * 16, there);
    }
  }
};

// A warp's 32 queries of one head, rows m * 16 + g and + 8, as two pieces.
template <typename T, int DIM>
struct Queries {
  uint32_t high[2][DIM / 16][4], rest[2][DIM / 16][4];
  __device__ __forceinline__ void load(const ScoresParams& p, int head, int first) {
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = first + m * 16 + half * 8 + g;
        const float* q = p.q + min(query, p.queries - 1) * p.q_token + head * p.q_head;
#pragma unroll
        for (int s = 0; s < DIM / 16; ++s)
#pragma unroll
          for (int x = 0; x < 2; ++x) {
            float2 v = *reinterpret_cast<const float2*>(q + s * 16 + x * 8 + 2 * c);
            if (query >= p.queries) v = float2{0, 0};
            pieces<T>(v.x, v.y, high[m][s][x * 2 + half], rest[m][s][x * 2 + half]);
          }
      }
  }
  // acc[m][n]: rows of m x keys 8 n + 2 c, + 1.
  __device__ __forceinline__ void products(uint32_t stage, float (&acc)[2][8][4]) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) acc[m][n][x] = 0;
#pragma unroll
    for (int s = 0; s < DIM / 16; s += 2)
#pragma unroll
      for (int four = 0; four < 8; four += 4) {  // eight sums at a time: their latency is hidden
        uint32_t b[4][4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const int key = (four + n) * 8 + lane % 8, piece = s * 2 + lane / 8;
          load_matrices<false>(b[n], stage + key * DIM * 2 + ((piece ^ (key & 7)) << 4));
        }
#pragma unroll
        for (int step = 0; step < 4; ++step)
#pragma unroll
          for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int m = 0; m < 2; ++m)
              mma(acc[m][four + n],
                  step % 2 ? rest[m][s + step / 2] : high[m][s + step / 2],
                  b[n][step / 2 * 2],
                  b[n][step / 2 * 2 + 1],
                  T());
      }
  }
};

template <typename T, int DIM, bool kVotes>
__global__ __launch_bounds__(kThreads, 1) void score_kernel(const __grid_constant__ ScoresParams p) {
  extern __shared__ __align__(128) char ring[];
  __shared__ PartTable table[4];
  __shared__ int last[kScoreQueries];
  __shared__ float norm[kVotes ? kScoreHeads : 1][kVotes ? kScoreQueries : 1];
  __shared__ __align__(8) float heads[2][kScoreHeads][kTile];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int slices = (p.group + kScoreHeads - 1) / kScoreHeads, kv_head = blockIdx.y / slices,
            slice = blockIdx.y % slices, busy = min(kScoreHeads, p.group - slice * kScoreHeads);
  const int head = kv_head * p.group + slice * kScoreHeads + warp, chunks = (p.queries + kRows - 1) / kRows;
  pdl_wait();
  pdl_release();
  if (threadIdx.x < p.n_parts) {
    const ScorePart& x = p.parts[threadIdx.x];
    int first = 0;
    for (int i = 0; i < int(threadIdx.x); ++i) first += *p.parts[i].tokens;
    table[threadIdx.x] = {x.k, x.runs + *x.start, x.offset ? *x.offset : 0, first, first + *x.tokens};
  }
  int least = 0x7fffffff;  // of `last`; rows of a chunk that no query has see nothing
  for (int i = threadIdx.x; i < chunks * kRows; i += kThreads)
    last[i] = i < p.queries ? int(min(p.last[i], p.ordinals)) : -1;
  __syncthreads();
  for (int i = lane; i < chunks * kRows; i += 32) least = min(least, last[i]);
  least = __reduce_min_sync(~0u, least);
  const bool any = warp < busy;
  if constexpr (kVotes) {
    for (int i = lane; any && p.prob && i < chunks * kRows; i += 32) {  // log2 of the softmax's sum
      float top = -INFINITY, total = 0;
      const float2* state = p.state + (int64_t(head) * p.queries + min(i, p.queries - 1)) * p.splits;
      for (int s = 0; s < p.splits; ++s) top = fmaxf(top, state[s].x);
      if (top != -INFINITY)
        for (int s = 0; s < p.splits; ++s) total += power2(state[s].x - top) * state[s].y;
      norm[warp][i] = total > 0 && i < p.queries ? top + log2f(total) : INFINITY;
    }
    __syncwarp();
  }
  const bool whole = kVotes ? false : p.full_denominator;
  const int seen_from = whole ? 0 : int(p.low), seen_to = whole ? int(p.ordinals) : int(p.high);
  const float scale = p.scale * kLog2e;

  const int from = blockIdx.x * p.split, end = int(min(int64_t(from + p.split), p.ordinals));
  const int tiles = (end - from + kTile - 1) / kTile;
  Keys<DIM> keys{p, table, uint32_t(__cvta_generic_to_shared(ring)), from, end, kv_head, 0, 0};
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    keys.fetch(i);
    if (i < tiles) keys.issue(i);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  keys.fetch(kStages - 1);
  const auto fold_tile = [&](int tile) {  // heads in order; threads of a tile's keys
    const int key = threadIdx.x, o = from + tile * kTile + key;
    if (key >= kTile || o >= end) return;
    float all = heads[tile & 1][0][key];
    for (int w = 1; w < busy; ++w) all = fold2(p.over_heads, all, heads[tile & 1][w][key]);
    p.fold[int64_t(blockIdx.y) * p.ordinals + o] = all;
  };

  Queries<T, DIM> q;
  if (any && chunks == 1) q.load(p, head, 0);
  float top[4], total[4];  // of rows m * 16 + half * 8 + g; stats of one chunk at a time
  for (int chunk = 0; chunk < (kVotes ? 1 : chunks); ++chunk) {  // stats: the keys once more for 32 queries
    if (!kVotes && chunk > 0) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kStages - 1; ++i) {
        keys.fetch(i);
        if (i < tiles) keys.issue(i);
        asm volatile("cp.async.commit_group;" ::: "memory");
      }
      keys.fetch(kStages - 1);
    }
    if (!kVotes && any && chunks > 1) q.load(p, head, chunk * kRows);
#pragma unroll
    for (int r = 0; r < 4; ++r) top[r] = -INFINITY, total[r] = 0;
    for (int tile = 0; tile < tiles; ++tile) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
      __syncthreads();
      if (tile + kStages - 1 < tiles) keys.issue(tile + kStages - 1);
      asm volatile("cp.async.commit_group;" ::: "memory");
      keys.fetch(tile + kStages);
      if (kVotes && tile > 0) fold_tile(tile - 1);
      if (!any) continue;
      const int first = from + tile * kTile;
      const bool clear =
          first >= seen_from && first + kTile <= min(seen_to, end) && first + kTile - 1 <= least;
      const uint32_t stage = keys.ring + tile % kStages * Keys<DIM>::kStage;
      float acc[2][8][4];
      if constexpr (!kVotes) {
        q.products(stage, acc);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          float most = -INFINITY;
          const int seen = last[chunk * kRows + r * 8 + g];
#pragma unroll
          for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int x = 0; x < 2; ++x) {
              float& l = acc[r / 2][n][r % 2 * 2 + x];
              const int o = first + n * 8 + 2 * c + x;
              l *= scale;
              if (!clear && !(o >= seen_from && o < min(seen_to, end) && o <= seen)) l = -INFINITY;
              most = fmaxf(most, l);
            }
          const float now = fmaxf(top[r], most);
          if (now == -INFINITY) continue;
          total[r] *= power2(top[r] - now), top[r] = now;
#pragma unroll
          for (int n = 0; n < 8; ++n)
            total[r] += power2(acc[r / 2][n][r % 2 * 2] - now) + power2(acc[r / 2][n][r % 2 * 2 + 1] - now);
        }
      } else {
        float2 vote{p.over_queries == kMax ? -INFINITY : 0, p.over_queries == kMax ? -INFINITY : 0};
        for (int part = 0; part < chunks; ++part) {
          if (chunks > 1) q.load(p, head, part * kRows);
          q.products(stage, acc);
          float v[16];  // of keys 8 n + 2 c + x, folded over this thread's rows
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            const int row = part * kRows + r * 8 + g, seen = last[row];
            const float off = p.prob ? norm[warp][row] : 0;
#pragma unroll
            for (int n = 0; n < 8; ++n)
#pragma unroll
              for (int x = 0; x < 2; ++x) {
                const float l = acc[r / 2][n][r % 2 * 2 + x];
                const int o = first + n * 8 + 2 * c + x;
                float y = p.prob ? power2(l * scale - off) : l;
                if (!clear && !(o >= seen_from && o < min(seen_to, end) && o <= seen))
                  y = p.over_queries == kMax ? -INFINITY : 0;
                v[2 * n + x] = r == 0 ? y : fold2(p.over_queries, v[2 * n + x], y);
              }
          }
          // Over the eight g: halves change hands, until lane (g, c) has keys 8 g + 2 c, + 1.
#pragma unroll
          for (int d = 16, n = 8; d >= 4; d /= 2, n /= 2) {
            const bool upper = lane & d;
#pragma unroll
            for (int i = 0; i < n; ++i) {
              const float give = upper ? v[i] : v[i + n], keep = upper ? v[i + n] : v[i];
              v[i] = fold2(p.over_queries, keep, __shfl_xor_sync(~0u, give, d));
            }
          }
          vote.x = fold2(p.over_queries, vote.x, v[0]), vote.y = fold2(p.over_queries, vote.y, v[1]);
        }
        if (p.over_queries == kMean) vote.x /= float(p.queries), vote.y /= float(p.queries);
        *reinterpret_cast<float2*>(&heads[tile & 1][warp][2 * lane]) = vote;
      }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    if constexpr (!kVotes) {
      if (!any) continue;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        float most = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        float sum = top[r] == -INFINITY ? 0 : total[r] * power2(top[r] - most);
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const int query = chunk * kRows + r * 8 + g;
        if (c == 0 && query < p.queries)
          p.state[(int64_t(head) * p.queries + query) * p.splits + blockIdx.x] = {most, sum};
      }
    }
  }
  if constexpr (kVotes) {
    __syncthreads();
    fold_tile(tiles - 1);
  }
}

__global__ __launch_bounds__(256) void finish_kernel(const __grid_constant__ ScoresParams p) {
  pdl_wait();
  pdl_release();
  const int slices = (p.group + kScoreHeads - 1) / kScoreHeads,
            rows = p.per_kv_head ? slices : slices * p.kv_heads;
  int64_t last = -1;
  for (int i = 0; i < p.queries; ++i) last = max(last, p.last[i]);
  const int64_t o = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (o >= p.ordinals) return;
  float x = p.prob ? 0 : -INFINITY;
  if (o >= p.low && o < p.high && o <= last) {
    const float* fold = p.fold + int64_t(blockIdx.y) * slices * p.ordinals + o;
    x = fold[0];
    for (int r = 1; r < rows; ++r) x = fold2(p.over_heads, x, fold[r * p.ordinals]);
    if (p.over_heads == kMean) x /= float(p.per_kv_head ? p.group : p.group * p.kv_heads);
  }
  p.out[blockIdx.y * p.out_head + o] = x;
}

template <typename T, int DIM, bool kVotes>
void pass(const ScoresParams& p, Stream& stream) {
  constexpr int kBytes = kStages * Keys<DIM>::kStage;
  SE_CUDA(cudaFuncSetAttribute(
      score_kernel<T, DIM, kVotes>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  launch(score_kernel<T, DIM, kVotes>,
         dim3(unsigned(p.splits), unsigned(p.kv_heads * score_slices(p.group))),
         kThreads,
         kBytes,
         stream.get(),
         p);
}

template <typename T, int DIM>
void both(const ScoresParams& p, Stream& stream) {
  if (p.prob) pass<T, DIM, false>(p, stream);
  pass<T, DIM, true>(p, stream);
}

}  // namespace

void score_window(const ScoresParams& p, bool bf16, int dim, Stream& stream) {
  if (p.queries > 0) {
    if (bf16)
      dim == 64 ? both<__nv_bfloat16, 64>(p, stream) : both<__nv_bfloat16, 128>(p, stream);
    else
      dim == 64 ? both<__half, 64>(p, stream) : both<__half, 128>(p, stream);
  }
  launch(finish_kernel,
         dim3(unsigned((p.ordinals + 255) / 256), unsigned(p.per_kv_head ? p.kv_heads : 1)),
         256,
         0,
         stream.get(),
         p);
}

}  // namespace se::cuda
