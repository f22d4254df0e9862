#include "model/fp8_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/fmt.h"
#include "base/half.h"
#include "kernels/quant/quant.h"

namespace se {
namespace {

constexpr int64_t kSquare = 128, kBlock = 32, kBlockBytes = 36;

Result<std::vector<float>> read_scales(const StoredTensor& stored) {
  const TensorView& s = stored.scales;
  std::vector<float> out(size_t(s.numel()));
  dequantize(s.dtype, s.data, s.numel(), out.data());
  for (size_t i = 0; i < out.size(); ++i) {
    if (!std::isfinite(out[i]))
      return stored.bad(format("has the scale {} at {}, expected finite numbers", out[i], i));
  }
  return out;
}

// 0x7f and 0xff are no numbers. -1: none of them is there.
int64_t find_nan(const uint8_t* codes, int64_t n) {
  uint8_t worst = 0;
  for (int64_t i = 0; i < n; ++i) worst = std::max(worst, uint8_t(codes[i] & 0x7f));
  if (worst != 0x7f) return -1;
  return std::find_if(codes, codes + n, [](uint8_t c) { return (c & 0x7f) == 0x7f; }) - codes;
}

// One block: its scale, then its codes.
void put_block(const uint8_t* codes, float scale, uint8_t* out) {
  std::memcpy(out, &scale, sizeof scale);
  std::memcpy(out + sizeof scale, codes, size_t(kBlock));
}

}  // namespace

Result<TensorView> repack_fp8(ModelFile& file, const StoredTensor& stored) {
  SE_ASSIGN(const std::vector<float> scales, read_scales(stored));
  const int64_t rows = stored.view.shape[0], in = stored.view.shape[1];
  const int64_t per_row = stored.scales.shape[1];
  const bool whole = in % kBlock == 0;
  const DType dtype = whole ? DType::kF8_32 : DType::kF32;
  SE_ASSIGN(std::byte * memory, file.own(rows * bytes_of(dtype, in)));
  const TensorView out = TensorView::of(memory, dtype, {rows, in});
  for (int64_t row = 0; row < rows; ++row) {
    const uint8_t* codes = stored.view.at<uint8_t>(row);
    if (const int64_t at = find_nan(codes, in); at >= 0)
      return stored.bad(format("has NaN at [{}, {}], expected finite numbers", row, at));
    const float* row_scales = &scales[size_t(row / kSquare * per_row)];
    for (int64_t k = 0; k < in; k += kBlock) {
      const float scale = row_scales[k / kSquare];
      if (whole) {
        put_block(codes + k, scale, out.at<uint8_t>(row) + k / kBlock * kBlockBytes);
        continue;
      }
      uint8_t padded[kBlock] = {}, block[kBlockBytes];
      float values[kBlock];
      const int64_t n = std::min(kBlock, in - k);
      std::memcpy(padded, codes + k, size_t(n));
      put_block(padded, scale, block);
      dequantize(DType::kF8_32, block, kBlock, values);
      std::memcpy(out.at<float>(row, k), values, size_t(n) * sizeof(float));
    }
  }
  return out;
}

}  // namespace se
