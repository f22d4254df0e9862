// restore_avx512.cc -- decoding with AVX-512: sixteen codes are one shift of broadcast words by as many
// counts and a look-up of the shifted words' low bits in a table of sixteen floats.
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 about its own _mm512_undefined_ps
#include <immintrin.h>

#include "sparse/store/kivi/restore.h"

namespace {

using se::kivi::Coded;
using se::kivi::MinType;

// Codes d .. d + 15 of a token; `half`: the last eight are not there and not read.
template <int kBits>
inline __m512 codes16(const uint8_t* codes, bool half) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  uint64_t word = 0;
  if (half)
    __builtin_memcpy(&word, codes, kBits);
  else
    __builtin_memcpy(&word, codes, 2 * kBits);
  if constexpr (kBits == 4) {
    const __m512i which = _mm512_srli_epi32(lane, 3);  // the low word for eight lanes, then the high one
    const __m512i words =
        _mm512_permutexvar_epi32(which, _mm512_castsi128_si512(_mm_cvtsi64_si128(int64_t(word))));
    const __m512i counts = _mm512_slli_epi32(_mm512_and_si512(lane, _mm512_set1_epi32(7)), 2);
    const __m512 table = _mm512_cvtepi32_ps(lane);
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(words, counts), table);
  }
  const __m512 table = _mm512_cvtepi32_ps(_mm512_and_si512(lane, _mm512_set1_epi32(3)));
  return _mm512_permutexvar_ps(
      _mm512_srlv_epi32(_mm512_set1_epi32(int(uint32_t(word))), _mm512_slli_epi32(lane, 1)), table);
}
inline __m512 halves16(const void* p, int64_t i, __mmask16 some) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, static_cast<const uint16_t*>(p) + i));
}
inline __m512 mins16(const Coded& c, int64_t i, __mmask16 some) {
  if (c.min_type == MinType::kF32) return _mm512_maskz_loadu_ps(some, static_cast<const float*>(c.min) + i);
  if (c.min_type == MinType::kF16) return halves16(c.min, i, some);
  const __m256i h = _mm256_maskz_loadu_epi16(some, static_cast<const uint16_t*>(c.min) + i);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

template <int kBits>
inline void store16(float* out, const uint8_t* codes, __m512 low, __m512 step, __mmask16 some) {
  const __m512 x = _mm512_mul_ps(codes16<kBits>(codes, some != 0xffff), step);
  _mm512_mask_storeu_ps(out, some, _mm512_add_ps(low, x));
}

template <int kBits>
void keys_of(const Coded& c, float* out, int64_t stride) {
  const int row = c.dim * kBits / 8;
  for (int d = 0; d < c.dim; d += 16) {
    const __mmask16 some = c.dim - d >= 16 ? 0xffff : 0xff;
    const __m512 low = mins16(c, d, some), step = halves16(c.scale, d, some);
    const uint8_t* codes = c.codes + d * kBits / 8;
    for (int t = 0; t < c.n; ++t) store16<kBits>(out + t * stride + d, codes + t * row, low, step, some);
  }
}

// Sixteen groups of a token are widened together and handed to the channels by a permutation.
template <int kBits>
void values_of(const Coded& c, float* out, int64_t stride) {
  const int row = c.dim * kBits / 8, groups = c.dim / c.group, shift = __builtin_ctz(unsigned(c.group));
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int first = 0; first < groups; first += 16) {
    const int here = groups - first < 16 ? groups - first : 16, begin = first * c.group;
    const __mmask16 in = __mmask16((1u << here) - 1);
    for (int t = 0; t < c.n; ++t) {
      const int64_t g = int64_t(t) * groups + first;
      const __m512 lows = mins16(c, g, in), steps = halves16(c.scale, g, in);
      for (int d = begin; d < begin + here * c.group; d += 16) {
        const __mmask16 some = c.dim - d >= 16 ? 0xffff : 0xff;
        const __m512i which =
            _mm512_srl_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(d - begin)), _mm_cvtsi32_si128(shift));
        store16<kBits>(out + t * stride + d,
                       c.codes + t * row + d * kBits / 8,
                       _mm512_permutexvar_ps(which, lows),
                       _mm512_permutexvar_ps(which, steps),
                       some);
      }
    }
  }
}

void keys(const Coded& c, float* out, int64_t stride) {
  return c.bits == 4 ? keys_of<4>(c, out, stride) : keys_of<2>(c, out, stride);
}
void values(const Coded& c, float* out, int64_t stride) {
  return c.bits == 4 ? values_of<4>(c, out, stride) : values_of<2>(c, out, stride);
}

}  // namespace

namespace se::kivi {

const Restore kRestoreAvx512 = {keys, values};

}  // namespace se::kivi
