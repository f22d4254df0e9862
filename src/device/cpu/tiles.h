// device/cpu/tiles.h -- AMX tiles, for sources that are compiled for that level (Intel SDM, volume 2:
// LDTILECFG, TILELOADD, TILESTORED, TILEZERO, TDPBSSD, TDPBF16PS). Built with SE_EMULATE_TILES they are plain
// functions, so that the level amx can be tested on a machine that has AVX-512 and no tiles; slow.
#pragma once
#include <cstdint>

namespace se::cpu {

// Shape of a thread's eight tiles: rows of so many bytes each. Tile 0 <= t < 8.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

#ifdef SE_EMULATE_TILES

namespace emulated {
void configure(const TileConfig& config);
void release();
void zero(int to);
void load(int to, const void* from, int64_t stride);
void store(int from, void* to, int64_t stride);
void multiply_int8(int to, int a, int b);
void multiply_bf16(int to, int a, int b);
}  // namespace emulated

inline void configure_tiles(const TileConfig& config) { emulated::configure(config); }
inline void release_tiles() { emulated::release(); }
template <int kTo>
void zero_tile() {
  emulated::zero(kTo);
}
template <int kTo>
void load_tile(const void* from, int64_t stride = 64) {
  emulated::load(kTo, from, stride);
}
template <int kFrom>
void store_tile(void* to, int64_t stride = 64) {
  emulated::store(kFrom, to, stride);
}
template <int kTo, int kA, int kB>
void multiply_int8() {
  emulated::multiply_int8(kTo, kA, kB);
}
template <int kTo, int kA, int kB>
void multiply_bf16() {
  emulated::multiply_bf16(kTo, kA, kB);
}

#else

// Written out: GCC 12's intrinsics do not tell the compiler that they read memory (and of the configuration
// they name eight bytes).
inline void configure_tiles(const TileConfig& config) {  // all tiles are zeros after it
  __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
}
inline void release_tiles() { __asm__ volatile("tilerelease" ::: "memory"); }
template <int kTo>
inline void zero_tile() {
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(kTo));
}
template <int kTo>
inline void load_tile(const void* from, int64_t stride = 64) {  // stride: bytes from row to row
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTo) : "memory");
}
template <int kFrom>
inline void store_tile(void* to, int64_t stride = 64) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kFrom) : "memory");
}
template <int kTo, int kA, int kB>  // to += a x b; b holds four (two) rows in the bytes of one
inline void multiply_int8() {
  __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kTo), "i"(kA), "i"(kB));
}
template <int kTo, int kA, int kB>
inline void multiply_bf16() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kTo), "i"(kA), "i"(kB));
}

#endif

}  // namespace se::cpu
