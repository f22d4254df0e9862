// kernels/rmsnorm/rmsnorm.h -- out[t, d] = x[t, d] * w[d] / sqrt(mean_d(x[t, d]^2) + eps)
#pragma once
#include "device/device.h"

namespace se {

// x, out f32 [tokens, dim] (out may be x; rows any distance apart), w f32 [dim]; sums in f32, in an order
// that is the same on every instruction set (rmsnorm_routines.h). Source: Zhang & Sennrich 2019.
void rms_norm(const TensorView& x, const TensorView& w, float eps, const TensorView& out, Stream& stream);

}  // namespace se
