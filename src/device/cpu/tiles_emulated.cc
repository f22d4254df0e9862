#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "device/cpu/tiles.h"

// As the manual defines the instructions, a row at a time. A shape that they would fault on ends the program.
namespace se::cpu::emulated {
namespace {

struct Tile {
  int rows = 0, row_bytes = 0;  // 0: not configured
  alignas(64) uint8_t bytes[16][64];
};
thread_local Tile tiles[8];

Tile& configured(int t) {
  SE_CHECK(t >= 0 && t < 8 && tiles[t].rows > 0 && tiles[t].row_bytes > 0, "tile {} has no shape", t);
  return tiles[t];
}

// The shapes that a product asks for: to [m, n], a [m, 4 * k bytes], b [k, n], n in elements of four bytes.
void check_shapes(const Tile& to, const Tile& a, const Tile& b) {
  SE_CHECK(
      to.rows == a.rows && to.row_bytes == b.row_bytes && a.row_bytes == 4 * b.rows && to.row_bytes % 4 == 0,
      "tiles of {} x {}, {} x {} and {} x {} bytes do not multiply",
      to.rows,
      to.row_bytes,
      a.rows,
      a.row_bytes,
      b.rows,
      b.row_bytes);
}

// Denormals count as zeros and become zeros.
inline float flushed(float x) { return std::fabs(x) < FLT_MIN ? 0.f : x; }

// The 16 pairs of a row, apart.
void widen(const uint8_t* row, float (&even)[16], float (&odd)[16]) {
  for (int n = 0; n < 16; ++n) {
    uint32_t pair = 0;
    std::memcpy(&pair, row + 4 * n, 4);
    even[n] = flushed(std::bit_cast<float>(pair << 16));
    odd[n] = flushed(std::bit_cast<float>(pair & 0xffff0000u));
  }
}

}  // namespace

void configure(const TileConfig& config) {
  SE_CHECK(config.palette == 1 && config.start_row == 0, "palette {} of tiles", int(config.palette));
  for (int t = 0; t < 8; ++t) {
    SE_CHECK(config.rows[t] <= 16 && config.row_bytes[t] <= 64, "tile {} is too large", t);
    tiles[t].rows = config.rows[t], tiles[t].row_bytes = config.row_bytes[t];
    std::memset(tiles[t].bytes, 0, sizeof tiles[t].bytes);
  }
}

void release() {
  for (Tile& t : tiles) t.rows = t.row_bytes = 0;
}

void zero(int to) { std::memset(configured(to).bytes, 0, sizeof tiles[to].bytes); }

void load(int to, const void* from, int64_t stride) {
  Tile& t = configured(to);
  std::memset(t.bytes, 0, sizeof t.bytes);
  for (int r = 0; r < t.rows; ++r)
    std::memcpy(t.bytes[r], static_cast<const char*>(from) + r * stride, size_t(t.row_bytes));
}

void store(int from, void* to, int64_t stride) {
  const Tile& t = configured(from);
  for (int r = 0; r < t.rows; ++r)
    std::memcpy(static_cast<char*>(to) + r * stride, t.bytes[r], size_t(t.row_bytes));
}

// What lies beyond a tile's columns is zero, so all 16 are computed.
void multiply_int8(int to, int a, int b) {
  Tile &c = configured(to), &x = configured(a), &y = configured(b);
  check_shapes(c, x, y);
  for (int m = 0; m < c.rows; ++m) {
    uint32_t sums[16];
    std::memcpy(sums, c.bytes[m], 64);
    for (int k = 0; k < y.rows; ++k) {
      for (int n = 0; n < 16; ++n) {
        int32_t sum = 0;
        for (int i = 0; i < 4; ++i) sum += int8_t(x.bytes[m][4 * k + i]) * int8_t(y.bytes[k][4 * n + i]);
        sums[n] += uint32_t(sum);
      }
    }
    std::memcpy(c.bytes[m], sums, 64);
  }
}

// Sums of even and of odd places apart, both with fused products, added at the end.
void multiply_bf16(int to, int a, int b) {
  Tile &c = configured(to), &x = configured(a), &y = configured(b);
  check_shapes(c, x, y);
  float y_even[16][16], y_odd[16][16];
  for (int k = 0; k < y.rows; ++k) widen(y.bytes[k], y_even[k], y_odd[k]);
  for (int m = 0; m < c.rows; ++m) {
    float x_even[16], x_odd[16], even[16] = {}, odd[16] = {}, sums[16];
    widen(x.bytes[m], x_even, x_odd);
    for (int k = 0; k < y.rows; ++k) {
      for (int n = 0; n < 16; ++n) {
        even[n] = flushed(std::fma(x_even[k], y_even[k][n], even[n]));
        odd[n] = flushed(std::fma(x_odd[k], y_odd[k][n], odd[n]));
      }
    }
    std::memcpy(sums, c.bytes[m], 64);
    for (int n = 0; n < 16; ++n) sums[n] = flushed(flushed(sums[n]) + flushed(even[n] + odd[n]));
    std::memcpy(c.bytes[m], sums, 64);
  }
}

}  // namespace se::cpu::emulated
