#include "kernels/embed/embed.h"

#include <algorithm>

#include "device/cpu/thread_pool.h"
#include "kernels/quant/quant.h"

namespace se {

void embed(std::span<const int32_t> ids,
           const TensorView& table,
           float scale,
           const TensorView& out,
           Stream& stream) {
  SE_CHECK(table.rank == 2 && supports_dequantize(table.dtype),
           "embed: table {}, wanted [vocab, dim] of a float or block type",
           to_string(table));
  const int64_t tokens = int64_t(ids.size()), vocab = table.shape[0], dim = table.shape[1];
  SE_CHECK(out.dtype == DType::kF32 && out.rank == 2 && out.shape[0] == tokens && out.shape[1] == dim &&
               out.contiguous(),
           "embed: out {}, wanted f32 [{}, {}]",
           to_string(out),
           tokens,
           dim);
  for (int32_t id : ids) SE_CHECK(id >= 0 && id < vocab, "embed: id {} of {}", id, vocab);
  constexpr int64_t kRows = 16;
  stream.pool().run((tokens + kRows - 1) / kRows, [&](int64_t item, int) {
    for (int64_t t = item * kRows; t < std::min(tokens, (item + 1) * kRows); ++t) {
      float* row = out.ptr<float>() + t * dim;
      dequantize(table.dtype, table.at<char>(ids[size_t(t)]), dim, row);
      if (scale == 1) continue;
      for (int64_t i = 0; i < dim; ++i) row[i] *= scale;
    }
  });
}

}  // namespace se
