// attend.cc -- the attention pass: items of (query tile, KV head, range of splits) on the pool, then the
// merge of the splits that went to different items.
#include <algorithm>
#include <cstring>
#include <limits>

#include "device/cpu/thread_pool.h"
#include "kernels/attention/drive.h"
#include "kernels/attention/prompt_tile.h"

namespace se::cpu {
namespace {

constexpr int kTileRows = 64;   // query rows (tokens x heads of the group) that share a widened block
constexpr int kShortRows = 24;  // up to here the splits of a tile are spread over items
constexpr int kHeadRows =
    64;  // query rows of a short item, of neighbouring KV heads: memory is read in order
// A short item has several splits where every thread still gets so many items: the first block of an item is
// the one that nobody asked for early.
constexpr int64_t kShares = 4, kMostSplits = 32;
// Splits of a tile are added up in shares of its rows where there are many; few are not worth a wait.
constexpr int64_t kMergeShares = 4, kFewPartials = 256;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

struct Item {
  int64_t row = 0, token = 0, tokens = 0;    // query tokens [token, token + tokens), packed
  int64_t first = 0, split = 0, splits = 0;  // first split that the tile sees; this item's [split, + splits)
  int64_t partial = -1;  // of its first split, the next one's are rows of all heads on; -1: straight to out
  int kv_head = 0, heads = 1;  // KV heads [kv_head, + heads)
};

struct Pass {
  const AttendArgs& args;
  const KeySource& source;
  const AttentionCore& core;
  const PromptCore* prompts;  // for the rows of prompts; null: as decode rows
  int group = 1;
  int threads = 1;
  int64_t rows = 0;           // of the widest item
  int64_t thread_floats = 0;  // of scratch per thread
  float* scratch = nullptr;
  Running partial = {};  // sums of the splits that went to different items
  int64_t merge_shares = 1;
  int64_t together = kMostSplits;  // splits of a short item, or nearly twice as many

