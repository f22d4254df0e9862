// A warpgroup takes 64 rows of w at a time, each of its warps 16 of them, by the copy engine through a ring
// of its own: boxes of 16 rows x 128 or 256 bytes. ldmatrix and, for FP8, a conversion make them the A
// operand of wgmma; the activations lie in shared memory as B. The blocks of a cluster share out k (256 bytes
// of a row in turn: what they read at a time lies together), so that a block holds its part of the
// activations only. Of a warp's sums each block finishes some rows: the same warp of the others sends them
// there, and they are added in order. Rings are filled ahead of the wait for the kernel before.
#include <algorithm>

#include "device/cuda/hopper.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/stream.h"
#include "device/cuda/tensor_map.h"
#include "kernels/linear/skinny_wide_cuda.h"

namespace se::cuda {
namespace {

constexpr int kTile = 64, kMostShared = 227 << 10, kMostLog = 3;

template <bool kFp8, int kN>
struct Config {
  static constexpr int kGroups = kFp8 && kN <= 48 ? 4 : 2;  // FP8 is more work a byte
  static constexpr int kWarps = 4 * kGroups, kThreads = 32 * kWarps;
  static constexpr int kUnit = kFp8 ? 128 : 64;                     // numbers of k in 128 bytes
  static constexpr int kUnits = kGroups == 4 ? 1 : 2;               // of 128 bytes, in a slot of a ring
  static constexpr int kSlot = 16 * 128 * kUnits, kPart = 32 * kN;  // bytes; of the sums of 8 rows
};

struct Plan {
  int log, clusters;                          // 2^log blocks a cluster
  int rounds, slots;                          // tiles of a warpgroup at most; of a warp's ring
  int chunks, tiles;                          // of 256 bytes, of a row; of w
  int boxes;                                  // results leave by the copy engine: rows of y are aligned
  int ring, parts, factors, barriers, bytes;  // where things lie in shared memory
};

template <bool kFp8, int kN>
__global__ __launch_bounds__(Config<kFp8, kN>::kThreads,
                             1) void wide_kernel(const __grid_constant__ SkinnyParams p,
                                                 const __grid_constant__ CUtensorMap w,
                                                 const __grid_constant__ CUtensorMap results,
                                                 const __grid_constant__ Plan plan) {
  using C = Config<kFp8, kN>;
  extern __shared__ __align__(1024) char shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / 4, g = lane / 4, c = lane % 4;
  const int cluster = 1 << plan.log, rank = blockIdx.x & (cluster - 1), id = blockIdx.x >> plan.log;
  const int units =
      ((plan.chunks + cluster - 1 - rank) >> plan.log) * 2;  // of chunks rank, rank + cluster, ..
  const auto unit_at = [&](int unit) { return ((unit / 2 << plan.log) + rank) * 2 + unit % 2; };  // of a row
  const auto tile_of = [&](int round) { return (round * C::kGroups + group) * plan.clusters + id; };
  const uint32_t base = shared_address(shared), ring = base + plan.ring + warp * plan.slots * C::kSlot;
  const uint32_t full = base + plan.barriers + warp * (plan.slots + 2) * 8;  // [slots]
  const uint32_t came = full + plan.slots * 8, taken = came + 8;
  struct Cursor {
    int round = 0, unit = 0, slot = 0;
    uint32_t parity = 0;
  } ahead, here;
  const auto advance = [&](Cursor& x) {
    if ((x.unit += C::kUnits) == units) x.unit = 0, ++x.round;
    if (++x.slot == plan.slots) x.slot = 0, x.parity ^= 1;
  };
  const auto load = [&] {  // one lane
    const int tile = tile_of(ahead.round);
    if (tile >= plan.tiles || units == 0) return;
    const uint32_t done = full + ahead.slot * 8;
    barrier_arrive_expecting(done, C::kSlot);
    copy_box(
        ring + ahead.slot * C::kSlot, w, done, 0, tile * kTile + warp % 4 * 16, unit_at(ahead.unit), 0, 0);
    advance(ahead);
  };
  // Which block finishes rows 8 h .. 8 h + 7 of this warp's 16.
  const auto owner = [&](int h) { return (warp % 4 * 2 + h) & (cluster - 1); };
  const int others = (owner(0) != rank) + (owner(1) != rank);
  if (lane == 0) {
    for (int i = 0; i < plan.slots; ++i) barrier_init(full + i * 8, 1);
    barrier_init(came, 1), barrier_init(taken, others);
    barrier_init_done();
    for (int i = 0; i < plan.slots; ++i) load();
    if (others < 2) barrier_arrive_expecting(came, (cluster - 1) * C::kPart);
  }
  __syncwarp();
  cluster_arrive();
  float* const factors = reinterpret_cast<float*>(shared + plan.factors) + group * plan.rounds * units;
  if constexpr (kFp8) {  // of blocks of 128 x 128; past the last tile: what is there
    for (int i = threadIdx.x % 128; i < plan.rounds * units; i += 128) {
      const int tile = min(tile_of(i / units), plan.tiles - 1);
      copy4(shared_address(factors + i),
            p.w_scale + int64_t(tile / 2) * (plan.chunks * 2) + unit_at(i % units));
    }
  }
  pdl_wait();
  pdl_release();

  // Rows of x as B, pieces of 16 bytes permuted as hopper.cuh says; FP8: within 16 of k, lane c of operand A
  // has numbers 4 c .. 4 c + 3 as its two pairs.
  const int sixteens = units * C::kUnit / 16;
#pragma unroll 6
  for (int i = threadIdx.x; i < p.rows * sixteens; i += C::kThreads) {
    const int row = i / sixteens, k = (i - row * sixteens) * 16;
    const int64_t at = int64_t(row) * p.k + unit_at(k / C::kUnit) * C::kUnit + k % C::kUnit;
    const uint4* from = reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p.x16) + at);
    uint4 a = from[0], b = from[1];
    if constexpr (kFp8) {
      const uint4 x = a, y = b;
      a = {x.x, x.z, y.x, y.z}, b = {x.y, x.w, y.y, y.w};
    }
    char* to = shared + k / 64 * (kN * 128) + row * 128;
    const int piece = k % 64 / 8;
    *reinterpret_cast<uint4*>(to + (piece ^ row % 8) * 16) = a;
    *reinterpret_cast<uint4*>(to + (piece + 1 ^ row % 8) * 16) = b;
  }
  copies_done();
  fence_shared_writes();
  __syncthreads();

