// Split-KV decode attention. A block takes one split of one KV head: each of its warps walks tiles of 16
// places (warp, warp + warps, ..), keeps its own ring of tiles in shared memory (cp.async, XOR-swizzled, no
// block barrier in the loop) and its own running softmax; the warps are merged in order at the end of the
// split.
//
// Tensor-core shape m16n8k16: rows 0-7 of A are the 8 query heads' high pieces, rows 8-15 the rest, first of
// q (QK), then of the weights (PV). Ladder and figures: docs/performance.md.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdio>
#include <cstdlib>
#include <type_traits>

#include "device/cuda/launch.h"
#include "device/cuda/stream.h"
#include "kernels/attention/decode_cuda.h"

namespace se::cuda {
namespace {

#ifndef SE_DECODE_WARPS
#define SE_DECODE_WARPS 8
#endif
#ifndef SE_DECODE_STAGES
#define SE_DECODE_STAGES 2
#endif
constexpr int kWarps = SE_DECODE_WARPS, kStages = SE_DECODE_STAGES, kTile = 16, kHeads = 8, kMergeHeads = 4;
constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

__device__ __forceinline__ uint32_t pack(float lo, float hi, __nv_bfloat16) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
  return reinterpret_cast<const uint32_t&>(v);
}
__device__ __forceinline__ uint32_t pack(float lo, float hi, __half) {
  const __half2 v = __floats2half2_rn(lo, hi);
  return reinterpret_cast<const uint32_t&>(v);
}
__device__ __forceinline__ float2 unpack(uint32_t v, __nv_bfloat16) {
  return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(v));
}
__device__ __forceinline__ float2 unpack(uint32_t v, __half) {
  return __half22float2(reinterpret_cast<const __half2&>(v));
}
// Two f32 as a 16-bit pair and the pair of what rounding lost.
template <typename T>
__device__ __forceinline__ void pieces(float a, float b, uint32_t& high, uint32_t& rest) {
  high = pack(a, b, T());
  const float2 h = unpack(high, T());
  rest = pack(a - h.x, b - h.y, T());
}

__device__ __forceinline__ void mma(
    float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __nv_bfloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __half) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <bool kTranspose>
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  if constexpr (kTranspose)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
// 16 bytes from device to shared memory; zeros if not `there` (nothing is read then).
__device__ __forceinline__ void copy16(uint32_t to, const char* from, bool there) {
  asm volatile(
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
      : "memory");
}

// The work of a launch: entry = (listed row, KV head, slice of 8 query heads), each with its splits.
__device__ __forceinline__ int entry_row(const DecodeParams& p, int entry, int slices) {
  return p.ids[entry / slices / p.kv_heads];
}
__device__ __forceinline__ int table_row(const DecodeParams& p, int row, int head) {
  return p.row_heads == 1 ? row : row * p.kv_heads + head;
}
__device__ __forceinline__ int splits_of(const DecodeParams& p, int row, int head) {
  const int64_t places = int64_t(p.counts[table_row(p, row, head)]) << p.unit_shift;
  return int((places + p.split[row] - 1) / p.split[row]);
}

__device__ __forceinline__ void prefetch(const void* at) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(at));
}

// Inclusive prefix sums of the splits of all entries into `prefix`; all threads of the block. Returns the
// number of entries. The list and its length are read together, and what an item reads next is on its way
// before it is needed: at small batches the chain of dependent reads is what a step waits for.
__device__ int count_splits(const DecodeParams& p, int slices, int* prefix, int* carry) {
  int row = int(threadIdx.x) < p.cap * p.kv_heads * slices ? entry_row(p, threadIdx.x, slices) : 0;
  const int entries = *p.n * p.kv_heads * slices;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int base = 0;
  for (int first = 0; first < entries; first += kWarps * 32) {
    const int e = first + threadIdx.x;
    int sum = 0;
    if (e < entries) {
      if (first > 0) row = entry_row(p, e, slices);
      const int head = e / slices % p.kv_heads, r = table_row(p, row, head);
      prefetch(p.start + r), prefetch(p.q_start + row);
      if (p.offset) prefetch(p.offset + r);
      sum = splits_of(p, row, head);
    }
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    if (lane == 31) carry[warp] = sum;
    __syncthreads();
    int before = base, all = base;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) before += carry[w];
      all += carry[w];
    }
    if (e < entries) prefix[e] = before + sum;
    base = all;
    __syncthreads();
  }
  return entries;
}

