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
  float *q, *scores;
  Running split, total;   // of one split; of all before
  int32_t *seen, *state;  // state[0]: splits that were folded in, [1]: the present one has blocks
  explicit Work(const PromptTile& t) : kd(lanes(t.k_dim)), vd(lanes(t.v_dim)) {
    float* at = reinterpret_cast<float*>(t.scratch);
    const auto take = [&](int64_t n) { return at += n, at - n; };
    q = take(t.rows * kd), scores = take(int64_t(t.rows) * kKeyBlock);
    for (Running* run : {&split, &total})
      run->acc = take(t.rows * vd), run->stride = vd, run->m = take(t.rows), run->l = take(t.rows);
    seen = reinterpret_cast<int32_t*>(take(t.rows)), state = reinterpret_cast<int32_t*>(take(2));
    floats = at - reinterpret_cast<float*>(t.scratch);
  }
  int64_t floats;
};

void clear_split(const PromptTile& t, const Work& w) {
  std::fill(w.split.m, w.split.m + t.rows, kMinusInf);
  std::fill(w.split.l, w.split.l + t.rows, 0.f);
  std::fill(w.split.acc, w.split.acc + t.rows * w.vd, 0.f);
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
              {w.split.m + first, w.split.l + first, w.split.acc + first * w.vd, w.vd},
              nullptr);
}

void end_split(const PromptTile& t) {
  const Work w(t);
  if (w.state[1] == 0) return;
  if (w.state[0]++ == 0) {
    std::copy_n(w.split.acc, t.rows * w.vd, w.total.acc);
    std::copy_n(w.split.m, t.rows, w.total.m), std::copy_n(w.split.l, t.rows, w.total.l);
  } else {
    attention_core().add_split(w.total, w.split, t.rows, int(w.vd));
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
    *lse[r] = attention_core().finish(w.total.m[r], w.total.l[r], w.total.acc + r * w.vd, t.v_dim, out[r]);
  }
}

}  // namespace

const PromptCore kPromptRowByRow = {bytes, begin, block, end_split, finish, false};

}  // namespace se::cpu
