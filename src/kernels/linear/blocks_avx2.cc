// Products of quantised weights, eight rows at a time: the lanes of a register are rows, so that one row's
// sum is one lane and its order is the reference's. A block of eight rows is turned once (dword k of each row
// into register k) and then meets every token: register k times the token's four bytes k, broadcast, and
// pairs add up in i16 (15 * 127 * 2 * 8 < 2^15, hence Q8_0 goes as two planes of nibbles: w + 128 = 16 high +
// low).
#include <immintrin.h>

#include <cstring>

#include "kernels/linear/linear_avx2.h"

namespace se::linear_detail::avx2 {
namespace {

struct Turned {
  __m256i q[16];     // [k]: elements 4k..4k+3 of eight rows, low nibbles; [8 + k]: high nibbles (Q8_0 only)
  __m256i scale[2];  // of each half, twice in a lane (Q2_K, Q3_K and Q6_K only)
  __m256i min[2];    // the same (Q2_K only)
  __m256 d, m;       // of the rows
};

inline __m128i load16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

// Bytes 0..15 at rows[r] + offset, r < 8, as four registers of dwords: out[k] lane r = dword k of row r.
inline void turn(const uint8_t* const* rows, int64_t offset, __m256i* out) {
  __m256i pair[4];
  for (int r = 0; r < 4; ++r) {
    const __m256i low = _mm256_castsi128_si256(load16(rows[r] + offset));
    pair[r] = _mm256_inserti128_si256(low, load16(rows[r + 4] + offset), 1);
  }
  const __m256i a = _mm256_unpacklo_epi32(pair[0], pair[1]), b = _mm256_unpackhi_epi32(pair[0], pair[1]);
  const __m256i c = _mm256_unpacklo_epi32(pair[2], pair[3]), d = _mm256_unpackhi_epi32(pair[2], pair[3]);
  out[0] = _mm256_unpacklo_epi64(a, c);
  out[1] = _mm256_unpackhi_epi64(a, c);
  out[2] = _mm256_unpacklo_epi64(b, d);
  out[3] = _mm256_unpackhi_epi64(b, d);
}

inline int dword_at(const uint8_t* p) {
  int v;
  std::memcpy(&v, p, 4);
  return v;
}

inline short word_at(const uint8_t* p) {
  short v;
  std::memcpy(&v, p, 2);
  return v;
}

inline __m256 halves(const uint8_t* const* rows, int64_t offset) {
  const auto at = [&](int r) { return word_at(rows[r] + offset); };
  return _mm256_cvtph_ps(_mm_setr_epi16(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)));
}

inline void split_nibbles(const __m256i* packed, __m256i* low, __m256i* high) {
  const __m256i mask = _mm256_set1_epi8(15);
  for (int k = 0; k < 4; ++k) {
    low[k] = _mm256_and_si256(packed[k], mask);
    high[k] = _mm256_and_si256(_mm256_srli_epi16(packed[k], 4), mask);
  }
}

// Block b of 32 values of eight rows.
template <BlockType kType>
inline void load_block(const uint8_t* const* rows, int64_t b, Turned& w) {
  const int64_t offset = b * (kType == BlockType::kQ4_0 ? 18 : kType == BlockType::kQ4_1 ? 20 : 34);
  __m256i packed[4];
  if constexpr (kType == BlockType::kQ4_1) {
    turn(rows, offset + 4, packed);
    split_nibbles(packed, w.q, w.q + 4);
    const auto at = [&](int r) { return dword_at(rows[r] + offset); };  // d in the lower, m in the upper half
    const __m256i dm = _mm256_setr_epi32(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
    const __m256i d = _mm256_and_si256(dm, _mm256_set1_epi32(0xffff)), m = _mm256_srli_epi32(dm, 16);
    const __m256i ordered = _mm256_permute4x64_epi64(_mm256_packus_epi32(d, m), 0xd8);
    w.d = _mm256_cvtph_ps(_mm256_castsi256_si128(ordered));
    w.m = _mm256_cvtph_ps(_mm256_extracti128_si256(ordered, 1));
  } else if constexpr (kType == BlockType::kQ4_0) {
    turn(rows, offset + 2, packed);
    split_nibbles(packed, w.q, w.q + 4);
    w.d = halves(rows, offset);
  } else {
    for (int half = 0; half < 2; ++half) {
      turn(rows, offset + 2 + 16 * half, packed);
      for (int k = 0; k < 4; ++k) packed[k] = _mm256_xor_si256(packed[k], _mm256_set1_epi8(char(0x80)));
      split_nibbles(packed, w.q + 4 * half, w.q + 8 + 4 * half);
    }
    w.d = halves(rows, offset);
  }
}

// The lanes of `fifth` hold one bit for each of a row's 32 values; those of dword k go to bit 4 of its bytes.
inline __m256i fifth_bits(__m256i fifth, int k) {
  const __m256i four =
      _mm256_and_si256(_mm256_srl_epi32(fifth, _mm_cvtsi32_si128(4 * k)), _mm256_set1_epi32(15));
  const __m256i spread =
      _mm256_mullo_epi32(four, _mm256_set1_epi32(0x204081));  // bit i to bit 8 i, and others
  return _mm256_slli_epi32(_mm256_and_si256(spread, _mm256_set1_epi32(0x01010101)), 4);
}

// Codes of five bits: a dword of fifth bits at `offset`, then nibbles.
inline void load_fives(const uint8_t* const* rows, int64_t offset, Turned& w) {
  __m256i packed[4];
  turn(rows, offset + 4, packed);
  split_nibbles(packed, w.q, w.q + 4);
  const auto at = [&](int r) { return dword_at(rows[r] + offset); };
  const __m256i fifth = _mm256_setr_epi32(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
  for (int k = 0; k < 8; ++k) w.q[k] = _mm256_or_si256(w.q[k], fifth_bits(fifth, k));
}

template <>
inline void load_block<BlockType::kQ5_0>(const uint8_t* const* rows, int64_t b, Turned& w) {
  load_fives(rows, b * 22 + 2, w);
  w.d = halves(rows, b * 22);
}

template <>
inline void load_block<BlockType::kQ5_1>(const uint8_t* const* rows, int64_t b, Turned& w) {
  load_fives(rows, b * 24 + 4, w);
  w.d = halves(rows, b * 24), w.m = halves(rows, b * 24 + 2);
}

// Eighth j of a block of 256 at `offset`: its 32 bytes, from `nibbles_at` on, hold the next eighth in the
// other nibbles.
inline void load_eighth(const uint8_t* const* rows, int64_t offset, int j, int64_t nibbles_at, Turned& w) {
  alignas(32) int32_t scale[8], min[8];
  for (int r = 0; r < 8; ++r) {
    const uint8_t* s = rows[r] + offset + 4;
    scale[r] = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6 << 4);
    min[r] = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6 << 4);
  }
  const auto floats = [](const int32_t* v) {
    return _mm256_cvtepi32_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(v)));
  };
  w.d = _mm256_mul_ps(halves(rows, offset), floats(scale));
  const __m256 m = _mm256_mul_ps(halves(rows, offset + 2), floats(min));
  w.m = _mm256_xor_ps(m, _mm256_set1_ps(-0.0f));
  for (int half = 0; half < 2; ++half) {
    turn(rows, offset + nibbles_at + j / 2 * 32 + 16 * half, w.q + 4 * half);
    for (int k = 4 * half; k < 4 * half + 4; ++k)
      w.q[k] = _mm256_and_si256(_mm256_srl_epi16(w.q[k], _mm_cvtsi32_si128(j % 2 * 4)), _mm256_set1_epi8(15));
  }
}

