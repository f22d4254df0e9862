// What a decode launch works on, and how results come together; shared by the formats of
// decode_kernel_cuda.cuh.
//
// entry = (listed row, KV head, slice of 8 query heads); item = (entry, split), at least one per entry. The
// last split takes in the present's tokens. When a block is done with its items it merges the splits of some
// heads, in an order that their number sets: which block that is does not show in the result.
#pragma once
#include "device/cuda/hopper.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "kernels/attention/decode_params_cuda.h"
#include "kernels/attention/parts_cuda.cuh"

namespace se::cuda::decode {

constexpr int kHeads = 8;
constexpr int kAtOnce = 8;  // splits that a merging warp asks for together

// 2^x to 2 ulp; -inf gives 0.

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
  int32_t row, count, split, token, from;  // from: the first token of the present that it sees
  int16_t head, slice;
};

// Entry e: listed row, then KV head, then slice. `by_row` divides by the entries of a row: 2^20 over them,
// rounded up, which is exact for the entries and heads that a launch may have.
struct Entries {
  int slices, heads, all;
  uint32_t by_row;
  __device__ __forceinline__ int listed(int e) const { return int(uint32_t(e) * by_row >> 20); }
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
          p.kv_from[row],
          int16_t(head),
          int16_t(slice)};
}
__device__ __forceinline__ Entry read_entry(const DecodeParams& p, const Entries& x, int row, int e) {
  const int head = x.head(e);
  return read_entry(p, row, head, x.in_row(e) - head * x.slices);
}

// What count_items needs of the tables, asked for all at once: the list, its length, and the row that a list
// in order would name.
struct FirstRead {
  Entry guess;
  int guess_row, row, rows;
};

__device__ __forceinline__ FirstRead read_first(const DecodeParams& p, const Entries& x) {
  const int mine = min(int(threadIdx.x), p.cap * x.heads * x.slices - 1), listed = x.listed(mine);
  const int row = min(listed, p.rows - 1);
  return {read_entry(p, x, row, mine), row, p.ids[listed], *p.n};
}

