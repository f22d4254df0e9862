// Every block type of spec/models.md 8.2 to f32, once per instruction set: quant_ref.cc and quant_avx2.cc
// include this text inside their own anonymous namespace. Each function turns one block at `b` into out[0,
// block): it unpacks small integers, and hands them to the includer's
//   half_to_float(uint16_t)                   f16 -> f32
//   put(const int8_t* n, int count, float d, float* out)            out = d * n      (count: a multiple of
//   16) put(const int8_t* n, int count, float d, float m, float* out)   out = d * n + m  (two roundings)
//   put_f8(const uint8_t* codes, int count, float d, float* out)    out = d * e4m3(code)
// so that both give the same bits.

inline float half_at(const uint8_t* b) {
  uint16_t h;
  std::memcpy(&h, b, 2);
  return half_to_float(h);
}

// Sixteen bytes at a time, in whatever registers the instruction set has.
typedef uint8_t Bytes __attribute__((vector_size(16)));

inline Bytes load(const uint8_t* p) {
  Bytes v;
  std::memcpy(&v, p, 16);
  return v;
}

inline void store(Bytes v, int8_t* n) { std::memcpy(n, &v, 16); }

// The low bits of sixteen bytes shifted right; `mask` must hide what comes in from the neighbours.
inline Bytes field(const uint8_t* p, int shift, uint8_t mask) {
  typedef uint16_t Words __attribute__((vector_size(16)));
  Words v;
  std::memcpy(&v, p, 16);
  return Bytes(v >> shift) & mask;
}

inline void nibbles(const uint8_t* q, int8_t* n, uint8_t offset) {
  const Bytes v = load(q);
  store((v & 15) - offset, n);
  store((v >> 4) - offset, n + 16);
}

// Sixteen if bit j of the 16 at h is set, for element j.
inline Bytes fifth_bits(const uint8_t* h) {
  typedef uint64_t Quads __attribute__((vector_size(16)));
  constexpr uint64_t kSpread = 0x0101010101010101u;
  constexpr Bytes kBit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const Bytes v = Bytes(Quads{h[0] * kSpread, h[1] * kSpread});
  return Bytes((v & kBit) == kBit) & 16;
}

// Nibbles with a fifth bit: bit j of the 32 at h belongs to element j.
inline void five_bits(const uint8_t* h, const uint8_t* q, int8_t* n, uint8_t offset) {
  const Bytes v = load(q);
  store(((v & 15) | fifth_bits(h)) - offset, n);
  store(((v >> 4) | fifth_bits(h + 2)) - offset, n + 16);
}

inline void q4_0_block(const uint8_t* b, float* out) {
  int8_t n[32];
  nibbles(b + 2, n, 8);
  put(n, 32, half_at(b), out);
}

inline void q4_1_block(const uint8_t* b, float* out) {
  int8_t n[32];
  nibbles(b + 4, n, 0);
  put(n, 32, half_at(b), half_at(b + 2), out);
}

inline void q5_0_block(const uint8_t* b, float* out) {
  int8_t n[32];
  five_bits(b + 2, b + 6, n, 16);
  put(n, 32, half_at(b), out);
}

inline void q5_1_block(const uint8_t* b, float* out) {
  int8_t n[32];
  five_bits(b + 4, b + 8, n, 0);
  put(n, 32, half_at(b), half_at(b + 2), out);
}

inline void q8_0_block(const uint8_t* b, float* out) {
  put(reinterpret_cast<const int8_t*>(b + 2), 32, half_at(b), out);
}

// Sub-block k of 16 elements: its 2-bit values sit in q[32 t + 16 a + i] at shift 2 j, where k = 8 t + 2 j +
// a.
inline void q2_k_block(const uint8_t* b, float* out) {
  const uint8_t *sc = b, *q = b + 16;
  const float d = half_at(b + 80), dmin = half_at(b + 82);
  for (int k = 0; k < 16; ++k) {
    const int t = k >> 3, j = (k >> 1) & 3, a = k & 1;
    const uint8_t* from = q + 32 * t + 16 * a;
    int8_t n[16];
    store(field(from, 2 * j, 3), n);
    put(n, 16, d * float(sc[k] & 15), -(dmin * float(sc[k] >> 4)), out + 16 * k);
  }
}

