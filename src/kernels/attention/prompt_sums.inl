// kernels/attention/prompt_sums.inl -- the sums of a prompt's tile, a query row per lane, as the matrix tiles
// and the vectors keep them. Include after vec16.inl; all of it has internal linkage.
namespace {

// Rows become columns.
inline void turn(__m512i* r) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]), t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]), r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]),
          r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88), t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88), r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

struct Sums {  // groups of 16 rows: [groups][channels][16] and [groups][16]; channels: whole sixteens
  int groups, channels;
  float *acc, *total, *m, *l, *top, *sum;  // of a split; of all splits before
};

// The split's sums go to those before it.
inline void add_split(const Sums& w) {
  for (int g = 0; g < w.groups; ++g) {
    const F16 none = set16(kMinusInf), old = _mm512_load_ps(w.top + g * 16), m = _mm512_load_ps(w.m + g * 16);
    const F16 now = _mm512_max_ps(m, old);
    const F16 shift = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(now, none, _CMP_NEQ_UQ), now);
    const F16 a = exp16(_mm512_sub_ps(old, shift)), b = exp16(_mm512_sub_ps(m, shift));
    const F16 l = _mm512_mul_ps(_mm512_load_ps(w.l + g * 16), b);
    _mm512_store_ps(w.sum + g * 16, _mm512_fmadd_ps(_mm512_load_ps(w.sum + g * 16), a, l));
    _mm512_store_ps(w.top + g * 16, now);
    float *to = w.total + int64_t(g) * w.channels * 16, *from = w.acc + int64_t(g) * w.channels * 16;
    for (int i = 0; i < w.channels; ++i) {
      const F16 x = _mm512_mul_ps(_mm512_load_ps(from + i * 16), b);
      _mm512_store_ps(to + i * 16, _mm512_fmadd_ps(_mm512_load_ps(to + i * 16), a, x));
    }
  }
}

// PromptCore::finish.
inline void write_rows(const Sums& w, int all, int v_dim, float* const* out, float* const* lse) {
  for (int g = 0; g < w.groups; ++g) {
    const int rows = all - g * 16 < 16 ? all - g * 16 : 16;
    const F16 sum = _mm512_load_ps(w.sum + g * 16);
    const __mmask16 some = _mm512_cmp_ps_mask(_mm512_load_ps(w.top + g * 16), set16(kMinusInf), _CMP_NEQ_UQ);
    for (int c = 0; c < w.channels; c += 16) {
      const float* total = w.total + (int64_t(g) * w.channels + c) * 16;
      __m512i x[16];
      for (int i = 0; i < 16; ++i)
        x[i] = _mm512_castps_si512(_mm512_maskz_div_ps(some, _mm512_load_ps(total + i * 16), sum));
      turn(x);
      const int n = v_dim - c;
      const __mmask16 m = n >= 16 ? __mmask16(0xffff) : __mmask16((1u << n) - 1);
      for (int r = 0; r < rows; ++r) _mm512_mask_storeu_epi32(out[g * 16 + r] + c, m, x[r]);
    }
    for (int r = 0; r < rows; ++r) {
      const float top = w.top[g * 16 + r];
      *lse[g * 16 + r] = top == kMinusInf ? kMinusInf : top + __builtin_logf(w.sum[g * 16 + r]);
    }
  }
}

}  // namespace
