// Decode attention over FP8 and KIVI codes of 128 channels.
#include "kernels/attention/decode_kernel_cuda.cuh"
#include "kernels/attention/decode_kivi_cuda.cuh"

namespace se::cuda {
namespace {

template <typename Do>
auto with_type(DecodeType type, const Do& go) {
  if (type == DecodeType::kE4M3) return go(decode::Fp8<false, 128>());
  if (type == DecodeType::kE5M2) return go(decode::Fp8<true, 128>());
  return go(decode::Kivi4<128>());
}

}  // namespace

int decode_grid_codes(DecodeType type) {
  return with_type(type, [](auto f) { return decode::grid_of<decltype(f), 128>(); });
}

void decode_attention_codes(const DecodeParams& p, DecodeType type, int grid, Stream& stream) {
  with_type(type, [&](auto f) { decode::start<decltype(f), 128>(p, grid, stream); });
}

}  // namespace se::cuda
