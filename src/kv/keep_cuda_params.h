// kv/keep_cuda_params.h -- what the kernel of keep_cuda.h takes. Free of host code, so that device compilers
// read little.
#pragma once
#include <cstdint>

namespace se::cuda {

class Stream;

struct KeepPiece {  // up to kKeepVectors vectors of a page that lie in one component
  int64_t offset = 0, head_bytes = 0;
  int32_t first = 0, count = 0;  // vectors, counted over heads, items, the vectors of an item
  int32_t item_bytes = 0, items = 0;
  int32_t width = 0, per_shift = 0;  // bytes of a vector; log2 of the tokens of an item
};
inline constexpr int kKeepVectors = 256;

struct KeepParams {
  char* base = nullptr;          // page id i begins at base + 256 i
  const int32_t* row = nullptr;  // i32 [tokens] ordinals that survive, ascending, from the first fresh page
                                 // on; items of several tokens come whole, as KvStore::keep wants them
  int64_t tokens = 0;
  const int64_t* from = nullptr;  // i64 ids of the row's old pages, by ordinal / page
  const int64_t* to = nullptr;    // i64 [ceil(tokens / page)] ids of the fresh pages; none of them old
};
void keep_pages(
    const KeepParams& params, const KeepPiece* pieces, int n_pieces, int page_shift, Stream& stream);

}  // namespace se::cuda