template <>
inline void load_block<BlockType::kQ4_K>(const uint8_t* const* rows, int64_t b, Turned& w) {
  load_eighth(rows, b / 8 * 144, int(b % 8), 16, w);
}

// Bit `bit` of 32 bytes of each row at `offset`, as bit `to` of the codes.
inline void add_bit(const uint8_t* const* rows, int64_t offset, int bit, int to, Turned& w) {
  for (int half = 0; half < 2; ++half) {
    __m256i bytes[4];
    turn(rows, offset + 16 * half, bytes);
    for (int k = 0; k < 4; ++k) {
      const __m256i one =
          _mm256_and_si256(_mm256_srl_epi16(bytes[k], _mm_cvtsi32_si128(bit)), _mm256_set1_epi8(1));
      w.q[4 * half + k] = _mm256_or_si256(w.q[4 * half + k], _mm256_sll_epi16(one, _mm_cvtsi32_si128(to)));
    }
  }
}

template <>
inline void load_block<BlockType::kQ5_K>(const uint8_t* const* rows, int64_t b, Turned& w) {
  const int64_t offset = b / 8 * 176;
  load_eighth(rows, offset, int(b % 8), 48, w);
  add_bit(rows, offset + 16, int(b % 8), 4, w);
}

// scale(r) of eight rows, twice in each lane.
template <class Scale>
inline __m256i scales_twice(Scale scale) {
  alignas(32) int32_t twice[8];
  for (int r = 0; r < 8; ++r) twice[r] = int32_t((uint32_t(scale(r)) & 0xffff) * 0x10001);
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(twice));
}

