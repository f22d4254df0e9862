// attend_blocks.cc -- the attention pass of prompts over chosen blocks: an item is a tile of packed query
// rows of one KV head. Blocks that lie side by side are walked as one stretch, in the key blocks and splits
// of the dense pass, so that a tile that reads all gives its bits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "device/cpu/thread_pool.h"
#include "kernels/attention/drive.h"
#include "kernels/attention/prompt_tile.h"

namespace se::cpu {
namespace {

struct Item {
  int64_t listed = 0, row = 0, at = 0;      // place in the list, row of the step, item of the BlockList
  int64_t token = 0, packed = 0, rows = 0;  // the row's first token; packed rows [packed, packed + rows)
  int kv_head = 0;
};

struct Pass {
  const AttendArgs& args;
  const KeySource& source;
  const BlockList& list;
  const AttentionCore& core;
  const PromptCore& prompts;
  int group = 1;
  int64_t thread_floats = 0;
  float* scratch = nullptr;

  int64_t token_of(const Item& item, int64_t r) const { return item.token + (item.packed + r) / group; }
  int64_t split_of(int64_t row) const {
    const int64_t split = args.rows->split.empty() ? 0 : args.rows->split.ptr<int32_t>()[row];
    return split > 0 ? split : std::numeric_limits<int64_t>::max() / 2;
  }
};

// Later tiles first: they see more keys, and the last items on a pool should be short.
template <typename Fn>
void for_each_item(const Pass& pass, const Fn& fn) {
  const int32_t* ids = pass.args.list.ids.ptr<int32_t>();
  const int32_t* start = pass.args.rows->q_start.ptr<int32_t>();
  for (int64_t i = 0; i < *pass.args.list.n.ptr<int32_t>(); ++i) {
    Item item;
    item.listed = i, item.row = ids[i], item.token = start[item.row];
    const int64_t rows = int64_t(start[item.row + 1] - start[item.row]) * pass.group;
    const int64_t tile = pass.list.tile, tiles = (rows + tile - 1) / tile;
    for (int64_t t = tiles - 1; t >= 0; --t) {
      item.packed = t * tile, item.rows = std::min(tile, rows - item.packed);
      for (item.kv_head = 0; item.kv_head < pass.source.kv_heads; ++item.kv_head) {
        item.at = pass.list.first.ptr<int64_t>()[i] + item.kv_head * tiles + t;
        fn(item);
      }
    }
  }
}

// One thread's memory.
struct TileWork {
  int32_t* seen;
  float *out, *lse, *tile;  // of the means; the PromptCore's, 64-byte aligned
  float* reader;
};
int64_t tile_floats(const Pass& p) {
  return p.list.tile * (p.source.v_dim + 2) + reader_floats(p.source) + 16 +
         p.prompts.bytes(p.list.tile, p.source.k_dim, p.source.v_dim) / 4 + 16;
}
TileWork tile_work(const Pass& p, int thread) {
  TileWork w;
  float* at = p.scratch + thread * p.thread_floats;
  w.seen = reinterpret_cast<int32_t*>(at);
  w.out = at + p.list.tile;
  w.lse = w.out + p.list.tile * p.source.v_dim;
  w.reader = w.lse + p.list.tile;
  const auto end = reinterpret_cast<uintptr_t>(w.reader + reader_floats(p.source));
  w.tile = reinterpret_cast<float*>((end + 63) / 64 * 64);
  return w;
}

// Folds places [begin, end) in; `split`: the one that is under way, or -1.
void walk(const Pass& pass,
          const Item& item,
          const RowKeys& keys,
          const BlockReader& reader,
          const PromptTile& tile,
          int64_t begin,
          int64_t end,
          int64_t& split,
          const TileWork& w) {
  const int64_t size = pass.split_of(item.row), last = pass.token_of(item, item.rows - 1);
  KeyBlockView block;
  for (int64_t at = begin; at < end;) {
    const int64_t s = at / size, in = (at - s * size) % kKeyBlock;
    const int64_t to = std::min({at - in + kKeyBlock, (s + 1) * size, end});
    if (split >= 0 && s != split) pass.prompts.end_split(tile);
    split = s;
    reader.read(keys, at, to, last + 1, pass.prompts.as_they_lie, true, block);
    at = to;
    if (block.n == 0) continue;
    const bool all = block.n_past == block.n;
    for (int64_t r = 0; r < item.rows && !all; ++r) {
      const int64_t present = pass.token_of(item, r) + 1 - block.first_present;
      w.seen[r] = int32_t(block.n_past + std::clamp<int64_t>(present, 0, block.n - block.n_past));
    }
    if (!all && w.seen[item.rows - 1] == 0) continue;
    pass.prompts.block(tile, block.k, block.v, block.type, block.n, nullptr, all ? nullptr : w.seen);
  }
}

// The blocks that count as their mean: one softmax over them, each mean `block` times, merged behind the
// rest.
void add_means(const Pass& pass,
               const Item& item,
               const PromptTile& tile,
               const float* const* q,
               float* const* out,
               float* const* lse,
               const TileWork& w) {
  const BlockList& list = pass.list;
  const int64_t n = list.mean_counts.ptr<int32_t>()[item.at];
  if (n == 0) return;
  const int32_t* blocks = list.mean_blocks.at<int32_t>(item.at);
  pass.prompts.begin(tile, q);
  for (int64_t i = 0; i < n; i += kKeyBlock) {
    const void *k[kKeyBlock + 4], *v[kKeyBlock];
    const int m = int(std::min<int64_t>(kKeyBlock, n - i));
    for (int j = 0; j < m; ++j) {
      k[j] = list.mean_k.at<float>(item.listed, item.kv_head, blocks[i + j]);
      v[j] = list.mean_v.at<float>(item.listed, item.kv_head, blocks[i + j]);
    }
    for (int j = m; j % 4 != 0; ++j) k[j] = k[m - 1];
    pass.prompts.block(tile, k, v, RowType::kF32, m, nullptr, nullptr);
  }
  pass.prompts.end_split(tile);
  float *mean_out[kPromptRows], *mean_lse[kPromptRows];
  for (int64_t r = 0; r < item.rows; ++r)
    mean_out[r] = w.out + r * pass.source.v_dim, mean_lse[r] = w.lse + r;
  pass.prompts.finish(tile, mean_out, mean_lse);
  const float times = std::log(float(list.block));
  for (int64_t r = 0; r < item.rows; ++r)
    pass.core.merge(out[r], lse[r], mean_out[r], *mean_lse[r] + times, pass.source.v_dim);
}

void run_tile(const Pass& pass, const Item& item, int thread) {
  const KeySource& source = pass.source;
  const BlockList& list = pass.list;
  const TileWork w = tile_work(pass, thread);
  const BlockReader reader(source, pass.core, w.reader);
  PromptTile tile{int(item.rows), source.k_dim, source.v_dim, pass.args.scale, nullptr};
  tile.scratch = reinterpret_cast<char*>(w.tile);
  float *q[kPromptRows], *out[kPromptRows], *lse[kPromptRows];
  for (int64_t r = 0; r < item.rows; ++r) {
    const int64_t token = pass.token_of(item, r);
    const int64_t head = item.kv_head * pass.group + (item.packed + r) % pass.group;
    q[r] = pass.args.q.at<float>(token, head);
    out[r] = pass.args.out.at<float>(token, head), lse[r] = pass.args.lse.at<float>(token, head);
  }
  const RowKeys keys = row_keys(source, pass.args, item.row, item.kv_head);
  const int64_t last = pass.token_of(item, item.rows - 1);
  const int64_t places = keys.extent + (source.present ? last + 1 - keys.first : 0);
  const int32_t* blocks = list.blocks.at<int32_t>(item.at);
  const int64_t n = list.counts.ptr<int32_t>()[item.at];
  pass.prompts.begin(tile, q);
  int64_t split = -1;
  for (int64_t i = 0, j = 0; i < n; i = j) {  // a stretch
    for (j = i + 1; j < n && blocks[j] == blocks[j - 1] + 1;) ++j;
    const int64_t begin = int64_t(blocks[i]) * list.block, end = (int64_t(blocks[j - 1]) + 1) * list.block;
    walk(pass, item, keys, reader, tile, begin, std::min(end, places), split, w);
  }
  if (split >= 0) pass.prompts.end_split(tile);
  pass.prompts.finish(tile, out, lse);
  if (!list.mean_counts.empty()) add_means(pass, item, tile, q, out, lse, w);
}

}  // namespace

void attend_blocks(const AttendArgs& args, const KeySource& source, Stream& stream) {
  const BlockList& list = *args.blocks;
  SE_CHECK(args.window == 0 && !source.v_in_k && list.tile > 0 && list.tile <= kPromptRows && list.block > 0,
           "blocks of {} keys for tiles of {} rows, window {}: expected full attention over keys and values "
           "of their own, tiles up to {}",
           list.block,
           list.tile,
           args.window,
           kPromptRows);
  Arena own;
  Arena& arena = args.scratch ? *args.scratch : own;
  const Arena::Mark mark = arena.mark();
  const PromptCore* tiles = prompt_core();
  Pass pass{args, source, list, attention_core(), tiles ? *tiles : kPromptRowByRow};
  pass.group = int(args.q.shape[1]) / source.kv_heads;
  pass.thread_floats = (tile_floats(pass) + 15) / 16 * 16;
  pass.scratch = arena.take<float>(pass.thread_floats * stream.pool().threads()).data();
  int64_t n = 0;
  for_each_item(pass, [&](const Item&) { ++n; });
  Item* items = arena.take<Item>(n).data();
  n = 0;
  for_each_item(pass, [&](const Item& item) { items[n++] = item; });
  stream.pool().run(n, [&](int64_t i, int thread) { run_tile(pass, items[i], thread); });
  arena.rewind(mark);
}

}  // namespace se::cpu
