// A warp takes one piece of one fresh page: up to 256 vectors, eight a lane, all their loads under way before
// the first is stored. The piece, the token's ordinal, its page's id and the bytes hang on one another, so it
// is the number of warps that hides the time they take.
#include "device/cuda/launch.h"
#include "device/cuda/stream.h"
#include "kv/keep_cuda_params.h"

namespace se::cuda {
namespace {

constexpr int kThreads = 256, kOwn = kKeepVectors / 32;

template <typename T>
__device__ __forceinline__ void copy_piece(const KeepParams& p,
                                           const KeepPiece& x,
                                           int64_t page,
                                           int page_shift) {
  const int lane = threadIdx.x % 32, item_vectors = x.item_bytes / int(sizeof(T));
  const int64_t first_token = page << page_shift;
  char* to = p.base + p.to[page] * 256 + x.offset;
  T value[kOwn];
  int32_t at[kOwn];  // in the component of the fresh page; -1: none
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int v = x.first + lane + 32 * i, item_at = v / item_vectors, in_item = v - item_at * item_vectors;
    const int head = item_at / x.items, item = item_at - head * x.items;
    const int64_t token = first_token + (int64_t(item) << x.per_shift);
    at[i] = -1;
    if (lane + 32 * i >= x.count || token >= p.tokens) continue;
    const int ordinal = p.row[token];
    const int old = (ordinal & ((1 << page_shift) - 1)) >> x.per_shift;
    const char* from = p.base + p.from[ordinal >> page_shift] * 256 + x.offset;
    const int64_t in_page = head * x.head_bytes + in_item * int64_t(sizeof(T));
    at[i] = int32_t(in_page + int64_t(item) * x.item_bytes);
    value[i] = __ldcs(reinterpret_cast<const T*>(from + in_page + int64_t(old) * x.item_bytes));
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i)
    if (at[i] >= 0) *reinterpret_cast<T*>(to + at[i]) = value[i];
}

__global__ __launch_bounds__(kThreads, 3) void keep_kernel(const __grid_constant__ KeepParams p,
                                                           const KeepPiece* pieces,
                                                           int n_pieces,
                                                           int page_shift,
                                                           int64_t units) {
  pdl_wait();
  pdl_release();
  const int64_t unit = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (unit >= units) return;
  const int64_t page = unit / n_pieces;
  const KeepPiece x = pieces[unit - page * n_pieces];
  switch (x.width) {
    case 16:
      return copy_piece<uint4>(p, x, page, page_shift);
    case 8:
      return copy_piece<uint2>(p, x, page, page_shift);
    case 4:
      return copy_piece<uint32_t>(p, x, page, page_shift);
    case 2:
      return copy_piece<uint16_t>(p, x, page, page_shift);
    default:
      return copy_piece<uint8_t>(p, x, page, page_shift);
  }
}

}  // namespace

void keep_pages(const KeepParams& p, const KeepPiece* pieces, int n_pieces, int page_shift, Stream& stream) {
  const int64_t pages = (p.tokens + (1 << page_shift) - 1) >> page_shift, units = pages * n_pieces;
  if (units == 0) return;
  launch(keep_kernel,
         dim3(unsigned((units * 32 + kThreads - 1) / kThreads)),
         kThreads,
         0,
         stream.get(),
         p,
         pieces,
         n_pieces,
         page_shift,
         units);
}

}  // namespace se::cuda
