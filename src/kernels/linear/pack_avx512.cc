// Rows of block types into panels (packed.h): a gather takes one dword of each of 16 rows, which is one
// register of a panel. Done once when a model is loaded, for the levels that read panels.
#include <immintrin.h>

#include "kernels/linear/packed.h"

namespace se::linear_detail {
namespace {

// 16 rows at a byte of theirs; rows that are not there read as zero.
struct Rows16 {
  const uint8_t* at;
  __m512i offsets;  // of the rows
  __mmask16 lanes;
  __m512i dwords(int64_t byte) const {
    return _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), lanes, offsets, at + byte, 1);
  }
};

inline __m512i right(__m512i v, int bits) { return _mm512_srl_epi32(v, _mm_cvtsi32_si128(bits)); }
inline __m512i masked(__m512i v, int mask) { return _mm512_and_si512(v, _mm512_set1_epi32(mask)); }

inline void put(uint8_t* to, __m512i v) { _mm512_storeu_si512(to, v); }
inline void put_words(uint8_t* to, __m512i v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(v));
}
inline void put_bytes(uint8_t* to, __m512i v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(v));
}

// Nibbles as the 32-column formats have them: byte i is column i and, high, column 16 + i.
inline void nibbles(const Rows16& rows, int64_t byte, uint8_t* codes) {
  for (int k = 0; k < 4; ++k) put(codes + 64 * k, rows.dwords(byte + 4 * k));
}

// Bits 0, 4, .. 28 of each lane as its bits 0 .. 7.
inline __m512i every_fourth(__m512i v) {
  v = masked(v, 0x11111111);
  v = masked(_mm512_or_si512(v, _mm512_srli_epi32(v, 3)), 0x03030303);
  v = masked(_mm512_or_si512(v, _mm512_srli_epi32(v, 6)), 0x000f000f);
  return masked(_mm512_or_si512(v, _mm512_srli_epi32(v, 12)), 0xff);
}

// The fifth bits of 32 columns, bit i of the dword at `byte` being that of column i.
void fifth_bits(const Rows16& rows, int64_t byte, uint8_t* codes) {
  const __m512i fifth = rows.dwords(byte);
  __m512i bits = every_fourth(fifth);
  bits = _mm512_or_si512(bits, _mm512_slli_epi32(every_fourth(_mm512_srli_epi32(fifth, 1)), 8));
  bits = _mm512_or_si512(bits, _mm512_slli_epi32(every_fourth(_mm512_srli_epi32(fifth, 2)), 16));
  bits = _mm512_or_si512(bits, _mm512_slli_epi32(every_fourth(_mm512_srli_epi32(fifth, 3)), 24));
  put(codes + 256, bits);
}

void q8_0(const Rows16& rows, uint8_t* codes, uint8_t* scales) {
  put_words(scales, rows.dwords(0));
  const __m512i sign = _mm512_set1_epi8(char(0x80));
  for (int k = 0; k < 8; ++k) put(codes + 64 * k, _mm512_xor_si512(rows.dwords(2 + 4 * k), sign));
}

// Eighth j: 6-bit scale and min (spec/models.md 8.2), and one half of 32 bytes.
void q4_k(const Rows16& rows, int j, int64_t nibbles_at, uint8_t* codes, uint8_t* scales, uint8_t* supers) {
  if (j == 0)
    put_words(supers, rows.dwords(0)), put_words(supers + 32, _mm512_srli_epi32(rows.dwords(0), 16));
  const __m512i first = rows.dwords(4), second = rows.dwords(8), third = rows.dwords(12);
  const int shift = j % 4 * 8;
  if (j < 4) {
    put_bytes(scales, masked(right(first, shift), 63));
    put_bytes(scales + 16, masked(right(second, shift), 63));
  } else {
    const auto upper = [&](__m512i v) { return _mm512_slli_epi32(masked(right(v, shift + 6), 3), 4); };
    put_bytes(scales, _mm512_or_si512(masked(right(third, shift), 15), upper(first)));
    put_bytes(scales + 16, _mm512_or_si512(masked(right(third, shift + 4), 15), upper(second)));
  }
  const auto four = [&](int i) {
    return masked(right(rows.dwords(nibbles_at + j / 2 * 32 + i), j % 2 * 4), 0x0f0f0f0f);
  };
  for (int k = 0; k < 4; ++k)
    put(codes + 64 * k, _mm512_or_si512(four(4 * k), _mm512_slli_epi32(four(16 + 4 * k), 4)));
}

