// prompt_tile_amx.cc -- PromptCore with AMX BF16 tiles and AVX-512.
//
// Scores come out as [keys, 16 rows] (keys are the left matrix, as they lie), so that the softmax runs down
// columns, a row per lane, without sums across lanes. Outputs are [channels, 16 rows]: values are turned once
// per block for all rows, weights not at all.
#include "device/cpu/tiles.h"
#include "kernels/attention/prompt_tile.h"
//
#include "kernels/attention/vec16.inl"
//
#include "kernels/attention/prompt_sums.inl"

namespace {

using se::cpu::kKeyBlock;
using se::cpu::PromptTile;
using se::cpu::RowType;

using se::cpu::load_tile;
using se::cpu::store_tile;
using se::cpu::zero_tile;
template <int kTo, int kA, int kB>  // to += a x b
inline void multiply() {
  se::cpu::multiply_bf16<kTo, kA, kB>();
}

constexpr int kPieces = 3;
constexpr int64_t kTile = 1024;  // bytes of one

struct Work {          // where everything lies in the scratch
  int groups, nk, nv;  // of 16 rows, 32 key channels, 16 value channels
  char *q, *k, *v, *s, *p;
  float *acc, *total, *m, *l, *top, *sum;  // of a split; of all splits before
  int32_t* state;                          // [0] a split has blocks
  explicit Work(const PromptTile& t)
      : groups((t.rows + 15) / 16), nk((t.k_dim + 31) / 32), nv((t.v_dim + 15) / 16) {
    char* at = t.scratch;
    const auto take = [&](int64_t size) {
      at += size;
      return at - size;
    };
    q = take(kTile * groups * nk * kPieces), k = take(kTile * 2 * nk * kPieces);
    v = take(kTile * nv * kPieces), s = take(kTile * 4), p = take(kTile * kPieces);
    acc = reinterpret_cast<float*>(take(kTile * groups * nv));
    total = reinterpret_cast<float*>(take(kTile * groups * nv));
    m = reinterpret_cast<float*>(take(64 * groups)), l = reinterpret_cast<float*>(take(64 * groups));
    top = reinterpret_cast<float*>(take(64 * groups)), sum = reinterpret_cast<float*>(take(64 * groups));
    state = reinterpret_cast<int32_t*>(take(64));
    bytes = at - t.scratch;
  }
  int64_t bytes;
  char* q_tile(int g, int kb, int piece) const {
    return q + ((int64_t(g) * nk + kb) * kPieces + piece) * kTile;
  }
  char* k_tile(int kb, int piece, int t) const {
    return k + ((int64_t(kb) * kPieces + piece) * 2 + t) * kTile;
  }
  char* v_tile(int n, int piece) const { return v + (int64_t(n) * kPieces + piece) * kTile; }
  float* acc_tile(int g, int n) const { return acc + (int64_t(g) * nv + n) * 256; }
  float* total_tile(int g, int n) const { return total + (int64_t(g) * nv + n) * 256; }
};

int64_t bytes(int rows, int k_dim, int v_dim) {
  PromptTile t;
  t.rows = rows, t.k_dim = k_dim, t.v_dim = v_dim;
  return Work(t).bytes;
}

// Elements [i, i + 16) of a row of `dim`, zeros behind its end.
template <RowType kType>
inline F16 load16(const void* row, int i, int dim) {
  if (i >= dim) return zero16();
  const __mmask16 m = dim - i >= 16 ? __mmask16(0xffff) : __mmask16((1u << (dim - i)) - 1);
  if constexpr (kType == RowType::kF32) return _mm512_maskz_loadu_ps(m, static_cast<const float*>(row) + i);
  const __m256i h = _mm256_maskz_loadu_epi16(m, static_cast<const uint16_t*>(row) + i);
  if constexpr (kType == RowType::kF16) return _mm512_cvtph_ps(h);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

// The next eight bits of both: (a, b) as pairs of BF16; a and b keep the rest.
inline __m512i cut(F16& a, F16& b) {
  const __m512i mask = _mm512_set1_epi32(int(0xffff0000));
  const __m512i ia = _mm512_castps_si512(a), ib = _mm512_castps_si512(b);
  const __m512i pair = _mm512_ternarylogic_epi32(_mm512_srli_epi32(ia, 16), ib, mask, 0xf8);
  a = _mm512_sub_ps(a, _mm512_castsi512_ps(_mm512_and_epi32(ia, mask)));
  b = _mm512_sub_ps(b, _mm512_castsi512_ps(_mm512_and_epi32(ib, mask)));
  return pair;
}

void begin(const PromptTile& t, const float* const* q) {
  const Work w(t);
  se::cpu::configure_tiles({});
  for (int g = 0; g < w.groups; ++g) {
    for (int kb = 0; kb < w.nk; ++kb) {
      __m512i piece[kPieces][16];
      for (int i = 0; i < 16; ++i) {
        F16 a = zero16(), b = zero16();
        if (const int r = g * 16 + i; r < t.rows) {
          a = load16<RowType::kF32>(q[r], 32 * kb, t.k_dim);
          b = load16<RowType::kF32>(q[r], 32 * kb + 16, t.k_dim);
        }
        for (auto& p : piece) p[i] = cut(a, b);
      }
      for (int p = 0; p < kPieces; ++p) {
        turn(piece[p]);
        for (int i = 0; i < 16; ++i) _mm512_store_si512(w.q_tile(g, kb, p) + i * 64, piece[p][i]);
      }
    }
    for (int i = 0; i < 16 * w.nv; ++i) _mm512_store_ps(w.total_tile(g, 0) + i * 16, zero16());
    _mm512_store_ps(w.top + g * 16, set16(kMinusInf)), _mm512_store_ps(w.sum + g * 16, zero16());
  }
  w.state[0] = 0;
}

// Returns how many pieces hold anything.
template <RowType kType>
int pack_keys(const PromptTile& t, const Work& w, const void* const* keys, int n) {
  constexpr int kMost = kType == RowType::kBF16 ? 1 : kType == RowType::kF16 ? 2 : 3;
  __m512i any[kPieces] = {};
  for (int j = 0; j < kKeyBlock; ++j) {
    for (int kb = 0; kb < w.nk; ++kb) {
      F16 a = zero16(), b = zero16();
      if (j < n)
        a = load16<kType>(keys[j], 32 * kb, t.k_dim), b = load16<kType>(keys[j], 32 * kb + 16, t.k_dim);
      for (int p = 0; p < kMost; ++p) {
        const __m512i pair = cut(a, b);
        any[p] = _mm512_or_epi32(any[p], pair);
        _mm512_store_si512(w.k_tile(kb, p, j / 16) + j % 16 * 64, pair);
      }
    }
  }
  for (int p = kMost - 1; p > 0; --p) {
    if (_mm512_test_epi32_mask(any[p], any[p])) return p + 1;
  }
  return 1;
}

template <RowType kType>
bool finite_row(const void* row, int dim) {
  __m512i most = _mm512_setzero_si512();
  for (int d = 0; d < dim; d += 16)
    most = _mm512_max_epu32(
        most,
        _mm512_and_epi32(_mm512_castps_si512(load16<kType>(row, d, dim)), _mm512_set1_epi32(0x7fffffff)));
  return _mm512_reduce_max_epu32(most) < 0x7f800000u;
}

// As pack_keys; values that are not finite are left out and reported, a bit per key.
template <RowType kType>
int pack_values(const PromptTile& t, const Work& w, const void* const* values, int n, uint32_t& odd) {
  constexpr int kMost = kType == RowType::kBF16 ? 1 : kType == RowType::kF16 ? 2 : 3;
  const void* row[kKeyBlock] = {};
  const auto pack = [&]() {
    __m512i any[kPieces] = {}, most = _mm512_setzero_si512();
    for (int c = 0; c < w.nv; ++c) {
      __m512i piece[kMost][16];
      for (int i = 0; i < 16; ++i) {
        F16 a = row[2 * i] ? load16<kType>(row[2 * i], 16 * c, t.v_dim) : zero16();
        F16 b = row[2 * i + 1] ? load16<kType>(row[2 * i + 1], 16 * c, t.v_dim) : zero16();
        const __m512i size = _mm512_set1_epi32(0x7fffffff);
        most = _mm512_max_epu32(most, _mm512_and_epi32(_mm512_castps_si512(a), size));
        most = _mm512_max_epu32(most, _mm512_and_epi32(_mm512_castps_si512(b), size));
        for (int p = 0; p < kMost; ++p) {
          piece[p][i] = cut(a, b);
          any[p] = _mm512_or_epi32(any[p], piece[p][i]);
        }
      }
      for (int p = 0; p < kMost; ++p) {
        turn(piece[p]);
        for (int i = 0; i < 16; ++i) _mm512_store_si512(w.v_tile(c, p) + i * 64, piece[p][i]);
      }
    }
    if (_mm512_reduce_max_epu32(most) >= 0x7f800000u) return 0;
    for (int p = kMost - 1; p > 0; --p) {
      if (_mm512_test_epi32_mask(any[p], any[p])) return p + 1;
    }
    return 1;
  };
  odd = 0;
  for (int j = 0; j < n; ++j) row[j] = values[j];
  int pieces = pack();
  if (pieces > 0) return pieces;
  for (int j = 0; j < n; ++j) {
    if (!finite_row<kType>(row[j], t.v_dim)) odd |= 1u << j, row[j] = nullptr;
  }
  return pack();
}

// s[key][row] of one group into w.s; products in a fixed order, those with an empty piece left out.
void scores(const Work& w, int g, int pieces) {
  zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
  for (int kb = 0; kb < w.nk; ++kb) {
    load_tile<4>(w.k_tile(kb, 0, 0)), load_tile<5>(w.k_tile(kb, 0, 1));
    load_tile<6>(w.q_tile(g, kb, 0)), load_tile<7>(w.q_tile(g, kb, 1));
    multiply<0, 4, 6>(), multiply<1, 5, 6>();
    multiply<2, 4, 7>(), multiply<3, 5, 7>();
    if (pieces > 1) {
      load_tile<4>(w.k_tile(kb, 1, 0)), load_tile<5>(w.k_tile(kb, 1, 1));
      multiply<0, 4, 6>(), multiply<1, 5, 6>();
      multiply<2, 4, 7>(), multiply<3, 5, 7>();
    }
    if (pieces > 2) {
      load_tile<4>(w.k_tile(kb, 2, 0)), load_tile<5>(w.k_tile(kb, 2, 1));
      multiply<0, 4, 6>(), multiply<1, 5, 6>();
    }
    load_tile<6>(w.q_tile(g, kb, 2));
    load_tile<4>(w.k_tile(kb, 0, 0)), load_tile<5>(w.k_tile(kb, 0, 1));
    multiply<2, 4, 6>(), multiply<3, 5, 6>();
  }
  store_tile<0>(w.s), store_tile<1>(w.s + kTile);
  store_tile<2>(w.s + 2 * kTile), store_tile<3>(w.s + 3 * kTile);
}

// Scores become weights, in pieces, in w.p (and whole in w.s); m and l move on, acc is scaled.
void weigh(const Work& w, int g, F16 scale, const int32_t* from, const int32_t* seen) {
  float* s = reinterpret_cast<float*>(w.s);
  const F16 none = set16(kMinusInf), before = _mm512_load_ps(w.m + g * 16);
  F16 most[4] = {before, none, none, none};
  if (seen) {
    const __m512i to = _mm512_loadu_si512(seen),
                  at = from ? _mm512_loadu_si512(from) : _mm512_setzero_si512();
    for (int j = 0; j < kKeyBlock; ++j) {
      const __m512i key = _mm512_set1_epi32(j);
      const __mmask16 sees = _mm512_cmpgt_epi32_mask(to, key) & _mm512_cmple_epi32_mask(at, key);
      const F16 x = _mm512_add_ps(_mm512_load_ps(s + j * 16), _mm512_load_ps(s + 512 + j * 16));
      const F16 y = _mm512_mask_mul_ps(none, sees, x, scale);
      _mm512_store_ps(s + j * 16, y);
      most[j % 4] = _mm512_max_ps(most[j % 4], y);
    }
  } else {
    for (int j = 0; j < kKeyBlock; j += 4) {
      for (int i = 0; i < 4; ++i) {
        const int at = (j + i) * 16;
        const F16 x =
            _mm512_mul_ps(_mm512_add_ps(_mm512_load_ps(s + at), _mm512_load_ps(s + 512 + at)), scale);
        _mm512_store_ps(s + at, x);
        most[i] = _mm512_max_ps(most[i], x);
      }
    }
  }
  const F16 now = _mm512_max_ps(_mm512_max_ps(most[0], most[1]), _mm512_max_ps(most[2], most[3]));
  // Nothing seen yet: weights e^(-inf - 0) = 0.
  const F16 shift = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(now, none, _CMP_NEQ_UQ), now);
  F16 sums[2] = {zero16(), zero16()};
#pragma GCC unroll 2
  for (int i = 0; i < kKeyBlock / 2; ++i) {
    F16 a = exp16(_mm512_sub_ps(_mm512_load_ps(s + 32 * i), shift));
    F16 b = exp16(_mm512_sub_ps(_mm512_load_ps(s + 32 * i + 16), shift));
    sums[0] = _mm512_add_ps(sums[0], a), sums[1] = _mm512_add_ps(sums[1], b);
    _mm512_store_ps(s + 32 * i, a), _mm512_store_ps(s + 32 * i + 16, b);
    _mm512_store_si512(w.p + i * 64, cut(a, b));
    _mm512_store_si512(w.p + kTile + i * 64, cut(a, b));
    _mm512_store_si512(w.p + 2 * kTile + i * 64, cut(a, b));
  }
  const F16 kept = exp16(_mm512_sub_ps(before, shift));
  _mm512_store_ps(w.m + g * 16, now);
  _mm512_store_ps(w.l + g * 16,
                  _mm512_fmadd_ps(_mm512_load_ps(w.l + g * 16), kept, _mm512_add_ps(sums[0], sums[1])));
  if (_mm512_cmp_ps_mask(kept, set16(1.f), _CMP_NEQ_UQ) == 0) return;
  float* acc = w.acc_tile(g, 0);
  for (int i = 0; i < 16 * w.nv; ++i)
    _mm512_store_ps(acc + i * 16, _mm512_mul_ps(_mm512_load_ps(acc + i * 16), kept));
}

// acc[channel][row] += values x weights; four channel tiles at a time, so that no product waits for the last.
void add_values(const Work& w, int g, int pieces) {
  for (int c = 0; c < w.nv; c += 4) {
    const int n = w.nv - c < 4 ? w.nv - c : 4;
    float* acc = w.acc_tile(g, c);
    load_tile<0>(acc);
    if (n > 1) load_tile<1>(acc + 256);
    if (n > 2) load_tile<2>(acc + 512);
    if (n > 3) load_tile<3>(acc + 768);
    const auto product = [&](int piece) {  // of the weights in tile 7
      load_tile<4>(w.v_tile(c, piece)), multiply<0, 4, 7>();
      if (n > 1) load_tile<5>(w.v_tile(c + 1, piece)), multiply<1, 5, 7>();
      if (n > 2) load_tile<6>(w.v_tile(c + 2, piece)), multiply<2, 6, 7>();
      if (n > 3) load_tile<4>(w.v_tile(c + 3, piece)), multiply<3, 4, 7>();
    };
    load_tile<7>(w.p);
    product(0);
    if (pieces > 1) product(1);
    if (pieces > 2) product(2);
    load_tile<7>(w.p + kTile);
    product(0);
    if (pieces > 1) product(1);
    load_tile<7>(w.p + 2 * kTile);
    product(0);
    store_tile<0>(acc);
    if (n > 1) store_tile<1>(acc + 256);
    if (n > 2) store_tile<2>(acc + 512);
    if (n > 3) store_tile<3>(acc + 768);
  }
}

// Values that are not finite, for the rows that see them.
template <RowType kType>
void add_odd(const PromptTile& t, const Work& w, int g, const void* const* values, uint32_t odd) {
  const float* weight = reinterpret_cast<const float*>(w.s);
  for (; odd; odd &= odd - 1) {
    const int j = __builtin_ctz(odd);
    for (int d = 0; d < t.v_dim; ++d) {
      const float v = _mm512_cvtss_f32(load16<kType>(values[j], d, d + 1));
      float* acc = w.acc_tile(g, 0) + d * 16;
      for (int r = 0; r < 16; ++r) {
        if (weight[j * 16 + r] != 0) acc[r] += weight[j * 16 + r] * v;
      }
    }
  }
}

template <RowType kType>
void block_of(const PromptTile& t,
              const void* const* keys,
              const void* const* values,
              int n,
              const int32_t* from,
              const int32_t* seen) {
  const Work w(t);
  if (w.state[0] == 0) {
    for (int i = 0; i < w.groups; ++i) {
      _mm512_store_ps(w.m + i * 16, set16(kMinusInf)), _mm512_store_ps(w.l + i * 16, zero16());
    }
    for (int i = 0; i < 16 * w.nv * w.groups; ++i) _mm512_store_ps(w.acc + i * 16, zero16());
    w.state[0] = 1;
  }
  uint32_t odd = 0;
  const int key_pieces = pack_keys<kType>(t, w, keys, n);
  const int value_pieces = pack_values<kType>(t, w, values, n, odd);
  const F16 scale = set16(t.scale);
  for (int g = 0; g < w.groups; ++g) {
    alignas(64) int32_t lo[16], hi[16];
    bool all = n == kKeyBlock, nothing = true;
    for (int i = 0; i < 16; ++i) {
      const int r = g * 16 + i;
      lo[i] = from && r < t.rows ? from[r] : 0;
      hi[i] = r >= t.rows ? 0 : seen ? seen[r] : n;
      if (r < t.rows) all &= lo[i] == 0 && hi[i] == kKeyBlock, nothing &= lo[i] >= hi[i];
    }
    if (nothing) continue;
    scores(w, g, key_pieces);
    weigh(w, g, scale, lo, all ? nullptr : hi);
    add_values(w, g, value_pieces);
    if (odd) add_odd<kType>(t, w, g, values, odd);
  }
}

void block(const PromptTile& t,
           const void* const* keys,
           const void* const* values,
           RowType type,
           int n,
           const int32_t* from,
           const int32_t* seen) {
  switch (type) {
    case RowType::kF32:
      return block_of<RowType::kF32>(t, keys, values, n, from, seen);
    case RowType::kF16:
      return block_of<RowType::kF16>(t, keys, values, n, from, seen);
    case RowType::kBF16:
      return block_of<RowType::kBF16>(t, keys, values, n, from, seen);
  }
}

Sums sums_of(const Work& w) { return {w.groups, 16 * w.nv, w.acc, w.total, w.m, w.l, w.top, w.sum}; }

void end_split(const PromptTile& t) {
  const Work w(t);
  if (w.state[0] == 0) return;
  w.state[0] = 0;
  add_split(sums_of(w));
}

void finish(const PromptTile& t, float* const* out, float* const* lse) {
  se::cpu::release_tiles();
  write_rows(sums_of(Work(t)), t.rows, t.v_dim, out, lse);
}

}  // namespace

namespace se::cpu {

const PromptCore kPromptAmx = {bytes, begin, block, end_split, finish};

}  // namespace se::cpu
