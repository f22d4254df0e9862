// kernels/elementwise/elementwise.h -- the small ops between projections; all f32, contiguous, same shape.
#pragma once
#include "device/device.h"

namespace se {

void add(const TensorView& x,
         const TensorView& y,
         const TensorView& out,
         Stream& stream);  // out may be x or y
// out = silu(gate) * up, silu(z) = z / (1 + exp(-z)); out may be gate or up.
void silu_mul(const TensorView& gate, const TensorView& up, const TensorView& out, Stream& stream);
// out = gelu(gate) * up, gelu(z) = z / 2 (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3))); out may be gate or up.
void gelu_tanh_mul(const TensorView& gate, const TensorView& up, const TensorView& out, Stream& stream);

}  // namespace se
