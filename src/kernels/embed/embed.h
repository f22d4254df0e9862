// kernels/embed/embed.h -- rows of an embedding table.
#pragma once
#include <span>

#include "device/device.h"

namespace se {

// out f32 [ids, dim] = rows ids of table [vocab, dim] (any type that dequantize takes), times scale. Ids must
// be in range.
void embed(std::span<const int32_t> ids,
           const TensorView& table,
           float scale,
           const TensorView& out,
           Stream& stream);

}  // namespace se
