// energies.h -- what the mean keys of blocks promise a tile of queries. Plain types only: the versions for
// AVX2 and AVX-512 must share no inline code with baseline files.
#pragma once
#include <cstdint>

namespace se::flashprefill {

inline constexpr int kMeanLanes = 32;  // mean keys lie side by side in groups of so many

// Mean keys, turned: means[d * stride + b] is channel d of block b's; stride a multiple of kMeanLanes.
// Row r sees blocks [0, seen[r]), ascending in r; blocks <= stride. Writes, for b < blocks,
//   energy[b] = sum over rows that see b of exp(scale q[r] . mean[b] - M),  M the largest of these exponents.
// scratch: f32 [rows, stride]. Sums run in f32 over ascending d, then ascending r, products and sums rounded
// each: the bits are the same at every level.
using Energies = void (*)(const float* const* q,
                          const int32_t* seen,
                          int rows,
                          const float* means,
                          int64_t stride,
                          int blocks,
                          int dim,
                          float scale,
                          float* scratch,
                          float* energy);
extern const Energies kEnergiesBaseline, kEnergiesAvx2, kEnergiesAvx512;
Energies energies();  // of isa()

}  // namespace se::flashprefill
