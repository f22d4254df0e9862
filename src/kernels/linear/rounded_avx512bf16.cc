// Products of BF16 rows and rounded activations by VDPBF16PS, which does what Rounded asks for: per lane the
// product of the upper elements first, then that of the lower ones, each sum rounded to nearest even. (Below
// 2^-126 it has zero.)
#include "kernels/linear/float_tiles.inl"

namespace se::linear_detail {
namespace {

struct Brains {
  using Element = uint16_t;
  using X = uint16_t;
  using Weights = __m512i;
  using Tokens = __m512i;
  static constexpr int kStep = 32;
  static __m512i load(const uint16_t* p, int n) {
    return _mm512_maskz_loadu_epi16(__mmask32((uint64_t{1} << n) - 1), p);
  }
  static __m512i load_tokens(const uint16_t* p, int) { return _mm512_loadu_si512(p); }
  static __m512 multiply(__m512i a, __m512i b, __m512 sum) {
    return _mm512_dpbf16_ps(sum, __m512bh(a), __m512bh(b));
  }
  static void keep(__m512i& b) { asm("" : "+v"(b)); }
};

}  // namespace

void rounded_rows_avx512bf16(const Rows& w, const Rounded& x, const Output& y) {
  rows<Brains>(w, static_cast<const uint16_t*>(x.x), x.stride, x.tokens, x.in, y);
}

}  // namespace se::linear_detail
