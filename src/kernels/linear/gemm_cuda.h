// kernels/linear/gemm_cuda.h -- y[r, o] = sum_i w[o, i] x[r, i] for many rows on CUDA by cuBLASLt, with the
// algorithm chosen once for a matrix: the same for any number of rows, no split over k, so that a row's
// result does not depend on its neighbours. BF16 is for the engine; FP8 kinds stand beside block_gemm as
// measures.
#pragma once
#include <cstdint>

#include "base/status.h"
#include "device/cuda/memory.h"

namespace se::cuda {

class Stream;
struct CublasLt;

enum class GemmKind : uint8_t {
  kBF16,  // w, x BF16; y f32
  kFp8    // w, x E4M3, one f32 factor each; y BF16; short sums on the tensor cores ("fast accumulation")
};

class Gemm {
 public:
  // w [n, k], at most `most_rows` rows; n and k multiples of 16. Chooses the algorithm and takes its scratch.
  // kUnsupported without cuBLAS 13 or where it has no algorithm; kExhausted without memory.
  static Result<Gemm> plan(GemmKind kind, int n, int k, int most_rows);
  Gemm(Gemm&& other) noexcept;
  Gemm& operator=(Gemm&& other) noexcept;
  ~Gemm();

  // rows <= most_rows. w, x, y 16-byte aligned; y [rows, n], overlapping neither.
  // `add`: y += the product (kBF16). Scales: as the kind says, on the device; null for kBF16.
  void run(const void* w,
           const void* x,
           int rows,
           void* y,
           bool add,
           Stream& stream,
           const float* w_scale = nullptr,
           const float* x_scale = nullptr) const;

 private:
  Gemm() = default;
  struct State;
  State* state_ = nullptr;
};

}  // namespace se::cuda