// An eighth: two bits of 32 bytes that hold four eighths, scales and minima of four bits.
template <>
inline void load_block<BlockType::kQ2_K>(const uint8_t* const* rows, int64_t b, Turned& w) {
  const int64_t offset = b / 8 * 84;
  const int j = int(b % 8);
  for (int i = 0; i < 2; ++i) {
    turn(rows, offset + 16 + j / 4 * 32 + 16 * i, w.q + 4 * i);
    for (int k = 4 * i; k < 4 * i + 4; ++k)
      w.q[k] = _mm256_and_si256(_mm256_srl_epi16(w.q[k], _mm_cvtsi32_si128(j % 4 * 2)), _mm256_set1_epi8(3));
    w.scale[i] = scales_twice([&](int r) { return rows[r][offset + 2 * j + i] & 15; });
    w.min[i] = scales_twice([&](int r) { return rows[r][offset + 2 * j + i] >> 4; });
  }
  w.d = halves(rows, offset + 80);
  w.m = _mm256_xor_ps(halves(rows, offset + 82), _mm256_set1_ps(-0.0f));
}

// An eighth: two bits of 32 bytes that hold four eighths, one bit of 32 others, scales of six bits.
template <>
inline void load_block<BlockType::kQ3_K>(const uint8_t* const* rows, int64_t b, Turned& w) {
  const int64_t offset = b / 8 * 110;
  const int j = int(b % 8);
  for (int i = 0; i < 2; ++i) {
    turn(rows, offset + 32 + j / 4 * 32 + 16 * i, w.q + 4 * i);
    for (int k = 4 * i; k < 4 * i + 4; ++k)
      w.q[k] = _mm256_and_si256(_mm256_srl_epi16(w.q[k], _mm_cvtsi32_si128(j % 4 * 2)), _mm256_set1_epi8(3));
    const int at = 2 * j + i;
    w.scale[i] = scales_twice([&](int r) {
      const uint8_t* s = rows[r] + offset + 96;
      const int low = s[at % 8] >> at / 8 * 4 & 15, high = s[8 + at % 4] >> at / 4 * 2 & 3;
      return (low | high << 4) - 32;
    });
  }
  add_bit(rows, offset, j, 2, w);
  w.d = halves(rows, offset + 108);
}

// An eighth: nibbles of 32 bytes, which hold another eighth too, and two bits of 32 bytes that hold four.
template <>
inline void load_block<BlockType::kQ6_K>(const uint8_t* const* rows, int64_t b, Turned& w) {
  const int64_t offset = b / 8 * 210;
  const int half = int(b % 8) / 4, quarter = int(b % 4);
  const __m128i low_shift = _mm_cvtsi32_si128(quarter / 2 * 4), high_shift = _mm_cvtsi32_si128(quarter * 2);
  for (int i = 0; i < 2; ++i) {
    __m256i high[4];
    turn(rows, offset + 64 * half + quarter % 2 * 32 + 16 * i, w.q + 4 * i);
    turn(rows, offset + 128 + 32 * half + 16 * i, high);
    for (int k = 0; k < 4; ++k) {
      const __m256i two = _mm256_and_si256(_mm256_srl_epi16(high[k], high_shift), _mm256_set1_epi8(3));
      const __m256i four =
          _mm256_and_si256(_mm256_srl_epi16(w.q[4 * i + k], low_shift), _mm256_set1_epi8(15));
      w.q[4 * i + k] = _mm256_or_si256(four, _mm256_slli_epi16(two, 4));
    }
    w.scale[i] =
        scales_twice([&](int r) { return int8_t(rows[r][offset + 192 + 8 * half + 2 * quarter + i]); });
  }
  w.d = halves(rows, offset + 208);
}

inline __m256i four_bytes(const int8_t* x) {
  return _mm256_set1_epi32(dword_at(reinterpret_cast<const uint8_t*>(x)));
}