  const uint64_t x_at = operand(base, 1024);
  const uint32_t row_at = lane % 16 * 128 + ((lane / 16 ^ lane % 8) << 4);  // of ldmatrix, first pieces
  uint32_t raw[4][4];
  const auto fetch = [&](int unit) {
    if (unit == 0) barrier_wait(full + here.slot * 8, here.parity);
#pragma unroll
    for (int s = 0; s < 4; ++s)
      load_matrices<false>(raw[s], ring + here.slot * C::kSlot + unit * 2048 + (row_at ^ s << 5));
  };
  const int parts_at = plan.parts + group * ((8 >> plan.log) * (cluster - 1) * C::kPart);
  bool met = false, owes = false;
  const auto give = [&] {  // what came may be overwritten: its stores have been read
    if (owes && lane == 0) {
      boxes_read();
      barrier_arrive_expecting(came, (cluster - 1) * C::kPart);
      for (int s = 0; s < cluster; ++s)
        if (s != rank) barrier_arrive_there(in_block(taken, s));
    }
    owes = false;
    __syncwarp();
  };
  if (tile_of(0) < plan.tiles && units > 0) fetch(0);
  for (int round = 0; tile_of(round) < plan.tiles; ++round) {
    float all[kN / 2] = {};
    for (int slot = 0; slot < units; slot += C::kUnits) {
#pragma unroll
      for (int u = 0; u < C::kUnits; ++u) {
        constexpr int kSteps = kFp8 ? 8 : 4;
        uint32_t a[kSteps][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (kFp8) {
            e4m3_to_half(raw[i][0], a[2 * i][0], a[2 * i][2]),
                e4m3_to_half(raw[i][1], a[2 * i][1], a[2 * i][3]);
            e4m3_to_half(raw[i][2], a[2 * i + 1][0], a[2 * i + 1][2]);
            e4m3_to_half(raw[i][3], a[2 * i + 1][1], a[2 * i + 1][3]);
          } else {
#pragma unroll
            for (int j = 0; j < 4; ++j) a[i][j] = raw[i][j];
          }
        }
        float block[kN / 2];
        float(&d)[kN / 2] = kFp8 ? block : all;
        if constexpr (kFp8)
#pragma unroll
          for (int i = 0; i < kN / 2; ++i) block[i] = 0;
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < kSteps; ++i)
          wgmma_rows<kN, kFp8>(
              d, a[i], x_at + uint64_t(((slot + u) * kSteps + i) / 4 * (kN * 8) + i % 4 * 2), !kFp8 || i > 0);
        wgmma_commit();
        if (u + 1 < C::kUnits) {
          fetch(u + 1);
        } else {
          __syncwarp();  // all lanes have what they read of the slot
          if (lane == 0) load();
          __syncwarp();
          advance(here);
          if (tile_of(here.round) < plan.tiles) fetch(0);
        }
        wgmma_wait<0>();
        wgmma_take(d);
#pragma unroll
        for (int i = 0; i < kSteps; ++i) wgmma_keep(a[i]);
        if constexpr (kFp8) {
          const float factor = factors[round * units + slot + u];
#pragma unroll
          for (int i = 0; i < kN / 2; ++i) all[i] += factor * block[i];
        }
      }
      if (owes) give();
    }

