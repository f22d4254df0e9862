// kernels/attention/attention_ref.h -- the slow twin: one query at a time, all its keys gathered, one softmax
// in double. For tests; codecs hand in their loader.
#pragma once
#include "kernels/attention/attention.h"

namespace se::ref {

// As attend_tiles; part null: the present alone; load null: planes of the part are plain.
void attend(const AttendArgs& args,
            const AttentionPart* part,
            int k_dim,
            int v_dim,
            int kv_heads,
            cpu::LoadTile load);
// As logits_tiles (part) and logits_present (part null).
void logits(const AttendArgs& args, const AttentionPart* part, int k_dim, int kv_heads, cpu::LoadTile load);
// As merge_attention.
void merge(const StepRows& rows,
           const RowList& list,
           const TensorView& other,
           const TensorView& other_lse,
           const TensorView& out,
           const TensorView& lse);

}  // namespace se::ref
