// Products of float rows with AVX-512. Halves are widened as they are loaded.
#include "kernels/linear/float_tiles.inl"

namespace se::linear_detail {
namespace {

inline __mmask16 first_lanes(int n) { return __mmask16((1u << n) - 1); }

struct Floats {
  using X = float;
  using Weights = __m512;
  using Tokens = __m512;
  static constexpr int kStep = 16;
  static __m512 load_tokens(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
  static __m512 multiply(__m512 a, __m512 b, __m512 sum) { return _mm512_fmadd_ps(a, b, sum); }
  static void keep(__m512& b) { asm("" : "+v"(b)); }
};
struct F32 : Floats {
  using Element = float;
  static __m512 load(const float* p, int n) { return load_tokens(p, n); }
};
struct F16 : Floats {
  using Element = uint16_t;
  static __m512 load(const uint16_t* p, int n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p));
  }
};
struct BF16 : Floats {
  using Element = uint16_t;
  static __m512 load(const uint16_t* p, int n) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(n), p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
};

// Rounded products without the instruction for them: 32 elements as odd and even ones, tokens in that order.
struct Pairs {
  struct Both {
    __m512 odd, even;
  };
  using Element = uint16_t;
  using X = float;
  using Weights = Both;
  using Tokens = Both;
  static constexpr int kStep = 32;
  static Both load(const uint16_t* p, int n) {
    const __m512i v = _mm512_maskz_loadu_epi16(__mmask32((uint64_t{1} << n) - 1), p);
    return {_mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(int(0xffff0000)))),
            _mm512_castsi512_ps(_mm512_slli_epi32(v, 16))};
  }
  static Both load_tokens(const float* p, int) { return {_mm512_loadu_ps(p), _mm512_loadu_ps(p + 16)}; }
  static __m512 multiply(const Both& a, const Both& b, __m512 sum) {
    return _mm512_fmadd_ps(a.even, b.even, _mm512_fmadd_ps(a.odd, b.odd, sum));
  }
  static void keep(Both& b) { asm("" : "+v"(b.odd), "+v"(b.even)); }
};

}  // namespace

void float_rows_avx512(
    FloatType type, const Rows& w, const float* x, int64_t tokens, int64_t in, const Output& y) {
  switch (type) {
    case FloatType::kF32:
      return rows<F32>(w, x, in, tokens, in, y);
    case FloatType::kF16:
      return rows<F16>(w, x, in, tokens, in, y);
    case FloatType::kBF16:
      return rows<BF16>(w, x, in, tokens, in, y);
  }
}

void rounded_rows_avx512(const Rows& w, const Rounded& x, const Output& y) {
  rows<Pairs>(w, static_cast<const float*>(x.x), x.stride, x.tokens, x.in, y);
}

}  // namespace se::linear_detail
