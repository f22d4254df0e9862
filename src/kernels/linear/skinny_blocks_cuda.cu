// A warp takes 32 rows of w at a time, a lane a row, in chunks of k through a ring of its own in shared
// memory: rows begin at any even address, so what is copied are the aligned 16 bytes that cover a chunk. All
// lanes want the same quantised activations at once, which is a broadcast; four products are one instruction.
#include <cstdio>
#include <cstdlib>

#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/stream.h"
#include "kernels/linear/skinny_blocks_cuda.cuh"

namespace se::cuda {
namespace {

using namespace blocks;
constexpr int kMostWarps = 12, kRows = 32, kLong = 16896;

template <BlockWeight kType>
struct Format {
  static constexpr bool kQ8 = kType == BlockWeight::kQ8_0, kQ4 = kType == BlockWeight::kQ4_K;
  static constexpr int kK = kQ8 ? 128 : 256, kBytes = kQ8 ? 136 : kQ4 ? 144 : 210;  // of a chunk
  static constexpr int kPieces = kQ4 ? 9 : (kBytes + 14 + 15) / 16;
  static constexpr int kPitch = (kPieces | 1) * 16;  // an odd number of pieces: lanes 16 bytes apart in banks
  static constexpr int kStage = kRows * kPitch, kStages = kType == BlockWeight::kQ6_K ? 2 : 3;
};

// A row of numbers for kT tokens.
template <int kT, typename T>
__device__ __forceinline__ void take(T (&to)[kT], const T* from) {
  if constexpr (kT % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kT; i += 4) {
      const uint4 v = *reinterpret_cast<const uint4*>(from + i);
      const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) to[i + e] = reinterpret_cast<const T&>(w[e]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kT; ++i) to[i] = from[i];
  }
}

template <int kN>
__device__ __forceinline__ int dot(const uint32_t* a, const int8_t* q, int sum) {
#pragma unroll
  for (int i = 0; i < kN; i += 4) {
    const int4 b = *reinterpret_cast<const int4*>(q + 4 * i);
    sum = __dp4a(int(a[i]), b.x, sum), sum = __dp4a(int(a[i + 1]), b.y, sum);
    sum = __dp4a(int(a[i + 2]), b.z, sum), sum = __dp4a(int(a[i + 3]), b.w, sum);
  }
  return sum;
}

// One chunk of the row that begins at byte `at`, even, of `row` in shared memory.
template <BlockWeight kType, int kT>
__device__ __forceinline__ void use_chunk(
    const char* row, int at, const Input<kT>& in, int chunk, int blocks, float (&all)[kT]) {
  using F = Format<kType>;
  const int8_t* xq = in.q + chunk * F::kK;
  const int first = chunk * (F::kK / 32);
  if constexpr (F::kQ8) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j >= blocks) break;
      uint32_t a[8];
      even_words(a, row, at + j * 34 + 2);
      const float d = half_at(row + at + j * 34);
      float xd[kT];
      take(xd, in.d + (first + j) * kT);
#pragma unroll
      for (int t = 0; t < kT; ++t)
        all[t] =
            __fmaf_rn(__fmul_rn(d, xd[t]), unmagic(dot<8>(a, xq + t * in.pitch + j * 32, kMagic)), all[t]);
    }
  } else if constexpr (F::kQ4) {
    const uint4 head = *reinterpret_cast<const uint4*>(row);
    const __half2 two = reinterpret_cast<const __half2&>(head.x);
    const float d = __low2float(two), least = __high2float(two);
    const uint32_t scales[2] = {head.y & 0x3f3f3f3fu,
                                (head.w & 0x0f0f0f0fu) | (head.y >> 6 & 0x03030303u) << 4};
    const uint32_t minima[2] = {head.z & 0x3f3f3f3fu,
                                (head.w >> 4 & 0x0f0f0f0fu) | (head.z >> 6 & 0x03030303u) << 4};
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const uint4 x = *reinterpret_cast<const uint4*>(row + 16 + 32 * pair),
                  y = *reinterpret_cast<const uint4*>(row + 32 + 32 * pair);
      const uint32_t codes[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int j = 2 * pair + e;
        uint32_t a[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) a[i] = codes[i] >> 4 * e & 0x0f0f0f0fu;
        const float scale = __fmul_rn(d, float(scales[j / 4] >> j % 4 * 8 & 0xff));
        const float m = -__fmul_rn(least, float(minima[j / 4] >> j % 4 * 8 & 0xff));
        float xd[kT], xs[kT];
        take(xd, in.d + (first + j) * kT), take(xs, in.d_sum + (first + j) * kT);
#pragma unroll
        for (int t = 0; t < kT; ++t) {
          all[t] = __fmaf_rn(m, xs[t], all[t]);
          all[t] = __fmaf_rn(
              __fmul_rn(scale, xd[t]), unmagic(dot<8>(a, xq + t * in.pitch + j * 32, kMagic)), all[t]);
        }
      }
    }
  } else {
    const float d = half_at(row + at + 208);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t low[2][8], top[8], scales[2];
      even_words(low[0], row, at + 64 * half), even_words(low[1], row, at + 64 * half + 32);
      even_words(top, row, at + 128 + 32 * half), even_words(scales, row, at + 192 + 8 * half);
#pragma unroll
      for (int quarter = 0; quarter < 4; ++quarter) {
        const int j = 4 * half + quarter;
        uint32_t a[8];
#pragma unroll
        for (int i = 0; i < 8; ++i)
          a[i] = (low[quarter % 2][i] >> quarter / 2 * 4 & 0x0f0f0f0fu) |
                 (quarter < 2 ? top[i] << 4 - 2 * quarter : top[i] >> 2 * quarter - 4) & 0x30303030u;
        const int s0 = int8_t(scales[quarter / 2] >> quarter % 2 * 16),
                  s1 = int8_t(scales[quarter / 2] >> quarter % 2 * 16 + 8);
        float xd[kT];
        int less[2][kT];
        take(xd, in.d + (first + j) * kT);
        take(less[0], in.less + (first + j) * 2 * kT), take(less[1], in.less + ((first + j) * 2 + 1) * kT);
#pragma unroll
        for (int t = 0; t < kT; ++t) {
          const int8_t* q = xq + t * in.pitch + j * 32;
          const int sum = s0 * dot<4>(a, q, less[0][t]) + s1 * dot<4>(a + 4, q + 16, less[1][t]);
          all[t] = __fmaf_rn(__fmul_rn(d, xd[t]), float(sum), all[t]);
        }
      }
    }
  }
}

