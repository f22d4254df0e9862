#include "kernels/elementwise/elementwise.h"

#include <algorithm>

#include "device/cpu/isa.h"
#include "device/cpu/thread_pool.h"
#include "kernels/elementwise/elementwise_routines.h"

namespace se {
namespace {

using elementwise::BinaryFn;

void run(const char* op,
         BinaryFn fn,
         const TensorView& x,
         const TensorView& y,
         const TensorView& out,
         Stream& stream) {
  for (const TensorView* t : {&x, &y, &out}) {
    SE_CHECK(t->dtype == DType::kF32 && t->rank == x.rank && t->shape == x.shape && t->contiguous(),
             "{}: {}, {} -> {}, wanted three contiguous f32 tensors of one shape",
             op,
             to_string(x),
             to_string(y),
             to_string(out));
  }
  constexpr int64_t kChunk = 16384;  // elements of an item: some microseconds
  const int64_t n = x.numel();
  stream.pool().run((n + kChunk - 1) / kChunk, [&](int64_t item, int) {
    const int64_t begin = item * kChunk;
    fn(x.ptr<float>() + begin, y.ptr<float>() + begin, std::min(kChunk, n - begin), out.ptr<float>() + begin);
  });
}

// The one of three that this machine's level runs.
BinaryFn of_level(BinaryFn ref, BinaryFn avx2, BinaryFn avx512) {
  const cpu::Isa level = cpu::isa();
  return level >= cpu::Isa::kAvx512 ? avx512 : level >= cpu::Isa::kAvx2 ? avx2 : ref;
}

}  // namespace

void add(const TensorView& x, const TensorView& y, const TensorView& out, Stream& stream) {
  using namespace elementwise;  // NOLINT: the three of this op
  run("add", of_level(add_ref, add_avx2, add_avx512), x, y, out, stream);
}

void silu_mul(const TensorView& gate, const TensorView& up, const TensorView& out, Stream& stream) {
  using namespace elementwise;  // NOLINT
  run("silu_mul", of_level(silu_mul_ref, silu_mul_avx2, silu_mul_avx512), gate, up, out, stream);
}

void gelu_tanh_mul(const TensorView& gate, const TensorView& up, const TensorView& out, Stream& stream) {
  using namespace elementwise;  // NOLINT
  run("gelu_tanh_mul",
      of_level(gelu_tanh_mul_ref, gelu_tanh_mul_avx2, gelu_tanh_mul_avx512),
      gate,
      up,
      out,
      stream);
}

}  // namespace se
