// prompt_tile_avx512.cc -- PromptCore with AVX-512: F32 products of 64 query rows, one a lane, with keys and
// values that are broadcast channel by channel, in registers of 4 x 4. Sums run over ascending channels and
// keys.
#include "kernels/attention/prompt_tile.h"
//
#include "kernels/attention/vec16.inl"
//
#include "kernels/attention/prompt_sums.inl"

namespace {

using se::cpu::kKeyBlock;
using se::cpu::PromptTile;
using se::cpu::RowType;

constexpr int kVecs = 4;  // groups of 16 rows at once

struct Work {          // where everything lies in the scratch; all in lines of 16 floats
  int groups, nv;      // of 16 rows, 16 value channels
  float *q, *s;        // [groups][k_dim][16]; [kVecs][kKeyBlock][16]
  float *acc, *total;  // [groups][16 nv][16], of a split; of all splits before
  float *m, *l, *top, *sum;
  int32_t* state;  // [0] the split has blocks
  explicit Work(const PromptTile& t) : groups((t.rows + 15) / 16), nv((t.v_dim + 15) / 16) {
    float* at = reinterpret_cast<float*>(t.scratch);
    const auto take = [&](int64_t lines) {
      at += 16 * lines;
      return at - 16 * lines;
    };
    q = take(int64_t(groups) * t.k_dim), s = take(kVecs * kKeyBlock);
    acc = take(int64_t(groups) * 16 * nv), total = take(int64_t(groups) * 16 * nv);
    m = take(groups), l = take(groups), top = take(groups), sum = take(groups);
    state = reinterpret_cast<int32_t*>(take(1));
    bytes = (at - reinterpret_cast<float*>(t.scratch)) * 4;
  }
  int64_t bytes;
  Sums sums() const { return {groups, 16 * nv, acc, total, m, l, top, sum}; }
};

int64_t bytes(int rows, int k_dim, int v_dim) {
  PromptTile t;
  t.rows = rows, t.k_dim = k_dim, t.v_dim = v_dim;
  return Work(t).bytes;
}

void begin(const PromptTile& t, const float* const* q) {
  const Work w(t);
  for (int g = 0; g < w.groups; ++g) {
    for (int d = 0; d < t.k_dim; d += 16) {
      const int n = t.k_dim - d < 16 ? t.k_dim - d : 16;
      __m512i x[16];
      for (int i = 0; i < 16; ++i) {
        const int r = g * 16 + i;
        x[i] = r < t.rows ? _mm512_maskz_loadu_epi32(__mmask16((1u << n) - 1), q[r] + d)
                          : _mm512_setzero_si512();
      }
      turn(x);
      for (int i = 0; i < n; ++i) _mm512_store_si512(w.q + (int64_t(g) * t.k_dim + d + i) * 16, x[i]);
    }
    for (int i = 0; i < 16 * w.nv; ++i)
      _mm512_store_ps(w.total + (int64_t(g) * 16 * w.nv + i) * 16, zero16());
    _mm512_store_ps(w.top + g * 16, set16(kMinusInf)), _mm512_store_ps(w.sum + g * 16, zero16());
  }
  w.state[0] = 0;
}

// s[vec][key][row] of groups [g, g + kV); keys go on with valid pointers to the next multiple of 4.
template <int kV>
inline void scores(const PromptTile& t, const Work& w, int g, const float* const* keys, int n) {
  const float* q = w.q + int64_t(g) * t.k_dim * 16;
  const int64_t step = int64_t(t.k_dim) * 16;
  for (int j = 0; j < n; j += 4) {
    const float *k0 = keys[j], *k1 = keys[j + 1], *k2 = keys[j + 2], *k3 = keys[j + 3];
    F16 sum[4][kV];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) sum[i][v] = zero16();
    }
    for (int d = 0; d < t.k_dim; ++d) {
      const F16 k[4] = {set16(k0[d]), set16(k1[d]), set16(k2[d]), set16(k3[d])};
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) {
        const F16 x = _mm512_load_ps(q + v * step + d * 16);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) sum[i][v] = _mm512_fmadd_ps(x, k[i], sum[i][v]);
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) _mm512_store_ps(w.s + (v * kKeyBlock + j + i) * 16, sum[i][v]);
    }
  }
}

