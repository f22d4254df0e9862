// core_avx512.inl -- the inner loops of core_avx512.cc and codes_avx512.cc: dots, softmax and sums of values
// of up to eight rows. Internal linkage; see core_avx512.cc.
#include "kernels/attention/core.h"
//
#include "kernels/attention/vec16.inl"

namespace {

using se::cpu::Ahead;
using se::cpu::AttentionCore;
using se::cpu::CodeType;
using se::cpu::kKeyBlock;
using se::cpu::RowType;
using se::cpu::Running;

static_assert(kKeyBlock == 32);

// The next `lines` lines of what lies ahead. Non-temporal: a step reads them once, and the outer caches keep
// what they hold of the weights.
__attribute__((noinline)) void fetch_across(Ahead& a, int lines) {
  while (lines > 0 && a.at < a.n) {
    const char* p = a.begin[a.at];
    for (; lines > 0 && p < a.end[a.at]; p += 64, --lines) _mm_prefetch(p, _MM_HINT_NTA);
    a.begin[a.at] = p;
    if (p >= a.end[a.at]) ++a.at;
  }
}
inline void fetch(Ahead* ahead, int lines) {
  if (!ahead || ahead->at >= ahead->n) return;
  const char* from = ahead->begin[ahead->at];
  if (from + int64_t(lines) * 64 >= ahead->end[ahead->at]) return fetch_across(*ahead, lines);
  for (int i = 0; i < lines; ++i) _mm_prefetch(from + i * 64, _MM_HINT_NTA);
  ahead->begin[ahead->at] = from + int64_t(lines) * 64;
}

// In a register: as an operand of each product GCC would load it for each.
inline F16 once(F16 x) {
  asm("" : "+v"(x));
  return x;
}

template <auto kType>
constexpr int kBytes = kType == RowType::kF32 ? 4 : 2;
template <>
inline constexpr int kBytes<CodeType::k4> = 1;  // at most
template <>
inline constexpr int kBytes<CodeType::k2> = 1;
template <>
inline constexpr int kBytes<CodeType::kE4M3> = 1;
template <>
inline constexpr int kBytes<CodeType::kE5M2> = 1;

// Sixteen codes: broadcast words shifted by as many counts, and their low bits looked up in a table of
// floats.
inline F16 load_codes4(const uint8_t* p) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i words =
      _mm512_permutexvar_epi32(_mm512_srli_epi32(lane, 3), _mm512_castsi128_si512(_mm_loadu_si64(p)));
  const __m512i counts = _mm512_slli_epi32(_mm512_and_si512(lane, _mm512_set1_epi32(7)), 2);
  return _mm512_permutexvar_ps(_mm512_srlv_epi32(words, counts), _mm512_cvtepi32_ps(lane));
}
inline F16 load_codes2(const uint8_t* p) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  uint32_t word = 0;
  __builtin_memcpy(&word, p, 4);
  return _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_set1_epi32(int(word)), _mm512_slli_epi32(lane, 1)),
                               _mm512_cvtepi32_ps(_mm512_and_si512(lane, _mm512_set1_epi32(3))));
}

