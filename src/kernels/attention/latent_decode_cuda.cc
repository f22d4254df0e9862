#include "kernels/attention/latent_decode_cuda.h"

#include <algorithm>
#include <bit>

#include "device/cuda/stream.h"

namespace se::cuda {

LatentPlan plan_latent_decode(int64_t cap, int unit, int least_split, int rows, int heads) {
  SE_CHECK(least_split > 0, "split of {} tokens", least_split);
  int device = 0, processors = 0;
  SE_CUDA(cudaGetDevice(&device));
  SE_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  LatentPlan plan;
  plan.grid = processors;
  plan.max_splits = int(std::max<int64_t>(1, (cap * unit + least_split - 1) / least_split));
  auto parts = Buffer::allocate(int64_t(rows) * latent_slices(heads) * plan.max_splits * kLatentPart * 4);
  SE_CHECK(parts.ok(), "{}", parts.status().message());
  plan.parts = parts.take();
  SE_CUDA(cudaMemset(plan.parts.data(), 0xff, size_t(plan.parts.bytes())));
  return plan;
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
  p.run_count = index.runs.shape[0];
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
                   DecodeAhead ahead,
                   Stream& stream) {
  DecodeParams p = latent_params(args, part);
  if (p.cap < 1) return;
  const int64_t items = int64_t(p.cap) * latent_slices(p.group) * plan.max_splits;
  SE_CHECK(items * kLatentPart * 4 <= plan.parts.bytes(),
           "{} parts, planned for {} bytes",
           items,
           plan.parts.bytes());
  p.max_splits = plan.max_splits, p.ahead = ahead;
  p.part_out = plan.parts.ptr<float>();
  latent_decode(p, int(std::min<int64_t>(plan.grid, items)), stream);
}

}  // namespace se::cuda