// The rows of group g that see key j.
struct Sight {
  __m512i from, to;
  Sight(const int32_t* from_row, const int32_t* seen, int g)
      : from(from_row ? _mm512_loadu_si512(from_row + g * 16) : _mm512_setzero_si512()),
        to(_mm512_loadu_si512(seen + g * 16)) {}
  __mmask16 sees(int j) const {
    const __m512i key = _mm512_set1_epi32(j);
    return _mm512_cmpgt_epi32_mask(to, key) & _mm512_cmple_epi32_mask(from, key);
  }
};

// Scores of group g, which lie at s, become weights; m and l move on, acc is scaled.
template <bool kSome>
inline void weigh(
    const Work& w, int g, float* s, int n, float scale, const int32_t* from, const int32_t* seen) {
  const F16 none = set16(kMinusInf), before = _mm512_load_ps(w.m + g * 16), factor = set16(scale);
  F16 most[2] = {before, none};
  const auto score = [&](int j, __mmask16 sees) {
    const F16 x = kSome ? _mm512_mask_mul_ps(none, sees, _mm512_load_ps(s + j * 16), factor)
                        : _mm512_mul_ps(_mm512_load_ps(s + j * 16), factor);
    _mm512_store_ps(s + j * 16, x);
    most[j % 2] = _mm512_max_ps(most[j % 2], x);
  };
  if constexpr (kSome) {
    const Sight sight(from, seen, g);
    for (int j = 0; j < n; ++j) score(j, sight.sees(j));
  } else {
#pragma GCC unroll 4
    for (int j = 0; j < n; ++j) score(j, 0);
  }
  const F16 now = _mm512_max_ps(most[0], most[1]);
  // Nothing seen yet: weights e^(-inf - 0) = 0.
  const F16 shift = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(now, none, _CMP_NEQ_UQ), now);
  F16 sums[2] = {zero16(), zero16()};
  int j = 0;
#pragma GCC unroll 2
  for (; j + 2 <= n; j += 2) {
    const F16 a = exp16(_mm512_sub_ps(_mm512_load_ps(s + j * 16), shift));
    const F16 b = exp16(_mm512_sub_ps(_mm512_load_ps(s + j * 16 + 16), shift));
    _mm512_store_ps(s + j * 16, a), _mm512_store_ps(s + j * 16 + 16, b);
    sums[0] = _mm512_add_ps(sums[0], a), sums[1] = _mm512_add_ps(sums[1], b);
  }
  if (j < n) {
    const F16 a = exp16(_mm512_sub_ps(_mm512_load_ps(s + j * 16), shift));
    _mm512_store_ps(s + j * 16, a);
    sums[0] = _mm512_add_ps(sums[0], a);
  }
  const F16 kept = exp16(_mm512_sub_ps(before, shift));
  _mm512_store_ps(w.m + g * 16, now);
  _mm512_store_ps(w.l + g * 16,
                  _mm512_fmadd_ps(_mm512_load_ps(w.l + g * 16), kept, _mm512_add_ps(sums[0], sums[1])));
  if (_mm512_cmp_ps_mask(kept, set16(1.f), _CMP_NEQ_UQ) == 0) return;
  float* acc = w.acc + int64_t(g) * 16 * w.nv * 16;
  for (int i = 0; i < 16 * w.nv; ++i)
    _mm512_store_ps(acc + i * 16, _mm512_mul_ps(_mm512_load_ps(acc + i * 16), kept));
}

