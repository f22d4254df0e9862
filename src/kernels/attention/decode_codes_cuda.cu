// Decode attention over FP8 and KIVI codes of 128 channels.
#include "kernels/attention/decode_kernel_cuda.cuh"

namespace se::cuda {

int decode_grid_codes(DecodeType type, int) {
  if (type == DecodeType::kE4M3) return decode::grid_of<decode::Fp8<false, 128>, 128>();
  if (type == DecodeType::kE5M2) return decode::grid_of<decode::Fp8<true, 128>, 128>();
  return decode::grid_of<decode::Kivi4<128>, 128>();
}

void decode_attention_codes(const DecodeParams& p, DecodeType type, int, int grid, Stream& stream) {
  if (type == DecodeType::kE4M3) return decode::start<decode::Fp8<false, 128>, 128>(p, grid, stream);
  if (type == DecodeType::kE5M2) return decode::start<decode::Fp8<true, 128>, 128>(p, grid, stream);
  decode::start<decode::Kivi4<128>, 128>(p, grid, stream);
}

}  // namespace se::cuda