// As Q4_K, with bit j of 32 bytes for the fifth bits of eighth j.
void q5_k(const Rows16& rows, int j, uint8_t* codes, uint8_t* scales, uint8_t* supers) {
  q4_k(rows, j, 48, codes, scales, supers);
  __m512i bits = _mm512_setzero_si512();
  for (int k = 0; k < 8; ++k) {
    const __m512i fifth = masked(right(rows.dwords(16 + 4 * k), j), 0x01010101);
    bits = _mm512_or_si512(bits, _mm512_sll_epi32(fifth, _mm_cvtsi32_si128(k)));
  }
  put(codes + 256, bits);
}

// Eighth j: two bits of 32 bytes that hold four eighths, nibbles of scale and minimum for each half
// (spec/models.md 8.2).
void q2_k(const Rows16& rows, int j, uint8_t* codes, uint8_t* scales, uint8_t* supers) {
  if (j == 0)
    put_words(supers, rows.dwords(80)), put_words(supers + 32, _mm512_srli_epi32(rows.dwords(80), 16));
  const __m512i both = right(rows.dwords(j / 2 * 4), j % 2 * 16);
  put_bytes(scales, both), put_bytes(scales + 16, _mm512_srli_epi32(both, 8));
  for (int i = 0; i < 2; ++i) {
    __m512i four = _mm512_setzero_si512();
    for (int k = 0; k < 4; ++k) {
      const __m512i two = right(rows.dwords(16 + j / 4 * 32 + 16 * i + 4 * k), j % 4 * 2);
      four = _mm512_or_si512(four, _mm512_sll_epi32(masked(two, 0x03030303), _mm_cvtsi32_si128(2 * k)));
    }
    put(codes + 64 * i, four);
  }
}

// Eighth j: two bits of 32 bytes that hold four eighths, the third bit in bit j of 32 others, and the scales
// of its halves, of six bits (spec/models.md 8.2).
void q3_k(const Rows16& rows, int j, uint8_t* codes, uint8_t* scales, uint8_t* supers) {
  if (j == 0) put_words(supers, _mm512_srli_epi32(rows.dwords(106), 16));  // d ends the block
  const auto code = [&](int k) {
    const __m512i two = masked(right(rows.dwords(32 + j / 4 * 32 + 4 * k), j % 4 * 2), 0x03030303);
    return _mm512_or_si512(two, _mm512_slli_epi32(masked(right(rows.dwords(4 * k), j), 0x01010101), 2));
  };
  for (int k = 0; k < 4; ++k)
    put(codes + 64 * k, _mm512_or_si512(code(k), _mm512_slli_epi32(code(k + 4), 4)));
  for (int h = 0; h < 2; ++h) {
    const int k = 2 * j + h;
    const __m512i low = masked(right(rows.dwords(96 + k % 8), k / 8 * 4), 15);
    const __m512i high = masked(right(rows.dwords(104), k % 4 * 8 + k / 4 * 2), 3);
    put_bytes(scales + 16 * h,
              _mm512_sub_epi32(_mm512_or_si512(low, _mm512_slli_epi32(high, 4)), _mm512_set1_epi32(32)));
  }
}

