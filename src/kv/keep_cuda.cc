#include "kv/keep_cuda.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "device/cuda/stream.h"

namespace se::cuda {

Result<KeepPlan> plan_keep(std::span<const KvItems> items, int64_t page, Stream& stream) {
  SE_CHECK(std::has_single_bit(uint64_t(page)), "pages of {} tokens: expected a power of two", page);
  std::vector<KeepPiece> pieces;
  for (const KvItems& it : items) {
    SE_CHECK(std::has_single_bit(unsigned(it.per)) && it.per <= page, "{} tokens an item", it.per);
    KeepPiece x;
    // The widest vector that every item of the component begins and ends with.
    const uint64_t grain = uint64_t(it.offset | it.head_bytes | it.item_bytes | 16);
    x.width = int32_t(1) << std::countr_zero(grain);
    x.offset = it.offset, x.head_bytes = it.head_bytes;
    x.item_bytes = int32_t(it.item_bytes), x.items = int32_t(page / it.per);
    x.per_shift = std::countr_zero(unsigned(it.per));
    const int64_t all = it.heads * x.items * (it.item_bytes / x.width);
    SE_CHECK(it.heads * it.head_bytes < (int64_t{1} << 31),
             "{} x {} bytes of a component in a page",
             it.heads,
             it.head_bytes);
    for (int64_t first = 0; first < all; first += kKeepVectors) {
      x.first = int32_t(first), x.count = int32_t(std::min<int64_t>(kKeepVectors, all - first));
      pieces.push_back(x);
    }
  }
  KeepPlan plan;
  plan.page = int(page), plan.n_pieces = int(pieces.size());
  SE_ASSIGN(plan.pieces, Buffer::allocate(int64_t(pieces.size() * sizeof(KeepPiece))));
  if (!pieces.empty()) {
    SE_CUDA(cudaMemcpyAsync(plan.pieces.data(),
                            pieces.data(),
                            pieces.size() * sizeof(KeepPiece),
                            cudaMemcpyHostToDevice,
                            stream.get()));
    stream.synchronize();
  }
  return plan;
}

void keep_tokens(const KeepPlan& plan, const KeepParams& params, Stream& stream) {
  keep_pages(
      params, plan.pieces.ptr<KeepPiece>(), plan.n_pieces, std::countr_zero(unsigned(plan.page)), stream);
}

}  // namespace se::cuda
