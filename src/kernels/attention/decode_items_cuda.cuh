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

// 2^x to 2 ulp; -inf gives 0.
__device__ __forceinline__ float power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ int table_row(const DecodeParams& p, int row, int head) {
  return p.row_heads == 1 ? row : row * p.kv_heads + head;
}
__device__ __forceinline__ int splits_of(const DecodeParams& p, int count, int split) {
  return int(((unsigned(count) << p.unit_shift) + unsigned(split) - 1) / unsigned(split));
}

// What an item needs of its entry. Kept in shared memory for the first `keeps` entries: the chain of
// dependent reads at the start of an item is what short rows wait for.
struct Entry {
  int64_t start, offset;
  int32_t row, count, split, token;
  int16_t head, slice;
};

// Entry e: listed row, then KV head, then slice.
struct Entries {
  int slices, heads, all;
  __device__ __forceinline__ int listed(int e) const { return e / (slices * heads); }
  __device__ __forceinline__ int in_row(int e) const { return e - listed(e) * slices * heads; }
  __device__ __forceinline__ int head(int e) const { return slices == 1 ? in_row(e) : in_row(e) / slices; }
};

__device__ __forceinline__ Entry read_entry(const DecodeParams& p, int row, int head, int slice) {
  const int r = table_row(p, row, head);
  return {p.start[r],
          p.offset ? p.offset[r] : 0,
          row,
          p.counts[r],
          p.split[row],
          p.q_start[row],
          int16_t(head),
          int16_t(slice)};
}
__device__ __forceinline__ Entry read_entry(const DecodeParams& p, const Entries& x, int row, int e) {
  const int head = x.head(e);
  return read_entry(p, row, head, x.in_row(e) - head * x.slices);
}

