// kernels/attention/model_kv.h -- what the KV side knows of a model, layer by layer (contract.md 2, part 1),
// and how a stage declares what a sequence owns (part 2).
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "device/device.h"

namespace se {

// What a layer's attention is. kFull: keepers, readers and placers act here, codecs too. kWindow: a token
// sees the newest `window` keys, itself included; codecs apply, the store drops older pages, nothing else
// acts.
enum class LayerKind : uint8_t { kFull, kWindow, kShared, kRecurrent };
// What is done to q and k before they meet: norm over each head, then rotation. The driver runs it; each
// layer has its own (Gemma 3: another theta in windowed layers).
struct QkTransform {
  TensorView q_norm, k_norm;  // f32 [head_dim] RMSNorm weights, shared by all heads; empty: none. As
                              // multiplied: a checkpoint's (1 + w) is added up by the family. MLA: none
  TensorView rope;      // f32 [pairs] inverse frequencies; the first 2 * pairs channels rotate (MLA: of the
                        // part behind nope in q, behind v_dim in k); empty: none
  float eps = 0;        // of the norms
  float amplitude = 1;  // of cos and sin (YaRN)
  bool interleaved = false;  // pairs (x[2i], x[2i+1]) instead of (x[i], x[i + pairs])
};
struct LayerKv {
  LayerKind kind = LayerKind::kFull;
  int q_heads = 0, kv_heads = 0, k_dim = 0, v_dim = 0;  // of this rank, as stored (MLA: 1, 576, 512)
  float scale = 0;             // softmax scale (MLA: that of the heads, (nope + rope)^-1/2)
  int window = 0, donor = -1;  // kWindow: keys seen, itself included. kShared: layer whose K/V it reads
  QkTransform qk;
  // MLA (both or neither): one latent "head" is stored, [c after its norm, v_dim | key part with RoPE], and
  // its first v_dim channels are the value too. A query head is [nope | rope]; its key is [w_uk c | rope
  // part], its value w_uv c. f32, f16 or bf16 (quantised files: widened by the family), channels lie
  // together, any other strides: both may be views of kv_b_proj [q_heads, nope + head_v, v_dim].
  TensorView w_uk;  // [q_heads, nope, v_dim]
  TensorView w_uv;  // [q_heads, head_v, v_dim]

  bool latent() const { return !w_uk.empty(); }
  bool stores() const { return kind == LayerKind::kFull || kind == LayerKind::kWindow; }  // K/V of its own
  // Channels of a query head and of an output head as the model passes and gets them.
  int q_dim() const { return latent() ? int(w_uk.shape[1]) + k_dim - v_dim : k_dim; }
  int out_dim() const { return latent() ? int(w_uv.shape[1]) : v_dim; }
};

enum class Block : uint8_t {
  kPayload,  // the codec's bytes. Pages: shared by count, immutable once full
  kIndex,    // pure function of the payload: shared, may be dropped and rebuilt
  kState     // history of one sequence: private, cloned by fork; new items are zero
};
inline constexpr int kPerSequence = 0;  // cloned by fork
struct ComponentSpec {
  std::string_view name;  // stable, it goes to disk
  Block block = Block::kPayload;
  int per = 1;  // tokens per item (a power of two) or kPerSequence
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // of one item of one layer (and head)
  bool heads = true;           // one item per KV head
  std::vector<int> layers;     // empty: every layer the stage acts on
  std::vector<int64_t> last;   // by layer, replaces shape.back() (low-rank ranks, head dims)
};

struct ModelKv {
  std::vector<LayerKv> layers;
  DType dtype = DType::kF16;  // of K and V as the checkpoint wants them; F32 in exact mode
  int ranks = 1;
  int full_layers() const {  // those that plans act on
    int n = 0;
    for (const LayerKv& l : layers) n += l.kind == LayerKind::kFull;
    return n;
  }
};

// Everything a model knows about attention: q, k, v as projected; norm, RoPE and the KV write are the
// driver's.
struct AttentionPort {
  virtual ~AttentionPort() = default;
  // q f32 [tokens, q_heads * q_dim()], k f32 [tokens, kv_heads * k_dim], v f32 [tokens, kv_heads * v_dim]
  // (MLA: an empty view), all of them may be overwritten; out f32 [tokens, q_heads * out_dim()], no alias.
  virtual void attend(int layer,
                      const TensorView& q,
                      const TensorView& k,
                      const TensorView& v,
                      const TensorView& out,
                      Stream&) = 0;
};

}  // namespace se
