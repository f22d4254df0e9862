#include "kernels/quant/quant.h"

#include "device/cpu/isa.h"
#include "kernels/quant/quant_routines.h"

namespace se {

bool supports_dequantize(DType dtype) { return quant::ref_routine(dtype) != nullptr; }

void dequantize(DType dtype, const void* blocks, int64_t n, float* out) {
  const auto fn = cpu::isa() >= cpu::Isa::kAvx2 ? quant::avx2_routine(dtype) : quant::ref_routine(dtype);
  SE_CHECK(fn != nullptr, "dequantize: {} has no routine", to_string(dtype));
  SE_CHECK(n >= 0 && n % block_elements(dtype) == 0,
           "dequantize: {} elements are not whole blocks of {}",
           n,
           to_string(dtype));
  fn(blocks, n, out);
}

}  // namespace se
