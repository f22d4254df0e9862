// kernels/attention/latent_decode_params_cuda.h -- what the kernels of latent_decode_cuda.h take. Free of
// host code.
#pragma once
#include <cuda.h>

#include "kernels/attention/decode_params_cuda.h"

namespace se::cuda {

inline constexpr int kLatentKey = 576, kLatentValue = 512, kLatentHeads = 24;  // heads: of a block
inline int latent_slices(int heads) { return (heads + kLatentHeads - 1) / kLatentHeads; }

// p as in decode with kv_heads = 1 and group = heads; part_out [cap, slices, max_splits, 24, 512], part_lse
// [.., 24, 2]. `keys`: boxes of 16 keys, [group of 8][64 channels of 9][8 keys].
void latent_decode(const DecodeParams& p, const CUtensorMap& keys, int grid, Stream& stream);

}  // namespace se::cuda
