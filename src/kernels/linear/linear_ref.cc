#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "kernels/linear/linear_routines.h"

namespace se::linear_detail {
namespace {

void quantise(const float* x, int64_t begin, int64_t end, const Activations& a) {
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t b = 0; b < a.blocks; ++b) {
      const float* v = x + (t * a.blocks + b) * kBlock;
      uint32_t top = 0;  // the bits of |v| order as its values do, with NaN above all
      for (int i = 0; i < kBlock; ++i) top = std::max(top, std::bit_cast<uint32_t>(v[i]) & 0x7fffffffu);
      const float amax = std::bit_cast<float>(top);
      const bool tiny = amax < kTiny;
      const float d = tiny ? 0 : amax / 127.0f, inverse = tiny ? 0 : 127.0f / amax;
      const int64_t at = place(a, t, b);
      int32_t sum = 0;
      for (int i = 0; i < kBlock; ++i) {
        if (i == kBlock / 2) a.half[at] = sum;
        const float scaled = v[i] * inverse;
        const int q = scaled == scaled ? int(std::nearbyint(scaled)) : -128;
        a.q[at * kBlock + i] = int8_t(q);
        sum += q;
      }
      a.d[at] = d, a.sum[at] = sum, a.dsum[at] = d * float(sum);
    }
  }
}

// Where block b of 32 values begins in a row; of the K types: the 256 values it is part of.
int64_t block_offset(BlockType type, int64_t b) {
  switch (type) {
    case BlockType::kQ4_0:
      return b * 18;
    case BlockType::kQ4_1:
      return b * 20;
    case BlockType::kQ5_0:
      return b * 22;
    case BlockType::kQ5_1:
      return b * 24;
    case BlockType::kQ2_K:
      return b / 8 * 84;
    case BlockType::kQ3_K:
      return b / 8 * 110;
    case BlockType::kQ4_K:
      return b / 8 * 144;
    case BlockType::kQ5_K:
      return b / 8 * 176;
    case BlockType::kQ6_K:
      return b / 8 * 210;
    case BlockType::kQ8_0:
      break;
  }
  return b * 34;
}

struct WeightBlock {
  float d = 0, m = 0;
  int q[kBlock];          // the values: codes less offset_of(type)
  int scale[2] = {1, 1};  // of each 16 (Q2_K, Q3_K, Q6_K)
  int min[2] = {0, 0};    // of each 16, m being that of one (Q2_K)
};

float half_at(const uint8_t* b) {
  uint16_t h;
  std::memcpy(&h, b, 2);
  return f16_to_f32(h);
}

void nibbles(const uint8_t* b, WeightBlock& w) {
  for (int i = 0; i < 16; ++i) w.q[i] = b[i] & 15, w.q[16 + i] = b[i] >> 4;
}

// Eighth j of a block of Q4_K (nibbles at 16) or Q5_K (at 48): 6-bit scale and min (spec/models.md 8.3),
// nibbles of 32 bytes shared by two eighths.
void read_eighth(const uint8_t* b, int j, int nibbles_at, WeightBlock& w) {
  const uint8_t* s = b + 4;
  const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6 << 4);
  const int min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6 << 4);
  w.m = -(half_at(b + 2) * float(min));
  w.d = half_at(b) * float(scale);
  for (int i = 0; i < kBlock; ++i) w.q[i] = b[nibbles_at + j / 2 * 32 + i] >> (j % 2 * 4) & 15;
}

// Eighth j of a block of Q2_K (spec/models.md 8.2): two bits of a byte that four eighths share.
void read_eighth_q2(const uint8_t* b, int j, WeightBlock& w) {
  w.d = half_at(b + 80), w.m = -half_at(b + 82);
  for (int h = 0; h < 2; ++h) w.scale[h] = b[2 * j + h] & 15, w.min[h] = b[2 * j + h] >> 4;
  for (int i = 0; i < kBlock; ++i) w.q[i] = b[16 + j / 4 * 32 + i] >> j % 4 * 2 & 3;
}

// Eighth j of a block of Q3_K (spec/models.md 8.2): two bits of a byte that four eighths share, bit j of
// another.
void read_eighth_q3(const uint8_t* b, int j, WeightBlock& w) {
  w.d = half_at(b + 108);
  const uint8_t* s = b + 96;
  for (int h = 0; h < 2; ++h) {
    const int k = 2 * j + h, low = k < 8 ? s[k] & 15 : s[k - 8] >> 4;
    w.scale[h] = (low | (s[8 + k % 4] >> k / 4 * 2 & 3) << 4) - 32;
  }
  for (int i = 0; i < kBlock; ++i) w.q[i] = (b[32 + j / 4 * 32 + i] >> j % 4 * 2 & 3) | (b[i] >> j & 1) << 2;
}

