// Dense prefill attention; what goes ahead of it, and the sum of its splits.
#include "kernels/attention/prefill_kernel_cuda.cuh"

namespace se::cuda {
namespace {

using namespace prefill;

// The splits of a listed row: those that any of its tokens and KV heads sees.
__device__ __forceinline__ PrefillItems items_of(const PrefillParams& p, int listed) {
  Work w;
  w.row = p.a.ids[listed], w.token = p.a.q_start[w.row], w.tokens = p.a.q_start[w.row + 1] - w.token;
  PrefillItems of{tiles_of(p.a, w.tokens) * p.a.kv_heads, 1, 0, 0};
  if (p.max_splits == 1 || w.tokens == 0) return of;
  const int length = split_tiles(p.a, w.row), last = w.token + w.tokens - 1;
  int least = 1 << 30, most = 0;
  for (w.head = 0; w.head < p.a.row_heads; ++w.head) {
    find_past(p, w);
    w.from = p.a.new_k ? p.a.kv_from[w.row] : last + 1;
    least = min(least, lowest_tile(p, w, w.token) / length);
    most = max(most, (w.past_tiles + (last - w.from + kTile) / kTile - 1) / length);
  }
  of.splits = max(1, most - least + 1), of.base = least;
  of.first *= of.splits;
  return of;
}

__device__ __forceinline__ void list_items(const PrefillParams& p) {  // one warp
  const int lane = threadIdx.x, n = *p.a.n;
  int all = 0;
  for (int begin = 0; begin < n; begin += 32) {
    const int i = begin + lane;
    PrefillItems of{};
    if (i < n) of = items_of(p, i);
    const int own = of.first;
    int sum = own;
    for (int d = 1; d < 32; d *= 2) {
      const int before = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += before;
    }
    of.first = all + sum - own;
    if (i < n) p.items[i] = of;
    all += __shfl_sync(~0u, sum, 31);
  }
  if (lane == 0) p.items[n].first = all, *p.taken = 0;
}

__global__ void round_present(const __grid_constant__ PrefillParams p) {
  pdl_wait();
  pdl_release();
  if (blockIdx.x == gridDim.x - 1 && threadIdx.x < 32) list_items(p);
  if (!p.a.new_k) return;
  const int64_t n = int64_t(p.a.kv_heads) * p.tokens * (kDim / 8);
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n;
       i += int64_t(gridDim.x) * blockDim.x) {
    const int c = int(i % (kDim / 8)) * 8;
    const int64_t rest = i / (kDim / 8), head = rest / p.tokens, token = rest - head * p.tokens;
    const int64_t from = token * p.a.new_token + head * p.a.new_head + c;
#pragma unroll
    for (int plane = 0; plane < 2; ++plane) {
      const float* x = (plane ? p.a.new_v : p.a.new_k) + from;
      const float4 a = *reinterpret_cast<const float4*>(x), b = *reinterpret_cast<const float4*>(x + 4);
      *reinterpret_cast<uint4*>((plane ? p.now_v : p.now_k) + rest * kDim + c) = {
          pack(a.x, a.y, __nv_bfloat16()),
          pack(a.z, a.w, __nv_bfloat16()),
          pack(b.x, b.y, __nv_bfloat16()),
          pack(b.z, b.w, __nv_bfloat16())};
    }
  }
}

// A warp adds up eight columns of 16 packed rows, as the warpgroups left them.
__global__ __launch_bounds__(256) void merge(const __grid_constant__ PrefillParams p) {
  pdl_wait();
  pdl_release();
  const int tile_head = blockIdx.x, fragment = blockIdx.y * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp = fragment / 16, j = fragment % 16, n = *p.a.n;
  int rest = tile_head, listed = 0, of_split = 0;
  PrefillItems of;
  for (;; ++listed) {  // tiles of all KV heads of each row
    if (listed == n) return;
    of = p.items[listed];
    of_split = (p.items[listed + 1].first - of.first) / of.splits;
    if (rest < of_split) break;
    rest -= of_split;
  }
  if (of.splits == 1) return;
  Work w = find_work(p, of.first + rest);
  const int length = split_tiles(p.a, w.row);
  const int first = w.token + w.tile * kTile / p.a.group;
  const int s0 = lowest_tile(p, w, first) / length - of.base, s1 = (w.tiles - 1) / length - of.base;
  if (s0 >= s1) return;
  const int64_t item = of.first + int64_t(s0) * of_split + rest;
  const float2* sums = p.part_sums + item * kTile + warp * 16 + lane / 4;
  const float4* out = p.part_out + ((item * 8 + warp) * 16 + j) * 32 + lane;
  const int64_t step = int64_t(of_split) * kTile, out_step = int64_t(of_split) * 8 * 16 * 32;
  const int parts = s1 - s0 + 1;
  float top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
  for (int s = 0; s < parts; ++s)
#pragma unroll
    for (int r = 0; r < 2; ++r) top[r] = fmaxf(top[r], sums[s * step + 8 * r].x);
  float4 o{0, 0, 0, 0};
#pragma unroll 4
  for (int s = 0; s < parts; ++s) {
    const float4 x = out[s * out_step];
    float weight[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 part = sums[s * step + 8 * r];
      weight[r] = top[r] == -INFINITY ? 0 : power2(part.x - top[r]);
      total[r] = fmaf(weight[r], part.y, total[r]);
    }
    o = {fmaf(weight[0], x.x, o.x),
         fmaf(weight[0], x.y, o.y),
         fmaf(weight[1], x.z, o.z),
         fmaf(weight[1], x.w, o.w)};
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int packed = w.tile * kTile + warp * 16 + lane / 4 + 8 * r, position = packed / p.a.group;
    if (position >= w.tokens) continue;
    const int token = w.token + position, q_head = w.head * p.a.group + packed - position * p.a.group;
    const float inverse = total[r] > 0 ? 1 / total[r] : 0;
    write_pair(
        p.a, token, q_head, 8 * j + 2 * (lane % 4), (r ? o.z : o.x) * inverse, (r ? o.w : o.y) * inverse);
    if (j == 0 && lane % 4 == 0) write_lse(p.a, token, q_head, top[r] * kLn2, total[r]);
  }
}

}  // namespace

void prefill_merge(const PrefillParams& p, int tiles, Stream& stream) {
  launch(merge, dim3(unsigned(tiles), 16), 256, 0, stream.get(), p);
}

void prefill_round(const PrefillParams& p, Stream& stream) {
  const int64_t n = int64_t(p.a.kv_heads) * p.tokens * (kDim / 8);
  const int64_t blocks = (n + 255) / 256;
  launch(round_present,
         dim3(unsigned(p.a.new_k && blocks < 1056 ? blocks
                       : p.a.new_k                ? 1056
                                                  : 1)),
         256,
         0,
         stream.get(),
         p);
}

void prefill_dense(const PrefillParams& p, const PrefillMaps& maps, int grid, Stream& stream) {
  prefill::start<false>(p, maps, grid, stream);
}

}  // namespace se::cuda