// Eighth j: quarter j % 4 of half j / 4 (spec/models.md 8.2).
void q6_k(const Rows16& rows, int j, uint8_t* codes, uint8_t* scales, uint8_t* supers) {
  const int half = j / 4, quarter = j % 4;
  if (j == 0) put_words(supers, _mm512_srli_epi32(rows.dwords(206), 16));  // d ends the block
  const __m512i both = rows.dwords(192 + 8 * half + 2 * quarter);
  put_bytes(scales, both), put_bytes(scales + 16, _mm512_srli_epi32(both, 8));
  const auto four = [&](int k) {
    return masked(right(rows.dwords(64 * half + quarter % 2 * 32 + 4 * k), quarter / 2 * 4), 0x0f0f0f0f);
  };
  const auto two = [&](int k) {
    return masked(right(rows.dwords(128 + 32 * half + 4 * k), quarter * 2), 0x03030303);
  };
  for (int k = 0; k < 4; ++k)
    put(codes + 64 * k, _mm512_or_si512(four(k), _mm512_slli_epi32(four(k + 4), 4)));
  for (int h = 0; h < 2; ++h) {
    const __m512i low = _mm512_or_si512(two(4 * h), _mm512_slli_epi32(two(4 * h + 1), 2));
    const __m512i high =
        _mm512_or_si512(_mm512_slli_epi32(two(4 * h + 2), 4), _mm512_slli_epi32(two(4 * h + 3), 6));
    put(codes + 64 * (4 + h), _mm512_or_si512(low, high));
  }
}

}  // namespace

void pack_panel(
    BlockType type, const uint8_t* rows, int64_t stride, int64_t n, int64_t blocks, uint8_t* out) {
  const PackedLayout l = packed_layout(type);
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  Rows16 from{rows, _mm512_mullo_epi32(lane, _mm512_set1_epi32(int(stride))), __mmask16((1u << n) - 1)};
  uint8_t *codes = out, *scales = out + blocks * l.codes, *supers = scales + whole_lines(blocks * l.scales);
  for (int64_t b = 0; b < blocks; ++b, codes += l.codes, scales += l.scales) {
    const int eighth = int(b % 8);
    switch (type) {
      case BlockType::kQ4_0:
        from.at = rows + b * 18;
        put_words(scales, from.dwords(0));
        nibbles(from, 2, codes);
        break;
      case BlockType::kQ4_1:
        from.at = rows + b * 20;
        put_words(scales, from.dwords(0)), put_words(scales + 32, _mm512_srli_epi32(from.dwords(0), 16));
        nibbles(from, 4, codes);
        break;
      case BlockType::kQ5_0:
        from.at = rows + b * 22;
        put_words(scales, from.dwords(0));
        fifth_bits(from, 2, codes), nibbles(from, 6, codes);
        break;
      case BlockType::kQ5_1:
        from.at = rows + b * 24;
        put_words(scales, from.dwords(0)), put_words(scales + 32, _mm512_srli_epi32(from.dwords(0), 16));
        fifth_bits(from, 4, codes), nibbles(from, 8, codes);
        break;
      case BlockType::kQ8_0:
        from.at = rows + b * 34;
        q8_0(from, codes, scales);
        break;
      case BlockType::kQ4_K:
        from.at = rows + b / 8 * 144;
        q4_k(from, eighth, 16, codes, scales, supers + b / 8 * l.supers);
        break;
      case BlockType::kQ2_K:
        from.at = rows + b / 8 * 84;
        q2_k(from, eighth, codes, scales, supers + b / 8 * l.supers);
        break;
      case BlockType::kQ3_K:
        from.at = rows + b / 8 * 110;
        q3_k(from, eighth, codes, scales, supers + b / 8 * l.supers);
        break;
      case BlockType::kQ5_K:
        from.at = rows + b / 8 * 176;
        q5_k(from, eighth, codes, scales, supers + b / 8 * l.supers);
        break;
      case BlockType::kQ6_K:
        from.at = rows + b / 8 * 210;
        q6_k(from, eighth, codes, scales, supers + b / 8 * l.supers);
        break;
    }
  }
}

}  // namespace se::linear_detail