template <auto kType>
inline F16 load_row(const void* row, int i) {
  const char* p = static_cast<const char*>(row) + int64_t(i) * kBytes<kType>;
  if constexpr (kType == RowType::kF32) return _mm512_loadu_ps(p);
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  if constexpr (kType == RowType::kF16) return _mm512_cvtph_ps(h);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
template <>
inline F16 load_row<CodeType::k4>(const void* row, int i) {
  return load_codes4(static_cast<const uint8_t*>(row) + i / 2);
}
template <>
inline F16 load_row<CodeType::k2>(const void* row, int i) {
  return load_codes2(static_cast<const uint8_t*>(row) + i / 4);
}
// 8-bit floats by way of F16, which has the bits of E5M2 above eight zeros and those of E4M3 with another
// bias: its values come out as 2^-8 of themselves, and its NaN as 1.875, which the caller must look for.
// Subnormals of F16 cost nothing, unlike those of F32.
template <>
inline F16 load_row<CodeType::kE4M3>(const void* row, int i) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const char*>(row) + i));
  const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);  // bits 14 and 15 are the sign
  return _mm512_cvtph_ps(_mm256_and_si256(shifted, _mm256_set1_epi16(short(0xbf80))));
}
template <>
inline F16 load_row<CodeType::kE5M2>(const void* row, int i) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const char*>(row) + i));
  return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 8));
}
// Lanes from n on are 0 and are not read.
template <auto kType>
inline F16 load_some(const void* row, int i, int n) {
  const char* p = static_cast<const char*>(row) + int64_t(i) * kBytes<kType>;
  const __mmask16 m = __mmask16((1u << n) - 1);
  if constexpr (kType == RowType::kF32) return _mm512_maskz_loadu_ps(m, p);
  const __m256i h = _mm256_maskz_loadu_epi16(m, p);
  if constexpr (kType == RowType::kF16) return _mm512_cvtph_ps(h);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

template <>
inline F16 load_some<CodeType::k4>(const void*, int, int) {  // codes come in whole sixteens
  return zero16();
}
template <>
inline F16 load_some<CodeType::k2>(const void*, int, int) {
  return zero16();
}
template <>
inline F16 load_some<CodeType::kE4M3>(const void*, int, int) {
  return zero16();
}
template <>
inline F16 load_some<CodeType::kE5M2>(const void*, int, int) {
  return zero16();
}

// Each quarter of the result: the sums of that quarter of a, b, c, d.
inline F16 sum_quarters(F16 a, F16 b, F16 c, F16 d) {
  const F16 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const F16 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d x = _mm512_castps_pd(ab), y = _mm512_castps_pd(cd);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                       _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}
// Quarter i of the result: the sum of the quarters of the i-th argument.
inline F16 sum_across(F16 a, F16 b, F16 c, F16 d) {
  const F16 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  const F16 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x88), _mm512_shuffle_f32x4(c, d, 0xdd));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

