// kv/keep_cuda.h -- the copy of KvStore::keep on CUDA: the tokens that survive, as bytes, from the pages of a
// row to fresh ones. Which pages stay, and taking and giving back pages, is the store's business.
#pragma once
#include <cstdint>
#include <span>

#include "device/cuda/memory.h"
#include "kv/keep_cuda_params.h"
#include "kv/layout.h"

namespace se::cuda {

// Made once per block (payload, state) of a group of a layout.
struct KeepPlan {
  Buffer pieces;  // KeepPiece [n_pieces], on the device
  int n_pieces = 0, page = 16;
};
// page: tokens, a power of two. kExhausted. The stream's work is done when this returns.
Result<KeepPlan> plan_keep(std::span<const KvItems> items, int64_t page, Stream& stream);

// row, from and to lie on the device. What no token has in the fresh pages is left alone.
void keep_tokens(const KeepPlan& plan, const KeepParams& params, Stream& stream);

}  // namespace se::cuda
