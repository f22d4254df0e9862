// kernels/rmsnorm/rmsnorm_routines.h -- one row of RMSNorm per instruction set, all of them with the same
// bits: lane l of 16 sums x[i]^2, i % 16 = l, in order with fused multiply-adds; lanes fold by halves (l + 8,
// l + 4, l + 2, l + 1); out = (x * (1 / sqrt(sum / dim + eps))) * w. Internal to kernels/; rope/ uses it for
// the per-head norms.
#pragma once
#include <cstdint>

namespace se::rmsnorm {

// x, out [dim] (out may be x), w [dim]; any dim >= 1.
using RowFn = void (*)(const float* x, const float* w, float eps, int64_t dim, float* out);
void row_ref(const float* x, const float* w, float eps, int64_t dim, float* out);
void row_avx2(const float* x, const float* w, float eps, int64_t dim, float* out);
RowFn row();  // that of cpu::isa()

}  // namespace se::rmsnorm
