#include "sparse/store/fp8/decode.inl"

namespace se::fp8 {

const Decode kDecodeAvx512 = {e4m3, e5m2};

}  // namespace se::fp8