// Inclusive prefix sums of the items of all entries into `prefix`, the first `keeps` entries into `kept`; all
// threads of the block. Sets x.all. The list, its length and the tables of the row that a list in order would
// name are read together.
template <int kWarps>
__device__ void count_items(
    const DecodeParams& p, Entries& x, int* prefix, Entry* kept, int keeps, int* carry) {
  const int most = p.cap * x.heads * x.slices, mine = min(int(threadIdx.x), most - 1);
  const int listed = x.listed(mine), guess_row = min(listed, p.rows - 1);
  const Entry guess = read_entry(p, x, guess_row, mine);
  int row = p.ids[listed];
  const int entries = x.all = *p.n * x.heads * x.slices;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int base = 0;
  for (int first = 0; first < entries; first += kWarps * 32) {
    const int e = first + threadIdx.x;
    int sum = 0;
    if (e < entries) {
      if (first > 0) row = p.ids[x.listed(e)];
      const Entry entry = first == 0 && row == guess_row ? guess : read_entry(p, x, row, e);
      if (e < keeps) kept[e] = entry;
      sum = max(1, splits_of(p, entry.count, entry.split));
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
}

struct Item {
  int entry, split_at, splits;  // splits: items of the entry
  int head, q_head, heads;      // heads: query heads of the slice, from q_head on
  Entry of;
};

__device__ __forceinline__ Item find_item(
    const DecodeParams& p, const Entries& x, int item, const int* prefix, const Entry* kept, int keeps) {
  int low = 0;
  for (int high = x.all - 1; low < high;) {  // the first entry whose prefix exceeds item
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
  it.of = low < keeps ? kept[low] : read_entry(p, x, p.ids[x.listed(low)], low);
  it.head = it.of.head, it.q_head = it.head * p.group + it.of.slice * kHeads;
  it.heads = min(kHeads, p.group - it.of.slice * kHeads);
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
  const float old = power2(s.top - now), f = power2(top - now);
  s.total = s.total * old + f * total, s.top = now;
  s.acc.x = s.acc.x * old + f * acc.x, s.acc.y = s.acc.y * old + f * acc.y;
  s.acc.z = s.acc.z * old + f * acc.z, s.acc.w = s.acc.w * old + f * acc.w;
}

__device__ __forceinline__ float4 load4(const float* p) { return *reinterpret_cast<const float4*>(p); }

// A thread's share of the 8 heads' sums: four channels of head x / DIM, and of every head kWarps * 128 floats
// on.
template <int DIM, int kWarps>
struct Share {
  static constexpr int kStep = kWarps * 128, kParts = (kHeads * DIM + kStep - 1) / kStep;
  static __device__ __forceinline__ int at(int part) { return threadIdx.x * 4 + part * kStep; }
  static __device__ __forceinline__ bool there(int part) {
    return at(part) < kHeads * DIM;
  }  // a whole warp's
  static __device__ __forceinline__ int head(int part) { return at(part) / DIM; }
  static __device__ __forceinline__ int channel() { return threadIdx.x * 4 % DIM; }
  static_assert(kStep % DIM == 0);
};

// What a thread needs of the present, which the last split takes in: read before the split is worked on.
template <int kParts>
struct PresentShare {
  float4 q[kParts], k, v;
  int from;
};

template <int DIM, int kWarps>
__device__ __forceinline__ auto read_present(const DecodeParams& p, const Item& it) {
  using S = Share<DIM, kWarps>;
  PresentShare<S::kParts> r{};
  r.from = it.of.token + 1;
  if (!p.new_k || it.split_at != it.splits - 1 || !S::there(0)) return r;
  r.from = p.kv_from[it.of.row];
  const int64_t at = r.from * p.new_token + it.head * p.new_head + S::channel();
#pragma unroll
  for (int i = 0; i < S::kParts; ++i)
    r.q[i] = load4(p.q + it.of.token * p.q_token + (it.q_head + min(S::head(i), it.heads - 1)) * p.q_head +
                   S::channel());
  r.k = load4(p.new_k + at), r.v = load4(p.new_v + at);
  return r;
}

// Takes the present's tokens into the sums of one query head; DIM / 4 lanes a head.
template <int DIM, int kParts>
__device__ __forceinline__ void take_present(const DecodeParams& p,
                                             const Item& it,
                                             const PresentShare<kParts>& x,
                                             const float4& q,
                                             State& s,
                                             int channel) {
  for (int j = x.from; j <= it.of.token; ++j) {
    float4 k = x.k, v = x.v;
    if (j > x.from) {
      const int64_t at = j * p.new_token + it.head * p.new_head + channel;
      k = load4(p.new_k + at), v = load4(p.new_v + at);
    }
    float dot = q.x * k.x + q.y * k.y + q.z * k.z + q.w * k.w;
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

// The sums of one head over the warps of the block.
template <int DIM, int kWarps>
__device__ __forceinline__ State add_warps(const float* results, int stride, int x) {
  const int h = x / DIM;
  State s;
  for (int w = 0; w < kWarps; ++w) s.top = fmaxf(s.top, results[w * stride + kHeads * DIM + h]);
  for (int w = 0; w < kWarps && s.top != -INFINITY; ++w) {
    const float* from = results + w * stride;
    const float f = power2(from[kHeads * DIM + h] - s.top);
    const float4 value = load4(from + x);
    s.total += f * from[kHeads * DIM + kHeads + h];
    s.acc.x += f * value.x, s.acc.y += f * value.y, s.acc.z += f * value.z, s.acc.w += f * value.w;
  }
  return s;
}

// The sums of one head over the splits of an entry, in ascending order, all loads of 16 under way at once.
template <int DIM>
__device__ __forceinline__ State add_splits(const DecodeParams& p, const Item& it, int x) {
  constexpr int kBatch = 16;
  const int64_t first = int64_t(it.entry) * p.max_splits;
  const int lane = threadIdx.x % kBatch;
  const float* part = p.part_out + first * kHeads * DIM + x;
  const float2* state = reinterpret_cast<const float2*>(p.part_lse) + first * kHeads + x / DIM;
  State all;
  for (int base = 0; base < it.splits; base += kBatch) {
    float4 value[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      value[i] = base + i < it.splits
                     ? __ldcg(reinterpret_cast<const float4*>(part + int64_t(base + i) * kHeads * DIM))
                     : float4{0, 0, 0, 0};
    const float2 own =
        base + lane < it.splits ? __ldcg(state + (base + lane) * kHeads) : float2{-INFINITY, 0};
    float top = own.x;
    for (int d = kBatch / 2; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    const float weight = top == -INFINITY ? 0 : power2(own.x - top), share = weight * own.y;
    State batch;
    batch.top = top;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float f = __shfl_sync(~0u, weight, i, kBatch);
      batch.total += __shfl_sync(~0u, share, i, kBatch);
      batch.acc.x += f * value[i].x, batch.acc.y += f * value[i].y;
      batch.acc.z += f * value[i].z, batch.acc.w += f * value[i].w;
    }
    absorb(all, batch.top, batch.total, batch.acc);
  }
  return all;
}

// The end of an item: `results` holds each warp's sums [8 heads, DIM], then top and total of each head, every
// `stride` floats. All threads of the block.
template <int DIM, int kWarps, int kParts>
__device__ void finish_item(const DecodeParams& p,
                            const Item& it,
                            const PresentShare<kParts>& present,
                            const float* results,
                            int stride) {
  using S = Share<DIM, kWarps>;
  __shared__ bool last_one;
  const int64_t first = int64_t(it.entry) * p.max_splits + it.split_at;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    if (!S::there(i)) continue;
    State s = add_warps<DIM, kWarps>(results, stride, S::at(i));
    take_present<DIM>(p, it, present, present.q[i], s, S::channel());
    if (it.splits == 1) {
      write_result(p, it, s, S::head(i), S::channel());
      continue;
    }
    __stcg(reinterpret_cast<float4*>(p.part_out + first * kHeads * DIM + S::at(i)), s.acc);
    if (S::channel() == 0)
      __stcg(reinterpret_cast<float2*>(p.part_lse) + first * kHeads + S::head(i), float2{s.top, s.total});
  }
  __syncthreads();
  if (it.splits == 1) return;
  if (threadIdx.x == 0) last_one = count_split(p.ready + it.entry, it.splits);
  __syncthreads();
  if (!last_one) return;
#pragma unroll
  for (int i = 0; i < kParts; ++i)
    if (S::there(i)) write_result(p, it, add_splits<DIM>(p, it, S::at(i)), S::head(i), S::channel());
}

}  // namespace se::cuda::decode
