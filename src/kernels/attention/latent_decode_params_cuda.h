// kernels/attention/latent_decode_params_cuda.h -- what the kernels of latent_decode_cuda.h take. Free of
// host code.
#pragma once
#include "kernels/attention/decode_params_cuda.h"

namespace se::cuda {

inline constexpr int kLatentKey = 576, kLatentValue = 512, kLatentHeads = 24;  // heads: of a block
inline constexpr int kLatentPart = kLatentHeads * (kLatentValue + 32 * 2);     // numbers of a split
inline int latent_slices(int heads) { return (heads + kLatentHeads - 1) / kLatentHeads; }

// p as in decode with kv_heads = 1 and group = heads; part_out [cap, slices, max_splits, kLatentPart]
// (latent_merge_cuda.cuh: Parts), all bits set between launches.
void latent_decode(const DecodeParams& p, int grid, Stream& stream);

}  // namespace se::cuda