template <BlockWeight kType, int kT>
__global__ __launch_bounds__(kMostWarps * 32,
                             1) void blocks_kernel(const __grid_constant__ SkinnyBlocksParams p,
                                                   int share,
                                                   int64_t row_bytes) {
  using F = Format<kType>;
  extern __shared__ __align__(16) char shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int blocks = p.k / 32, chunks = (p.k + F::kK - 1) / F::kK, part = warp % share, mine = chunks / share;
  const int tiles = (p.n + kRows - 1) / kRows, tile_step = gridDim.x * (warps / share);
  char* ring = shared + warp * F::kStages * F::kStage;
  float* const sums = reinterpret_cast<float*>(shared + warps * F::kStages * F::kStage);  // [warps][kT][32]
  Input<kT> in;
  in.pitch = blocks * 32;
  in.q = reinterpret_cast<int8_t*>(sums + (share > 1 ? warps * 32 * kSkinnyBlocksRows : 0));
  in.d = reinterpret_cast<float*>(in.q + kT * in.pitch), in.d_sum = in.d + blocks * kT;
  in.less = reinterpret_cast<int*>(in.d_sum + blocks * kT);

  const char* w = static_cast<const char*>(p.w);
  struct Cursor {
    int tile, i = 0, stage = 0;
  } ahead{int(blockIdx.x) * (warps / share) + warp / share}, here = ahead;
  const auto advance = [&](Cursor& x) {
    if (++x.i == mine) x.i = 0, x.tile += tile_step;
    if (++x.stage == F::kStages) x.stage = 0;
  };
  const auto load = [&] {
    if (ahead.tile < tiles) {
      const uint32_t to = uint32_t(__cvta_generic_to_shared(ring)) + ahead.stage * F::kStage;
      const int64_t chunk_at = int64_t(part + share * ahead.i) * F::kBytes;
      const int bytes = int(min(int64_t(F::kBytes), row_bytes - chunk_at));
#pragma unroll
      for (int i = 0; i < F::kPieces; ++i) {
        const int piece = i * 32 + lane, row = piece / F::kPieces, at = piece % F::kPieces * 16;
        const int64_t from = int64_t(min(ahead.tile * kRows + row, p.n - 1)) * row_bytes + chunk_at;
        const int before = F::kQ4 ? 0 : int(from & 15);  // w itself is aligned
        if (F::kQ4 || at < before + bytes) copy16(to + row * F::kPitch + at, w + from - before + at, true);
      }
      advance(ahead);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
#pragma unroll
  for (int i = 0; i < F::kStages - 1; ++i) load();
  pdl_wait();
  pdl_release();
  quantise<kT>(p, in);

  // All warps of a block go through as many rounds: those that share a tile meet at its end.
  for (int base = blockIdx.x * (warps / share); base < tiles; base += tile_step) {
    float all[kT] = {};
    const int tile = here.tile, o = tile * kRows + lane;
    if (tile < tiles) {
      for (int i = 0; i < mine; ++i) {
        asm volatile("cp.async.wait_group %0;" ::"n"(F::kStages - 2) : "memory");
        __syncwarp();
        const int chunk = part + share * i;
        const char* row = ring + here.stage * F::kStage + lane * F::kPitch;
        const int at = F::kQ4 ? 0 : int(min(o, p.n - 1) * row_bytes + int64_t(chunk) * F::kBytes) & 15;
        advance(here);
        load();  // into the stage before this one, which every lane has left
        use_chunk<kType, kT>(row, at, in, chunk, blocks - chunk * (F::kK / 32), all);
      }
    }
    if (share > 1) {
      __syncthreads();
#pragma unroll
      for (int t = 0; t < kT; ++t) sums[(warp * kT + t) * 32 + lane] = all[t];
      __syncthreads();
      if (part > 0) continue;
      for (int s = 1; s < share; ++s)
#pragma unroll
        for (int t = 0; t < kT; ++t) all[t] += sums[((warp + s) * kT + t) * 32 + lane];
    }
    if (o >= p.n || tile >= tiles) continue;
#pragma unroll
    for (int t = 0; t < kT; ++t) {
      if (t >= p.rows) break;
      const int64_t to = int64_t(t) * p.n + o;
      float y = all[t];
      if (p.bias) y = y + p.bias[o];
      if (p.residual) y = y + p.residual[to];
      p.y[to] = y;
    }
  }
}

[[noreturn]] void wrong(const SkinnyBlocksParams& p) {
  std::fprintf(stderr,
               "skinny_blocks: [%d, %d] of type %d x %d rows: expected whole blocks, up to %d rows, at most "
               "about 13,000 of k\n",
               p.n,
               p.k,
               int(p.type),
               p.rows,
               kSkinnyBlocksRows);
  std::abort();
}

template <BlockWeight kType, int kT>
void start(const SkinnyBlocksParams& p, Stream& stream) {
  using F = Format<kType>;
  const auto kernel = blocks_kernel<kType, kT>;
  static const int processors = [kernel] {
    int device = 0, n = 0;
    SE_CUDA(cudaGetDevice(&device));
    SE_CUDA(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device));
    SE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared));
    return n;
  }();
  const int blocks = p.k / 32, chunks = (p.k + F::kK - 1) / F::kK, tiles = (p.n + kRows - 1) / kRows;
  // Of n and k alone, as for the most rows: how many warps share a tile, and how many a block has.
  const auto bytes_for = [&](int warps, int share, int input) {
    return warps * (F::kStages * F::kStage + (share > 1 ? 32 * kSkinnyBlocksRows * 4 : 0)) + input;
  };
  const int most_input = Input<kSkinnyBlocksRows>::bytes(blocks, blocks * 32);
  int share = 1;
  while (share < 8 && p.n * share < kLong && chunks % (2 * share) == 0) share *= 2;
  int warps = 0;
  for (int w : {4, 8, 12}) {
    const auto rounds = [&](int of) { return (tiles * share + processors * of - 1) / (processors * of); };
    if (bytes_for(w, share, most_input) > kMostShared) continue;
    if (warps == 0 || rounds(w) < rounds(warps)) warps = w;
  }
  if (warps == 0) wrong(p);
  if (share > 1) warps = warps >= 8 ? 8 : 4;
  while (share > warps) share /= 2;
  const int each = warps / share, wanted = (tiles + each - 1) / each,
            bytes = bytes_for(warps, share, Input<kT>::bytes(blocks, blocks * 32));
  launch_clusters(kernel,
                  dim3(unsigned(wanted < processors ? wanted : processors)),
                  1,
                  warps * 32,
                  bytes,
                  kProcessorShared,
                  stream.get(),
                  p,
                  share,
                  block_row_bytes(kType, p.k));
}

