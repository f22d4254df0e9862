// Every block type of spec/models.md 8.2 to f32, once per instruction set: quant_ref.cc and quant_avx2.cc
// include this text inside their own anonymous namespace after defining half_to_float(uint16_t). The
// operations are single f32 products and differences in the order of the formulas, so both give the same
// bits. Each function turns one block at `b` into out[0, block).

inline float half_at(const uint8_t* b) {
  uint16_t h;
  std::memcpy(&h, b, 2);
  return half_to_float(h);
}

inline uint32_t word_at(const uint8_t* b) {
  uint32_t w;
  std::memcpy(&w, b, 4);
  return w;
}

inline void q4_0_block(const uint8_t* b, float* out) {
  const float d = half_at(b);
  const uint8_t* q = b + 2;
  for (int j = 0; j < 16; ++j) out[j] = d * float(int(q[j] & 15) - 8);
  for (int j = 0; j < 16; ++j) out[16 + j] = d * float(int(q[j] >> 4) - 8);
}

inline void q4_1_block(const uint8_t* b, float* out) {
  const float d = half_at(b), m = half_at(b + 2);
  const uint8_t* q = b + 4;
  for (int j = 0; j < 16; ++j) out[j] = d * float(q[j] & 15) + m;
  for (int j = 0; j < 16; ++j) out[16 + j] = d * float(q[j] >> 4) + m;
}

inline void q5_0_block(const uint8_t* b, float* out) {
  const float d = half_at(b);
  const uint32_t h = word_at(b + 2);
  const uint8_t* q = b + 6;
  for (int j = 0; j < 16; ++j) out[j] = d * float(int((q[j] & 15) | ((h >> j) & 1) << 4) - 16);
  for (int j = 0; j < 16; ++j) out[16 + j] = d * float(int((q[j] >> 4) | ((h >> (16 + j)) & 1) << 4) - 16);
}

inline void q5_1_block(const uint8_t* b, float* out) {
  const float d = half_at(b), m = half_at(b + 2);
  const uint32_t h = word_at(b + 4);
  const uint8_t* q = b + 8;
  for (int j = 0; j < 16; ++j) out[j] = d * float(int((q[j] & 15) | ((h >> j) & 1) << 4)) + m;
  for (int j = 0; j < 16; ++j) out[16 + j] = d * float(int((q[j] >> 4) | ((h >> (16 + j)) & 1) << 4)) + m;
}

inline void q8_0_block(const uint8_t* b, float* out) {
  const float d = half_at(b);
  const int8_t* q = reinterpret_cast<const int8_t*>(b + 2);
  for (int j = 0; j < 32; ++j) out[j] = d * float(q[j]);
}

// Sub-block k of 16 elements: its 2-bit values sit in q[32 t + 16 a + i] at shift 2 j, where k = 8 t + 2 j +
// a.
inline void q2_k_block(const uint8_t* b, float* out) {
  const uint8_t *sc = b, *q = b + 16;
  const float d = half_at(b + 80), dmin = half_at(b + 82);
  for (int k = 0; k < 16; ++k) {
    const int t = k >> 3, j = (k >> 1) & 3, a = k & 1;
    const float scale = d * float(sc[k] & 15), min = dmin * float(sc[k] >> 4);
    const uint8_t* n = q + 32 * t + 16 * a;
    for (int i = 0; i < 16; ++i) out[16 * k + i] = scale * float((n[i] >> (2 * j)) & 3) - min;
  }
}

inline void q3_k_block(const uint8_t* b, float* out) {
  const uint8_t *h = b, *q = b + 32, *sc = b + 96;
  const float d = half_at(b + 108);
  for (int k = 0; k < 16; ++k) {
    const int t = k >> 3, j = (k >> 1) & 3, a = k & 1;
    const int low = k < 8 ? sc[k] & 15 : sc[k - 8] >> 4;
    const int high = (sc[8 + k % 4] >> (2 * (k / 4))) & 3;
    const float scale = d * float((low | high << 4) - 32);
    const uint8_t *n = q + 32 * t + 16 * a, *top = h + 16 * a;
    for (int i = 0; i < 16; ++i) {
      const int value = ((n[i] >> (2 * j)) & 3) - (1 - ((top[i] >> (4 * t + j)) & 1)) * 4;
      out[16 * k + i] = scale * float(value);
    }
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
    const float scale = d * float(s), min = dmin * float(m);
    const uint8_t* n = q + 32 * (j / 2);
    const int shift = 4 * (j & 1);
    for (int l = 0; l < 32; ++l) out[32 * j + l] = scale * float((n[l] >> shift) & 15) - min;
  }
}

inline void q5_k_block(const uint8_t* b, float* out) {
  const float d = half_at(b), dmin = half_at(b + 2);
  const uint8_t *sc = b + 4, *h = b + 16, *q = b + 48;
  for (int j = 0; j < 8; ++j) {
    int s, m;
    scale_min(sc, j, s, m);
    const float scale = d * float(s), min = dmin * float(m);
    const uint8_t* n = q + 32 * (j / 2);
    const int shift = 4 * (j & 1);
    for (int l = 0; l < 32; ++l)
      out[32 * j + l] = scale * float(((n[l] >> shift) & 15) | ((h[l] >> j) & 1) << 4) - min;
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
      const uint8_t* n = low + 32 * (g & 1);
      const int shift = 4 * (g >> 1);
      for (int a = 0; a < 2; ++a) {
        const float scale = d * float(sc[2 * g + a]);
        float* o = out + 128 * t + 32 * g + 16 * a;
        for (int l = 0; l < 16; ++l) {
          const int i = 16 * a + l;
          o[l] = scale * float((((n[i] >> shift) & 15) | ((high[i] >> (2 * g)) & 3) << 4) - 32);
        }
      }
    }
  }
}

template <void block(const uint8_t*, float*), int kElements, int kBytes>
void blocks(const void* data, int64_t n, float* out) {
  const uint8_t* b = static_cast<const uint8_t*>(data);
  for (int64_t i = 0; i < n; i += kElements, b += kBytes) block(b, out + i);
}

// The routine of a block type; null for others.
DequantizeFn block_routine(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return blocks<q4_0_block, 32, 18>;
    case DType::kQ4_1:
      return blocks<q4_1_block, 32, 20>;
    case DType::kQ5_0:
      return blocks<q5_0_block, 32, 22>;
    case DType::kQ5_1:
      return blocks<q5_1_block, 32, 24>;
    case DType::kQ8_0:
      return blocks<q8_0_block, 32, 34>;
    case DType::kQ2_K:
      return blocks<q2_k_block, 256, 84>;
    case DType::kQ3_K:
      return blocks<q3_k_block, 256, 110>;
    case DType::kQ4_K:
      return blocks<q4_k_block, 256, 144>;
    case DType::kQ5_K:
      return blocks<q5_k_block, 256, 176>;
    case DType::kQ6_K:
      return blocks<q6_k_block, 256, 210>;
    default:
      return nullptr;
  }
}