inline void q3_k_block(const uint8_t* b, float* out) {
  const uint8_t *h = b, *q = b + 32, *sc = b + 96;
  const float d = half_at(b + 108);
  for (int k = 0; k < 16; ++k) {
    const int t = k >> 3, j = (k >> 1) & 3, a = k & 1;
    const int low = k < 8 ? sc[k] & 15 : sc[k - 8] >> 4;
    const int high = (sc[8 + k % 4] >> (2 * (k / 4))) & 3;
    const uint8_t *from = q + 32 * t + 16 * a, *top = h + 16 * a;
    int8_t n[16];
    store(field(from, 2 * j, 3) + (field(top, 4 * t + j, 1) << 2) - 4, n);
    put(n, 16, d * float((low | high << 4) - 32), out + 16 * k);
  }
}

// The 6-bit scale and min of sub-block j (32 elements) of Q4_K and Q5_K.
inline void scale_min(const uint8_t* sc, int j, int& scale, int& min) {
  if (j < 4) {
    scale = sc[j] & 63, min = sc[j + 4] & 63;
  } else {
    scale = (sc[j + 4] & 15) | (sc[j - 4] >> 6) << 4;
    min = (sc[j + 4] >> 4) | (sc[j] >> 6) << 4;
  }
}

inline void q4_k_block(const uint8_t* b, float* out) {
  const float d = half_at(b), dmin = half_at(b + 2);
  const uint8_t *sc = b + 4, *q = b + 16;
  for (int j = 0; j < 8; ++j) {
    int s, m;
    scale_min(sc, j, s, m);
    const uint8_t* from = q + 32 * (j / 2);
    int8_t n[32];
    for (int l = 0; l < 32; l += 16) store(field(from + l, 4 * (j & 1), 15), n + l);
    put(n, 32, d * float(s), -(dmin * float(m)), out + 32 * j);
  }
}

inline void q5_k_block(const uint8_t* b, float* out) {
  const float d = half_at(b), dmin = half_at(b + 2);
  const uint8_t *sc = b + 4, *h = b + 16, *q = b + 48;
  for (int j = 0; j < 8; ++j) {
    int s, m;
    scale_min(sc, j, s, m);
    const uint8_t* from = q + 32 * (j / 2);
    int8_t n[32];
    for (int l = 0; l < 32; l += 16)
      store(field(from + l, 4 * (j & 1), 15) | (field(h + l, j, 1) << 4), n + l);
    put(n, 32, d * float(s), -(dmin * float(m)), out + 32 * j);
  }
}

// Half t: four groups g of 32, low nibbles in ql (groups 0, 1) and high ones (2, 3), two more bits in qh at 2
// g.
inline void q6_k_block(const uint8_t* b, float* out) {
  const float d = half_at(b + 208);
  for (int t = 0; t < 2; ++t) {
    const uint8_t *low = b + 64 * t, *high = b + 128 + 32 * t;
    const int8_t* sc = reinterpret_cast<const int8_t*>(b + 192 + 8 * t);
    for (int g = 0; g < 4; ++g) {
      const uint8_t* from = low + 32 * (g & 1);
      int8_t n[32];
      for (int l = 0; l < 32; l += 16)
        store((field(from + l, 4 * (g >> 1), 15) | (field(high + l, 2 * g, 3) << 4)) - 32, n + l);
      for (int a = 0; a < 2; ++a)
        put(n + 16 * a, 16, d * float(sc[2 * g + a]), out + 128 * t + 32 * g + 16 * a);
    }
  }
}

inline void f8_32_block(const uint8_t* b, float* out) {
  float d;
  std::memcpy(&d, b, sizeof d);
  put_f8(b + sizeof d, 32, d, out);
}

template <void block(const uint8_t*, float*), int kElements, int kBytes>
void blocks(const void* data, int64_t n, float* out) {
  const uint8_t* b = static_cast<const uint8_t*>(data);
  for (int64_t i = 0; i < n; i += kElements, b += kBytes) block(b, out + i);
}

constexpr Routines kBlocks{
    .q4_0 = blocks<q4_0_block, 32, 18>,
    .q4_1 = blocks<q4_1_block, 32, 20>,
    .q5_0 = blocks<q5_0_block, 32, 22>,
    .q5_1 = blocks<q5_1_block, 32, 24>,
    .q8_0 = blocks<q8_0_block, 32, 34>,
    .q2_k = blocks<q2_k_block, 256, 84>,
    .q3_k = blocks<q3_k_block, 256, 110>,
    .q4_k = blocks<q4_k_block, 256, 144>,
    .q5_k = blocks<q5_k_block, 256, 176>,
    .q6_k = blocks<q6_k_block, 256, 210>,
    .f8_32 = blocks<f8_32_block, 32, 36>,
};
