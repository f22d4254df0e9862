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

bool avx2() { return cpu::isa() >= cpu::Isa::kAvx2; }

}  // namespace

void add(const TensorView& x, const TensorView& y, const TensorView& out, Stream& stream) {
  run("add", avx2() ? elementwise::add_avx2 : elementwise::add_ref, x, y, out, stream);
}

void silu_mul(const TensorView& gate, const TensorView& up, const TensorView& out, Stream& stream) {
  run("silu_mul", avx2() ? elementwise::silu_mul_avx2 : elementwise::silu_mul_ref, gate, up, out, stream);
}

void gelu_tanh_mul(const TensorView& gate, const TensorView& up, const TensorView& out, Stream& stream) {
  run("gelu_tanh_mul",
      avx2() ? elementwise::gelu_tanh_mul_avx2 : elementwise::gelu_tanh_mul_ref,
      gate,
      up,
      out,
      stream);
}

}  // namespace se
