// logits.cc -- raw q.k of a row's tokens, by linear place: what scores are computed from.
#include <algorithm>
#include <cstring>

#include "device/cpu/thread_pool.h"
#include "kernels/attention/drive.h"

namespace se::cpu {
namespace {

constexpr int kTileRows = 64;
constexpr int64_t kItemPlaces = 512;

struct Item {
  int64_t row = 0, token = 0, tokens = 0, begin = 0;  // places [begin, begin + kItemPlaces)
  int kv_head = 0;
};

struct Pass {
  const AttendArgs& args;
  const KeySource& source;
  const AttentionCore& core;
  int group = 1, tile_tokens = 1;
  int64_t thread_floats = 0;
  float* scratch = nullptr;

  int64_t places_of(const Item& item, const RowKeys& keys) const {
    return keys.extent + (source.present ? item.token + item.tokens - keys.first : 0);
  }
};

template <typename Fn>
void for_each_item(const Pass& pass, const Fn& fn) {
  const int32_t* ids = pass.args.list.ids.ptr<int32_t>();
  const int32_t* start = pass.args.rows->q_start.ptr<int32_t>();
  for (int64_t i = 0; i < *pass.args.list.n.ptr<int32_t>(); ++i) {
    for (int h = 0; h < pass.source.kv_heads; ++h) {
      const RowKeys keys = row_keys(pass.source, pass.args, ids[i], h);
      for (int64_t t = start[ids[i]]; t < start[ids[i] + 1]; t += pass.tile_tokens) {
        Item item;
        item.row = ids[i], item.token = t, item.kv_head = h;
        item.tokens = std::min<int64_t>(pass.tile_tokens, start[ids[i] + 1] - t);
        for (const int64_t places = pass.places_of(item, keys); item.begin < places;
             item.begin += kItemPlaces)
          fn(item);
      }
    }
  }
}

// Scores of one query row to their places; what the row does not see stays.
void scatter(const KeyBlockView& block, int seen, const float* scores, float* out) {
  if (seen > 0 && block.place[seen - 1] - block.place[0] == seen - 1) {
    std::memcpy(out + block.place[0], scores, size_t(seen) * sizeof(float));
    return;
  }
  for (int j = 0; j < seen; ++j) out[block.place[j]] = scores[j];
}

void run_item(const Pass& pass, const Item& item, int thread) {
  const KeySource& source = pass.source;
  const int64_t kd = round_up8(source.k_dim), rows = item.tokens * pass.group;
  float* q = pass.scratch + thread * pass.thread_floats;
  float* scores = q + pass.tile_tokens * pass.group * kd;
  const BlockReader reader(source, pass.core, scores + pass.tile_tokens * pass.group * kKeyBlock);
  const RowKeys keys = row_keys(source, pass.args, item.row, item.kv_head);
  const auto head_of = [&](int64_t r) { return item.kv_head * pass.group + r % pass.group; };
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(
        q + r * kd, pass.args.q.at<float>(item.token + r / pass.group, head_of(r)), size_t(source.k_dim) * 4);
    std::fill(q + r * kd + source.k_dim, q + (r + 1) * kd, 0.f);
  }
  const int64_t end = std::min(item.begin + kItemPlaces, pass.places_of(item, keys));
  KeyBlockView block;
  Ahead ahead;
  for (int64_t b = item.begin; b < end; b += kKeyBlock) {
    reader.read(keys,
                b,
                std::min(b + kKeyBlock, end),
                item.token + item.tokens,
                rows <= pass.core.few_rows,
                false,
                block);
    reader.look_ahead(keys, b + kKeyBlock, std::min(b + 2 * kKeyBlock, end), false, 1, ahead);
    if (block.n == 0) continue;
    pass.core.dots(q, kd, int(rows), block.k, block.type, block.n, int(kd), scores, &ahead);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t token = item.token + r / pass.group;
      const int64_t present = std::clamp<int64_t>(token + 1 - block.first_present, 0, block.n - block.n_past);
      scatter(block,
              int(block.n_past + present),
              scores + r * kKeyBlock,
              pass.args.logits.at<float>(token, head_of(r)) + b);
    }
  }
}

}  // namespace

void logits(const AttendArgs& args, const KeySource& source, Stream& stream) {
  SE_CHECK(args.q.rank == 3 && args.q.shape[2] == source.k_dim && args.q.shape[1] % source.kv_heads == 0 &&
               args.q.stride[2] == 4 && args.logits.rank == 3 && args.logits.shape[1] == args.q.shape[1] &&
               args.logits.stride[2] == 4,
           "q {}, logits {}: expected f32 [tokens, a multiple of {}, {}] and [tokens, the same, cap]",
           to_string(args.q),
           to_string(args.logits),
           source.kv_heads,
           source.k_dim);
  SE_CHECK(args.window == 0, "logits see whole rows: no votes are taken in windowed layers");
  Arena own;
  Arena& arena = args.scratch ? *args.scratch : own;
  const Arena::Mark mark = arena.mark();
  Pass pass{args, source, attention_core()};
  pass.group = int(args.q.shape[1]) / source.kv_heads;
  pass.tile_tokens = std::max(1, kTileRows / pass.group);
  int64_t n_items = 0, places = 0;
  for_each_item(pass, [&](const Item& item) {
    ++n_items;
    const RowKeys keys = row_keys(source, args, item.row, item.kv_head);
    places = std::max(places, pass.places_of(item, keys));
  });
  SE_CHECK(places <= args.logits.shape[2], "logits of {} keys into {}", places, to_string(args.logits));
  Item* items = arena.take<Item>(n_items).data();
  int64_t at = 0;
  for_each_item(pass, [&](const Item& item) { items[at++] = item; });
  const int64_t rows = pass.tile_tokens * pass.group;
  pass.thread_floats = (rows * (round_up8(source.k_dim) + kKeyBlock) + reader_floats(source) + 15) / 16 * 16;
  pass.scratch = arena.take<float>(pass.thread_floats * stream.pool().threads()).data();
  struct Job {
    const Pass& pass;
    const Item* items;
  } job{pass, items};
  stream.pool().run(n_items, [&job](int64_t i, int thread) { run_item(job.pass, job.items[i], thread); });
  arena.rewind(mark);
}

}  // namespace se::cpu