  bool tiled(int64_t row) const { return prompts && row >= args.rows->decode_rows; }
  // Decode rows over a part of codes, of which every row sees all.
  bool multiplies_codes(const Item& item) const {
    const CodeSource* c = source.codes;
    if (!c || !core.absorb_codes || args.window > 0 || item.tokens != 1) return false;
    const auto fits = [](int dim) { return dim > 0 && dim % 16 == 0 && dim <= kMostCodeDim; };
    return item.row < args.rows->decode_rows && group <= core.few_rows && fits(c->format.k_dim) &&
           fits(c->format.v_dim) && c->format.group % 16 == 0;
  }
  int64_t tile_tokens(int64_t row) const {
    return std::max(1, (tiled(row) ? kPromptRows : kTileRows) / group);
  }
  int64_t split_of(int64_t row) const {
    const int64_t split = args.rows->split.empty() ? 0 : args.rows->split.ptr<int32_t>()[row];
    return split > 0 ? split : std::numeric_limits<int64_t>::max() / 2;
  }
  int64_t places_of(const Item& item, const RowKeys& keys) const {  // end of those that its last token sees
    return keys.extent + (source.present ? item.token + item.tokens - keys.first : 0);
  }
  int64_t first_of(const Item& item, const RowKeys& keys) const {  // split of the lowest that it sees
    return args.window > 0 ? std::max(lowest_place(args, item.token), keys.base) / split_of(item.row) : 0;
  }
};

// Calls fn(item) for every tile of the listed rows and every KV head, later tiles of a row first: they see
// more keys, and the last items on a pool should be short. A short tile comes a few splits at a time, each
// with as many KV heads as fit, as their keys lie; item.partial is set. A long one comes with all its splits.
template <typename Fn>
void for_each_item(const Pass& pass, const Fn& fn) {
  const int32_t* ids = pass.args.list.ids.ptr<int32_t>();
  const int32_t* start = pass.args.rows->q_start.ptr<int32_t>();
  const int heads = pass.source.kv_heads;
  const bool alike = !pass.source.part || pass.source.part->index.row_heads == 1;
  int64_t partial = 0;
  for (int64_t i = 0; i < *pass.args.list.n.ptr<int32_t>(); ++i) {
    Item item;
    item.row = ids[i];
    const int64_t tokens = start[item.row + 1] - start[item.row], split = pass.split_of(item.row);
    const auto splits_of = [&](int h) {  // counted from item.first
      const int64_t places = pass.places_of(item, row_keys(pass.source, pass.args, item.row, h));
      return std::max<int64_t>((places + split - 1) / split - item.first, 1);
    };
    const int64_t tile = pass.tile_tokens(item.row);
    for (int64_t t = (tokens - 1) / tile * tile; t >= 0 && tokens > 0; t -= tile) {
      item.token = start[item.row] + t;
      item.tokens = std::min<int64_t>(tile, tokens - t);
      item.first = pass.first_of(item, row_keys(pass.source, pass.args, item.row, 0));
      const int64_t rows = item.tokens * pass.group;
      int64_t most = 1;
      for (int h = 0; h < heads; ++h) most = std::max(most, splits_of(h));
      if (most == 1 || rows > kShortRows || pass.tiled(item.row)) {
        for (item.kv_head = 0; item.kv_head < heads; ++item.kv_head) {
          item.split = item.first, item.splits = splits_of(item.kv_head), item.partial = -1;
          item.heads = 1;
          fn(item);
        }
        continue;
      }
      const int together = alike ? int(std::max<int64_t>(1, kHeadRows / rows)) : 1;
      const int64_t n = std::max<int64_t>(most / pass.together, 1), some = (most + n - 1) / n;
      for (item.split = item.first; item.split < item.first + most; item.split += item.splits) {
        item.splits = std::min(some, item.first + most - item.split);
        for (item.kv_head = 0; item.kv_head < heads; item.kv_head += item.heads) {
          item.heads = std::min(together, heads - item.kv_head);
          item.partial = partial + item.kv_head * rows;
          fn(item);
        }
        partial += item.splits * rows * heads;
      }
    }
  }
}

struct TileWork {  // one thread's scratch; rows of one KV head after the other
  float *q, *scores;
  int32_t *from, *seen;  // of each row, the keys of a block that it sees
  Running total, split;  // of the splits before; of one
};

TileWork tile_work(const Pass& pass, float* scratch) {
  const int64_t rows = pass.rows, kd = round_up8(pass.source.k_dim), vd = round_up8(pass.source.v_dim);
  TileWork w;
  w.q = scratch;
  w.scores = w.q + rows * kd;
  float* at = w.scores + rows * kKeyBlock;
  for (Running* run : {&w.total, &w.split}) {
    run->acc = at, run->stride = vd, run->m = at + rows * vd, run->l = run->m + rows;
    at = run->l + rows;
  }
  w.seen = reinterpret_cast<int32_t*>(at);
  w.from = w.seen + rows;
  return w;
}

int64_t tile_floats(const Pass& pass) {
  return pass.rows * (round_up8(pass.source.k_dim) + 2 * round_up8(pass.source.v_dim) + kKeyBlock + 6);
}

Running rows_from(const Running& run, int64_t row) {
  return {run.m + row, run.l + row, run.acc + row * run.stride, run.stride};
}

// Which keys of a block the rows of a tile see: [w.from, w.seen) of each; from for windows only. Returns the
// first row that sees any (rows before it see nothing: a later token sees more), or the number of rows.
int see(const Pass& pass, const Item& item, const KeyBlockView& block, int64_t begin, const TileWork& w) {
  const int rows = int(item.tokens) * pass.group;
  int first = rows;
  for (int r = rows - 1; r >= 0; --r) {
    const int64_t token = item.token + r / pass.group;
    const int64_t present = std::clamp<int64_t>(token + 1 - block.first_present, 0, block.n - block.n_past);
    w.seen[r] = int32_t(block.n_past + present);
    if (pass.args.window > 0) {
      const int64_t low = lowest_place(pass.args, token) - begin;
      w.from[r] = int32_t(std::lower_bound(block.place, block.place + block.n, low) - block.place);
      if (w.from[r] >= w.seen[r]) w.from[r] = w.seen[r] = 0;
    }
    if (w.seen[r] > 0) first = r;
  }
  return first;
}

// Folds the keys at places [begin, end) into `sums`, the running softmax of the tile's rows; those up to
// `later` are read afterwards.
void absorb_split(const Pass& pass,
                  const Item& item,
                  const RowKeys& keys,
                  const BlockReader& reader,
                  int64_t begin,
                  int64_t end,
                  int64_t later,
                  const TileWork& w,
                  const Running& sums) {
  const int rows = int(item.tokens) * pass.group, kd = int(round_up8(pass.source.k_dim));
  const bool window = pass.args.window > 0;
  KeyBlockView block;
  Ahead ahead;
  const int64_t skip = window ? std::max<int64_t>(lowest_place(pass.args, item.token) - begin, 0) : 0;
  const bool few = rows <= pass.core.few_rows;
  for (int64_t b = begin + skip / kKeyBlock * kKeyBlock; b < end; b += kKeyBlock) {
    const int64_t to = std::min(b + kKeyBlock, end), after = std::min(to + kKeyBlock, later);
    RowKeys head = keys;
    reader.read(head, b, to, item.token + item.tokens, few, true, block);
    const int first = see(pass, item, block, b, w);
    const int32_t* from = window ? w.from + first : nullptr;
    reader.look_ahead(keys, to, after, true, item.heads, ahead);
    for (int h = 0; h < item.heads; ++h) {
      if (h > 0 && reader.steps_to_next_head(block)) {
        reader.next_head(block);
      } else if (h > 0) {
        head.kv_head = item.kv_head + h;
        reader.read(head, b, to, item.token + item.tokens, few, true, block);
      }
      if (first == rows) continue;
      const int64_t at = int64_t(h) * rows + first;
      float* scores = w.scores + first * kKeyBlock;
      pass.core.dots(w.q + at * kd, kd, rows - first, block.k, block.type, block.n, kd, scores, &ahead);
      pass.core.absorb(scores,
                       pass.args.scale,
                       from,
                       w.seen + first,
                       rows - first,
                       block.v,
                       block.type,
                       int(sums.stride),
                       rows_from(sums, at),
                       &ahead);
    }
  }
}

// The same of codes that are multiplied as they lie. A block that goes on into the present is restored.
void absorb_codes(const Pass& pass,
                  const Item& item,
                  const RowKeys& keys,
                  const BlockReader& reader,
                  int64_t begin,
                  int64_t end,
                  int64_t later,
                  const TileWork& w,
                  const Running& sums) {
  const int64_t rows = item.tokens * pass.group, kd = round_up8(pass.source.k_dim);
  CodePiece pieces[kKeyBlock];
  Ahead ahead;
  for (int64_t b = begin; b < end; b += kKeyBlock) {
    const int64_t to = std::min(b + kKeyBlock, end);
    if (to > keys.extent) return absorb_split(pass, item, keys, reader, b, end, later, w, sums);
    reader.look_ahead(keys, to, std::min(to + kKeyBlock, later), true, item.heads, ahead);
    RowKeys head = keys;
    for (int h = 0; h < item.heads; ++h, ++head.kv_head) {
      const int n = reader.codes(head, b, to, pieces);
      if (n > 0)
        pass.core.absorb_codes(w.q + h * rows * kd,
                               kd,
                               int(rows),
                               pass.args.scale,
                               pass.source.codes->format,
                               pieces,
                               n,
                               rows_from(sums, h * rows),
                               &ahead);
    }
  }
}

void write_row(const Pass& pass, const Running& sums, int64_t r, int64_t token, int64_t head) {
  float* out = pass.args.out.at<float>(token, head);
  *pass.args.lse.at<float>(token, head) =
      pass.core.finish(sums.m[r], sums.l[r], sums.acc + r * sums.stride, pass.source.v_dim, out);
}

void run_item(const Pass& pass, const Item& item, int thread) {
  float* scratch = pass.scratch + thread * pass.thread_floats;
  const TileWork w = tile_work(pass, scratch);
  const KeySource& source = pass.source;
  const BlockReader reader(source, pass.core, scratch + tile_floats(pass));
  const RowKeys keys = row_keys(source, pass.args, item.row, item.kv_head);
  const int64_t kd = round_up8(source.k_dim), rows = item.tokens * pass.group, all = rows * item.heads;
  const auto token_of = [&](int64_t r) { return item.token + r % rows / pass.group; };
  const auto head_of = [&](int64_t r) { return (item.kv_head + r / rows) * pass.group + r % pass.group; };
  for (int64_t r = 0; r < all; ++r) {
    std::memcpy(w.q + r * kd, pass.args.q.at<float>(token_of(r), head_of(r)), size_t(source.k_dim) * 4);
    std::fill(w.q + r * kd + source.k_dim, w.q + (r + 1) * kd, 0.f);
  }
  const int64_t split = pass.split_of(item.row), places = pass.places_of(item, keys);
  const int64_t last = item.split + item.splits, later = last > places / split ? places : last * split;
  const bool alone = item.partial >= 0;
  if (alone) {  // its first block is the one that nobody asked for early
    Ahead ahead;
    const int64_t begin = item.split * split;
    reader.look_ahead(keys, begin, std::min(begin + kKeyBlock, later), true, item.heads, ahead);
    for (int i = 0; i < ahead.n; ++i) {
      for (const char* p = ahead.begin[i]; p < ahead.end[i]; p += 64) __builtin_prefetch(p);
    }
  }
  const auto absorb = pass.multiplies_codes(item) ? absorb_codes : absorb_split;
  for (int64_t s = item.split; s < last; ++s) {
    const bool first = s == item.split;
    const Running sums =
        alone   ? rows_from(pass.partial, item.partial + (s - item.split) * rows * source.kv_heads)
        : first ? w.total
                : w.split;
    std::fill(sums.m, sums.m + all, kMinusInf);
    std::fill(sums.l, sums.l + all, 0.f);
    std::fill(sums.acc, sums.acc + all * sums.stride, 0.f);
    absorb(pass, item, keys, reader, s * split, std::min((s + 1) * split, places), later, w, sums);
    if (!alone && !first) pass.core.add_split(w.total, sums, int(all), int(sums.stride));
  }
  for (int64_t r = 0; r < all && !alone; ++r) write_row(pass, w.total, r, token_of(r), head_of(r));
}

// A prompt's tile with matrix tiles: all splits of one KV head.
void run_prompt(const Pass& pass, const Item& item, int thread) {
  const KeySource& source = pass.source;
  const int64_t rows = item.tokens * pass.group;
  float* scratch = pass.scratch + thread * pass.thread_floats;
  TileWork w{};
  w.seen = reinterpret_cast<int32_t*>(scratch), w.from = w.seen + kPromptRows;
  const BlockReader reader(source, pass.core, scratch + 2 * kPromptRows);
  char* tile_scratch = reinterpret_cast<char*>(scratch + 2 * kPromptRows + reader_floats(source));
  PromptTile tile{int(rows), source.k_dim, source.v_dim, pass.args.scale, nullptr};
  tile.scratch = tile_scratch + (64 - reinterpret_cast<uintptr_t>(tile_scratch) % 64) % 64;
  float *q[kPromptRows], *out[kPromptRows], *lse[kPromptRows];
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t token = item.token + r / pass.group, head = item.kv_head * pass.group + r % pass.group;
    q[r] = pass.args.q.at<float>(token, head);
    out[r] = pass.args.out.at<float>(token, head), lse[r] = pass.args.lse.at<float>(token, head);
  }
  const RowKeys keys = row_keys(source, pass.args, item.row, item.kv_head);
  const int64_t split = pass.split_of(item.row), places = pass.places_of(item, keys);
  const bool window = pass.args.window > 0;
  KeyBlockView block;
  pass.prompts->begin(tile, q);
  for (int64_t s = item.split; s < item.split + item.splits; ++s) {
    const int64_t begin = s * split, end = std::min((s + 1) * split, places);
    const int64_t skip = window ? std::max<int64_t>(lowest_place(pass.args, item.token) - begin, 0) : 0;
    for (int64_t b = begin + skip / kKeyBlock * kKeyBlock; b < end; b += kKeyBlock) {
      reader.read(keys,
                  b,
                  std::min(b + kKeyBlock, end),
                  item.token + item.tokens,
                  pass.prompts->as_they_lie,
                  true,
                  block);
      const bool all = block.n_past == block.n && !window;
      if (block.n == 0 || (!all && see(pass, item, block, b, w) == rows)) continue;
      pass.prompts->block(
          tile, block.k, block.v, block.type, block.n, window ? w.from : nullptr, all ? nullptr : w.seen);
    }
    pass.prompts->end_split(tile);
  }
  pass.prompts->finish(tile, out, lse);
}

// The splits of a short tile, added up in ascending order as a long tile adds its own: of one share of its
// rows, which do not wait for each other. `item` holds the first split of some heads.
void merge_splits(const Pass& pass, const Item& item, int64_t splits, int64_t share) {
  const int64_t rows = item.tokens * pass.group, all = rows * item.heads;
  const int64_t begin = all * share / pass.merge_shares, end = all * (share + 1) / pass.merge_shares;
  const Running total = rows_from(pass.partial, item.partial + begin);
  for (int64_t s = 1; s < splits; ++s)
    pass.core.add_split(total,
                        rows_from(pass.partial, item.partial + begin + s * rows * pass.source.kv_heads),
                        int(end - begin),
                        int(total.stride));
  for (int64_t r = begin; r < end; ++r)
    write_row(pass,
              total,
              r - begin,
              item.token + r % rows / pass.group,
              (item.kv_head + r / rows) * pass.group + r % pass.group);
}

void check(const AttendArgs& args, const KeySource& s) {
  SE_CHECK(args.q.rank == 3 && args.q.shape[2] == s.k_dim && s.kv_heads > 0 &&
               args.q.shape[1] % s.kv_heads == 0 && args.q.stride[2] == 4,
           "q {}: expected f32 [tokens, a multiple of {}, {}]",
           to_string(args.q),
           s.kv_heads,
           s.k_dim);
  SE_CHECK(args.out.rank == 3 && args.out.shape[1] == args.q.shape[1] && args.out.shape[2] == s.v_dim &&
               args.out.stride[2] == 4 && args.lse.rank == 2 && args.lse.shape[1] == args.q.shape[1],
           "out {}, lse {}: expected f32 [tokens, {}, {}] and [tokens, {}]",
           to_string(args.out),
           to_string(args.lse),
           args.q.shape[1],
           s.v_dim,
           args.q.shape[1]);
}

}  // namespace

