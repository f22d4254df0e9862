// kernels/linear/block_avx512.h -- one block of a panel (packed.h) in registers; for the AVX-512 and AMX
// files alone, each of which gets its own copy (all in an unnamed namespace).
#pragma once
#include <immintrin.h>

#include "kernels/linear/packed.h"

namespace se::linear_detail {
namespace {

// Codes u >= 0 of 16 rows: dword k of lane r is columns 4 k .. 4 k + 3 of row r.
template <BlockType kType>
inline void load_codes(const uint8_t* codes, __m512i* u) {
  const auto load = [&](int i) { return _mm512_loadu_si512(codes + 64 * i); };
  if constexpr (kType == BlockType::kQ8_0) {
    for (int k = 0; k < 8; ++k) u[k] = load(k);
    return;
  }
  if constexpr (kType == BlockType::kQ2_K) {
    for (int k = 0; k < 8; ++k)
      u[k] = _mm512_and_si512(_mm512_srli_epi16(load(k / 4), unsigned(k % 4 * 2)), _mm512_set1_epi8(3));
    return;
  }
  const __m512i low = _mm512_set1_epi8(15);
  for (int k = 0; k < 4; ++k) {
    const __m512i packed = load(k);
    u[k] = _mm512_and_si512(packed, low);
    u[4 + k] = _mm512_and_si512(_mm512_srli_epi16(packed, 4), low);
  }
  const auto add_bits = [](__m512i code, __m512i bits, __m512i mask) {
    return _mm512_ternarylogic_epi32(code, bits, mask, 0xf8);  // code | (bits & mask)
  };
  if constexpr (has_fifth_bits(kType)) {
    const __m512i fifth = load(4), mask = _mm512_set1_epi8(16);
    for (int k = 0; k < 8; ++k) {
      const __m512i bits =
          k < 4 ? _mm512_slli_epi16(fifth, unsigned(4 - k)) : _mm512_srli_epi16(fifth, unsigned(k - 4));
      u[k] = add_bits(u[k], bits, mask);
    }
  }
  if constexpr (kType == BlockType::kQ6_K) {
    const __m512i mask = _mm512_set1_epi8(48);
    for (int k = 0; k < 8; ++k) {
      const __m512i upper = load(4 + k / 4);
      const int shift = 4 - 2 * (k % 4);
      const __m512i bits =
          shift >= 0 ? _mm512_slli_epi16(upper, unsigned(shift)) : _mm512_srli_epi16(upper, unsigned(-shift));
      u[k] = add_bits(u[k], bits, mask);
    }
  }
}

struct Scales {
  __m512 d, m;                   // m: types with minima
  __m512 first, second;          // of the halves, where they have scales
  __m512 min_first, min_second;  // the same of minima
};

inline __m512 halves_at(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline __m128i bytes_at(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

template <BlockType kType>
inline Scales load_scales(const Panel& p, int64_t b) {
  constexpr PackedLayout l = packed_layout(kType);
  const uint8_t *at = p.scales + b * l.scales, *super = p.supers + b / 8 * l.supers;
  Scales s{};
  if constexpr (kType == BlockType::kQ4_K || kType == BlockType::kQ5_K) {
    const auto floats = [](const uint8_t* q) {
      return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes_at(q)));
    };
    s.d = _mm512_mul_ps(halves_at(super), floats(at));
    s.m = _mm512_xor_ps(_mm512_mul_ps(halves_at(super + 32), floats(at + 16)), _mm512_set1_ps(-0.0f));
  } else if constexpr (kType == BlockType::kQ2_K) {
    const auto floats = [](const uint8_t* q, unsigned shift) {
      const __m512i nibbles = _mm512_srli_epi32(_mm512_cvtepu8_epi32(bytes_at(q)), shift);
      return _mm512_cvtepi32_ps(_mm512_and_si512(nibbles, _mm512_set1_epi32(15)));
    };
    s.d = halves_at(super), s.m = _mm512_xor_ps(halves_at(super + 32), _mm512_set1_ps(-0.0f));
    s.first = floats(at, 0), s.second = floats(at + 16, 0);
    s.min_first = floats(at, 4), s.min_second = floats(at + 16, 4);
  } else if constexpr (scales_halves(kType)) {
    const auto floats = [](const uint8_t* q) {
      return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes_at(q)));
    };
    s.d = halves_at(super), s.first = floats(at), s.second = floats(at + 16);
  } else {
    s.d = halves_at(at);
    if constexpr (has_minimum(kType)) s.m = halves_at(at + 32);
  }
  return s;
}

// acc += m_w dsum_x (halves: m_w d_x minima), then acc += d_w d_x product; the activations at a place.
template <BlockType kType>
inline __m512 add_block(const Scales& s, const Activations& x, int64_t at, __m512 product, __m512 acc) {
  const __m512 d = _mm512_set1_ps(x.d[at]);
  if constexpr (has_minimum(kType)) acc = _mm512_fmadd_ps(s.m, _mm512_set1_ps(x.dsum[at]), acc);
  if constexpr (has_minima(kType)) {  // integers below 2^24: nothing rounds
    const __m512 half = _mm512_set1_ps(float(x.half[at]));
    const __m512 rest = _mm512_set1_ps(float(x.sum[at] - x.half[at]));
    const __m512 minima = _mm512_fmadd_ps(s.min_second, rest, _mm512_mul_ps(s.min_first, half));
    acc = _mm512_fmadd_ps(_mm512_mul_ps(s.m, d), minima, acc);
  }
  return _mm512_fmadd_ps(_mm512_mul_ps(s.d, d), product, acc);
}

// Scaled halves: scale0 s0 + scale1 s1; all of them integers below 2^24, so that nothing rounds.
inline __m512 join_halves(const Scales& s, __m512i first, __m512i second) {
  const __m512 one = _mm512_mul_ps(s.first, _mm512_cvtepi32_ps(first));
  return _mm512_fmadd_ps(s.second, _mm512_cvtepi32_ps(second), one);
}

inline __mmask16 first_lanes(int64_t n) { return n >= 16 ? __mmask16(0xffff) : __mmask16((1u << n) - 1); }

// Rows [row, row + 16) or what there is of them, of token t.
inline void store_rows(const Output& y, int64_t row, int64_t t, __m512 sum) {
  const __mmask16 lanes = first_lanes(y.out - row);
  if (y.bias) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(lanes, y.bias + row));
  _mm512_mask_storeu_ps(y.y + t * y.out + row, lanes, sum);
}

}  // namespace
}  // namespace se::linear_detail
