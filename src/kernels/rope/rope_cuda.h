// kernels/rope/rope_cuda.h -- q/k norm, RoPE and the write of K and V to the cache in one kernel on CUDA. The
// mathematics of qk_norm_rope (rope.h), then of the write of the dtype and fp8 codecs (and of kivi's ring,
// which is a page of the dtype codec).
#pragma once
#include <cstdint>

namespace se::cuda {

class Stream;

enum class KvType : uint8_t { kNone, kBF16, kF16, kE4M3 };

struct RopeWriteParams {
  // f32 [tokens, (q_heads + 2 kv_heads) * dim]: q, k, v as projected; overwritten by what attention takes, K
  // and V as the cache will hold them (FP8: rounded).
  float* qkv = nullptr;
  int tokens = 0, q_heads = 0, kv_heads = 0, dim = 0;  // dim: 64, 128 or 256
  const float *q_norm = nullptr, *k_norm = nullptr;    // f32 [dim]; null: none
  float eps = 0;
  const float* rope = nullptr;  // f32 [pairs] inverse frequencies; the first 2 * pairs channels rotate
  int pairs = 0;
  bool interleaved = false;      // pairs (2 i, 2 i + 1) instead of (i, i + pairs)
  const int32_t* pos = nullptr;  // i32 [tokens]
  KvType type = KvType::kNone;
  const int64_t* slots = nullptr;   // i64 [tokens]; negative: not written
  int64_t slot_offset = 0;          // added to each (the layer's slice of a page)
  char *k = nullptr, *v = nullptr;  // planes [page id, item, kv_heads, dim]; strides in bytes
  int page_shift = 4;               // slots of a page
  int64_t page_stride = 256, item_stride = 0, head_stride = 0;
  char *k_scale = nullptr, *v_scale = nullptr;  // FP8: f32, one per token and head
  int64_t scale_item = 0, scale_head = 0;
};
void qk_norm_rope_write(const RopeWriteParams& params, Stream& stream);

}  // namespace se::cuda
