// kernels/linear/skinny_cuda.h -- y[t, o] = sum_i w[o, i] x[t, i] for 1 to 64 rows on CUDA, at the speed at
// which the weights come: every weight is read once, ahead of the wait for the kernel before (weights are
// constants), and used for all rows.
//
// Weights: BF16, or FP8 E4M3 in blocks of 128 x 128 with one f32 factor each (w = code * factor;
// spec/models.md 7.2). FP8 weights are exact halves on the tensor cores; activations are rounded to halves
// (2^-11), or, with BF16 weights, to two BF16 pieces (2^-17; one piece, 2^-9, beyond 8 rows). Sums in f32, in
// an order that depends on n and k alone: a row's result depends on that row only.
#pragma once
#include <cstdint>

namespace se::cuda {

class Stream;

struct SkinnyParams {
  const void* w = nullptr;         // [n, k], rows contiguous, 16-byte aligned
  const float* w_scale = nullptr;  // FP8: f32 [ceil(n / 128), k / 128]; null: w is BF16
  int n = 0, k = 0, rows = 0;      // k a multiple of 256
  // Up to 8 rows: f32 [rows, k]. With `norm` (f32 [k]) x is RMS-normalised first.
  const float* x = nullptr;
  const float* norm = nullptr;
  float eps = 0;
  const void* x16 = nullptr;        // beyond 8 rows: [rows, k] halves (FP8 weights) or BF16 (BF16 weights)
  const float* residual = nullptr;  // f32 [rows, n], added; may be y; null: none
  float* y = nullptr;               // f32 [rows, n]
};

inline constexpr int kSkinnyRows = 64;
void skinny_linear(const SkinnyParams& params, Stream& stream);

}  // namespace se::cuda