// The last steps of a block, from sum u q_x: acc += m_w d_x sum q_x, then acc += d_w d_x sum q_w q_x.
template <BlockType kType>
inline void finish(const Turned& w, const Activations& x, int64_t at, __m256i sum, float* acc) {
  __m256 a = _mm256_load_ps(acc);
  if constexpr (has_minimum(kType)) {
    a = _mm256_fmadd_ps(w.m, _mm256_broadcast_ss(x.dsum + at), a);
  } else if constexpr (!scales_halves(kType)) {
    sum = _mm256_sub_epi32(sum, _mm256_set1_epi32(offset_of(kType) * x.sum[at]));
  }
  if constexpr (has_minima(kType)) {
    const int half = x.half[at];
    const auto of_half = [&](int i, int s) {  // the upper halves of lanes meet zeros
      return _mm256_madd_epi16(w.min[i], _mm256_set1_epi32(s & 0xffff));
    };
    const __m256i minima = _mm256_add_epi32(of_half(0, half), of_half(1, x.sum[at] - half));
    a = _mm256_fmadd_ps(_mm256_mul_ps(w.m, _mm256_broadcast_ss(x.d + at)), _mm256_cvtepi32_ps(minima), a);
  }
  const __m256 scale = _mm256_mul_ps(w.d, _mm256_broadcast_ss(x.d + at));
  _mm256_store_ps(acc, _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sum), a));
}

// One plane: the block stays in eight registers and meets one token at a time.
template <BlockType kType>
inline void one_plane(const Turned& w, const Activations& x, int64_t at, float* acc) {
  const int8_t* q = x.q + at * kBlock;
  const auto product = [&](int k) { return _mm256_maddubs_epi16(w.q[k], four_bytes(q + 4 * k)); };
  const __m256i ones = _mm256_set1_epi16(1);
  if constexpr (scales_halves(kType)) {  // pairs are below 2^15, their sums need not be
    const int first = x.half[at], second = x.sum[at] - first;
    constexpr int kShift = kType == BlockType::kQ6_K ? 5 : 2;
    static_assert(offset_of(kType) == 1 << kShift || offset_of(kType) == 0);
    const auto correction = [&](int half, int sum) {  // the scale times offset sums, which may pass 2^15
      return _mm256_slli_epi32(_mm256_madd_epi16(w.scale[half], _mm256_set1_epi32(sum & 0xffff)), kShift);
    };
    __m256i s = _mm256_setzero_si256();
    for (int k = 0; k < 8; ++k) s = _mm256_add_epi32(s, _mm256_madd_epi16(product(k), w.scale[k / 4]));
    if constexpr (offset_of(kType) > 0)
      s = _mm256_sub_epi32(s, _mm256_add_epi32(correction(0, first), correction(1, second)));
    finish<kType>(w, x, at, s, acc);
  } else if constexpr (has_fifth_bits(kType)) {  // 31 * 127 * 2 * 4 < 2^15: half a block in i16
    __m256i s = product(0), u = product(4);
    for (int k = 1; k < 4; ++k) s = _mm256_add_epi16(s, product(k)), u = _mm256_add_epi16(u, product(4 + k));
    finish<kType>(w, x, at, _mm256_add_epi32(_mm256_madd_epi16(s, ones), _mm256_madd_epi16(u, ones)), acc);
  } else {
    __m256i s = product(0);
    for (int k = 1; k < 8; ++k) s = _mm256_add_epi16(s, product(k));
    finish<kType>(w, x, at, _mm256_madd_epi16(s, ones), acc);
  }
}

// Two planes: the block stays in memory, and its loads and those of the tokens are shared.
template <int kTokens>
inline void two_planes(const Turned& w, const Activations& x, int64_t at, float (*acc)[8]) {
  const int8_t* q = x.q + at * kBlock;
  __m256i low[kTokens], high[kTokens];
  for (int t = 0; t < kTokens; ++t) low[t] = high[t] = _mm256_setzero_si256();
#pragma GCC unroll 1  // unrolled, the sums are reordered and leave the registers
  for (int k = 0; k < 8; ++k) {
    for (int t = 0; t < kTokens; ++t) {
      const __m256i four = four_bytes(q + t * kBlock + 4 * k);
      low[t] = _mm256_add_epi16(low[t], _mm256_maddubs_epi16(w.q[k], four));
      high[t] = _mm256_add_epi16(high[t], _mm256_maddubs_epi16(w.q[8 + k], four));
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    const __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(low[t], _mm256_set1_epi16(1)),
                                         _mm256_madd_epi16(high[t], _mm256_set1_epi16(16)));
    finish<BlockType::kQ8_0>(w, x, at + t, sum, acc[t]);
  }
}

