// prompt_tile_rows.cc -- PromptCore over attention_core(): the rows of a tile one after the other, with the
// bits that decode rows have.
#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/attention/prompt_tile.h"

namespace se::cpu {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

int64_t lanes(int64_t n) { return (n + 7) / 8 * 8; }

struct Work {
  int64_t kd, vd;
  float *q, *scores, *acc, *m, *l;  // of a split
  float *out, *lse, *split_out;     // of all splits before; [vd]
  int32_t *seen, *state;            // state[0]: splits that were folded in, [1]: the present one has blocks
  explicit Work(const PromptTile& t) : kd(lanes(t.k_dim)), vd(lanes(t.v_dim)) {
    float* at = reinterpret_cast<float*>(t.scratch);
    const auto take = [&](int64_t n) { return at += n, at - n; };
    q = take(t.rows * kd), scores = take(int64_t(t.rows) * kKeyBlock), acc = take(t.rows * vd);
    m = take(t.rows), l = take(t.rows);
    out = take(t.rows * vd), lse = take(t.rows), split_out = take(vd);
    seen = reinterpret_cast<int32_t*>(take(t.rows)), state = reinterpret_cast<int32_t*>(take(2));
    floats = at - reinterpret_cast<float*>(t.scratch);
  }
  int64_t floats;
};

void clear_split(const PromptTile& t, const Work& w) {
  std::fill(w.m, w.m + t.rows, kMinusInf);
  std::fill(w.l, w.l + t.rows, 0.f);
  std::fill(w.acc, w.acc + t.rows * w.vd, 0.f);
  w.state[1] = 0;
}

int64_t bytes(int rows, int k_dim, int v_dim) {
  return Work({rows, k_dim, v_dim, 1.f, nullptr}).floats * int64_t(sizeof(float));
}

void begin(const PromptTile& t, const float* const* q) {
  const Work w(t);
  for (int r = 0; r < t.rows; ++r) {
    std::memcpy(w.q + r * w.kd, q[r], size_t(t.k_dim) * 4);
    std::fill(w.q + r * w.kd + t.k_dim, w.q + (r + 1) * w.kd, 0.f);
  }
  w.state[0] = 0;
  clear_split(t, w);
}

void block(const PromptTile& t,
           const void* const* keys,
           const void* const* values,
           RowType type,
           int n,
           const int32_t* from,
           const int32_t* seen) {
  const Work w(t);
  const AttentionCore& core = attention_core();
  if (!seen) std::fill(w.seen, w.seen + t.rows, n);
  const int32_t* sees = seen ? seen : w.seen;
  int first = 0;
  while (first < t.rows && sees[first] == 0) ++first;
  if (first == t.rows) return;
  w.state[1] = 1;
  float* scores = w.scores + int64_t(first) * kKeyBlock;
  core.dots(w.q + first * w.kd, w.kd, t.rows - first, keys, type, n, int(w.kd), scores, nullptr);
  core.absorb(scores,
              t.scale,
              from ? from + first : nullptr,
              sees + first,
              t.rows - first,
              values,
              type,
              int(w.vd),
              {w.m + first, w.l + first, w.acc + first * w.vd, w.vd},
              nullptr);
}

void end_split(const PromptTile& t) {
  const Work w(t);
  if (w.state[1] == 0) return;
  const AttentionCore& core = attention_core();
  const bool first = w.state[0]++ == 0;
  for (int r = 0; r < t.rows; ++r) {
    float* out = w.out + r * w.vd;
    const float got = core.finish(w.m[r], w.l[r], w.acc + r * w.vd, t.v_dim, first ? out : w.split_out);
    if (first)
      w.lse[r] = got;
    else
      core.merge(out, w.lse + r, w.split_out, got, t.v_dim);
  }
  clear_split(t, w);
}

void finish(const PromptTile& t, float* const* out, float* const* lse) {
  const Work w(t);
  for (int r = 0; r < t.rows; ++r) {
    if (w.state[0] == 0) {
      std::fill(out[r], out[r] + t.v_dim, 0.f);
      *lse[r] = kMinusInf;
      continue;
    }
    std::memcpy(out[r], w.out + r * w.vd, size_t(t.v_dim) * 4);
    *lse[r] = w.lse[r];
  }
}

}  // namespace

const PromptCore kPromptRowByRow = {bytes, begin, block, end_split, finish, false};

}  // namespace se::cpu