    if (!met) cluster_wait(), met = true;  // the others have begun
    if (owes) give();
    if (round > 0) barrier_wait(taken, (round - 1) & 1);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (owner(h) == rank) continue;
      const int octet = (warp % 4 * 2 + h) >> plan.log, place = rank < owner(h) ? rank : rank - 1;
      const uint32_t to =
          in_block(base + parts_at, owner(h)) + (octet * (cluster - 1) + place) * C::kPart + lane * 16;
      const uint32_t done = in_block(came, owner(h));
#pragma unroll
      for (int v = 0; v < kN / 16; ++v) {
        const float x[4] = {
            all[8 * v + 2 * h], all[8 * v + 2 * h + 1], all[8 * v + 4 + 2 * h], all[8 * v + 5 + 2 * h]};
        store_counted(to + v * 512, done, x);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (owner(h) != rank) continue;
      const int first = tile_of(round) * kTile + warp % 4 * 16 + h * 8, o = first + g;
      const auto row_of = [&](int i) { return i / 2 * 8 + 2 * c + i % 2; };
      float y[kN / 4];
#pragma unroll
      for (int i = 0; i < kN / 4; ++i) {
        const bool there = p.residual && o < p.n && row_of(i) < p.rows;
        y[i] = there ? p.residual[int64_t(row_of(i)) * p.n + o] : 0;
      }
      barrier_wait(came, round & 1);
      char* const mine = shared + parts_at + ((warp % 4 * 2 + h) >> plan.log) * (cluster - 1) * C::kPart;
#pragma unroll
      for (int v = 0; v < kN / 16; ++v) {
        float4 sum = {0, 0, 0, 0};
        const auto add = [&](const float4& x) { sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w; };
        const auto add_part = [&](int s) {
          add(*reinterpret_cast<const float4*>(mine + s * C::kPart + v * 512 + lane * 16));
        };
        for (int s = 0; s < rank; ++s) add_part(s);
        add({all[8 * v + 2 * h], all[8 * v + 2 * h + 1], all[8 * v + 4 + 2 * h], all[8 * v + 5 + 2 * h]});
        for (int s = rank; s < cluster - 1; ++s) add_part(s);
        y[4 * v] += sum.x, y[4 * v + 1] += sum.y, y[4 * v + 2] += sum.z, y[4 * v + 3] += sum.w;
      }
      owes = tile_of(round + 1) < plan.tiles;
      __syncwarp();
      if (plan.boxes) {  // [row of x][8 rows of w], where the parts were
#pragma unroll
        for (int i = 0; i < kN / 4; ++i) reinterpret_cast<float*>(mine)[row_of(i) * 8 + g] = y[i];
        fence_shared_writes();
        __syncwarp();
        if (lane == 0) store_box(results, shared_address(mine), first, 0);
      } else {
#pragma unroll
        for (int i = 0; i < kN / 4; ++i)
          if (o < p.n && row_of(i) < p.rows) p.y[int64_t(row_of(i)) * p.n + o] = y[i];
      }
    }
  }
  if (!met) cluster_wait();
  if (lane == 0) boxes_stored();
}

// How many clusters of 2^log blocks fit at once, a block a processor.
template <typename Kernel>
int fitting(Kernel kernel, int threads, int log) {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {1u << log, 1, 1};
  config.gridDim = dim3(1024), config.blockDim = dim3(unsigned(threads)),
  config.dynamicSmemBytes = kMostShared;
  config.attrs = &attribute, config.numAttrs = 1;
  int n = 0;
  SE_CUDA(cudaOccupancyMaxActiveClusters(&n, kernel, &config));
  return n;
}