// Eighth j of a block of Q6_K (spec/models.md 8.2): quarter j % 4 of half j / 4.
void read_eighth_q6(const uint8_t* b, int j, WeightBlock& w) {
  const int half = j / 4, quarter = j % 4;
  const uint8_t *low = b + 64 * half + quarter % 2 * 32, *high = b + 128 + 32 * half;
  w.d = half_at(b + 208);
  for (int i = 0; i < 2; ++i) w.scale[i] = int8_t(b[192 + 8 * half + 2 * quarter + i]);
  for (int i = 0; i < kBlock; ++i)
    w.q[i] = (low[i] >> quarter / 2 * 4 & 15) | (high[i] >> quarter * 2 & 3) << 4;
}

WeightBlock read_block(BlockType type, const uint8_t* b, int eighth) {
  WeightBlock w;
  w.d = half_at(b);
  switch (type) {
    case BlockType::kQ4_K:
      read_eighth(b, eighth, 16, w);
      break;
    case BlockType::kQ5_K:
      read_eighth(b, eighth, 48, w);
      for (int i = 0; i < kBlock; ++i) w.q[i] |= (b[16 + i] >> eighth & 1) << 4;
      break;
    case BlockType::kQ2_K:
      read_eighth_q2(b, eighth, w);
      break;
    case BlockType::kQ3_K:
      read_eighth_q3(b, eighth, w);
      break;
    case BlockType::kQ6_K:
      read_eighth_q6(b, eighth, w);
      break;
    case BlockType::kQ5_0:
    case BlockType::kQ5_1: {
      const int at = type == BlockType::kQ5_0 ? 2 : 4;
      if (type == BlockType::kQ5_1) w.m = half_at(b + 2);
      uint32_t fifth;
      std::memcpy(&fifth, b + at, 4);
      nibbles(b + at + 4, w);
      for (int i = 0; i < kBlock; ++i) w.q[i] |= int(fifth >> i & 1) << 4;
      break;
    }
    case BlockType::kQ4_0:
      nibbles(b + 2, w);
      break;
    case BlockType::kQ4_1:
      w.m = half_at(b + 2);
      nibbles(b + 4, w);
      break;
    default:
      for (int i = 0; i < kBlock; ++i) w.q[i] = int8_t(b[2 + i]) + 128;
  }
  for (int& q : w.q) q -= offset_of(type);
  return w;
}

void block_rows(
    BlockType type, const Rows& w, const Activations& x, int64_t begin, int64_t end, const Output& y) {
  float acc[kMaxTokens];
  for (int64_t row = w.begin; row < w.end; ++row) {
    std::memset(acc, 0, sizeof acc);
    const uint8_t* p = static_cast<const uint8_t*>(w.data) + row * w.stride;
    for (int64_t b = 0; b < x.blocks; ++b) {
      const WeightBlock block = read_block(type, p + block_offset(type, b), int(b % 8));
      for (int64_t t = begin; t < end; ++t) {
        const int64_t at = place(x, t, b);
        int sum = 0;
        for (int i = 0; i < kBlock; ++i) sum += block.scale[i / 16] * block.q[i] * x.q[at * kBlock + i];
        float& a = acc[t - begin];
        if (has_minimum(type)) a = std::fma(block.m, x.dsum[at], a);
        if (has_minima(type)) {
          const int minima = block.min[0] * x.half[at] + block.min[1] * (x.sum[at] - x.half[at]);
          a = std::fma(block.m * x.d[at], float(minima), a);
        }
        a = std::fma(block.d * x.d[at], float(sum), a);
      }
    }
    for (int64_t t = begin; t < end; ++t)
      y.y[t * y.out + row] = y.bias ? acc[t - begin] + y.bias[row] : acc[t - begin];
  }
}

void float_rows(const Rows& w, const float* x, int64_t tokens, int64_t in, const Output& y) {
  for (int64_t row = w.begin; row < w.end; ++row) {
    const float* p =
        reinterpret_cast<const float*>(static_cast<const char*>(w.data) + (row - w.begin) * w.stride);
    for (int64_t t = 0; t < tokens; ++t) {
      float lanes[16] = {};
      for (int64_t i = 0; i < in; ++i) lanes[i % 16] = std::fma(p[i], x[t * in + i], lanes[i % 16]);
      for (int width = 8; width > 0; width /= 2) {
        for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
      }
      y.y[t * y.out + row] = y.bias ? lanes[0] + y.bias[row] : lanes[0];
    }
  }
}

}  // namespace

const Routines& ref_routines() {
  static constexpr Routines kRoutines{quantise, block_rows, float_rows};
  return kRoutines;
}

}  // namespace se::linear_detail
