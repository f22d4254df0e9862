#include "kernels/attention/prefill_cuda.h"

#include <algorithm>

#include "device/cuda/stream.h"
#include "device/cuda/tensor_map.h"
#include "kernels/attention/decode_cuda.h"

namespace se::cuda {
namespace {

constexpr int64_t kDim = 128;

// Boxes of 16 keys as [group of 8][half of the channels][8 keys][64 channels]. Past: groups begin at
// multiples of 8 items of a page; heads follow each other in whole groups.
CUtensorMap past_map(const TensorView& plane) {
  const int64_t item = plane.stride[1], head = plane.stride[2], heads = plane.shape[2];
  SE_CHECK(head % (8 * item) == 0 && plane.shape[1] % 8 == 0,
           "plane {}, {} bytes an item, {} a head: expected heads of whole groups of 8 items",
           to_string(plane),
           item,
           head);
  return tensor_map(plane.data,
                    2,
                    {64, 8, 2, heads * (head / (8 * item)), plane.shape[0]},
                    {item, 128, 8 * item, plane.stride[0]},
                    {64, 8, 2, 2, 1});
}

// [rows, 128], boxes from any row on.
CUtensorMap rows_map(const void* at, int64_t rows) {
  return tensor_map(at,
                    2,
                    {64, 8, 2, rows, 1},
                    {kDim * 2, 128, kDim * 2, rows * kDim * 2},
                    {64, 8, 2, 16, 1},
                    {1, 1, 1, 8, 1});
}

}  // namespace

int prefill_grid() {
  int device = 0, processors = 0;
  SE_CUDA(cudaGetDevice(&device));
  SE_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  return processors;
}

int64_t prefill_workspace_bytes(int tokens, int kv_heads) {
  return 2 * int64_t(tokens) * kv_heads * kDim * 2 + 2048;
}

PrefillLaunch prefill_launch(const AttendArgs& args,
                             const AttentionPart& part,
                             int grid,
                             Workspace& workspace) {
  SE_CHECK(decode_type(part) == DecodeType::kBF16 && part.planes[0].shape[3] == kDim,
           "prefill on the GPU takes bf16 K/V of 128 channels, not {}",
           to_string(part.planes[0]));
  PrefillLaunch l;
  PrefillParams& p = l.p;
  p.a = decode_params(args, part), p.tokens = int(args.q.shape[0]);
  const int64_t present = int64_t(p.tokens) * p.a.kv_heads * kDim;
  p.now_k = workspace.take<__nv_bfloat16>(present), p.now_v = workspace.take<__nv_bfloat16>(present);
  p.taken = workspace.take<int32_t>(1);
  l.maps.past_k = past_map(part.planes[0]), l.maps.past_v = past_map(part.planes[1]);
  l.maps.now_k = rows_map(p.now_k, int64_t(p.tokens) * p.a.kv_heads);
  l.maps.now_v = rows_map(p.now_v, int64_t(p.tokens) * p.a.kv_heads);
  p.head_groups = int(part.planes[0].stride[2] / (8 * part.planes[0].stride[1]));
  l.maps.mean_k = l.maps.now_k, l.maps.mean_v = l.maps.now_v;
  const int64_t tiles = int64_t(p.tokens) * p.a.group / kPrefillTile + p.a.cap;  // at most, of a KV head
  l.grid = int(std::min<int64_t>(grid, tiles * p.a.kv_heads));
  return l;
}

void attend_prefill(
    const AttendArgs& args, const AttentionPart& part, int grid, Workspace& workspace, Stream& stream) {
  if (args.q.shape[0] == 0 || args.list.cap == 0) return;
  const int64_t mark = workspace.mark();
  const PrefillLaunch l = prefill_launch(args, part, grid, workspace);
  prefill_round(l.p, stream);
  prefill_dense(l.p, l.maps, l.grid, stream);
  workspace.rewind(mark);  // later ops of the stream may reuse it
}

namespace {

struct SparseSizes {
  int64_t blocks, list, items, means;  // of a row, rounded up; entries; at most; of all rows and KV heads
};
SparseSizes sparse_sizes(const AttendArgs& args, const AttentionPart& part) {
  const int64_t tokens = args.q.shape[0], heads = part.planes[0].shape[2], group = args.q.shape[1] / heads;
  const int64_t blocks = (part.index.cap * part.index.unit + kPrefillTile - 1) / kPrefillTile +
                         (tokens + kPrefillTile - 1) / kPrefillTile;
  SparseSizes s;
  s.blocks = (blocks + kPrefillTile - 1) / kPrefillTile * kPrefillTile;
  s.list = s.blocks + s.blocks / kPrefillTile;
  s.items = (tokens * group / kPrefillTile + args.list.cap) * heads;
  s.means = args.list.cap * heads * s.blocks;
  return s;
}

}  // namespace

int64_t sparse_prefill_workspace_bytes(const AttendArgs& args, const AttentionPart& part) {
  const SparseSizes s = sparse_sizes(args, part);
  return prefill_workspace_bytes(int(args.q.shape[0]), int(part.planes[0].shape[2])) +
         s.means * (4 * kDim + 4) + s.items * (s.list * 4 + s.blocks / 8 + 4) + 4096;
}

SparsePrefill sparse_prefill(const AttendArgs& args,
                             const AttentionPart& part,
                             int grid,
                             Workspace& workspace) {
  SE_CHECK(args.present != nullptr, "block-sparse prefill without a present");
  const SparseSizes sizes = sparse_sizes(args, part);
  SparsePrefill s;
  s.launch = prefill_launch(args, part, grid, workspace);
  s.items = int(sizes.items);
  PrefillParams& p = s.launch.p;
  p.mean_blocks = int(sizes.blocks), p.list_cap = sizes.list;
  p.mean_k = workspace.take<__nv_bfloat16>(sizes.means * kDim);
  p.mean_v = workspace.take<__nv_bfloat16>(sizes.means * kDim);
  p.mean_bias = workspace.take<float>(sizes.means);
  p.list = workspace.take<int32_t>(sizes.items * sizes.list);
  p.list_n = workspace.take<int32_t>(sizes.items);
  p.pruned = workspace.take<uint32_t>(sizes.items * sizes.blocks / 32);
  s.launch.maps.mean_k = rows_map(p.mean_k, sizes.means);
  s.launch.maps.mean_v = rows_map(p.mean_v, sizes.means);
  return s;
}

void choose_blocks(const SparsePrefill& s, const BlockChoice& choice, Stream& stream) {
  prefill_round(s.launch.p, stream);
  prefill_means(s.launch.p, stream);
  prefill_choose(s.launch.p, s.launch.maps, choice, s.items, stream);
}

void attend_blocks(const SparsePrefill& s, Stream& stream) {
  prefill_sparse(s.launch.p, s.launch.maps, s.launch.grid, stream);
}

}  // namespace se::cuda
