#include "kernels/attention/latent_decode_cuda.h"

#include <algorithm>
#include <bit>

#include "device/cuda/stream.h"
#include "device/cuda/tensor_map.h"

namespace se::cuda {

LatentPlan plan_latent_decode(int64_t cap, int unit, int least_split) {
  SE_CHECK(least_split > 0, "split of {} tokens", least_split);
  int device = 0, processors = 0;
  SE_CUDA(cudaGetDevice(&device));
  SE_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  return {processors, int(std::max<int64_t>(1, (cap * unit + least_split - 1) / least_split))};
}

int64_t latent_workspace_bytes(const LatentPlan& plan, int rows, int heads) {
  return int64_t(rows) * latent_slices(heads) * plan.max_splits * kLatentHeads * (kLatentValue + 2) * 4 + 512;
}

DecodeParams latent_params(const AttendArgs& args, const AttentionPart& part) {
  const TensorView& k = part.planes[0];
  const KvIndex& index = part.index;
  const auto quads = [](const TensorView& t) {
    return t.rank == 3 && t.stride[2] == 4 && t.stride[0] % 16 == 0 && t.stride[1] % 16 == 0;
  };
  SE_CHECK(k.dtype == DType::kBF16 && k.rank == 4 && k.shape[2] == 1 && k.shape[3] == kLatentKey &&
               part.v_in_k == kLatentValue && args.window == 0 && args.expanded == nullptr,
           "latent decode on the GPU takes bf16 keys of {} channels, values of {}, no windows; not {}, {}",
           kLatentKey,
           kLatentValue,
           to_string(k),
           part.v_in_k);
  SE_CHECK(quads(args.q) && quads(args.out) && args.q.shape[2] == kLatentKey &&
               args.out.shape[2] == kLatentValue && args.lse.rank == 2 && index.row_heads == 1 &&
               std::has_single_bit(unsigned(index.page)) && std::has_single_bit(unsigned(index.unit)) &&
               args.list.cap <= kDecodeRows,
           "q {}, out {}, page {}, unit {}, {} rows",
           to_string(args.q),
           to_string(args.out),
           index.page,
           index.unit,
           args.list.cap);
  DecodeParams p;
  p.kv_heads = 1, p.group = int(args.q.shape[1]), p.scale = args.scale;
  p.k = p.v = k.ptr<char>(), p.page_stride = k.stride[0], p.item_stride = k.stride[1];
  p.page_shift = std::countr_zero(unsigned(index.page)),
  p.unit_shift = std::countr_zero(unsigned(index.unit));
  p.runs = index.runs.ptr<int64_t>(), p.start = index.start.ptr<int64_t>();
  p.offset = index.offset.ptr<int64_t>(), p.counts = index.counts.ptr<int32_t>();
  p.rows = args.rows->rows, p.ids = args.list.ids.ptr<int32_t>(), p.n = args.list.n.ptr<int32_t>();
  p.cap = args.list.cap, p.q_start = args.rows->q_start.ptr<int32_t>();
  p.kv_from = args.rows->kv_from.ptr<int32_t>(), p.split = args.rows->split.ptr<int32_t>();
  p.q = args.q.ptr<float>(), p.q_token = args.q.stride[0] / 4, p.q_head = args.q.stride[1] / 4;
  if (args.present) {
    SE_CHECK(quads(args.present->k) && args.present->k.shape[2] == kLatentKey,
             "present K {}",
             to_string(args.present->k));
    p.new_k = args.present->k.ptr<float>(), p.new_token = args.present->k.stride[0] / 4;
  }
  p.out = args.out.ptr<float>(), p.lse = args.lse.ptr<float>();
  p.out_token = args.out.stride[0] / 4, p.out_head = args.out.stride[1] / 4;
  p.lse_token = args.lse.stride[0] / 4, p.lse_head = args.lse.stride[1] / 4;
  return p;
}

void attend_latent(const AttendArgs& args,
                   const AttentionPart& part,
                   const LatentPlan& plan,
                   Workspace& workspace,
                   Stream& stream) {
  DecodeParams p = latent_params(args, part);
  if (p.cap < 1) return;
  const int64_t mark = workspace.mark(), entries = int64_t(p.cap) * latent_slices(p.group);
  const int64_t parts = entries * plan.max_splits * kLatentHeads;
  p.max_splits = plan.max_splits;
  p.part_out = workspace.take<float>(parts * kLatentValue), p.part_lse = workspace.take<float>(parts * 2);
  const TensorView& k = part.planes[0];
  const CUtensorMap keys = tensor_map(k.data,
                                      2,
                                      {64, 8, kLatentKey / 64, (k.shape[1] + 7) / 8, k.shape[0]},
                                      {p.item_stride, 128, 8 * p.item_stride, p.page_stride},
                                      {64, 8, kLatentKey / 64, 2, 1});
  latent_decode(p, keys, int(std::min<int64_t>(plan.grid, entries * plan.max_splits)), stream);
  workspace.rewind(mark);  // later ops of the stream may reuse it
}

}  // namespace se::cuda