// kRows x kKeys dots, kRows * kKeys <= 16 and kKeys a multiple of 4.
template <auto kType, int kRows, int kKeys>
inline void dot_block(const float* q, int64_t q_stride, const void* const* keys, int dim, float* out) {
  static_assert(kRows * kKeys <= 16 && kKeys % 4 == 0);
  F16 sum[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) sum[i] = zero16();
  int d = 0;
  for (; d + 16 <= dim; d += 16) {
    F16 a[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) a[r] = _mm512_loadu_ps(q + r * q_stride + d);
#pragma GCC unroll 16
    for (int j = 0; j < kKeys; ++j) {
      const F16 k = load_row<kType>(keys[j], d);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r * kKeys + j] = _mm512_fmadd_ps(a[r], k, sum[r * kKeys + j]);
    }
  }
  if (d < dim) {
#pragma GCC unroll 16
    for (int j = 0; j < kKeys; ++j) {
      const F16 k = load_some<kType>(keys[j], d, dim - d);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r)
        sum[r * kKeys + j] =
            _mm512_fmadd_ps(load_some<RowType::kF32>(q + r * q_stride, d, dim - d), k, sum[r * kKeys + j]);
    }
  }
  F16 part[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    part[i] = sum_quarters(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
  const F16 all = sum_across(part[0], part[1], part[2], part[3]);
  if constexpr (kKeys == 16) _mm512_storeu_ps(out, all);
  if constexpr (kKeys == 8) {
    _mm256_storeu_ps(out, _mm512_castps512_ps256(all));
    if constexpr (kRows > 1) _mm256_storeu_ps(out + kKeyBlock, _mm512_extractf32x8_ps(all, 1));
  }
  if constexpr (kKeys == 4) {
    _mm_storeu_ps(out, _mm512_castps512_ps128(all));
    if constexpr (kRows > 1) _mm_storeu_ps(out + kKeyBlock, _mm512_extractf32x4_ps(all, 1));
    if constexpr (kRows > 2) _mm_storeu_ps(out + 2 * kKeyBlock, _mm512_extractf32x4_ps(all, 2));
    if constexpr (kRows > 3) _mm_storeu_ps(out + 3 * kKeyBlock, _mm512_extractf32x4_ps(all, 3));
  }
}

template <auto kType, int kRows>
inline void dot_rows(
    const float* q, int64_t q_stride, const void* const* keys, int n, int dim, float* out, Ahead* ahead) {
  const int lines = (dim * kBytes<kType> + 63) / 64;  // of a key: what is read now is asked for next
  int j = 0;
  if constexpr (kRows == 1) {
    for (; j + 16 <= n; j += 16) {
      fetch(ahead, 16 * lines);
      dot_block<kType, 1, 16>(q, q_stride, keys + j, dim, out + j);
    }
  }
  if constexpr (kRows == 2) {
    for (; j + 8 <= n; j += 8) {
      fetch(ahead, 8 * lines);
      dot_block<kType, 2, 8>(q, q_stride, keys + j, dim, out + j);
    }
  }
  for (; j < n; j += 4) {
    fetch(ahead, 4 * lines);
    dot_block<kType, kRows, 4>(q, q_stride, keys + j, dim, out + j);
  }
}

template <auto kType>
void dots_of(const float* q,
             int64_t q_stride,
             int rows,
             const void* const* keys,
             int n,
             int dim,
             float* out,
             Ahead* ahead) {
  int r = 0;
  for (; r + 4 <= rows; r += 4)
    dot_rows<kType, 4>(q + r * q_stride, q_stride, keys, n, dim, out + r * kKeyBlock, ahead);
  if (rows - r == 3) dot_rows<kType, 3>(q + r * q_stride, q_stride, keys, n, dim, out + r * kKeyBlock, ahead);
  if (rows - r == 2) dot_rows<kType, 2>(q + r * q_stride, q_stride, keys, n, dim, out + r * kKeyBlock, ahead);
  if (rows - r == 1) dot_rows<kType, 1>(q + r * q_stride, q_stride, keys, n, dim, out + r * kKeyBlock, ahead);
}

// Lane r of the result: all lanes of x[r] folded by `op`, in an order that is the same for every r.
template <typename Op>
inline __m256 fold_rows(const F16* x, const Op& op) {
  F16 half[4], quarter[2];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    half[i] = op(_mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0x44),
                 _mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0xee));
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i)
    quarter[i] = op(_mm512_shuffle_f32x4(half[2 * i], half[2 * i + 1], 0x88),
                    _mm512_shuffle_f32x4(half[2 * i], half[2 * i + 1], 0xdd));
  const __m512d p = _mm512_castps_pd(quarter[0]), q = _mm512_castps_pd(quarter[1]);
  const F16 two = op(_mm512_castpd_ps(_mm512_unpacklo_pd(p, q)), _mm512_castpd_ps(_mm512_unpackhi_pd(p, q)));
  const F16 all = op(two, _mm512_permute_ps(two, 0xb1));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 4, 8, 12, 2, 6, 10, 14);
  return _mm512_castps512_ps256(_mm512_permutexvar_ps(order, all));
}

// Scores of up to eight rows become weights; m and l move on, kept[r] is the factor of what was summed
// before. The rows go together: one at a time, each waited for its own maximum and sum.
template <int kRows>
inline void weigh(
    float* s, float scale, const int32_t* from, const int32_t* seen, float* m, float* l, float* kept) {
  static_assert(kRows <= 8);
  const __mmask8 rows = __mmask8((1u << kRows) - 1);
  const F16 none = set16(kMinusInf), factor = set16(scale);
  F16 x[kRows], y[kRows], fold[8];
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r) {
    fold[r] = none;
    if (r >= kRows) continue;
    const uint64_t to = uint64_t{1} << (seen[r] > 0 ? seen[r] : 0), low = from ? uint64_t{1} << from[r] : 1;
    const uint32_t sees = to > low ? uint32_t(to - low) : 0;
    x[r] = _mm512_mask_mul_ps(none, __mmask16(sees), _mm512_loadu_ps(s + r * kKeyBlock), factor);
    y[r] = _mm512_mask_mul_ps(none, __mmask16(sees >> 16), _mm512_loadu_ps(s + r * kKeyBlock + 16), factor);
    fold[r] = _mm512_max_ps(x[r], y[r]);
  }
  const __m256 top = fold_rows(fold, [](F16 a, F16 b) { return _mm512_max_ps(a, b); });
  const __m256 old = _mm256_mask_loadu_ps(_mm512_castps512_ps256(none), rows, m);
  const __m256 now = _mm256_mask_mov_ps(top, _mm256_cmp_ps_mask(top, old, _CMP_LE_OQ), old);  // NaN stays
  // Where nothing is seen yet, all weights are 0 and nothing is rescaled.
  const __mmask8 some = _mm256_cmp_ps_mask(now, _mm512_castps512_ps256(none), _CMP_NEQ_UQ);
  const __m256 shift = _mm256_maskz_mov_ps(some, now);
  const __m256 rest =
      _mm512_castps512_ps256(exp16(_mm512_castps256_ps512(_mm256_maskz_sub_ps(some, old, shift))));
  alignas(32) float shifts[8];
  _mm256_store_ps(shifts, shift);
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r) {
    fold[r] = zero16();
    if (r >= kRows) continue;
    x[r] = exp16(_mm512_sub_ps(x[r], set16(shifts[r])));
    y[r] = exp16(_mm512_sub_ps(y[r], set16(shifts[r])));
    _mm512_storeu_ps(s + r * kKeyBlock, x[r]), _mm512_storeu_ps(s + r * kKeyBlock + 16, y[r]);
    fold[r] = _mm512_add_ps(x[r], y[r]);
  }
  const __m256 sum = fold_rows(fold, [](F16 a, F16 b) { return _mm512_add_ps(a, b); });
  const __m256 total = _mm256_add_ps(_mm256_mul_ps(_mm256_maskz_loadu_ps(rows, l), rest), sum);
  _mm256_mask_storeu_ps(m, rows, now);
  _mm256_mask_storeu_ps(l, rows, total);
  _mm256_mask_storeu_ps(kept, rows, rest);
}