// Inclusive prefix sums of the items of all entries into `prefix`, the first `keeps` entries into `kept`; all
// threads of the block. Sets x.all.
template <int kWarps>
__device__ void count_items(const DecodeParams& p,
                            Entries& x,
                            const FirstRead& read,
                            int* prefix,
                            Entry* kept,
                            int keeps,
                            int* carry) {
  int row = read.row;
  const int entries = x.all = read.rows * x.heads * x.slices;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int base = 0;
  for (int first = 0; first < entries; first += kWarps * 32) {
    const int e = first + threadIdx.x;
    int sum = 0;
    if (e < entries) {
      if (first > 0) row = p.ids[x.listed(e)];
      const Entry entry = first == 0 && row == read.guess_row ? read.guess : read_entry(p, x, row, e);
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

__device__ __forceinline__ Item item_of(const DecodeParams& p,
                                        const Entries& x,
                                        int entry,
                                        int split_at,
                                        int splits,
                                        const Entry* kept,
                                        int keeps) {
  Item it;
  it.entry = entry, it.split_at = split_at, it.splits = splits;
  it.of = entry < keeps ? kept[entry] : read_entry(p, x, p.ids[x.listed(entry)], entry);
  it.head = it.of.head, it.q_head = it.head * p.group + it.of.slice * kHeads;
  it.heads = min(kHeads, p.group - it.of.slice * kHeads);
  return it;
}

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
  const int before = low == 0 ? 0 : prefix[low - 1];
  return item_of(p, x, low, item - before, prefix[low] - before, kept, keeps);
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

__device__ __forceinline__ void scale_by(State& s, float f) {
  s.total *= f, s.acc.x *= f, s.acc.y *= f, s.acc.z *= f, s.acc.w *= f;
}

__device__ __forceinline__ float4 load4(const float* p) { return *reinterpret_cast<const float4*>(p); }

// Sums of the 8 heads as a warp leaves them in shared memory: [8 heads, DIM] with a pitch, then top and total
// of each head.
template <int DIM>
struct Sums {
  static constexpr int kPitch = DIM + 4, kTop = kHeads * kPitch, kTotal = kTop + kHeads;
  static constexpr int kFloats = kTotal + kHeads;
};

// A share of the sums of the 8 heads: four channels of one, from number `at` on. Threads take those that
// are kWarps * 128 apart, whole warps at a time.
template <int DIM>
struct Share {
  int at, head = at / DIM, channel = at % DIM;
  template <int kWarps, typename Do>
  static __device__ __forceinline__ void each(const Do& go) {
#pragma unroll 1
    for (int at = threadIdx.x * 4; at < kHeads * DIM; at += kWarps * 128) go(Share{at});
  }
};

// The present's first token, which the last split takes in: scores of all heads and values, worked out before
// the split is.
template <int DIM>
struct PresentToken {
  alignas(16) float v[DIM];
  float scores[kHeads];
};

// q k in base 2; DIM / 4 lanes a head.
template <int DIM>
__device__ __forceinline__ float present_score(const DecodeParams& p, const float4& q, const float4& k) {
  float dot = q.x * k.x + q.y * k.y + q.z * k.z + q.w * k.w;
  for (int d = DIM / 8; d > 0; d /= 2) dot += __shfl_xor_sync(~0u, dot, d);
  return dot * p.scale * kLog2e;
}

template <int DIM>
__device__ __forceinline__ const float* query_of(const DecodeParams& p,
                                                 const Item& it,
                                                 const Share<DIM>& own) {
  return p.q + it.of.token * p.q_token + (it.q_head + min(own.head, it.heads - 1)) * p.q_head + own.channel;
}

template <int DIM, int kWarps>
__device__ __forceinline__ void read_present(const DecodeParams& p, const Item& it, PresentToken<DIM>& to) {
  if (!p.new_k || it.split_at != it.splits - 1) return;
  Share<DIM>::template each<kWarps>([&](const Share<DIM>& own) {
    const int64_t at = min(it.of.from, it.of.token) * p.new_token + it.head * p.new_head + own.channel;
    const float4 q = load4(query_of(p, it, own)), k = load4(p.new_k + at), v = load4(p.new_v + at);
    const float score = present_score<DIM>(p, q, k);
    if (own.channel == 0) to.scores[own.head] = score;
    if (own.head == 0) *reinterpret_cast<float4*>(to.v + own.channel) = v;
  });
}

// Takes the present's tokens into the sums of this thread's share.
template <int DIM>
__device__ __forceinline__ void take_present(
    const DecodeParams& p, const Item& it, const PresentToken<DIM>& first, const Share<DIM>& own, State& s) {
  if (!p.new_k || it.split_at != it.splits - 1) return;
  if (it.of.from > it.of.token) return;
  absorb(s, first.scores[own.head], 1, load4(first.v + own.channel));
  for (int j = it.of.from + 1; j <= it.of.token; ++j) {
    const int64_t at = j * p.new_token + it.head * p.new_head + own.channel;
    const float4 q = load4(query_of(p, it, own)), k = load4(p.new_k + at), v = load4(p.new_v + at);
    absorb(s, present_score<DIM>(p, q, k), 1, v);
  }
}

// Approximate division and logarithm (2 ulp, 2^-22): their exact ones are long, and the code that runs once,
// at the end, comes from memory while nothing else is left to do.
__device__ __forceinline__ void write_result(
    const DecodeParams& p, const Item& it, State s, int h, int channel) {
  if (h >= it.heads) return;
  const float inverse = s.total > 0 ? __fdividef(1, s.total) : 0;
  s.acc.x *= inverse, s.acc.y *= inverse, s.acc.z *= inverse, s.acc.w *= inverse;
  const int64_t at = it.of.token * p.out_token + int64_t(it.q_head + h) * p.out_head + channel;
  if (p.out) *reinterpret_cast<float4*>(p.out + at) = s.acc;
  if (p.out16)
    *reinterpret_cast<uint2*>(p.out16 + at) = {pack(s.acc.x, s.acc.y, __half()),
                                               pack(s.acc.z, s.acc.w, __half())};
  if (p.lse && channel == 0)
    p.lse[it.of.token * p.lse_token + (it.q_head + h) * p.lse_head] =
        s.total > 0 ? (s.top + __log2f(s.total)) * kLn2 : -INFINITY;
}

// Of a part (parts_cuda.cuh), one split's sums of an entry: as it is now; then whether all of it is there.
__device__ __forceinline__ void look_at(const float* at, uint4& x) {
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(at)
               : "memory");
}
__device__ __forceinline__ void look_at(const float* at, uint2& x) {
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(at) : "memory");
}
__device__ __forceinline__ bool is_there(const uint4& x, const uint2& y) {
  return x.x != kNotYet && x.y != kNotYet && x.z != kNotYet && x.w != kNotYet && y.x != kNotYet &&
         y.y != kNotYet;
}
__device__ __forceinline__ void forget_part(float* sums, float* top, bool mine) {
  if (mine) *reinterpret_cast<uint4*>(sums) = {kNotYet, kNotYet, kNotYet, kNotYet};
  if (threadIdx.x % 32 == 0) *reinterpret_cast<uint2*>(top) = {kNotYet, kNotYet};
}

// This thread's share of the sums over the warps of the block, in their order.
template <int DIM, int kWarps>
__device__ __forceinline__ State add_warps(const float (&results)[kWarps][Sums<DIM>::kFloats],
                                           const Share<DIM>& own) {
  using R = Sums<DIM>;
  State s;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) s.top = fmaxf(s.top, results[w][R::kTop + own.head]);
  if (s.top == -INFINITY) return s;
#pragma unroll 4
  for (int w = 0; w < kWarps; ++w) {
    const float f = power2(results[w][R::kTop + own.head] - s.top);
    const float4 value = load4(results[w] + own.head * R::kPitch + own.channel);
    s.total += f * results[w][R::kTotal + own.head];
    s.acc.x += f * value.x, s.acc.y += f * value.y, s.acc.z += f * value.z, s.acc.w += f * value.w;
  }
  return s;
}

