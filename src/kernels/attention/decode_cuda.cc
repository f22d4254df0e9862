#include "kernels/attention/decode_cuda.h"

#include <algorithm>
#include <bit>

#include "device/cuda/memory.h"
#include "device/cuda/stream.h"

namespace se::cuda {
namespace {

enum : int { kKCodes, kKMin, kKStep, kVCodes, kVMin, kVStep };  // a kivi part's planes

void check_alike(const TensorView& a, const TensorView& b, int rank) {
  SE_CHECK(a.rank == rank && a.shape == b.shape && a.stride == b.stride && a.dtype == b.dtype,
           "planes {}, {}: expected [page id, item, kv_heads, ..] of rank {}, alike",
           to_string(a),
           to_string(b),
           rank);
}

void set_planes(DecodeParams& p, const AttentionPart& part, DecodeType type) {
  const bool kivi = type == DecodeType::kKivi4;
  const TensorView &k = part.planes[0], &v = part.planes[kivi ? kVCodes : 1];
  check_alike(k, v, kivi ? 5 : 4);
  p.k = k.ptr<char>(), p.v = v.ptr<char>();
  p.page_stride = k.stride[0], p.item_stride = k.stride[1], p.head_stride = k.stride[2];
  if (type == DecodeType::kBF16 || type == DecodeType::kF16) return;
  const TensorView &ks = part.planes[kivi ? kKStep : 2], &vs = part.planes[kivi ? kVStep : 3];
  SE_CHECK(ks.stride[0] == k.stride[0] && vs.stride[0] == k.stride[0] && ks.stride[1] == vs.stride[1] &&
               ks.stride[2] == vs.stride[2],
           "scales {}, {}: expected equal strides",
           to_string(ks),
           to_string(vs));
  p.k_scale = ks.ptr<char>(), p.v_scale = vs.ptr<char>();
  p.scale_item = ks.stride[1], p.scale_head = ks.stride[2];
  if (!kivi) return;
  p.k_min = part.planes[kKMin].ptr<char>(), p.v_min = part.planes[kVMin].ptr<char>();
  SE_CHECK(part.planes[kKMin].dtype == DType::kBF16 && part.planes[kKMin].stride[1] == p.scale_item &&
               part.planes[kVMin].stride[1] == p.scale_item && part.index.unit % 32 == 0,
           "kivi minima {}, {}, unit {}: expected bf16 and units of whole groups of 32",
           to_string(part.planes[kKMin]),
           to_string(part.planes[kVMin]),
           part.index.unit);
}

int channels(const AttentionPart& part, DecodeType type) {
  const TensorView& k = part.planes[0];
  return type == DecodeType::kKivi4 ? int(k.shape[4]) * 2 : int(k.shape[3]);
}

void set_rows(DecodeParams& p, const AttendArgs& args, const KvIndex& index) {
  p.page_shift = std::countr_zero(unsigned(index.page));
  p.unit_shift = std::countr_zero(unsigned(index.unit));
  p.runs = index.runs.ptr<int64_t>(), p.run_count = index.runs.numel();
  p.start = index.start.ptr<int64_t>();
  p.offset = index.offset.ptr<int64_t>(), p.counts = index.counts.ptr<int32_t>();
  p.row_heads = index.row_heads, p.rows = args.rows->rows;
  p.ids = args.list.ids.ptr<int32_t>(), p.n = args.list.n.ptr<int32_t>(), p.cap = args.list.cap;
  p.q_start = args.rows->q_start.ptr<int32_t>(), p.kv_from = args.rows->kv_from.ptr<int32_t>();
  p.split = args.rows->split.ptr<int32_t>();
}

void set_tensors(DecodeParams& p, const AttendArgs& args) {
  const auto quads = [](const TensorView& t) {
    return t.rank == 3 && t.stride[2] == 4 && t.stride[0] % 16 == 0 && t.stride[1] % 16 == 0;
  };
  SE_CHECK(quads(args.q) && quads(args.out) && args.lse.rank == 2,
           "q {}, out {}",
           to_string(args.q),
           to_string(args.out));
  p.q = args.q.ptr<float>(), p.q_token = args.q.stride[0] / 4, p.q_head = args.q.stride[1] / 4;
  if (args.present) {
    const TensorView &nk = args.present->k, &nv = args.present->v;
    SE_CHECK(quads(nk) && nk.shape == nv.shape && nk.stride == nv.stride,
             "present K {}, V {}",
             to_string(nk),
             to_string(nv));
    p.new_k = nk.ptr<float>(), p.new_v = nv.ptr<float>();
    p.new_token = nk.stride[0] / 4, p.new_head = nk.stride[1] / 4;
  }
  p.out = args.out.ptr<float>(), p.lse = args.lse.ptr<float>();
  p.out_token = args.out.stride[0] / 4, p.out_head = args.out.stride[1] / 4;
  p.lse_token = args.lse.stride[0] / 4, p.lse_head = args.lse.stride[1] / 4;
}

}  // namespace

DecodeType decode_type(const AttentionPart& part) {
  const TensorView& k = part.planes[0];
  switch (k.dtype) {
    case DType::kBF16:
      return DecodeType::kBF16;
    case DType::kF16:
      return DecodeType::kF16;
    case DType::kF8E4M3:
      return DecodeType::kE4M3;
    case DType::kF8E5M2:
      return DecodeType::kE5M2;
    case DType::kU8:
      SE_CHECK(k.rank == 5 && part.args[0] == 4 && part.args[1] == 32,
               "codes {} of {} bits in groups of {}: expected 4 bits, groups of 32",
               to_string(k),
               part.args[0],
               part.args[1]);
      return DecodeType::kKivi4;
    default:
      break;
  }
  SE_CHECK(false, "K/V of {}: expected bf16, f16, an 8-bit float or kivi codes", to_string(k.dtype));
}

DecodePlan plan_decode(DecodeType type, int dim, int64_t cap, int unit, int least_split, int entries) {
  SE_CHECK(least_split > 0 && (type != DecodeType::kKivi4 || least_split % 32 == 0),
           "split of {} tokens",
           least_split);
  SE_CHECK(dim == 128 || (dim == 64 && (type == DecodeType::kBF16 || type == DecodeType::kF16)),
           "{} channels a head: expected 128, or 64 in 16 bits",
           dim);
  const int64_t splits = std::max<int64_t>(1, (cap * unit + least_split - 1) / least_split);
  auto parts = Buffer::allocate(entries * splits * 8 * (dim + 2) * int64_t(sizeof(float)));
  SE_CHECK(parts.ok(), "{}", parts.status().message());
  SE_CUDA(cudaMemset(parts->data(), 0xff, size_t(parts->bytes())));
  SE_CUDA(cudaStreamSynchronize(nullptr));
  return {decode_grid(type, dim), int(splits), parts.take()};
}

DecodeParams decode_params(const AttendArgs& args, const AttentionPart& part) {
  SE_CHECK(args.window == 0 && args.expanded == nullptr && part.v_in_k == 0,
           "decode on the GPU takes neither windows nor latent heads yet (window {}, values in {} channels "
           "of keys)",
           args.window,
           part.v_in_k);
  const DecodeType type = decode_type(part);
  const KvIndex& index = part.index;
  DecodeParams p;
  p.kv_heads = int(part.planes[0].shape[2]), p.group = int(args.q.shape[1]) / p.kv_heads;
  SE_CHECK(std::has_single_bit(unsigned(index.page)) && std::has_single_bit(unsigned(index.unit)) &&
               (index.row_heads == 1 || index.row_heads == p.kv_heads) && args.list.cap <= kDecodeRows &&
               args.q.shape[2] == channels(part, type),
           "page {}, unit {}, row_heads {}, {} rows, q {}",
           index.page,
           index.unit,
           index.row_heads,
           args.list.cap,
           to_string(args.q));
  set_planes(p, part, type);
  set_rows(p, args, index);
  set_tensors(p, args);
  p.scale = args.scale;
  return p;
}

void attend_decode(const AttendArgs& args,
                   const AttentionPart& part,
                   const DecodePlan& plan,
                   DecodeAhead ahead,
                   Stream& stream) {
  const DecodeType type = decode_type(part);
  DecodeParams p = decode_params(args, part);
  const int dim = channels(part, type);
  const int64_t numbers = int64_t(p.cap) * p.kv_heads * decode_slices(p.group) * plan.max_splits * 8;
  SE_CHECK(numbers * (dim + 2) * 4 <= plan.parts.bytes(),
           "parts of {} bytes, planned for {}",
           numbers * (dim + 2) * 4,
           plan.parts.bytes());
  p.max_splits = plan.max_splits, p.ahead = ahead;
  p.part_out = plan.parts.ptr<float>(), p.part_lse = p.part_out + numbers * dim;
  decode_attention(p, type, dim, plan.grid, stream);
}

}  // namespace se::cuda
