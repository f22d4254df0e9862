// Decode attention over BF16 and F16 K/V, and the door to the other formats.
#include "kernels/attention/decode_kernel_cuda.cuh"

namespace se::cuda {

int decode_grid_codes(DecodeType type);  // decode_codes_cuda.cu
void decode_attention_codes(const DecodeParams& p, DecodeType type, int grid, Stream& stream);

namespace {

template <typename T, typename Do>
auto with_dim(int dim, const Do& go) {
  return dim == 128 ? go(decode::Plain<T, 128>(), std::integral_constant<int, 128>())
                    : go(decode::Plain<T, 64>(), std::integral_constant<int, 64>());
}

}  // namespace

int decode_grid(DecodeType type, int dim) {
  if (type != DecodeType::kBF16 && type != DecodeType::kF16) return decode_grid_codes(type);
  const auto go = [](auto f, auto d) { return decode::grid_of<decltype(f), decltype(d)::value>(); };
  return type == DecodeType::kBF16 ? with_dim<__nv_bfloat16>(dim, go) : with_dim<__half>(dim, go);
}

void decode_attention(const DecodeParams& p, DecodeType type, int dim, int grid, Stream& stream) {
  if (type != DecodeType::kBF16 && type != DecodeType::kF16)
    return decode_attention_codes(p, type, grid, stream);
  const auto go = [&](auto f, auto d) { decode::start<decltype(f), decltype(d)::value>(p, grid, stream); };
  type == DecodeType::kBF16 ? with_dim<__nv_bfloat16>(dim, go) : with_dim<__half>(dim, go);
}

}  // namespace se::cuda
