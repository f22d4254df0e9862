// kernels/attention/attention.h -- paged attention with a running softmax over parts, splits and the present.
//
// Numerics, so that no cut of a prompt and no batch mate shows, the same for decode rows and rows of prompts
// up to AVX2; beyond it the latter have kernels of their own (prompt_tile.h; latent keys and values apart)
// with the bound of F32 sums, in another order: keys of a part are visited in the order of their linear place
// (run number x unit + place in the run; the present goes on where the last run ends), in splits of
// rows->split[row] places. A split's result is its running softmax (maximum, sums); splits are added
// up in ascending order, then parts are merged by merge_attention's formula. With a window, places are
// positions (KvIndex::first): splits and blocks begin where they would if no page had gone, and what a token
// does not see takes no part, so dropped pages do not show either. All query heads of a KV head share one
// read. Dot products and sums in f32, in an order that depends on the dimension alone.
#pragma once
#include "kernels/attention/codes.h"
#include "kernels/attention/records.h"

namespace se {

// Prompts over latent keys (args.expanded) take splits of 256 places, else the same holds for them.

// K/V as they are: planes[0] = K [page id, page, kv_heads, k_dim], planes[1] = V [.., v_dim]; f32, f16 or
// bf16, any strides with a contiguous last dimension. With args.present, the present's k and v come after the
// part.
void attend_plain(const AttendArgs& args, const AttentionPart& part, Stream& stream);
void logits_plain(const AttendArgs& args, const AttentionPart& part, Stream& stream);

// The present alone, causal: what a view without a with_present part is merged with. Writes args.out,
// args.lse.
void attend_present(const AttendArgs& args, Stream& stream);
// q.k of the present tokens: logits f32 [tokens, q_heads, cap], entry j - kv_from[row] for present token j;
// causal entries only.
void logits_present(const AttendArgs& args, Stream& stream);

// (out, lse) <- merge of (out, lse) and (other, other_lse), for the tokens of the rows in `list`:
//   m = max(lse, other_lse); w = exp(lse - m); u = exp(other_lse - m); out = (w out + u other) / (w + u)
// An empty side (-inf) leaves the other one bit for bit.
void merge_attention(const StepRows& rows,
                     const RowList& list,
                     const TensorView& other,
                     const TensorView& other_lse,
                     const TensorView& out,
                     const TensorView& lse,
                     Stream& stream);

namespace cpu {
// Codecs bring a loader; the driver loop is shared. Decodes `n` tokens from `slot` on (they lie in one page;
// the layer's offset is already added), of one KV head, keys or values, into out f32 [n, dim], row-major.
using LoadTile =
    void (*)(const AttentionPart& part, int kv_head, int64_t slot, int n, bool values, float* out);
// A codec of codes may say where `n` tokens from `slot` on lie (in one page, and in one run of `tokens`
// tokens that share key steps): decode rows then multiply the codes, where the level can. Rows of prompts see
// restored tiles.
struct CodeSource {
  CodeFormat format;
  int tokens = 0;
  CodePiece (*piece)(const AttentionPart& part, int kv_head, int64_t slot, int n) = nullptr;
};
void attend_tiles(const AttendArgs& args,
                  const AttentionPart& part,
                  int k_dim,
                  int v_dim,
                  int kv_heads,
                  LoadTile load,
                  Stream& stream,
                  const CodeSource* codes = nullptr);
void logits_tiles(const AttendArgs& args,
                  const AttentionPart& part,
                  int k_dim,
                  int kv_heads,
                  LoadTile load,
                  Stream& stream);
}  // namespace cpu
}  // namespace se
