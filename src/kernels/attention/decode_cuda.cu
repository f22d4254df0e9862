// Decode attention over BF16 and F16 K/V, and the door to the other formats.
#include "kernels/attention/decode_kernel_cuda.cuh"

namespace se::cuda {

int decode_grid_codes(DecodeType type, int dim);  // decode_codes_cuda.cu
void decode_attention_codes(const DecodeParams& p, DecodeType type, int dim, int grid, Stream& stream);

int decode_grid(DecodeType type, int dim) {
  if (type != DecodeType::kBF16 && type != DecodeType::kF16) return decode_grid_codes(type, dim);
  const bool bf = type == DecodeType::kBF16;
  if (dim == 128)
    return bf ? decode::grid_of<decode::Plain<__nv_bfloat16, 128>, 128>()
              : decode::grid_of<decode::Plain<__half, 128>, 128>();
  return bf ? decode::grid_of<decode::Plain<__nv_bfloat16, 64>, 64>()
            : decode::grid_of<decode::Plain<__half, 64>, 64>();
}

void decode_attention(const DecodeParams& p, DecodeType type, int dim, int grid, Stream& stream) {
  if (type != DecodeType::kBF16 && type != DecodeType::kF16)
    return decode_attention_codes(p, type, dim, grid, stream);
  const bool bf = type == DecodeType::kBF16;
  if (dim == 128)
    return bf ? decode::start<decode::Plain<__nv_bfloat16, 128>, 128>(p, grid, stream)
              : decode::start<decode::Plain<__half, 128>, 128>(p, grid, stream);
  bf ? decode::start<decode::Plain<__nv_bfloat16, 64>, 64>(p, grid, stream)
     : decode::start<decode::Plain<__half, 64>, 64>(p, grid, stream);
}

}  // namespace se::cuda
