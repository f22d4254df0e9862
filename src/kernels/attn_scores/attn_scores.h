// kernels/attn_scores/attn_scores.h -- attention votes of a few queries over a whole row (contract.md rule
// 14, methods-eviction.md 1.4). One row at a time.
#pragma once
#include <span>

#include "kernels/attention/records.h"

namespace se {

// Reduces the logits of one row's voting queries to one score per ordinal.
//   logits  f32 [queries, q_heads, ordinals]  q.k unscaled; overwritten
//   last    i64 [queries]                     query i sees ordinals 0 .. last[i], itself included
//   out     f32 [heads, ordinals]             heads: kv_heads if spec.per_kv_head (over the heads of a
//   group), else 1
// Candidates are the ordinals [spec.skip_first, ordinals - spec.skip_last). prob: p = softmax of scale *
// logit over the candidates (full_denominator: over all ordinals) that query i sees; reduced over queries,
// then over heads; ordinals outside the candidates and those that no query sees are 0. A query without
// candidates gives zeros. Raw logits (prob off): reduced alike (kMax: the maximum), and -inf where nothing is
// seen.
void attn_scores(const ScoreSpec& spec,
                 const TensorView& logits,
                 std::span<const int64_t> last,
                 float scale,
                 int kv_heads,
                 const TensorView& out,
                 Stream& stream);

}  // namespace se
