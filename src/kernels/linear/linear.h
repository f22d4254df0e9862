// kernels/linear/linear.h -- y[t, o] = sum_i w[o, i] x[t, i] + bias[o]: every projection of a model.
#pragma once
#include <cstddef>
#include <span>

#include "device/device.h"

namespace se {

// kDefault: quantised weights are used as they lie, against activations quantised per block of 32 (int8,
// integer dot products), BF16 weights against activations rounded to BF16; kExact: weights dequantised to F32
// on the fly, f32 products (the reference numerics of a checkpoint).
enum class Compute : uint8_t { kDefault, kExact };

// A matrix [out, in] to multiply by, f32, f16, bf16 or a block type, rows contiguous; block types may come
// with their packed form (see pack), which the AVX-512 and AMX levels compute from in kDefault. Results do
// not depend on whether it is there.
struct Weight : TensorView {
  Weight() = default;
  Weight(const TensorView& rows)
      : TensorView(rows) {}  // NOLINT(google-explicit-constructor): views are weights
  Weight(const TensorView& rows, const std::byte* p) : TensorView(rows), packed(p) {}
  const std::byte* packed = nullptr;
};

// Bytes of the packed form of w, about those of w; 0 where this machine's level and the type have none.
int64_t packed_bytes(const TensorView& w);
// Packs rows of w: panels [begin, end) of packed_panels(w), which threads may share out among them.
// out: packed_bytes(w), 64-byte aligned.
int64_t packed_panels(const TensorView& w);
void pack(const TensorView& w, int64_t begin, int64_t end, std::byte* out);

// One of the products that share an x.
struct Product {
  Weight w;
  TensorView bias;  // f32 [out], or empty
  TensorView y;     // f32 [tokens, out], contiguous, no alias
};

//   x     f32 [tokens, in], contiguous
// A row of y depends on that row of x alone: neither on the number of tokens nor on threads nor on the other
// products (one dot-product definition per weight type serves GEMV and GEMM at every level). `in` must be
// whole blocks of w. x is quantised once for all products. Unsupported dtypes: see supports_linear.
void linear(
    const TensorView& x, std::span<const Product> products, Compute compute, Arena& scratch, Stream& stream);
void linear(const TensorView& x,
            const Weight& w,
            const TensorView& bias,
            const TensorView& y,
            Compute compute,
            Arena& scratch,
            Stream& stream);
bool supports_linear(DType w);

}  // namespace se