// The end of an item: each warp's sums lie in `results`. All kWarps * 32 threads, which meet at barrier 1.
template <int DIM, int kWarps>
__device__ __forceinline__ void finish_item(const DecodeParams& p,
                                            const Item& it,
                                            const PresentToken<DIM>& present,
                                            float (&results)[kWarps][Sums<DIM>::kFloats]) {
  named_sync(1, kWarps * 32);
  Share<DIM>::template each<kWarps>([&](const Share<DIM>& own) {
    State s = add_warps<DIM, kWarps>(results, own);
    take_present(p, it, present, own, s);
    if (it.splits == 1) return write_result(p, it, s, own.head, own.channel);
    if (own.head >= it.heads) return;
    const int64_t part = int64_t(it.entry) * p.max_splits + it.split_at;
    put_part(p.part_out + part * kHeads * DIM + own.at, s.acc);
    if (own.channel == 0) put_part(p.part_lse + (part * kHeads + own.head) * 2, float2{s.top, s.total});
  });
  named_sync(1, kWarps * 32);
}

// Adds up the splits from, from + step, .. of a head's `splits`, as they come; a warp. Lanes hold four
// channels each (`mine`).
template <int DIM>
__device__ __forceinline__ State
add_splits(float* part, float* state, bool mine, int from, int step, int splits) {
  State s;
#pragma unroll 1
  for (; from < splits; from += step * kAtOnce) {
    uint4 sums[kAtOnce];
    uint2 tops[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) sums[i] = {0, 0, 0, 0}, tops[i] = {__float_as_uint(-INFINITY), 0};
    for (bool all = false; !all;) {  // asks for all of them at once, again and again
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int split = from + i * step;
        if (split >= splits) continue;
        if (mine) look_at(part + split * kHeads * DIM, sums[i]);
        look_at(state + split * kHeads * 2, tops[i]);
      }
      all = true;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) all = all && is_there(sums[i], tops[i]);
    }
    float now = s.top;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) now = fmaxf(now, __uint_as_float(tops[i].x));
    __syncwarp();  // all lanes have seen the tops
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int split = from + i * step;
      if (split < splits) forget_part(part + split * kHeads * DIM, state + split * kHeads * 2, mine);
    }
    const float base = now == -INFINITY ? 0 : now;
    scale_by(s, power2(s.top - base)), s.top = now;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float f = power2(__uint_as_float(tops[i].x) - base);
      s.total += f * __uint_as_float(tops[i].y);
      s.acc.x += f * __uint_as_float(sums[i].x), s.acc.y += f * __uint_as_float(sums[i].y);
      s.acc.z += f * __uint_as_float(sums[i].z), s.acc.w += f * __uint_as_float(sums[i].w);
    }
  }
  return s;
}

// Merges entries when a block is done with its items. All blocks are on the device at once, so all parts will
// come. A few splits: a block takes an entry, a warp a head. More of them: a block takes a head, whose splits
// its warps share; then the first warp adds up the warps.
template <int DIM, int kWarps>
__device__ __forceinline__ void merge_splits(const DecodeParams& p,
                                             const Entries& x,
                                             const int* prefix,
                                             const Entry* kept,
                                             int keeps,
                                             float (&results)[kWarps][Sums<DIM>::kFloats]) {
  static_assert(kWarps == kHeads);
  using R = Sums<DIM>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const bool mine = lane * 4 < DIM;
  int turn = 0;  // of two places for the warps' sums
#pragma unroll 1
  for (int unit = blockIdx.x; unit < x.all * kHeads; unit += gridDim.x) {
    const int e = unit / kHeads;
    const int before = e == 0 ? 0 : prefix[e - 1], splits = prefix[e] - before;
    const bool few = splits <= kAtOnce;
    if (splits == 1 || (few && unit % kHeads != 0)) continue;
    const Item it = item_of(p, x, e, before, splits, kept, keeps);
    const int head = few ? warp : unit % kHeads;
    if (head >= it.heads) continue;
    const int64_t first = int64_t(e) * p.max_splits * kHeads + head;
    State s = add_splits<DIM>(p.part_out + first * DIM + lane * 4,
                              p.part_lse + first * 2,
                              mine,
                              few ? 0 : warp,
                              few ? 1 : kWarps,
                              splits);
    if (!few) {
      float* own = results[warp];
      if (mine) *reinterpret_cast<float4*>(own + turn * R::kPitch + lane * 4) = s.acc;
      if (lane == 0) own[R::kTop + turn] = s.top, own[R::kTotal + turn] = s.total;
      named_sync(1, kWarps * 32);
      if (warp == 0 && mine) s = add_warps<DIM, kWarps>(results, Share<DIM>{turn * DIM + lane * 4});
      turn ^= 1;
      if (warp > 0) continue;
    }
    if (mine) write_result(p, it, s, head, lane * 4);
  }
}

}  // namespace se::cuda::decode