template <typename T, int DIM>
struct Shape {
  static constexpr int kChunks = DIM / 8;  // 16-byte pieces of a key
  static constexpr int kRowBytes = DIM * 2, kPlaneBytes = kTile * kRowBytes, kStageBytes = 2 * kPlaneBytes;
  static constexpr int kRing = kStages * kStageBytes;  // of a warp
  static_assert(kRing >= (kHeads * DIM + 2 * kHeads) * 4, "a warp's result goes where its ring was");
};

template <typename T, int DIM>
__global__ __launch_bounds__(kWarps * 32) void decode_kernel(const __grid_constant__ DecodeParams p) {
  using S = Shape<T, DIM>;
  extern __shared__ __align__(1024) char shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  char* ring = shared + warp * S::kRing;
  const uint32_t ring_at = uint32_t(__cvta_generic_to_shared(ring));
  int* prefix = reinterpret_cast<int*>(shared + kWarps * S::kRing);
  __shared__ int carry[kWarps];
  __shared__ uint32_t valid[kWarps][kStages];

  pdl_wait();
  pdl_release();
  const int slices = (p.group + kHeads - 1) / kHeads;
  const int entries = count_splits(p, slices, prefix, carry);
  const int items = entries == 0 ? 0 : prefix[entries - 1];

  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    int entry = 0;
    for (int low = 0, high = entries; low < high;) {  // the first entry whose prefix exceeds item
      const int middle = (low + high) / 2;
      if (prefix[middle] > item)
        high = middle;
      else
        low = middle + 1;
      entry = low;
    }
    const int split_at = item - (entry == 0 ? 0 : prefix[entry - 1]);
    const int row = entry_row(p, entry, slices), head = entry / slices % p.kv_heads;
    const int q_head = head * p.group + entry % slices * kHeads;
    const int heads = min(kHeads, p.group - entry % slices * kHeads);
    const int r = table_row(p, row, head), split = p.split[row];
    const int64_t* runs = p.runs + p.start[r];
    const int64_t offset = p.offset ? p.offset[r] : 0;
    const int first = split_at * split, last = min(first + split, p.counts[r] << p.unit_shift);
    const int tiles = (last - first + kTile - 1) / kTile;
    const int mine = tiles > warp ? (tiles - warp + kWarps - 1) / kWarps : 0;
    const char *k_plane = p.k + head * p.head_stride, *v_plane = p.v + head * p.head_stride;

    // Lane l (of 16) looks after place l of a tile: the run first, a step ahead of its use, then the address.
    const auto place_of = [&](int i) { return first + (warp + kWarps * i) * kTile + (lane & 15); };
    const auto fetch = [&](int i) -> int64_t {
      const int place = place_of(i);
      return i < mine && place < last ? runs[place >> p.unit_shift] : 0;
    };
    const auto issue = [&](int i, int64_t r16) {
      if (i < mine) {
        const int in_run = place_of(i) & ((1 << p.unit_shift) - 1);
        const bool there = in_run < int(r16 & 0xffff);
        const int64_t slot = (r16 >> 16) + offset + in_run;
        const int64_t mine_at = there ? (slot >> p.page_shift) * p.page_stride +
                                            (slot & ((1 << p.page_shift) - 1)) * p.item_stride
                                      : -1;
        const uint32_t mask = __ballot_sync(~0u, there);
        if (lane == 0) valid[warp][i % kStages] = mask;
        const uint32_t stage = ring_at + (i % kStages) * S::kStageBytes;
#pragma unroll
        for (int j = 0; j < kTile * S::kChunks / 32; ++j) {
          const int tile_row = (j * 32 + lane) / S::kChunks, chunk = (j * 32 + lane) % S::kChunks;
          const int64_t at = __shfl_sync(~0u, mine_at, tile_row);
          const bool ok = at >= 0;
          const int64_t from = (ok ? at : 0) + chunk * 16;
          const uint32_t to = stage + tile_row * S::kRowBytes + (chunk ^ (tile_row & 7)) * 16;
          copy16(to, k_plane + from, ok);
          copy16(to + S::kPlaneBytes, v_plane + from, ok);
        }
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
    };

    // All loads of the start are under way before the first is waited for: runs, q, then the first tiles.
    int64_t early[kStages];
#pragma unroll
    for (int i = 0; i < kStages; ++i) early[i] = fetch(i);
    float2 q_raw[DIM / 8];
    const float* q_from = p.q + p.q_start[row] * p.q_token + (q_head + min(g, heads - 1)) * p.q_head + 2 * c;
#pragma unroll
    for (int s = 0; s < DIM / 8; ++s) q_raw[s] = *reinterpret_cast<const float2*>(q_from + s * 8);
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) issue(i, early[i]);
    int64_t next = early[kStages - 1];

    uint32_t q[DIM / 16][4];
#pragma unroll
    for (int s = 0; s < DIM / 16; ++s) {
      pieces<T>(q_raw[2 * s].x, q_raw[2 * s].y, q[s][0], q[s][1]);
      pieces<T>(q_raw[2 * s + 1].x, q_raw[2 * s + 1].y, q[s][2], q[s][3]);
    }
    float o[DIM / 8][4] = {};
    float top = -INFINITY, total = 0;
    const float scale = p.scale * kLog2e;

    for (int i = 0; i < mine; ++i) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
      __syncwarp();
      issue(i + kStages - 1, next);
      next = fetch(i + kStages);
      const uint32_t stage = ring_at + (i % kStages) * S::kStageBytes;
      const uint32_t mask = valid[warp][i % kStages];

      float s[2][4] = {};  // [tokens 0-7, 8-15][head g: two tokens; the rest of q: two tokens]
      const int k_row = (lane & 7) + (lane >= 16 ? 8 : 0), k_chunk = lane >> 3 & 1;
#pragma unroll
      for (int d = 0; d < DIM / 16; ++d) {
        uint32_t b[4];
        load_matrices<false>(b, stage + k_row * S::kRowBytes + ((2 * d + k_chunk) ^ (k_row & 7)) * 16);
        mma(s[0], q[d], b[0], b[1], T());
        mma(s[1], q[d], b[2], b[3], T());
      }
      float w[4];  // of tokens 2c, 2c + 1, 2c + 8, 2c + 9
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const bool there = mask >> (2 * c + (t & 1) + (t >> 1) * 8) & 1;
        w[t] = there ? (s[t >> 1][t & 1] + s[t >> 1][(t & 1) + 2]) * scale : -INFINITY;
      }
      float most = fmaxf(fmaxf(w[0], w[1]), fmaxf(w[2], w[3]));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      if (mask == 0) continue;  // the same for the whole warp
      const float now = fmaxf(top, most), shrink = exp2f(top - now);
      if (__any_sync(~0u, now != top)) {
        total *= shrink;
#pragma unroll
        for (int n = 0; n < DIM / 8; ++n)
#pragma unroll
          for (int x = 0; x < 4; ++x) o[n][x] *= shrink;
      }
      top = now;
