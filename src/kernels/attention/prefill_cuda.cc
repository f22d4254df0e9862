#include "kernels/attention/prefill_cuda.h"

#include <algorithm>

#include "device/cuda/stream.h"
#include "device/cuda/tensor_map.h"
#include "kernels/attention/decode_cuda.h"

namespace se::cuda {
namespace {

constexpr int64_t kDim = 128;
// Splits are so long that a chunk's items come several to a processor (of some 132: results must not depend
// on how many there are), and yet long enough that what an item costs besides its tiles stays small.
constexpr int64_t kItemsWanted = 528, kLeastSplit = 4096;

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

int processors() {
  int device = 0, n = 0;
  SE_CUDA(cudaGetDevice(&device));
  SE_CUDA(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device));
  return n;
}
int64_t tiles_of(int64_t places) { return (places + kPrefillTile - 1) / kPrefillTile; }

// Of a row's past in BF16; tiles begin at multiples of 128 positions with a window.
int64_t restored_rows(const AttentionPart& part) {
  return (tiles_of(part.index.cap * part.index.unit) + 1) * kPrefillTile;
}
// Tiles of queries of all rows and KV heads, at most.
int64_t most_tiles(int64_t tokens, int64_t rows, int64_t kv_heads, int64_t group) {
  return (tokens * group / kPrefillTile + rows) * kv_heads;
}

}  // namespace

int prefill_split(int tokens, int kv_heads, int group, int64_t places) {
  const int64_t items = tiles_of(int64_t(tokens) * group) * kv_heads, splits = kItemsWanted / items;
  if (splits < 2) return 0;
  return int(std::max<int64_t>(kLeastSplit, (places / splits + kLeastSplit - 1) / kLeastSplit * kLeastSplit));
}

PrefillPlan plan_prefill(int64_t cap, int unit, int tokens, int least_split) {
  SE_CHECK(least_split >= 0 && least_split % kPrefillTile == 0, "split of {} tokens", least_split);
  PrefillPlan plan;
  plan.grid = processors();
  const int64_t places = (tiles_of(cap * unit) + 1 + tiles_of(tokens)) * kPrefillTile;
  if (least_split > 0) plan.max_splits = int(places / least_split) + (places > least_split ? 2 : 1);
  return plan;
}

int64_t prefill_workspace_bytes(const PrefillPlan& plan, const AttendArgs& args, const AttentionPart& part) {
  const int64_t tokens = args.q.shape[0], heads = part.planes[0].shape[2];
  const int64_t tiles = most_tiles(tokens, args.list.cap, heads, args.q.shape[1] / heads);
  return 2 * tokens * heads * kDim * 2 + (args.list.cap + 1) * int64_t(sizeof(PrefillItems)) + 2048 +
         (plan.max_splits > 1 ? tiles * plan.max_splits * kPrefillTile * (kDim * 4 + 8) : 0) +
         (decode_type(part) == DecodeType::kBF16
              ? 0
              : args.list.cap * heads * restored_rows(part) * (4 * kDim + 1) + 1024);
}