// Where things lie, with as many slots as fit or are of use; whether that is two at least.
template <bool kFp8, int kN>
bool lay_out(Plan& p) {
  using C = Config<kFp8, kN>;
  const int most = (((p.chunks - 1) >> p.log) + 1) * 2, wanted = p.rounds * most / C::kUnits;
  p.ring = most * C::kUnit * kN * 2;
  const int parts = C::kGroups * (8 >> p.log) * ((1 << p.log) - 1) * C::kPart;
  const int factors = C::kGroups * p.rounds * most * 4;
  const int rest = kMostShared - p.ring - parts - factors - C::kWarps * 16;
  p.slots = std::min(rest / (C::kWarps * (C::kSlot + 8)), wanted);
  p.parts = p.ring + C::kWarps * p.slots * C::kSlot, p.factors = p.parts + parts;
  p.barriers = p.factors + factors, p.bytes = p.barriers + C::kWarps * (p.slots + 2) * 8;
  return p.slots >= std::min(2, wanted);
}

// As many clusters, of as many blocks, as make a warpgroup's work the least. Blocks of a cluster: of n and k
// alone, as for kMost rows, so that the order of sums does not depend on how many there are.
template <bool kFp8, int kN, int kMost>
bool plan_for(const SkinnyParams& p, const int (&fit)[kMostLog + 1], Plan& best) {
  int least = 0;
  best = {};
  for (int log = 1; log <= kMostLog; ++log) {
    Plan plan{};
    plan.log = log, plan.tiles = (p.n + kTile - 1) / kTile, plan.chunks = p.k * (kFp8 ? 1 : 2) / 256;
    plan.clusters = std::min(fit[log], plan.tiles);
    if (plan.clusters == 0 || (log > 1 && 1 << log > plan.chunks)) continue;
    const auto rounds = [&](int groups) {
      return (plan.tiles + groups * plan.clusters - 1) / (groups * plan.clusters);
    };
    plan.rounds = rounds(Config<kFp8, kMost>::kGroups);
    const int cost = rounds(4) * (((plan.chunks - 1) >> log) + 1);
    if (!lay_out<kFp8, kMost>(plan)) continue;
    plan.rounds = rounds(Config<kFp8, kN>::kGroups);
    if (lay_out<kFp8, kN>(plan) && (best.clusters == 0 || cost < least)) best = plan, least = cost;
  }
  return best.clusters > 0;
}

template <bool kFp8, int kN, int kMost = kSkinnyRows>
bool start(const SkinnyParams& p, Stream& stream) {
  using C = Config<kFp8, kN>;
  const auto kernel = wide_kernel<kFp8, kN>;
  struct Fit {
    int clusters[kMostLog + 1];
  };
  static const Fit fit = [kernel] {
    SE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared));
    Fit f{};
    for (int i = 1; i <= kMostLog; ++i) f.clusters[i] = fitting(kernel, C::kThreads, i);
    return f;
  }();
  Plan plan;
  if (!plan_for<kFp8, kN, kMost>(p, fit.clusters, plan)) return false;
  const int64_t row_bytes = int64_t(p.k) * (kFp8 ? 1 : 2);
  const CUtensorMap map = tensor_map(p.w,
                                     kFp8 ? 1 : 2,
                                     {C::kUnit, p.n, p.k / C::kUnit, 1, 1},
                                     {row_bytes, 128, row_bytes, row_bytes},
                                     {C::kUnit, 16, C::kUnits, 1, 1});
  plan.boxes = p.n % 4 == 0 && reinterpret_cast<uintptr_t>(p.y) % 16 == 0;
  launch_clusters(kernel,
                  dim3(unsigned(plan.clusters << plan.log)),
                  1 << plan.log,
                  C::kThreads,
                  plan.bytes,
                  kProcessorShared,
                  stream.get(),
                  p,
                  map,
                  plan.boxes ? rows_map(p.y, p.n, p.rows, int64_t(p.n) * 4, 8, kN) : map,
                  plan);
  return true;
}

template <bool kFp8>
bool choose(const SkinnyParams& p, Stream& stream) {
  const bool done = p.rows <= 16   ? start<kFp8, 16>(p, stream)
                    : p.rows <= 48 ? start<kFp8, 48>(p, stream)
                                   : start<kFp8, kSkinnyRows>(p, stream);
  if (done) return true;
  for (int row = 0; row < p.rows; row += 16) {  // large k: the weights once for every 16 rows
    SkinnyParams some = p;
    some.rows = std::min(p.rows - row, 16);
    some.x16 = static_cast<const uint16_t*>(p.x16) + int64_t(row) * p.k;
    some.y = p.y + int64_t(row) * p.n;
    if (p.residual) some.residual = p.residual + int64_t(row) * p.n;
    if (!start<kFp8, 16, 16>(some, stream)) return false;
  }
  return true;
}

}  // namespace

bool skinny_wide(const SkinnyParams& p, Stream& stream) {
  return p.w_scale ? choose<true>(p, stream) : choose<false>(p, stream);
}

}  // namespace se::cuda