void attend(const AttendArgs& args, const KeySource& source, Stream& stream) {
  if (args.expanded) return attend_expanded(args, source, stream);
  check(args, source);
  if (args.blocks) return attend_blocks(args, source, stream);
  Arena own;
  Arena& arena = args.scratch ? *args.scratch : own;
  const Arena::Mark mark = arena.mark();
  Pass pass{args, source, attention_core(), source.v_in_k ? nullptr : prompt_core()};
  pass.group = int(args.q.shape[1]) / source.kv_heads, pass.threads = stream.pool().threads();
  if (pass.group > kPromptRows) pass.prompts = nullptr;

  int64_t n_items = 0, n_tiles = 0, n_partials = 0, n_splits = 0;
  for_each_item(pass, [&](const Item& item) {
    if (item.partial >= 0 && item.kv_head == 0) n_splits += item.splits;
  });
  pass.together = std::clamp<int64_t>(
      n_splits / (kShares * pass.threads), std::clamp<int64_t>(n_splits / pass.threads, 1, 2), kMostSplits);
  for_each_item(pass, [&](const Item& item) {
    ++n_items;
    n_tiles += item.partial >= 0 && item.split == item.first;
    n_partials += item.partial >= 0 ? item.tokens * pass.group * item.heads * item.splits : 0;
    pass.rows = std::max(pass.rows, item.tokens * pass.group * item.heads);
  });
  Item* items = arena.take<Item>(n_items).data();
  struct Tile {  // of some heads, whose splits are spread over items
    int64_t first, splits;
  };
  Tile* tiles = arena.take<Tile>(n_tiles).data();
  pass.partial.stride = round_up8(source.v_dim);
  pass.partial.acc = arena.take<float>(n_partials * pass.partial.stride).data();
  pass.partial.m = arena.take<float>(n_partials).data();
  pass.partial.l = arena.take<float>(n_partials).data();
  pass.merge_shares = n_partials > kFewPartials ? kMergeShares : 1;
  pass.thread_floats = tile_floats(pass) + reader_floats(source);
  if (pass.prompts)
    pass.thread_floats = std::max(pass.thread_floats,
                                  pass.prompts->bytes(kPromptRows, source.k_dim, source.v_dim) / 4 + 16 +
                                      reader_floats(source) + 2 * kPromptRows);
  pass.thread_floats = (pass.thread_floats + 15) / 16 * 16;
  pass.scratch = arena.take<float>(pass.thread_floats * stream.pool().threads()).data();

  int64_t at = 0, made = 0, group = 0, groups = 0;  // tiles of a split stand in the order of their heads
  for_each_item(pass, [&](const Item& item) {
    if (item.partial >= 0) {
      group = item.kv_head == 0 ? 0 : group + 1;
      if (item.split == item.first) tiles[made++] = {at, 0}, groups = group + 1;
      tiles[made - groups + group].splits += item.splits;
    }
    items[at++] = item;
  });
  struct Job {
    const Pass& pass;
    const Item* items;
    const Tile* tiles;
  } job{pass, items, tiles};
  stream.pool().run(n_items, [&job](int64_t i, int thread) {
    const Item& item = job.items[i];
    job.pass.tiled(item.row) ? run_prompt(job.pass, item, thread) : run_item(job.pass, item, thread);
  });
  stream.pool().run(n_tiles * pass.merge_shares, [&job](int64_t i, int) {
    const Tile& tile = job.tiles[i / job.pass.merge_shares];
    merge_splits(job.pass, job.items[tile.first], tile.splits, i % job.pass.merge_shares);
  });
  arena.rewind(mark);
}

}  // namespace se::cpu
