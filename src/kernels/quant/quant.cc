#include "kernels/quant/quant.h"

#include "device/cpu/isa.h"
#include "kernels/quant/quant_routines.h"

namespace se {
namespace {

quant::DequantizeFn routine(const quant::Routines& r, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return r.f32;
    case DType::kF16:
      return r.f16;
    case DType::kBF16:
      return r.bf16;
    case DType::kQ4_0:
      return r.q4_0;
    case DType::kQ4_1:
      return r.q4_1;
    case DType::kQ5_0:
      return r.q5_0;
    case DType::kQ5_1:
      return r.q5_1;
    case DType::kQ8_0:
      return r.q8_0;
    case DType::kQ2_K:
      return r.q2_k;
    case DType::kQ3_K:
      return r.q3_k;
    case DType::kQ4_K:
      return r.q4_k;
    case DType::kQ5_K:
      return r.q5_k;
    case DType::kQ6_K:
      return r.q6_k;
    case DType::kF8_32:
      return r.f8_32;
    default:
      return nullptr;
  }
}

}  // namespace

bool supports_dequantize(DType dtype) { return routine(quant::ref_routines(), dtype) != nullptr; }

void dequantize(DType dtype, const void* blocks, int64_t n, float* out) {
  static const quant::Routines kRef = quant::ref_routines(), kAvx2 = quant::avx2_routines();
  const auto fn = routine(cpu::isa() >= cpu::Isa::kAvx2 ? kAvx2 : kRef, dtype);
  SE_CHECK(fn != nullptr, "dequantize: {} has no routine", to_string(dtype));
  SE_CHECK(n >= 0 && n % block_elements(dtype) == 0,
           "dequantize: {} elements are not whole blocks of {}",
           n,
           to_string(dtype));
  fn(blocks, n, out);
}

}  // namespace se
