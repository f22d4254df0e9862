// Rows of block types into panels (packed.h): plain C++, a few cycles a byte, done once when a model is
// loaded.
#include <cstring>

#include "kernels/linear/packed.h"

namespace se::linear_detail {
namespace {

// Where the parts of a block of one row of a panel go.
struct Lane {
  uint8_t *codes, *scales, *supers;  // of the block (supers: of its 256 columns)
  int row;
  void half(uint8_t* part, int field, const uint8_t* from) const {
    std::memcpy(part + 2 * (kPanelRows * field + row), from, 2);
  }
  void dword(int k, uint32_t value) const { std::memcpy(codes + 64 * k + 4 * row, &value, 4); }
};

uint32_t dword_at(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}

// Nibbles as the 32-column formats have them: byte i is column i and, high, column 16 + i.
void nibbles(const uint8_t* from, const Lane& to) {
  for (int k = 0; k < 4; ++k) to.dword(k, dword_at(from + 4 * k));
}

// Bits 0, 4, .. 28 of v as bits 0 .. 7.
uint32_t every_fourth(uint32_t v) {
  v &= 0x11111111u;
  v = (v | v >> 3) & 0x03030303u;
  v = (v | v >> 6) & 0x000f000fu;
  return (v | v >> 12) & 0xffu;
}

void q5_0(const uint8_t* block, const Lane& to) {
  to.half(to.scales, 0, block);
  nibbles(block + 6, to);
  const uint32_t fifth = dword_at(block + 2);
  uint32_t bits = 0;
  for (int i = 0; i < 4; ++i) bits |= every_fourth(fifth >> i) << 8 * i;
  to.dword(4, bits);
}

void q8_0(const uint8_t* block, const Lane& to) {
  to.half(to.scales, 0, block);
  for (int k = 0; k < 8; ++k) to.dword(k, dword_at(block + 2 + 4 * k) ^ 0x80808080u);
}

// Eighth j: its nibbles are one half of 32 bytes.
void q4_k(const uint8_t* block, int j, const Lane& to) {
  to.half(to.supers, 0, block), to.half(to.supers, 1, block + 2);
  const uint8_t* s = block + 4;
  to.scales[to.row] = uint8_t(j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6 << 4));
  to.scales[16 + to.row] = uint8_t(j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6 << 4));
  const uint8_t* q = block + 16 + j / 2 * 32;
  for (int k = 0; k < 4; ++k) {
    const uint32_t low = dword_at(q + 4 * k) >> j % 2 * 4 & 0x0f0f0f0fu;
    const uint32_t high = dword_at(q + 16 + 4 * k) >> j % 2 * 4 & 0x0f0f0f0fu;
    to.dword(k, low | high << 4);
  }
}

// Eighth j: quarter j % 4 of half j / 4 (spec/models.md 8.2).
void q6_k(const uint8_t* block, int j, const Lane& to) {
  const int half = j / 4, quarter = j % 4;
  to.half(to.supers, 0, block + 208);
  for (int i = 0; i < 2; ++i) to.scales[16 * i + to.row] = block[192 + 8 * half + 2 * quarter + i];
  const uint8_t *low = block + 64 * half + quarter % 2 * 32, *high = block + 128 + 32 * half;
  const auto four = [&](int k) { return dword_at(low + 4 * k) >> quarter / 2 * 4 & 0x0f0f0f0fu; };
  const auto two = [&](int k) { return dword_at(high + 4 * k) >> quarter * 2 & 0x03030303u; };
  for (int k = 0; k < 4; ++k) to.dword(k, four(k) | four(k + 4) << 4);
  for (int h = 0; h < 2; ++h) {
    uint32_t bits = 0;
    for (int k = 0; k < 4; ++k) bits |= two(4 * h + k) << 2 * k;
    to.dword(4 + h, bits);
  }
}

}  // namespace

void pack_panel(
    BlockType type, const uint8_t* rows, int64_t stride, int64_t n, int64_t blocks, uint8_t* out) {
  const PackedLayout l = packed_layout(type);
  if (n < kPanelRows) std::memset(out, 0, size_t(panel_bytes(type, blocks)));
  uint8_t *scales = out + blocks * l.codes, *supers = scales + whole_lines(blocks * l.scales);
  for (int64_t b = 0; b < blocks; ++b) {
    for (int r = 0; r < n; ++r) {
      const uint8_t* row = rows + r * stride;
      const Lane to{out + b * l.codes, scales + b * l.scales, supers + b / 8 * l.supers, r};
      switch (type) {
        case BlockType::kQ4_0:
          to.half(to.scales, 0, row + b * 18);
          nibbles(row + b * 18 + 2, to);
          break;
        case BlockType::kQ4_1:
          to.half(to.scales, 0, row + b * 20), to.half(to.scales, 1, row + b * 20 + 2);
          nibbles(row + b * 20 + 4, to);
          break;
        case BlockType::kQ5_0:
          q5_0(row + b * 22, to);
          break;
        case BlockType::kQ8_0:
          q8_0(row + b * 34, to);
          break;
        case BlockType::kQ4_K:
          q4_k(row + b / 8 * 144, int(b % 8), to);
          break;
        case BlockType::kQ6_K:
          q6_k(row + b / 8 * 210, int(b % 8), to);
          break;
      }
    }
  }
}

}  // namespace se::linear_detail