template <BlockWeight kType>
void choose(const SkinnyBlocksParams& p, Stream& stream) {
  if (p.rows == 1) return start<kType, 1>(p, stream);
  if (p.rows == 2) return start<kType, 2>(p, stream);
  if (p.rows == 3) return start<kType, 3>(p, stream);
  if (p.rows == 4) return start<kType, 4>(p, stream);
  if (p.n >= kLong && many_rows_fits(p)) return many_rows(p, stream);
  start<kType, 8>(p, stream);
}

}  // namespace

int64_t block_row_bytes(BlockWeight type, int k) {
  if (type == BlockWeight::kQ8_0) return int64_t(k) / 32 * 34;
  return int64_t(k) / 256 * (type == BlockWeight::kQ4_K ? 144 : 210);
}

void skinny_blocks(const SkinnyBlocksParams& p, Stream& stream) {
  const int whole = p.type == BlockWeight::kQ8_0 ? 32 : 256;
  if (p.rows < 1 || p.rows > kSkinnyBlocksRows || p.n < 1 || p.k < whole || p.k % whole != 0) wrong(p);
  switch (p.type) {
    case BlockWeight::kQ8_0:
      return choose<BlockWeight::kQ8_0>(p, stream);
    case BlockWeight::kQ4_K:
      return choose<BlockWeight::kQ4_K>(p, stream);
    case BlockWeight::kQ6_K:
      return choose<BlockWeight::kQ6_K>(p, stream);
  }
}

}  // namespace se::cuda