// acc[channel][row] += values x weights, channels [d, d + kD) of groups [g, g + kV). kSome: rows do not touch
// the values of keys that they do not see.
template <int kV, int kD, bool kSome>
inline void add_channels(const Work& w,
                         int g,
                         int d,
                         const float* const* values,
                         int n,
                         const int32_t* from,
                         const int32_t* seen) {
  const int64_t step = int64_t(16) * w.nv * 16;
  float* acc = w.acc + g * step + d * 16;
  F16 sum[kD][kV];
#pragma GCC unroll 4
  for (int v = 0; v < kV; ++v) {
#pragma GCC unroll 4
    for (int i = 0; i < kD; ++i) sum[i][v] = _mm512_load_ps(acc + v * step + i * 16);
  }
  for (int j = 0; j < n; ++j) {
    F16 x[kD];
#pragma GCC unroll 4
    for (int i = 0; i < kD; ++i) x[i] = set16(values[j][d + i]);
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      const F16 p = _mm512_load_ps(w.s + (v * kKeyBlock + j) * 16);
      if constexpr (kSome) {
        const __mmask16 sees = Sight(from, seen, g + v).sees(j);
#pragma GCC unroll 4
        for (int i = 0; i < kD; ++i) sum[i][v] = _mm512_mask3_fmadd_ps(p, x[i], sum[i][v], sees);
      } else {
#pragma GCC unroll 4
        for (int i = 0; i < kD; ++i) sum[i][v] = _mm512_fmadd_ps(p, x[i], sum[i][v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kV; ++v) {
#pragma GCC unroll 4
    for (int i = 0; i < kD; ++i) _mm512_store_ps(acc + v * step + i * 16, sum[i][v]);
  }
}

template <int kV, bool kSome>
inline void some_groups(const PromptTile& t,
                        const Work& w,
                        int g,
                        const float* const* keys,
                        const float* const* values,
                        int n,
                        const int32_t* from,
                        const int32_t* seen) {
  scores<kV>(t, w, g, keys, n);
  for (int v = 0; v < kV; ++v) weigh<kSome>(w, g + v, w.s + v * kKeyBlock * 16, n, t.scale, from, seen);
  int d = 0;
  for (; d + 4 <= t.v_dim; d += 4) add_channels<kV, 4, kSome>(w, g, d, values, n, from, seen);
  for (; d < t.v_dim; ++d) add_channels<kV, 1, kSome>(w, g, d, values, n, from, seen);
}

template <bool kSome>
void all_groups(const PromptTile& t,
                const Work& w,
                const float* const* keys,
                const float* const* values,
                int n,
                const int32_t* from,
                const int32_t* seen) {
  int g = 0;
  for (; g + 4 <= w.groups; g += 4) some_groups<4, kSome>(t, w, g, keys, values, n, from, seen);
  switch (w.groups - g) {
    case 3:
      return some_groups<3, kSome>(t, w, g, keys, values, n, from, seen);
    case 2:
      return some_groups<2, kSome>(t, w, g, keys, values, n, from, seen);
    case 1:
      return some_groups<1, kSome>(t, w, g, keys, values, n, from, seen);
    default:
      return;
  }
}

// Keys and values are widened: type is kF32.
void block(const PromptTile& t,
           const void* const* keys,
           const void* const* values,
           RowType,
           int n,
           const int32_t* from,
           const int32_t* seen) {
  const Work w(t);
  if (w.state[0] == 0) {
    w.state[0] = 1;
    for (int g = 0; g < w.groups; ++g)
      _mm512_store_ps(w.m + g * 16, set16(kMinusInf)), _mm512_store_ps(w.l + g * 16, zero16());
    for (int64_t i = 0; i < int64_t(w.groups) * 16 * w.nv; ++i) _mm512_store_ps(w.acc + i * 16, zero16());
  }
  const float *k[kKeyBlock], *v[kKeyBlock];
  for (int j = 0; j < (n + 3) / 4 * 4; ++j) k[j] = static_cast<const float*>(keys[j]);
  for (int j = 0; j < n; ++j) v[j] = static_cast<const float*>(values[j]);
  if (!seen) return all_groups<false>(t, w, k, v, n, nullptr, nullptr);
  int32_t to[se::cpu::kPromptRows + 16],
      at[se::cpu::kPromptRows + 16];  // whole groups: rows beyond see nothing
  for (int r = 0; r < 16 * w.groups; ++r) {
    to[r] = r < t.rows ? seen[r] : 0;
    at[r] = r < t.rows && from ? from[r] : 0;
  }
  all_groups<true>(t, w, k, v, n, at, to);
}

void end_split(const PromptTile& t) {
  const Work w(t);
  if (w.state[0] == 0) return;
  w.state[0] = 0;
  add_split(w.sums());
}

void finish(const PromptTile& t, float* const* out, float* const* lse) {
  write_rows(Work(t).sums(), t.rows, t.v_dim, out, lse);
}

}  // namespace

namespace se::cpu {

const PromptCore kPromptAvx512 = {bytes, begin, block, end_split, finish, false};

}  // namespace se::cpu