#pragma unroll
      for (int t = 0; t < 4; ++t) w[t] = exp2f(w[t] - now);
      total += (w[0] + w[1]) + (w[2] + w[3]);
      uint32_t a[4];
      pieces<T>(w[0], w[1], a[0], a[1]);
      pieces<T>(w[2], w[3], a[2], a[3]);
      const int v_row = lane & 15, v_chunk = lane >> 4;
      const uint32_t values = stage + S::kPlaneBytes + v_row * S::kRowBytes;
#pragma unroll
      for (int n = 0; n < DIM / 16; ++n) {
        uint32_t b[4];
        load_matrices<true>(b, values + ((2 * n + v_chunk) ^ (v_row & 7)) * 16);
        mma(o[2 * n], a, b[0], b[1], T());
        mma(o[2 * n + 1], a, b[2], b[3], T());
      }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncwarp();
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    float* result = reinterpret_cast<float*>(ring);  // [8 heads, DIM], then top and total of each head
#pragma unroll
    for (int n = 0; n < DIM / 8; ++n) {
      const float2 both{o[n][0] + o[n][2], o[n][1] + o[n][3]};
      *reinterpret_cast<float2*>(result + g * DIM + n * 8 + 2 * c) = both;
    }
    if (c == 0) result[kHeads * DIM + g] = top, result[kHeads * DIM + kHeads + g] = total;
    __syncthreads();

    const int64_t part = int64_t(entry) * p.max_splits + split_at;
    for (int x = threadIdx.x * 4; x < kHeads * DIM; x += kWarps * 32 * 4) {
      const int h = x / DIM;
      const float* results = reinterpret_cast<const float*>(shared);
      float most = -INFINITY;
      for (int w = 0; w < kWarps; ++w) most = fmaxf(most, results[w * (S::kRing / 4) + kHeads * DIM + h]);
      float sum = 0;
      float4 acc{0, 0, 0, 0};
      for (int w = 0; w < kWarps; ++w) {
        const float* from = results + w * (S::kRing / 4);
        const float its = from[kHeads * DIM + h], f = its == -INFINITY ? 0.f : exp2f(its - most);
        const float4 value = *reinterpret_cast<const float4*>(from + x);
        sum += f * from[kHeads * DIM + kHeads + h];
        acc.x += f * value.x, acc.y += f * value.y, acc.z += f * value.z, acc.w += f * value.w;
      }
      const float inverse = sum > 0 ? 1 / sum : 0;
      acc.x *= inverse, acc.y *= inverse, acc.z *= inverse, acc.w *= inverse;
      *reinterpret_cast<float4*>(p.part_out + part * kHeads * DIM + x) = acc;
      if (x % DIM == 0) p.part_lse[part * kHeads + h] = sum > 0 ? most * kLn2 + logf(sum) : -INFINITY;
    }
    __syncthreads();
  }
}

