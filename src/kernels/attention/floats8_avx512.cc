// floats8_avx512.cc -- attention over 8-bit floats as they lie: q . (step code) = step (q . code), and the
// sum of p (step code) = (p step) . code. What is left per 16 channels is a shift and a conversion from F16.
#include "kernels/attention/codes_avx512.h"
#include "kernels/attention/core_avx512.inl"

namespace {

using se::cpu::CodeFormat;
using se::cpu::CodePiece;
using se::cpu::kMostCodeDim;

// Whether there is E4M3's NaN among n codes, whole sixteens (E5M2's is one in F16 too).
inline bool any_nan(const uint8_t* codes, int n) {
  const __m512i magnitude = _mm512_set1_epi8(0x7f);
  __m512i top = _mm512_setzero_si512();
  for (int i = 0; i < n; i += 64) {
    const __mmask64 some = n - i >= 64 ? ~__mmask64{0} : (__mmask64{1} << (n - i)) - 1;
    top = _mm512_max_epu8(top, _mm512_and_si512(_mm512_maskz_loadu_epi8(some, codes + i), magnitude));
  }
  return _mm512_cmpeq_epi8_mask(top, magnitude) != 0;
}

// n codes, whole sixteens, as the F16 that load_row makes of them.
template <auto kCode>
inline void to_halves(const uint8_t* codes, int n, uint16_t* to) {
  const auto halves = [](__m256i c) {
    const __m512i wide = _mm512_cvtepi8_epi16(c);
    if constexpr (kCode == CodeType::kE5M2) return _mm512_slli_epi16(wide, 8);
    return _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16(short(0xbf80)));
  };
  int i = 0;
  for (; i + 32 <= n; i += 32)
    _mm512_storeu_si512(to + i, halves(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i))));
  if (i == n) return;
  const __m128i rest = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i),
                      _mm512_castsi512_si256(halves(_mm256_castsi128_si256(rest))));
}

// A block's keys and values by token, whatever pieces they came in.
struct Block {
  const void *k[kKeyBlock], *v[kKeyBlock];
  alignas(64) float k_step[kKeyBlock] = {}, v_step[kKeyBlock] = {};
  int n = 0;
  bool nan = false;  // among codes of E4M3. In a sound model there is none
};

template <auto kCode>
constexpr float kUnit = kCode == CodeType::kE4M3 ? 256 : 1;  // of what load_row gives

template <auto kCode>
inline void lay_out(const CodeFormat& f, const CodePiece* pieces, int n_pieces, Block& b) {
  for (int i = 0; i < n_pieces; ++i) {
    const CodePiece& p = pieces[i];
    const float *k_step = static_cast<const float*>(p.k_step), *v_step = static_cast<const float*>(p.v_step);
    for (int j = 0; j < p.n; ++j, ++b.n) {
      b.k[b.n] = p.k + j * f.k_dim, b.v[b.n] = p.v + j * f.v_dim;
      b.k_step[b.n] = k_step[j] * kUnit<kCode>, b.v_step[b.n] = v_step[j] * kUnit<kCode>;
    }
    if (kCode == CodeType::kE4M3) b.nan |= any_nan(p.k, p.n * f.k_dim) || any_nan(p.v, p.n * f.v_dim);
  }
  for (int j = b.n; j % 4 != 0; ++j) b.k[j] = b.k[b.n - 1];  // dots takes keys by four
}

inline __mmask16 is_nan(const void* row, int i) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const char*>(row) + i));
  return _mm_cmpeq_epi8_mask(_mm_or_si128(codes, _mm_set1_epi8(char(0x80))), _mm_set1_epi8(char(0xff)));
}

