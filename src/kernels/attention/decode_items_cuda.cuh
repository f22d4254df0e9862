// What a decode launch works on, and how results come together; shared by the formats of
// decode_kernel_cuda.cuh.
//
// entry = (listed row, KV head, slice of 8 query heads); item = (entry, split), at least one per entry. The
// block that finishes the last split of an entry merges them, in ascending order, with the present's tokens
// last: which block that is does not show in the result.
#pragma once
#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "kernels/attention/decode_params_cuda.h"

namespace se::cuda::decode {

constexpr int kHeads = 8;

__device__ __forceinline__ int entry_row(const DecodeParams& p, int entry, int slices) {
  return p.ids[entry / slices / p.kv_heads];
}
__device__ __forceinline__ int table_row(const DecodeParams& p, int row, int head) {
  return p.row_heads == 1 ? row : row * p.kv_heads + head;
}
__device__ __forceinline__ int splits_of(const DecodeParams& p, int count, int split) {
  const int64_t places = int64_t(count) << p.unit_shift;
  return int((places + split - 1) / split);
}

// What an item needs of its entry. Kept in shared memory for the first kKept entries: the chain of dependent
// reads at the start of an item is what short rows wait for.
struct Entry {
  int64_t start, offset;
  int32_t row, count, split, token;
};
constexpr int kKept = 512;

__device__ __forceinline__ Entry read_entry(const DecodeParams& p, int row, int head) {
  const int r = table_row(p, row, head);
  return {p.start[r], p.offset ? p.offset[r] : 0, row, p.counts[r], p.split[row], p.q_start[row]};
}
__device__ __forceinline__ int head_of(const DecodeParams& p, int entry, int slices) {
  return entry / slices % p.kv_heads;
}

// Inclusive prefix sums of the items of all entries into `prefix`, their first kKept into `kept`; all threads
// of the block. Returns the number of entries. The list, its length and the tables of the row that a list in
// order would name are read together.
template <int kWarps>
__device__ int count_items(const DecodeParams& p, int slices, int* prefix, Entry* kept, int* carry) {
  const int guess_row = min(int(threadIdx.x) / slices / p.kv_heads, min(p.cap, p.rows) - 1);
  const Entry guess = read_entry(p, guess_row, head_of(p, threadIdx.x, slices));
  int row = entry_row(p, min(int(threadIdx.x), p.cap * p.kv_heads * slices - 1), slices);
  const int entries = *p.n * p.kv_heads * slices;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int base = 0;
  for (int first = 0; first < entries; first += kWarps * 32) {
    const int e = first + threadIdx.x;
    int sum = 0;
    if (e < entries) {
      if (first > 0) row = entry_row(p, e, slices);
      const Entry x = first == 0 && row == guess_row ? guess : read_entry(p, row, head_of(p, e, slices));
      if (e < kKept) kept[e] = x;
      sum = max(1, splits_of(p, x.count, x.split));
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

struct Item {
  int entry, split_at, splits;  // splits: items of the entry
  int head, q_head, heads;      // heads: query heads of the slice, from q_head on
  Entry of;
};

__device__ __forceinline__ Item
find_item(const DecodeParams& p, int item, int entries, int slices, const int* prefix, const Entry* kept) {
  int low = 0;
  for (int high = entries - 1; low < high;) {  // the first entry whose prefix exceeds item
    const int middle = (low + high) / 2;
    if (prefix[middle] > item)
      high = middle;
    else
      low = middle + 1;
  }
  Item it;
  it.entry = low;
  const int before = low == 0 ? 0 : prefix[low - 1];
  it.split_at = item - before, it.splits = prefix[low] - before;
  it.head = head_of(p, low, slices);
  it.of = low < kKept ? kept[low] : read_entry(p, entry_row(p, low, slices), it.head);
  it.q_head = it.head * p.group + low % slices * kHeads;
  it.heads = min(kHeads, p.group - low % slices * kHeads);
  return it;
}

// A softmax under way: top in base 2, the sum of weights, the weighted sum of four channels.
struct State {
  float top = -INFINITY, total = 0;
  float4 acc{0, 0, 0, 0};
};

__device__ __forceinline__ void absorb(State& s, float top, float total, const float4& acc) {
  const float now = fmaxf(s.top, top);
  if (now == -INFINITY) return;
  const float old = exp2f(s.top - now), f = exp2f(top - now);
  s.total = s.total * old + f * total, s.top = now;
  s.acc.x = s.acc.x * old + f * acc.x, s.acc.y = s.acc.y * old + f * acc.y;
  s.acc.z = s.acc.z * old + f * acc.z, s.acc.w = s.acc.w * old + f * acc.w;
}

__device__ __forceinline__ float4 load4(const float* p) { return *reinterpret_cast<const float4*>(p); }

// What a thread needs of the present, which the last split takes in: read before the split is worked on.
struct Present4 {
  float4 q, k, v;
  int from;
};

template <int DIM>
__device__ __forceinline__ Present4 read_present(const DecodeParams& p, const Item& it) {
  const int x = threadIdx.x * 4, h = x / DIM, channel = x % DIM;
  Present4 r{};
  r.from = it.of.token + 1;
  if (!p.new_k || it.split_at != it.splits - 1 || h >= kHeads) return r;
  r.from = p.kv_from[it.of.row];
  const int64_t at = r.from * p.new_token + it.head * p.new_head + channel;
  r.q = load4(p.q + it.of.token * p.q_token + (it.q_head + min(h, it.heads - 1)) * p.q_head + channel);
  r.k = load4(p.new_k + at), r.v = load4(p.new_v + at);
  return r;
}

// Takes the present's tokens into the sums of one query head; DIM / 4 lanes a head.
template <int DIM>
__device__ __forceinline__ void take_present(
    const DecodeParams& p, const Item& it, const Present4& x, State& s, int channel) {
  for (int j = x.from; j <= it.of.token; ++j) {
    float4 k = x.k, v = x.v;
    if (j > x.from) {
      const int64_t at = j * p.new_token + it.head * p.new_head + channel;
      k = load4(p.new_k + at), v = load4(p.new_v + at);
    }
    float dot = x.q.x * k.x + x.q.y * k.y + x.q.z * k.z + x.q.w * k.w;
    for (int d = DIM / 8; d > 0; d /= 2) dot += __shfl_xor_sync(~0u, dot, d);
    absorb(s, dot * p.scale * kLog2e, 1, v);
  }
}

__device__ __forceinline__ void write_result(
    const DecodeParams& p, const Item& it, State s, int h, int channel) {
  if (h >= it.heads) return;
  const float inverse = s.total > 0 ? 1 / s.total : 0;
  s.acc.x *= inverse, s.acc.y *= inverse, s.acc.z *= inverse, s.acc.w *= inverse;
  const int64_t at = it.of.token * p.out_token + int64_t(it.q_head + h) * p.out_head + channel;
  if (p.out) *reinterpret_cast<float4*>(p.out + at) = s.acc;
  if (p.out16)
    *reinterpret_cast<uint2*>(p.out16 + at) = {pack(s.acc.x, s.acc.y, __half()),
                                               pack(s.acc.z, s.acc.w, __half())};
  if (p.lse && channel == 0)
    p.lse[it.of.token * p.lse_token + (it.q_head + h) * p.lse_head] =
        s.total > 0 ? s.top * kLn2 + logf(s.total) : -INFINITY;
}

// One more finished split; whether it was the entry's last. By one thread, after a barrier behind all writes.
__device__ __forceinline__ bool count_split(int32_t* ready, int splits) {
  int before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(ready) : "memory");
  if (before == splits - 1) *ready = 0;
  return before == splits - 1;
}

// The end of an item: `results` holds each warp's sums [8 heads, DIM], then top and total of each head, every
// `stride` floats. All threads of the block.
template <int DIM, int kWarps>
__device__ void finish_item(
    const DecodeParams& p, const Item& it, const Present4& present, const float* results, int stride) {
  static_assert(kWarps * 32 * 4 >= kHeads * DIM, "one pass");
  constexpr int kLanes = DIM / 4;
  __shared__ bool last_one;
  const int x = threadIdx.x * 4, h = x / DIM, channel = x % DIM;
  const bool mine = x < kHeads * DIM;  // the same for a whole warp
  __syncthreads();
  State s;
  if (mine) {
    for (int w = 0; w < kWarps; ++w) s.top = fmaxf(s.top, results[w * stride + kHeads * DIM + h]);
    for (int w = 0; w < kWarps && s.top != -INFINITY; ++w) {
      const float* from = results + w * stride;
      const float f = exp2f(from[kHeads * DIM + h] - s.top);
      const float4 value = load4(from + x);
      s.total += f * from[kHeads * DIM + kHeads + h];
      s.acc.x += f * value.x, s.acc.y += f * value.y, s.acc.z += f * value.z, s.acc.w += f * value.w;
    }
    take_present<DIM>(p, it, present, s, channel);
  }
  if (it.splits == 1) {
    if (mine) write_result(p, it, s, h, channel);
    __syncthreads();
    return;
  }
  const int64_t first = int64_t(it.entry) * p.max_splits;
  if (mine) {
    __stcg(reinterpret_cast<float4*>(p.part_out + (first + it.split_at) * kHeads * DIM + x), s.acc);
    if (channel == 0)
      __stcg(reinterpret_cast<float2*>(p.part_lse) + (first + it.split_at) * kHeads + h,
             float2{s.top, s.total});
  }
  __syncthreads();
  if (threadIdx.x == 0) last_one = count_split(p.ready + it.entry, it.splits);
  __syncthreads();
  if (!last_one || !mine) return;
  const int lane = threadIdx.x % kLanes;
  const float* part = p.part_out + first * kHeads * DIM + x;
  const float2* state = reinterpret_cast<const float2*>(p.part_lse) + first * kHeads + h;
  State all;
  for (int base = 0; base < it.splits; base += kLanes) {
    float4 value[kLanes];  // all loads under way at once
#pragma unroll
    for (int i = 0; i < kLanes; ++i)
      value[i] = base + i < it.splits
                     ? __ldcg(reinterpret_cast<const float4*>(part + int64_t(base + i) * kHeads * DIM))
                     : float4{0, 0, 0, 0};
    const float2 own =
        base + lane < it.splits ? __ldcg(state + (base + lane) * kHeads) : float2{-INFINITY, 0};
    float top = own.x;
    for (int d = kLanes / 2; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    const float weight = top == -INFINITY ? 0 : exp2f(own.x - top), share = weight * own.y;
    State batch;
    batch.top = top;
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      const float f = __shfl_sync(~0u, weight, i, kLanes);
      batch.total += __shfl_sync(~0u, share, i, kLanes);
      batch.acc.x += f * value[i].x, batch.acc.y += f * value[i].y;
      batch.acc.z += f * value[i].z, batch.acc.w += f * value[i].w;
    }
    absorb(all, batch.top, batch.total, batch.acc);
  }
  write_result(p, it, all, h, channel);
}

}  // namespace se::cuda::decode