// acc[r][0 .. 16 * kVecs) = acc * kept[r] + sum of weight x value, keys ascending; `tail` < 16: the only
// vector has so many lanes.
template <auto kType, int kRows, int kVecs, bool kTail>
inline void sum_values(float* acc,
                       int64_t stride,
                       const float* kept,
                       const float* weights,
                       const void* const* values,
                       int n,
                       int d,
                       int tail,
                       Ahead* ahead) {
  static_assert(!kTail || kVecs == 1);
  const __mmask16 some = kTail ? __mmask16((1u << tail) - 1) : __mmask16(0xffff);
  F16 sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v)
      sum[r][v] = _mm512_mul_ps(_mm512_maskz_loadu_ps(some, acc + r * stride + 16 * v), set16(kept[r]));
  }
  for (int j = 0; j < n; ++j) {
    if (j % 4 == 0) fetch(ahead, (kVecs * 64 * kBytes<kType> + 63) / 64);
    F16 x[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      if constexpr (kTail)
        x[v] = load_some<kType>(values[j], d, tail);
      else
        x[v] = load_row<kType>(values[j], d + 16 * v);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F16 w = once(set16(weights[r * kKeyBlock + j]));
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) sum[r][v] = _mm512_fmadd_ps(w, x[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) _mm512_mask_storeu_ps(acc + r * stride + 16 * v, some, sum[r][v]);
  }
}

template <auto kType, int kRows>
inline void add_values(float* acc,
                       int64_t stride,
                       const float* kept,
                       const float* weights,
                       const void* const* values,
                       int n,
                       int dim,
                       Ahead* ahead) {
  int d = 0;
  const auto some = [&]<int kVecs>() {
    for (; d + 16 * kVecs <= dim; d += 16 * kVecs)
      sum_values<kType, kRows, kVecs, false>(acc + d, stride, kept, weights, values, n, d, 0, ahead);
  };
  if constexpr (kRows == 1) some.template operator()<8>();
  if constexpr (kRows <= 4) some.template operator()<4>();
  if constexpr (kRows <= 8) some.template operator()<2>();
  some.template operator()<1>();
  if (d < dim)
    sum_values<kType, kRows, 1, true>(acc + d, stride, kept, weights, values, n, d, dim - d, ahead);
}

// Calls fn with 1 <= rows <= 8 as its template argument.
template <class Fn>
inline void with_rows(int rows, const Fn& fn) {
  switch (rows) {
    case 1:
      return fn.template operator()<1>();
    case 2:
      return fn.template operator()<2>();
    case 3:
      return fn.template operator()<3>();
    case 4:
      return fn.template operator()<4>();
    case 5:
      return fn.template operator()<5>();
    case 6:
      return fn.template operator()<6>();
    case 7:
      return fn.template operator()<7>();
    default:
      return fn.template operator()<8>();
  }
}

}  // namespace