// One warp per query head, four a block: few enough registers that blocks wait beside those of decode_kernel
// and begin as soon as it ends. Splits in ascending order, then the present's tokens.
template <int DIM>
__global__ __launch_bounds__(kMergeHeads * 32) void merge_kernel(const __grid_constant__ DecodeParams p) {
  constexpr int kOwn = DIM / 32;
  const int slices = (p.group + kHeads - 1) / kHeads;
  const int entry = blockIdx.x / (kHeads / kMergeHeads);
  const int lane = threadIdx.x % 32, h = blockIdx.x % (kHeads / kMergeHeads) * kMergeHeads + threadIdx.x / 32;
  // The tables were complete before decode_kernel, which lets this one start only after its own wait: they
  // may be read ahead of pdl_wait, and so may q and the present. A block that has nothing to do must still
  // not end before it.
  if (entry >= *p.n * p.kv_heads * slices) return pdl_wait();
  const int row = entry_row(p, entry, slices), head = entry / slices % p.kv_heads;
  const int in_group = entry % slices * kHeads + h;
  const int q_head = head * p.group + in_group, token = p.q_start[row], splits = splits_of(p, row, head);
  float q[kOwn], first_k[kOwn], first_v[kOwn];
  int from = 0;
  if (p.new_k && in_group < p.group) {
    from = p.kv_from[row];
    const int64_t at = from * p.new_token + head * p.new_head + lane * kOwn;
#pragma unroll
    for (int d = 0; d < kOwn; ++d) {
      q[d] = p.q[token * p.q_token + q_head * p.q_head + lane * kOwn + d];
      first_k[d] = p.new_k[at + d], first_v[d] = p.new_v[at + d];
    }
  }
  pdl_wait();
  pdl_release();
  if (in_group >= p.group) return;
  const float* lse = p.part_lse + int64_t(entry) * p.max_splits * kHeads + h;
  const float* out = p.part_out + (int64_t(entry) * p.max_splits * kHeads + h) * DIM + lane * kOwn;
  float top = -INFINITY;
  for (int s = lane; s < splits; s += 32) top = fmaxf(top, lse[int64_t(s) * kHeads]);
  for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
  float total = 0, acc[kOwn] = {};
  using Own = std::conditional_t<kOwn == 4, float4, float2>;
  for (int base = 0; base < splits && top != -INFINITY; base += 32) {
    const float mine = base + lane < splits ? exp2f((lse[int64_t(base + lane) * kHeads] - top) * kLog2e) : 0;
    Own part[32];  // all 32 loads under way at once
#pragma unroll
    for (int s = 0; s < 32; ++s)
      part[s] =
          base + s < splits ? *reinterpret_cast<const Own*>(out + int64_t(base + s) * kHeads * DIM) : Own{};
#pragma unroll
    for (int s = 0; s < 32; ++s) {
      const float f = __shfl_sync(~0u, mine, s);
      total += f;
#pragma unroll
      for (int d = 0; d < kOwn; ++d) acc[d] += f * reinterpret_cast<const float*>(&part[s])[d];
    }
  }
  for (int j = from; p.new_k && j <= token; ++j) {
    const int64_t at = j * p.new_token + head * p.new_head + lane * kOwn;
    float dot = 0;
#pragma unroll
    for (int d = 0; d < kOwn; ++d) dot += q[d] * (j == from ? first_k[d] : p.new_k[at + d]);
    for (int d = 16; d > 0; d /= 2) dot += __shfl_xor_sync(~0u, dot, d);
    const float s = dot * p.scale, now = fmaxf(top, s);
    const float shrink = exp2f((top - now) * kLog2e), f = exp2f((s - now) * kLog2e);
    total = total * shrink + f, top = now;
#pragma unroll
    for (int d = 0; d < kOwn; ++d) acc[d] = acc[d] * shrink + f * (j == from ? first_v[d] : p.new_v[at + d]);
  }
  const float inverse = total > 0 ? 1 / total : 0;
  for (int d = 0; d < kOwn; ++d)
    p.out[token * p.out_token + q_head * p.out_head + lane * kOwn + d] = acc[d] * inverse;
  if (lane == 0) p.lse[token * p.lse_token + q_head * p.lse_head] = total > 0 ? top + logf(total) : -INFINITY;
}

