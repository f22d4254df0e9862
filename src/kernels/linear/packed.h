// kernels/linear/packed.h -- block weights as the AVX-512 and AMX levels read them (internal to this folder):
// panels of 16 rows, so that one lane of a register is one row, blocks of 32 columns in order.
//
// A panel has three parts, each in the order of the blocks, every one a multiple of 64 bytes:
//   codes   per block: registers of 16 lanes x 4 bytes; lane r is row r, byte i of dword k is column 4 k + i.
//           Q8_0: dwords 0..7, q + 128. Q2_K: 2 registers, dword k in bits 2 (k % 4) and the next of register
//           k / 4. Others: 4 registers of nibbles, dword k low and dword k + 4 high (Q3_K's three bits too).
//           Q5_0, Q5_1 and Q5_K then have one register: bit k of byte i is the fifth bit of column 4 k + i.
//           Q6_K has two: bits 2 (k % 4) and the next of byte i of register k / 4 are the upper bits of
//           column 4 k + i.
//   scales  per block: f16 d[16] (Q4_0, Q5_0, Q8_0); f16 d[16], m[16] (Q4_1, Q5_1); u8 scale[16],
//           min[16] (Q4_K, Q5_K); i8 first[16], second[16], of the two halves (Q3_K, Q6_K); the same u8,
//           minima in the upper nibbles (Q2_K)
//   supers  per 8 blocks: f16 d[16], dmin[16] (Q2_K, Q4_K, Q5_K); f16 d[16] (Q3_K, Q6_K)
// Rows that a last panel lacks are zero. Free of other headers of ours but linear_routines.h, for its reason.
#pragma once
#include "kernels/linear/linear_routines.h"

namespace se::linear_detail {

inline constexpr int kPanelRows = 16;

struct PackedLayout {
  int codes = 0, scales = 0, supers = 0;  // bytes per block; per block; per 8 blocks
};

static constexpr PackedLayout packed_layout(BlockType type) {
  switch (type) {
    case BlockType::kQ4_0:
      return {256, 32, 0};
    case BlockType::kQ4_1:
      return {256, 64, 0};
    case BlockType::kQ5_0:
      return {320, 32, 0};
    case BlockType::kQ5_1:
      return {320, 64, 0};
    case BlockType::kQ8_0:
      return {512, 32, 0};
    case BlockType::kQ2_K:
      return {128, 32, 64};
    case BlockType::kQ3_K:
      return {256, 32, 32};
    case BlockType::kQ4_K:
      return {256, 32, 64};
    case BlockType::kQ5_K:
      return {320, 32, 64};
    case BlockType::kQ6_K:
      return {384, 32, 32};
  }
  return {};
}

struct Panel {
  const uint8_t *codes = nullptr, *scales = nullptr, *supers = nullptr;
};

static constexpr int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

static constexpr int64_t panel_bytes(BlockType type, int64_t blocks) {
  const PackedLayout l = packed_layout(type);
  return blocks * l.codes + whole_lines(blocks * l.scales) + whole_lines(blocks / 8 * l.supers);
}

static inline Panel panel_at(BlockType type, const void* packed, int64_t blocks, int64_t panel) {
  const PackedLayout l = packed_layout(type);
  Panel p;
  p.codes = static_cast<const uint8_t*>(packed) + panel * panel_bytes(type, blocks);
  p.scales = p.codes + blocks * l.codes;
  p.supers = p.scales + whole_lines(blocks * l.scales);
  return p;
}

// Rows of one product in panels [begin, end).
struct Panels {
  BlockType type = BlockType::kQ8_0;
  const void* packed = nullptr;
  int64_t begin = 0, end = 0;
};

// As Routines::float_rows, of rows of any of these types (no alignment is assumed of halves).
enum class FloatType : uint8_t { kF32, kF16, kBF16 };
void float_rows_avx512(
    FloatType type, const Rows& w, const float* x, int64_t tokens, int64_t in, const Output& y);

// Rows of BF16 weights (no alignment is assumed) by rounded activations, x.x being F32 in parts; and BF16, on
// machines with AVX512_BF16.
void rounded_rows_avx512(const Rows& w, const Rounded& x, const Output& y);
void rounded_rows_avx512bf16(const Rows& w, const Rounded& x, const Output& y);

// As Routines::quantise.
void quantise_avx512(const float* x, int64_t begin, int64_t end, const Activations& a);

// y[begin_token..end_token, rows of the panels].
void panels_avx512(const Panels& w, const Activations& x, int64_t begin, int64_t end, const Output& y);
// The same; at most kTilePanels of them. Arrays of x must be readable kTilePadding items beyond their end.
// scratch: tile_scratch_bytes(blocks), 64-byte aligned.
void panels_amx(
    const Panels& w, const Activations& x, int64_t begin, int64_t end, const Output& y, void* scratch);
inline constexpr int64_t kTilePanels = 4;
inline constexpr int64_t kTilePadding = 16;  // tokens
int64_t tile_scratch_bytes(int64_t blocks);

// n <= 16 rows of a matrix of `type`, `stride` bytes (below 2^27) apart, as a panel. AVX-512 only.
void pack_panel(BlockType type, const uint8_t* rows, int64_t stride, int64_t n, int64_t blocks, uint8_t* out);

}  // namespace se::linear_detail
