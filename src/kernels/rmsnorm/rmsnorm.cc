#include "kernels/rmsnorm/rmsnorm.h"

#include <algorithm>

#include "device/cpu/isa.h"
#include "device/cpu/thread_pool.h"
#include "kernels/rmsnorm/rmsnorm_routines.h"

namespace se {

rmsnorm::RowFn rmsnorm::row() { return cpu::isa() >= cpu::Isa::kAvx2 ? row_avx2 : row_ref; }

void rms_norm(const TensorView& x, const TensorView& w, float eps, const TensorView& out, Stream& stream) {
  const auto rows_of_f32 = [](const TensorView& t) {
    return t.rank == 2 && t.dtype == DType::kF32 && t.stride[1] == int64_t(sizeof(float));
  };
  SE_CHECK(rows_of_f32(x), "rms_norm: x {}, wanted f32 [tokens, dim]", to_string(x));
  const int64_t tokens = x.shape[0], dim = x.shape[1];
  SE_CHECK(w.dtype == DType::kF32 && w.rank == 1 && w.numel() == dim && w.contiguous(),
           "rms_norm: w {}, wanted f32 [{}]",
           to_string(w),
           dim);
  SE_CHECK(
      rows_of_f32(out) && out.shape == x.shape, "rms_norm: out {}, wanted {}", to_string(out), to_string(x));
  const auto row = rmsnorm::row();
  constexpr int64_t kRows = 16;  // an item: some 10k elements, a few microseconds
  stream.pool().run((tokens + kRows - 1) / kRows, [&](int64_t item, int) {
    for (int64_t t = item * kRows; t < std::min(tokens, (item + 1) * kRows); ++t)
      row(x.at<float>(t), w.ptr<float>(), eps, dim, out.at<float>(t));
  });
}

}  // namespace se
