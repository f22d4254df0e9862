#include "kernels/attn_scores/attn_scores_cuda.h"

#include <algorithm>
#include <bit>

#include "kernels/attn_scores/attn_scores_params_cuda.h"

namespace se::cuda {
namespace {

// A constant of the row: about 32 splits a head, in tiles of 64.
int split_of(int64_t ordinals) { return int(std::max<int64_t>(256, (ordinals + 2047) / 2048 * 64)); }
int splits_of(int64_t ordinals) { return int((ordinals + split_of(ordinals) - 1) / split_of(ordinals)); }

ScorePart part_of(const AttentionPart& part, const TensorView& first) {
  const TensorView& k = part.planes[0];
  SE_CHECK(k.rank == 4 && k.dtype == first.dtype && k.shape[2] == first.shape[2] &&
               k.shape[3] == first.shape[3] && k.stride[3] == 2 && k.stride[0] % 16 == 0 &&
               k.stride[1] % 16 == 0 && k.stride[2] % 16 == 0,
           "keys {}: expected bf16 or f16 [page id, page, kv_heads, dim] like {}",
           to_string(k),
           to_string(first));
  const KvIndex& index = part.index;
  SE_CHECK(index.row_heads == 1 && std::has_single_bit(unsigned(index.page)) &&
               std::has_single_bit(unsigned(index.unit)),
           "page {}, unit {}, {} rows a row: expected powers of two, one",
           index.page,
           index.unit,
           index.row_heads);
  ScorePart p;
  p.k = k.ptr<char>();
  p.page_stride = k.stride[0], p.item_stride = k.stride[1], p.head_stride = k.stride[2];
  p.runs = index.runs.ptr<int64_t>(), p.start = index.start.ptr<int64_t>();
  p.offset = index.offset.ptr<int64_t>(), p.tokens = index.tokens.ptr<int32_t>();
  p.page_shift = std::countr_zero(unsigned(index.page));
  p.unit_shift = std::countr_zero(unsigned(index.unit));
  return p;
}

}  // namespace

int64_t window_scores_bytes(int64_t queries, int q_heads, int kv_heads, int64_t ordinals) {
  const int slices = score_slices(q_heads / kv_heads);
  return queries * q_heads * splits_of(ordinals) * 8 + int64_t(kv_heads) * slices * ordinals * 4 + 512;
}

void window_scores(const ScoreSpec& spec,
                   const AttentionView& view,
                   const TensorView& q,
                   const TensorView& last,
                   float scale,
                   int kv_heads,
                   const TensorView& out,
                   Workspace& workspace,
                   Stream& stream) {
  SE_CHECK(q.rank == 3 && q.dtype == DType::kF32 && q.stride[2] == 4 && q.stride[0] % 8 == 0 &&
               q.stride[1] % 8 == 0 && kv_heads > 0 && q.shape[1] % kv_heads == 0 &&
               q.shape[0] <= kScoreQueries && last.numel() == q.shape[0],
           "queries {} of {}: expected f32 [at most {}, a multiple of {}, dim]",
           to_string(q),
           last.numel(),
           kScoreQueries,
           kv_heads);
  const int64_t heads = spec.per_kv_head ? kv_heads : 1;
  SE_CHECK(out.rank == 2 && out.dtype == DType::kF32 && out.shape[0] == heads && out.stride[1] == 4,
           "scores {}: expected f32 [{}, ordinals]",
           to_string(out),
           heads);
  ScoresParams p;
  p.ordinals = out.shape[1];
  if (p.ordinals == 0) return;
  SE_CHECK(view.n > 0 && p.ordinals < (int64_t{1} << 31), "{} ordinals in {} parts", p.ordinals, view.n);
  const TensorView& first = view.parts[0].planes[0];
  const bool bf16 = first.dtype == DType::kBF16;
  SE_CHECK((bf16 || first.dtype == DType::kF16) && (q.shape[2] == 64 || q.shape[2] == 128) &&
               first.shape[2] == kv_heads && first.shape[3] == q.shape[2],
           "keys {}, queries {}: expected bf16 or f16 of 64 or 128 channels, {} KV heads",
           to_string(first),
           to_string(q),
           kv_heads);
  p.n_parts = view.n;
  for (int i = 0; i < view.n; ++i) p.parts[i] = part_of(view.parts[size_t(i)], first);
  p.q = q.ptr<float>(), p.q_token = q.stride[0] / 4, p.q_head = q.stride[1] / 4;
  p.last = last.ptr<int64_t>();
  p.queries = int(q.shape[0]), p.kv_heads = kv_heads, p.group = int(q.shape[1]) / kv_heads, p.scale = scale;
  p.prob = spec.prob, p.full_denominator = spec.full_denominator, p.per_kv_head = spec.per_kv_head;
  p.over_queries = int(spec.over_queries), p.over_heads = int(spec.over_heads);
  p.low = std::clamp<int64_t>(spec.skip_first, 0, p.ordinals);
  p.high = std::max(p.low, p.ordinals - std::max(spec.skip_last, 0));
  p.split = split_of(p.ordinals), p.splits = splits_of(p.ordinals);
  p.out = out.ptr<float>(), p.out_head = out.stride[0] / 4;
  const int64_t mark = workspace.mark();
  p.state = workspace.take<float2>(int64_t(p.queries) * q.shape[1] * p.splits);
  p.fold = workspace.take<float>(int64_t(kv_heads) * score_slices(p.group) * p.ordinals);
  score_window(p, bf16, int(q.shape[2]), stream);
  workspace.rewind(mark);
}

}  // namespace se::cuda