// The rings, then one number per entry.
template <typename T, int DIM>
int64_t shared_bytes(int64_t entries) {
  return kWarps * Shape<T, DIM>::kRing + (entries * 4 + 1023) / 1024 * 1024;
}
constexpr int kUsualEntries = 1024, kMostEntries = 8192;

[[noreturn]] void too_many(int entries) {
  std::fprintf(stderr, "decode attention: %d rows x KV heads: expected at most %d\n", entries, kMostEntries);
  std::abort();
}

template <typename T, int DIM>
int grid_of() {
  const int bytes = int(shared_bytes<T, DIM>(kUsualEntries)), most = int(shared_bytes<T, DIM>(kMostEntries));
  SE_CUDA(cudaFuncSetAttribute(decode_kernel<T, DIM>, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
  int device = 0, processors = 0, blocks = 0;
  SE_CUDA(cudaGetDevice(&device));
  SE_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  SE_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks, decode_kernel<T, DIM>, kWarps * 32, size_t(bytes)));
  return processors * blocks;
}

template <typename T, int DIM>
void start(const DecodeParams& p, int grid, Stream& stream) {
  const int entries = p.cap * p.kv_heads * decode_slices(p.group);
  if (entries > kMostEntries) too_many(entries);
  launch(decode_kernel<T, DIM>,
         dim3(unsigned(grid)),
         kWarps * 32,
         shared_bytes<T, DIM>(entries),
         stream.get(),
         p);
  launch(merge_kernel<DIM>,
         dim3(unsigned(entries * (kHeads / kMergeHeads))),
         kMergeHeads * 32,
         0,
         stream.get(),
         p);
}

[[noreturn]] void unknown(int dim) {
  std::fprintf(stderr, "decode attention: %d channels a head: expected 64 or 128\n", dim);
  std::abort();
}

}  // namespace

int decode_grid(DecodeType type, int dim) {
  const bool bf = type == DecodeType::kBF16;
  if (dim == 128) return bf ? grid_of<__nv_bfloat16, 128>() : grid_of<__half, 128>();
  if (dim == 64) return bf ? grid_of<__nv_bfloat16, 64>() : grid_of<__half, 64>();
  unknown(dim);
}

void decode_attention(const DecodeParams& p, DecodeType type, int dim, int grid, Stream& stream) {
  const bool bf = type == DecodeType::kBF16;
  if (dim == 128)
    return bf ? start<__nv_bfloat16, 128>(p, grid, stream) : start<__half, 128>(p, grid, stream);
  if (dim == 64) return bf ? start<__nv_bfloat16, 64>(p, grid, stream) : start<__half, 64>(p, grid, stream);
  unknown(dim);
}

}  // namespace se::cuda