inline __m256i first_lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// Rows [row, row + n), n <= 8, of tokens [begin, end).
// kBytes for kPer blocks of 32.
template <BlockType kType, int kBytes, int kPer = 1>
void eight_rows(const Rows& w,
                int64_t row,
                int64_t n,
                const Activations& x,
                int64_t begin,
                int64_t end,
                const Output& y) {
  const uint8_t* rows[8];
  for (int64_t r = 0; r < 8; ++r)  // missing rows repeat the last, and are not stored
    rows[r] = static_cast<const uint8_t*>(w.data) + (row + (r < n ? r : n - 1)) * w.stride;
  const int64_t next = row + 8 < w.end ? 8 * w.stride : 0;
  alignas(32) float acc[kMaxTokens][8];
  for (int64_t t = 0; t < end - begin; ++t) _mm256_store_ps(acc[t], _mm256_setzero_ps());
  for (int64_t b = 0; b < x.blocks; ++b) {
    // Eight short rows are more streams than the hardware follows: ask for the same place in the next eight.
    for (int r = 0; r < 8; ++r)
      _mm_prefetch(reinterpret_cast<const char*>(rows[r] + next + b * kBytes / kPer), _MM_HINT_T0);
    Turned block;
    load_block<kType>(rows, b, block);
    for (int64_t first = begin; first < end; first += kGroup) {
      const int64_t at = place(x, first, b), tokens = end - first < kGroup ? end - first : kGroup;
      float(*sums)[8] = acc + (first - begin);
      int64_t t = 0;
      if constexpr (kType == BlockType::kQ8_0) {
        for (; t + 4 <= tokens; t += 4) two_planes<4>(block, x, at + t, sums + t);
        for (; t < tokens; ++t) two_planes<1>(block, x, at + t, sums + t);
      } else {
        for (; t < tokens; ++t) one_plane<kType>(block, x, at + t, sums[t]);
      }
    }
  }
  const __m256i mask = first_lanes(n);
  const __m256 bias = y.bias ? _mm256_maskload_ps(y.bias + row, mask) : _mm256_setzero_ps();
  for (int64_t t = begin; t < end; ++t) {
    const __m256 sum = _mm256_load_ps(acc[t - begin]);
    _mm256_maskstore_ps(y.y + t * y.out + row, mask, y.bias ? _mm256_add_ps(sum, bias) : sum);
  }
}

template <BlockType kType, int kBytes, int kPer = 1>
void rows_of(const Rows& w, const Activations& x, int64_t begin, int64_t end, const Output& y) {
  for (int64_t row = w.begin; row < w.end; row += 8)
    eight_rows<kType, kBytes, kPer>(w, row, w.end - row < 8 ? w.end - row : 8, x, begin, end, y);
}

}  // namespace

void block_rows(
    BlockType type, const Rows& w, const Activations& x, int64_t begin, int64_t end, const Output& y) {
  switch (type) {
    case BlockType::kQ4_0:
      return rows_of<BlockType::kQ4_0, 18>(w, x, begin, end, y);
    case BlockType::kQ4_1:
      return rows_of<BlockType::kQ4_1, 20>(w, x, begin, end, y);
    case BlockType::kQ5_0:
      return rows_of<BlockType::kQ5_0, 22>(w, x, begin, end, y);
    case BlockType::kQ5_1:
      return rows_of<BlockType::kQ5_1, 24>(w, x, begin, end, y);
    case BlockType::kQ2_K:
      return rows_of<BlockType::kQ2_K, 84, 8>(w, x, begin, end, y);
    case BlockType::kQ3_K:
      return rows_of<BlockType::kQ3_K, 110, 8>(w, x, begin, end, y);
    case BlockType::kQ4_K:
      return rows_of<BlockType::kQ4_K, 144, 8>(w, x, begin, end, y);
    case BlockType::kQ5_K:
      return rows_of<BlockType::kQ5_K, 176, 8>(w, x, begin, end, y);
    case BlockType::kQ6_K:
      return rows_of<BlockType::kQ6_K, 210, 8>(w, x, begin, end, y);
    case BlockType::kQ8_0:
      return rows_of<BlockType::kQ8_0, 34>(w, x, begin, end, y);
  }
}

}  // namespace se::linear_detail::avx2