// What NaN among keys and values does to any result, for load_row does not show them.
template <int kRows>
[[gnu::noinline]] void spoil_scores(const Block& b, int dim, float* scores) {
  for (int j = 0; j < b.n; ++j) {
    __mmask16 found = 0;
    for (int d = 0; d < dim; d += 16) found |= is_nan(b.k[j], d);
    for (int r = 0; found && r < kRows; ++r) scores[r * kKeyBlock + j] = __builtin_nanf("");
  }
}
template <int kRows>
[[gnu::noinline]] void spoil_sums(const Block& b, int dim, const Running& run) {
  for (int d = 0; d < dim; d += 16) {
    __mmask16 found = 0;
    for (int j = 0; j < b.n; ++j) found |= is_nan(b.v[j], d);
    for (int r = 0; r < kRows; ++r)
      _mm512_mask_storeu_ps(run.acc + r * run.stride + d, found, set16(__builtin_nanf("")));
  }
}

// The block's rows as F16: from five query rows on a code would be converted twice, in the two passes of
// dots.
template <auto kCode>
inline void widen(const CodeFormat& f, const CodePiece* pieces, int n_pieces, uint16_t* to, Block& b) {
  for (int i = 0, at = 0; i < n_pieces; at += pieces[i++].n) {
    const auto rows = [&](const uint8_t* codes, int dim, const void** row) {
      to_halves<kCode>(codes, pieces[i].n * dim, to);
      for (int j = 0; j < pieces[i].n; ++j, to += dim) row[at + j] = to;
    };
    rows(pieces[i].k, f.k_dim, b.k), rows(pieces[i].v, f.v_dim, b.v);
  }
  for (int j = b.n; j % 4 != 0; ++j) b.k[j] = b.k[b.n - 1];
}

template <int kRows>
inline void multiply(float* scores, const float* steps) {
  const F16 a = _mm512_load_ps(steps), b = _mm512_load_ps(steps + 16);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    float* s = scores + r * kKeyBlock;
    _mm512_store_ps(s, _mm512_mul_ps(_mm512_load_ps(s), a));
    _mm512_store_ps(s + 16, _mm512_mul_ps(_mm512_load_ps(s + 16), b));
  }
}

template <auto kCode, int kRows>
void block(const float* q,
           int64_t stride,
           float scale,
           const CodeFormat& f,
           const CodePiece* pieces,
           int n_pieces,
           const Running& run,
           Ahead* ahead) {
  Block b;
  lay_out<kCode>(f, pieces, n_pieces, b);
  alignas(64) float scores[kRows * kKeyBlock];
  int32_t seen[kRows];
  float kept[kRows];
  const auto fold = [&]<auto kType>(const Block& rows) {
    dots_of<kType>(q, stride, kRows, rows.k, b.n, f.k_dim, scores, ahead);
    multiply<kRows>(scores, b.k_step);
    if (b.nan) spoil_scores<kRows>(b, f.k_dim, scores);
    for (int r = 0; r < kRows; ++r) seen[r] = b.n;
    weigh<kRows>(scores, scale, nullptr, seen, run.m, run.l, kept);
    multiply<kRows>(scores, b.v_step);
    add_values<kType, kRows>(run.acc, run.stride, kept, scores, rows.v, b.n, f.v_dim, ahead);
    if (b.nan) spoil_sums<kRows>(b, f.v_dim, run);
  };
  if constexpr (kRows <= 4) return fold.template operator()<kCode>(b);
  alignas(64) uint16_t halves[2 * kKeyBlock * kMostCodeDim];
  Block wide;
  wide.n = b.n;
  widen<kCode>(f, pieces, n_pieces, halves, wide);
  fold.template operator()<RowType::kF16>(wide);
}

}  // namespace

namespace se::cpu {

void absorb_floats8_avx512(const float* q,
                           int64_t q_stride,
                           int rows,
                           float scale,
                           const CodeFormat& f,
                           const CodePiece* pieces,
                           int n_pieces,
                           const Running& run,
                           Ahead* ahead) {
  with_rows(rows, [&]<int kRows>() {
    const auto absorb =
        f.type == CodeType::kE4M3 ? block<CodeType::kE4M3, kRows> : block<CodeType::kE5M2, kRows>;
    absorb(q, q_stride, scale, f, pieces, n_pieces, run, ahead);
  });
}

}  // namespace se::cpu
