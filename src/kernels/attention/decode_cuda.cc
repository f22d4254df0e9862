#include "kernels/attention/decode_cuda.h"

#include <bit>

#include "device/cuda/memory.h"
#include "device/cuda/stream.h"

namespace se::cuda {
namespace {

DecodeType type_of(DType dtype) {
  SE_CHECK(
      dtype == DType::kBF16 || dtype == DType::kF16, "K/V of {}: expected bf16 or f16", to_string(dtype));
  return dtype == DType::kBF16 ? DecodeType::kBF16 : DecodeType::kF16;
}

}  // namespace

DecodePlan plan_decode(DType dtype, int dim, int64_t cap, int unit, int least_split) {
  SE_CHECK(least_split > 0, "split of {} tokens", least_split);
  return {decode_grid(type_of(dtype), dim), int((cap * unit + least_split - 1) / least_split)};
}

int64_t decode_workspace_bytes(const DecodePlan& plan, int rows, int kv_heads, int group, int dim) {
  const int64_t entries = int64_t(rows) * kv_heads * decode_slices(group) * plan.max_splits;
  return entries * 8 * (dim + 1) * int64_t(sizeof(float)) + 512;
}

void attend_decode(const AttendArgs& args,
                   const AttentionPart& part,
                   const DecodePlan& plan,
                   Workspace& workspace,
                   Stream& stream) {
  const TensorView &k = part.planes[0], &v = part.planes[1];
  SE_CHECK(k.rank == 4 && k.shape == v.shape && k.stride == v.stride && k.dtype == v.dtype &&
               k.stride[3] == block_bytes(k.dtype),
           "planes K {}, V {}: expected [page id, page, kv_heads, dim], alike",
           to_string(k),
           to_string(v));
  const KvIndex& index = part.index;
  const int kv_heads = int(k.shape[2]), dim = int(k.shape[3]), group = int(args.q.shape[1]) / kv_heads;
  SE_CHECK(std::has_single_bit(unsigned(index.page)) && std::has_single_bit(unsigned(index.unit)) &&
               (index.row_heads == 1 || index.row_heads == kv_heads) && args.list.cap <= kDecodeRows,
           "page {}, unit {}, row_heads {}, {} rows",
           index.page,
           index.unit,
           index.row_heads,
           args.list.cap);
  SE_CHECK(args.q.rank == 3 && args.q.shape[2] == dim && args.out.rank == 3 && args.lse.rank == 2 &&
               args.q.stride[2] == 4 && args.out.stride[2] == 4,
           "q {}, out {}",
           to_string(args.q),
           to_string(args.out));
  DecodeParams p;
  p.k = k.ptr<char>(), p.v = v.ptr<char>();
  p.page_stride = k.stride[0], p.item_stride = k.stride[1], p.head_stride = k.stride[2];
  p.page_shift = std::countr_zero(unsigned(index.page)),
  p.unit_shift = std::countr_zero(unsigned(index.unit));
  p.runs = index.runs.ptr<int64_t>(), p.start = index.start.ptr<int64_t>();
  p.offset = index.offset.ptr<int64_t>(), p.counts = index.counts.ptr<int32_t>(),
  p.row_heads = index.row_heads;
  p.ids = args.list.ids.ptr<int32_t>(), p.n = args.list.n.ptr<int32_t>(), p.cap = args.list.cap;
  p.q_start = args.rows->q_start.ptr<int32_t>(), p.kv_from = args.rows->kv_from.ptr<int32_t>();
  p.split = args.rows->split.ptr<int32_t>();
  p.q = args.q.ptr<float>(), p.q_token = args.q.stride[0] / 4, p.q_head = args.q.stride[1] / 4;
  if (args.present) {
    const TensorView &nk = args.present->k, &nv = args.present->v;
    SE_CHECK(nk.rank == 3 && nk.shape == nv.shape && nk.stride == nv.stride && nk.stride[2] == 4,
             "present K {}, V {}",
             to_string(nk),
             to_string(nv));
    p.new_k = nk.ptr<float>(), p.new_v = nv.ptr<float>();
    p.new_token = nk.stride[0] / 4, p.new_head = nk.stride[1] / 4;
  }
  p.kv_heads = kv_heads, p.group = group, p.scale = args.scale, p.max_splits = plan.max_splits;
  p.out = args.out.ptr<float>(), p.lse = args.lse.ptr<float>();
  p.out_token = args.out.stride[0] / 4, p.out_head = args.out.stride[1] / 4;
  p.lse_token = args.lse.stride[0] / 4, p.lse_head = args.lse.stride[1] / 4;
  const int64_t mark = workspace.mark();
  const int64_t entries = int64_t(p.cap) * kv_heads * decode_slices(group) * plan.max_splits;
  p.part_out = workspace.take<float>(entries * 8 * dim), p.part_lse = workspace.take<float>(entries * 8);
  decode_attention(p, type_of(k.dtype), dim, plan.grid, stream);
  workspace.rewind(mark);  // later ops of the stream may reuse it
}

}  // namespace se::cuda
