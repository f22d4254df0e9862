// kernels/linear/skinny_blocks_cuda.h -- linear of linear.h (Compute::kDefault) for 1 to 8 rows on CUDA, from
// weights in GGUF's blocks as they lie: every weight is read once, ahead of the wait for the kernel before,
// and used for all rows.
//
// Numerics are those of the CPU: activations are quantised per block of 32 in the same way, products and
// their sums over a block are integers, blocks are added in f32 in ascending order. Long matrices give the
// CPU's bits; in short ones (n below about 17,000) 2, 4 or 8 warps share out a row's blocks and their sums
// are added in order: the same terms, other roundings. n and k alone decide which, so that a row's result
// depends on that row only.
#pragma once
#include <cstdint>

namespace se::cuda {

class Stream;

enum class BlockWeight : uint8_t { kQ8_0, kQ4_K, kQ6_K };  // spec/models.md 8.2

struct SkinnyBlocksParams {
  const void* w = nullptr;  // [n, k] in blocks, rows contiguous; 16-byte aligned, readable to the end of
                            // its last 16 bytes
  BlockWeight type = BlockWeight::kQ8_0;
  int n = 0, k = 0, rows = 0;                        // k: whole blocks
  const float* x = nullptr;                          // f32 [rows, k]
  const float *bias = nullptr, *residual = nullptr;  // f32 [n]; f32 [rows, n], may be y; null: none
  float* y = nullptr;                                // f32 [rows, n]
};

inline constexpr int kSkinnyBlocksRows = 8;
int64_t block_row_bytes(BlockWeight type, int k);
// Aborts on more rows, on k that is no multiple of a block (32; 256), or that does not fit in shared memory
// (over about 13,000).
void skinny_blocks(const SkinnyBlocksParams& params, Stream& stream);

}  // namespace se::cuda