PrefillLaunch prefill_launch(const AttendArgs& args,
                             const AttentionPart& part,
                             const PrefillPlan& plan,
                             Workspace& workspace) {
  const DecodeType type = decode_type(part);
  const TensorView& k = part.planes[0];
  SE_CHECK(k.shape[k.rank - 1] == (type == DecodeType::kKivi4 ? kDim / 2 : kDim),
           "prefill on the GPU takes K/V of 128 channels, not {}",
           to_string(k));
  SE_CHECK(args.expanded == nullptr && part.v_in_k == 0, "prefill on the GPU takes no latent heads yet");
  SE_CHECK(args.window == 0 || (!part.index.first.empty() && !args.rows->pos.empty()),
           "a window of {} over rows of unknown positions",
           args.window);
  PrefillLaunch l;
  l.type = type;
  PrefillParams& p = l.p;
  AttendArgs plain = args;
  plain.window = 0;
  p.a = decode_params(plain, part), p.tokens = int(args.q.shape[0]);
  p.window = args.window, p.first = part.index.first.ptr<int64_t>(), p.pos = args.rows->pos.ptr<int32_t>();
  const int64_t present = int64_t(p.tokens) * p.a.kv_heads * kDim;
  p.now_k = workspace.take<__nv_bfloat16>(present), p.now_v = workspace.take<__nv_bfloat16>(present);
  p.taken = workspace.take<int32_t>(1), p.items = workspace.take<PrefillItems>(p.a.cap + 1);
  p.max_splits = plan.max_splits;
  l.tiles = int(most_tiles(p.tokens, p.a.cap, p.a.kv_heads, p.a.group));
  if (p.max_splits > 1) {
    const int64_t items = int64_t(l.tiles) * p.max_splits;
    p.part_out = workspace.take<float4>(items * kPrefillTile * kDim / 4);
    p.part_sums = workspace.take<float2>(items * kPrefillTile);
  }
  l.maps.now_k = rows_map(p.now_k, int64_t(p.tokens) * p.a.kv_heads);
  l.maps.now_v = rows_map(p.now_v, int64_t(p.tokens) * p.a.kv_heads);
  l.maps.past_k = l.maps.mean_k = l.maps.now_k, l.maps.past_v = l.maps.mean_v = l.maps.now_v;
  if (type == DecodeType::kBF16) {
    l.maps.past_k = past_map(k), l.maps.past_v = past_map(part.planes[1]);
    p.head_groups = int(k.stride[2] / (8 * k.stride[1]));
  } else {
    const int64_t rows = p.a.cap * int64_t(p.a.kv_heads) * restored_rows(part);
    p.past_rows = int(restored_rows(part));
    p.past_k = workspace.take<__nv_bfloat16>(rows * kDim),
    p.past_v = workspace.take<__nv_bfloat16>(rows * kDim);
    p.past_there = workspace.take<uint32_t>(rows / 32);
    l.maps.past_k = rows_map(p.past_k, rows), l.maps.past_v = rows_map(p.past_v, rows);
  }
  l.grid = int(std::min<int64_t>(plan.grid, int64_t(l.tiles) * p.max_splits));
  return l;
}

void attend_prefill(const AttendArgs& args,
                    const AttentionPart& part,
                    const PrefillPlan& plan,
                    Workspace& workspace,
                    Stream& stream) {
  if (args.q.shape[0] == 0 || args.list.cap == 0) return;
  const int64_t mark = workspace.mark();
  const PrefillLaunch l = prefill_launch(args, part, plan, workspace);
  prefill_round(l.p, stream);
  if (l.type != DecodeType::kBF16) prefill_restore(l.p, l.type, stream);
  prefill_dense(l.p, l.maps, l.grid, stream);
  if (l.p.max_splits > 1) prefill_merge(l.p, l.tiles, stream);
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
  s.items = most_tiles(tokens, args.list.cap, heads, group);
  s.means = args.list.cap * heads * s.blocks;
  return s;
}

}  // namespace

int64_t sparse_prefill_workspace_bytes(const AttendArgs& args, const AttentionPart& part) {
  const SparseSizes s = sparse_sizes(args, part);
  return prefill_workspace_bytes({}, args, part) + s.means * (4 * kDim + 4) +
         s.items * (s.list * 4 + s.blocks / 8 + 4) + 4096;
}

SparsePrefill sparse_prefill(const AttendArgs& args,
                             const AttentionPart& part,
                             int grid,
                             Workspace& workspace) {
  SE_CHECK(args.present != nullptr && args.window == 0,
           "block-sparse prefill without a present, or with a window of {}",
           args.window);
  const SparseSizes sizes = sparse_sizes(args, part);
  SparsePrefill s;
  s.launch = prefill_launch(args, part, {grid, 1}, workspace);
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
  if (s.launch.type != DecodeType::kBF16) prefill_restore(s.launch.p, s.launch.type, stream);
  prefill_means(s.launch.p, stream);
  prefill_choose(s.launch.p, s.launch.maps, choice, s.items, stream);
}

void attend_blocks(const SparsePrefill& s, Stream& stream) {
  prefill_sparse(s.launch.p, s.launch.maps, s.launch.grid, stream);
}

}  // namespace se::cuda
