// restore_avx2.cc -- decoding with AVX2: eight codes are one shift of a broadcast word by eight counts.
#include <immintrin.h>

#include "sparse/store/kivi/restore.h"

namespace {

template <int kBits>
inline __m256 codes8(const uint8_t* codes, int i) {  // codes i .. i + 7, i a multiple of 8
  uint32_t word = 0;
  __builtin_memcpy(&word, codes + i * kBits / 8, kBits);  // 8 codes of kBits bits are kBits bytes
  const __m256i counts =
      _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(kBits));
  const __m256i all = _mm256_srlv_epi32(_mm256_set1_epi32(int(word)), counts);
  return _mm256_cvtepi32_ps(_mm256_and_si256(all, _mm256_set1_epi32((1 << kBits) - 1)));
}

template <int kBits>
void channels_of(const uint8_t* codes, int n, const float* low, const float* step, float* out) {
  for (int i = 0; i < n; i += 8) {
    const __m256 scaled = _mm256_mul_ps(codes8<kBits>(codes, i), _mm256_loadu_ps(step + i));
    _mm256_storeu_ps(out + i, _mm256_add_ps(_mm256_loadu_ps(low + i), scaled));
  }
}
template <int kBits>
void group_of(const uint8_t* codes, int n, float low, float step, float* out) {
  const __m256 base = _mm256_set1_ps(low), factor = _mm256_set1_ps(step);
  for (int i = 0; i < n; i += 8)
    _mm256_storeu_ps(out + i, _mm256_add_ps(base, _mm256_mul_ps(codes8<kBits>(codes, i), factor)));
}

void channels(const uint8_t* codes, int n, int bits, const float* low, const float* step, float* out) {
  return bits == 4 ? channels_of<4>(codes, n, low, step, out) : channels_of<2>(codes, n, low, step, out);
}
void group(const uint8_t* codes, int n, int bits, float low, float step, float* out) {
  return bits == 4 ? group_of<4>(codes, n, low, step, out) : group_of<2>(codes, n, low, step, out);
}

}  // namespace

namespace se::kivi {

const Restore kRestoreAvx2 = {channels, group};

}  // namespace se::kivi
