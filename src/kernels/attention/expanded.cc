// expanded.cc -- a prompt's pass over latent keys: kExpandedSplit of them at a time are brought to head space
// once, for all queries of the row, and attended there. Splits begin at multiples of kExpandedSplit places
// and merge in ascending order, blocks at multiples of kKeyBlock: the cut of a prompt does not show.
#include <algorithm>
#include <cstring>
#include <limits>

#include "device/cpu/thread_pool.h"
#include "kernels/attention/drive.h"
#include "kernels/attention/latent.h"

namespace se::cpu {
namespace {

constexpr int64_t kExpandedSplit = 256;  // places: K and V of 20 heads take 10 MB
constexpr int64_t kTile = 64;            // query tokens that share a block
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// The keys of one split in head space; rows padded with zeros to whole lanes.
struct ExpandedKeys {
  TensorView k, v;            // [kExpandedSplit, heads, q_dim or out_dim], strided
  int64_t n = 0, n_past = 0;  // of the split; the first n_past are seen by all, then come present tokens
  int64_t first_present = 0;  // packed token of key n_past
  int seen(int64_t token) const {
    return int(n_past + std::clamp<int64_t>(token + 1 - first_present, 0, n - n_past));
  }
};

TensorView padded(Arena& arena, int64_t n, int64_t heads, int64_t dim) {
  TensorView t = arena.take(DType::kF32, {n, heads, round_up8(dim)});
  std::memset(t.data, 0, size_t(t.numel()) * sizeof(float));
  t.shape[2] = dim;
  return t;
}

// The latent keys of places [begin, begin + kExpandedSplit) that the row sees, compacted in their order.
void read_split(const BlockReader& reader,
                const RowKeys& keys,
                int64_t begin,
                int64_t present_end,
                const TensorView& to,
                ExpandedKeys& out) {
  out.n = out.n_past = 0, out.first_present = present_end;
  KeyBlockView block;
  for (int64_t b = begin; b < begin + kExpandedSplit; b += kKeyBlock) {
    reader.read(keys, b, b + kKeyBlock, present_end, /*few=*/false, /*values=*/false, block);
    for (int j = 0; j < block.n; ++j)
      std::memcpy(to.at<float>(out.n + j), block.k[j], size_t(to.shape[1]) * sizeof(float));
    if (block.n_past < block.n && out.first_present == present_end) out.first_present = block.first_present;
    out.n += block.n, out.n_past += block.n_past;
  }
}

struct Tile {  // one thread's scratch: queries, scores and the running softmax of up to kTile tokens
  float *q, *scores, *acc, *m, *l, *out;
  int32_t* seen;
  Tile(float* at, int64_t q_dim, int64_t out_dim)
      : q(at),
        scores(q + kTile * round_up8(q_dim)),
        acc(scores + kTile * kKeyBlock),
        m(acc + kTile * round_up8(out_dim)),
        l(m + kTile),
        out(l + kTile),
        seen(reinterpret_cast<int32_t*>(out + round_up8(out_dim))) {}
  static int64_t floats(int64_t q_dim, int64_t out_dim) {
    return kTile * (round_up8(q_dim) + kKeyBlock + round_up8(out_dim) + 3) + round_up8(out_dim);
  }
};

// Query tokens [begin, begin + n) of one head over one split; folded into args.out and args.lse.
void attend_tile(const AttendArgs& args,
                 const AttentionCore& core,
                 const ExpandedKeys& keys,
                 int64_t begin,
                 int n,
                 int64_t head,
                 bool fresh,
                 Tile w) {
  const int64_t q_dim = args.q.shape[2], out_dim = args.out.shape[2];
  const int64_t qd = round_up8(q_dim), vd = round_up8(out_dim);
  for (int r = 0; r < n; ++r) {
    std::memcpy(w.q + r * qd, args.q.at<float>(begin + r, head), size_t(q_dim) * sizeof(float));
    std::fill(w.q + r * qd + q_dim, w.q + (r + 1) * qd, 0.f);
  }
  std::fill_n(w.m, n, kMinusInf), std::fill_n(w.l, n, 0.f), std::fill_n(w.acc, n * vd, 0.f);
  for (int64_t b = 0; b < keys.n; b += kKeyBlock) {
    const int count = int(std::min<int64_t>(kKeyBlock, keys.n - b));
    const void *k[kKeyBlock], *v[kKeyBlock];
    for (int j = 0; j < (count + 3) / 4 * 4; ++j) {  // dots takes keys by four
      const int64_t at = b + std::min(j, count - 1);
      k[j] = keys.k.at<float>(at, head), v[j] = keys.v.at<float>(at, head);
    }
    int first = n;  // tokens before it see nothing here
    for (int r = n - 1; r >= 0; --r) {
      w.seen[r] = std::clamp(keys.seen(begin + r) - int(b), 0, count);
      if (w.seen[r] > 0) first = r;
    }
    if (first == n) break;
    core.dots(w.q + first * qd,
              qd,
              n - first,
              k,
              RowType::kF32,
              count,
              int(qd),
              w.scores + first * kKeyBlock,
              nullptr);
    core.absorb(w.scores + first * kKeyBlock,
                args.scale,
                nullptr,
                w.seen + first,
                n - first,
                v,
                RowType::kF32,
                int(vd),
                {w.m + first, w.l + first, w.acc + first * vd, vd},
                nullptr);
  }
  for (int r = 0; r < n; ++r) {
    float *out = args.out.at<float>(begin + r, head), *lse = args.lse.at<float>(begin + r, head);
    const float got = core.finish(w.m[r], w.l[r], w.acc + r * vd, int(out_dim), fresh ? out : w.out);
    if (fresh)
      *lse = got;
    else
      core.merge(out, lse, w.out, got, int(out_dim));
  }
}

}  // namespace

void attend_expanded(const AttendArgs& args, const KeySource& source, Stream& stream) {
  const LayerKv& l = *args.expanded;
  SE_CHECK(source.kv_heads == 1 && source.k_dim == l.k_dim && args.window == 0,
           "{} heads of {} stored channels, window {}: expected one latent head of {}, no window",
           source.kv_heads,
           source.k_dim,
           args.window,
           l.k_dim);
  SE_CHECK(args.q.shape[1] == l.q_heads && args.q.shape[2] == l.q_dim() && args.out.shape[2] == l.out_dim(),
           "q {}, out {}: expected {} heads of {} and {} channels",
           to_string(args.q),
           to_string(args.out),
           l.q_heads,
           l.q_dim(),
           l.out_dim());
  Arena own;
  Arena& arena = args.scratch ? *args.scratch : own;
  const Arena::Mark mark = arena.mark();
  const AttentionCore& core = attention_core();
  const TensorView latent = arena.take(DType::kF32, {kExpandedSplit, l.k_dim});
  ExpandedKeys keys;
  keys.k = padded(arena, kExpandedSplit, l.q_heads, l.q_dim());
  keys.v = padded(arena, kExpandedSplit, l.q_heads, l.out_dim());
  const BlockReader reader(source, core, arena.take<float>(reader_floats(source)).data());
  const int64_t tile_floats = (Tile::floats(l.q_dim(), l.out_dim()) + 15) / 16 * 16;
  float* scratch = arena.take<float>(tile_floats * stream.pool().threads()).data();
  const int32_t *ids = args.list.ids.ptr<int32_t>(), *start = args.rows->q_start.ptr<int32_t>();
  for (int64_t i = 0; i < *args.list.n.ptr<int32_t>(); ++i) {
    const int64_t begin = start[ids[i]], end = start[ids[i] + 1], tiles = (end - begin + kTile - 1) / kTile;
    const RowKeys row = row_keys(source, args, ids[i], 0);
    const int64_t places = row.extent + (source.present ? end - row.first : 0);
    for (int64_t at = 0; at == 0 || at < places; at += kExpandedSplit) {
      read_split(reader, row, at, end, latent, keys);
      expand_keys(l, latent.slice(0, keys.n), keys.k.slice(0, keys.n), keys.v.slice(0, keys.n), stream);
      stream.pool().run(tiles * l.q_heads, [&](int64_t item, int thread) {
        const int64_t t = begin + item / l.q_heads * kTile;
        attend_tile(args,
                    core,
                    keys,
                    t,
                    int(std::min(kTile, end - t)),
                    item % l.q_heads,
                    at == 0,
                    {scratch + thread * tile_floats, l.q_dim(), l.out_dim()});
      });
    }
  }
  arena.rewind(mark);
}

}  // namespace se::cpu
