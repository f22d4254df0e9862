// kernels/attention/attention_testing.h -- steps over made-up paged K/V, for the tests and the bench of this
// folder.
#pragma once
#include <cmath>
#include <cstring>
#include <vector>

#include "base/half.h"
#include "base/rng.h"
#include "device/cpu/thread_pool.h"
#include "kernels/attention/attention.h"

namespace se::attention_testing {

struct Shape {
  int q_heads = 9, kv_heads = 3, k_dim = 64, v_dim = 64;
  DType dtype = DType::kF16;
  int unit = 16, page = 16;
  int64_t page_bytes() const {  // of one layer's slice, whole 256-byte steps
    return (int64_t(page) * kv_heads * (k_dim + v_dim) * block_bytes(dtype) + 255) / 256 * 256;
  }
};

// x as the dtype stores it.
inline float rounded(float x, DType dtype) {
  if (dtype == DType::kF16) return f16_to_f32(f32_to_f16(x));
  if (dtype == DType::kBF16) return bf16_to_f32(f32_to_bf16(x));
  return x;
}

// Tokens with values that the pages can hold exactly: q [n, q_heads, k_dim], k, v [n, kv_heads, dim].
struct Tokens {
  Tokens(const Shape& s, int64_t count, uint64_t seed) : n(count) {
    Rng rng(seed);
    q.resize(size_t(n) * size_t(s.q_heads * s.k_dim));
    k.resize(size_t(n) * size_t(s.kv_heads * s.k_dim));
    v.resize(size_t(n) * size_t(s.kv_heads * s.v_dim));
    for (float& x : q) x = rng.normal() * 1.5f;
    for (float& x : k) x = rounded(rng.normal(), s.dtype);
    for (float& x : v) x = rounded(rng.normal(), s.dtype);
  }
  int64_t n;
  std::vector<float> q, k, v;
};

// Everything one step needs. Rows are added, then built() gives the records; outputs are NaN until written.
class Scene {
 public:
  // `layers` slices per page; the step reads slice `layer`. `bytes`: room for pages.
  explicit Scene(Shape shape, int64_t layers = 1, int64_t layer = 0, int64_t bytes = 3 << 20)
      : s_(shape), layers_(layers), layer_(layer), arena_(Buffer::allocate(bytes).take()) {}

  // Tokens [0, past) of x lie in runs of the given lengths (the last ones filled up with `unit`s), tokens
  // [past, past + fresh) are present and query. split: 0 is none. The first `dropped` tokens are in no run.
  int add_row(const Tokens& x,
              int64_t past,
              int64_t fresh,
              int split,
              const std::vector<int>& lengths = {},
              int64_t dropped = 0) {
    start_.push_back(int64_t(runs_.size()));
    offset_.push_back(layer_ * s_.page_bytes() / 256 * s_.page);
    int64_t done = dropped;
    first_.push_back(dropped);
    for (size_t e = 0; done < past; ++e) {
      const int64_t want = e < lengths.size() ? lengths[e] : s_.unit, n = std::min(want, past - done);
      runs_.push_back(run(place_run(x, done, n), n));
      done += n;
    }
    counts_.push_back(int32_t(int64_t(runs_.size()) - start_.back()));
    tokens_.push_back(int32_t(past - dropped));
    split_.push_back(split);
    kv_from_.push_back(q_start_.back());
    q_start_.push_back(q_start_.back() + int32_t(fresh));
    for (int64_t t = past; t < past + fresh; ++t) {
      pos_.push_back(int32_t(t));
      append(q_, x.q, t, s_.q_heads * s_.k_dim);
      append(k_, x.k, t, s_.kv_heads * s_.k_dim);
      append(v_, x.v, t, s_.kv_heads * s_.v_dim);
    }
    return int(split_.size()) - 1;
  }

  // Tokens see the newest `window` keys; before build().
  void use_window(int window) { args_.window = window; }

  // Fills args() and part(). with_present: the part takes the present.
  void build(bool with_present = true) {
    const int64_t rows = int64_t(split_.size()), n = q_start_.back();
    int64_t cap = 1;
    for (int32_t c : counts_) cap = std::max<int64_t>(cap, c);
    step_.rows = int(rows);
    step_.q_start = TensorView::of(q_start_.data(), DType::kI32, {rows + 1});
    step_.kv_from = TensorView::of(kv_from_.data(), DType::kI32, {rows});
    step_.pos = TensorView::of(pos_.data(), DType::kI32, {n});
    step_.split = TensorView::of(split_.data(), DType::kI32, {rows});
    ids_.resize(size_t(rows));
    for (int i = 0; i < int(rows); ++i) ids_[size_t(i)] = i;
    n_ids_ = int32_t(rows);
    out_.assign(size_t(n * s_.q_heads * s_.v_dim), NAN);
    lse_.assign(size_t(n * s_.q_heads), NAN);
    args_.rows = &step_;
    args_.list = {TensorView::of(ids_.data(), DType::kI32, {rows}),
                  TensorView::of(&n_ids_, DType::kI32, {1}),
                  int(rows)};
    args_.q = TensorView::of(q_.data(), DType::kF32, {n, s_.q_heads, s_.k_dim});
    args_.scale = 1.f / std::sqrt(float(s_.k_dim));
    present_.q = args_.q;
    present_.k = TensorView::of(k_.data(), DType::kF32, {n, s_.kv_heads, s_.k_dim});
    present_.v = TensorView::of(v_.data(), DType::kF32, {n, s_.kv_heads, s_.v_dim});
    args_.present = with_present ? &present_ : nullptr;
    args_.out = TensorView::of(out_.data(), DType::kF32, {n, s_.q_heads, s_.v_dim});
    args_.lse = TensorView::of(lse_.data(), DType::kF32, {n, s_.q_heads});
    args_.scratch = &scratch_;

    const int64_t size = block_bytes(s_.dtype), kvh = s_.kv_heads;
    const auto plane = [&](int64_t begin, int64_t dim) {
      TensorView t = TensorView::of(arena_.data() + begin, s_.dtype, {1 << 20, s_.page, kvh, dim});
      t.stride[0] = 256, t.stride[1] = dim * size, t.stride[2] = s_.page * dim * size;  // as KvLayout lays it
      return t;
    };
    part_.planes[0] = plane(0, s_.k_dim);
    part_.planes[1] = plane(s_.page * kvh * s_.k_dim * size, s_.v_dim);
    part_.index.runs = TensorView::of(runs_.data(), DType::kI64, {int64_t(runs_.size())});
    part_.index.start = TensorView::of(start_.data(), DType::kI64, {rows});
    part_.index.offset = TensorView::of(offset_.data(), DType::kI64, {rows});
    part_.index.counts = TensorView::of(counts_.data(), DType::kI32, {rows});
    part_.index.tokens = TensorView::of(tokens_.data(), DType::kI32, {rows});
    if (args_.window > 0) part_.index.first = TensorView::of(first_.data(), DType::kI64, {rows});
    part_.index.unit = s_.unit, part_.index.page = s_.page, part_.index.cap = cap;
    part_.attend = attend_plain, part_.logits = logits_plain, part_.with_present = true;
  }

  const Shape& shape() const { return s_; }
  AttendArgs& args() { return args_; }
  AttentionPart& part() { return part_; }
  const Present& present() const { return present_; }
  StepRows& step() { return step_; }
  std::vector<float>& out() { return out_; }
  std::vector<float>& lse() { return lse_; }
  int64_t tokens() const { return q_start_.back(); }

 private:
  static void append(std::vector<float>& to, const std::vector<float>& from, int64_t token, int64_t width) {
    to.insert(to.end(), from.begin() + token * width, from.begin() + (token + 1) * width);
  }

  // Writes n tokens into a page (a fresh one if they do not fit) and returns the slot of the first.
  int64_t place_run(const Tokens& x, int64_t from, int64_t n) {
    if (used_ + n > s_.page) {
      used_ = 0;
      page_ = end_;
      end_ += layers_ * s_.page_bytes();
      SE_CHECK(end_ <= arena_.bytes(), "the scene has {} bytes for pages", arena_.bytes());
      std::memset(arena_.data() + page_, 0x7f, size_t(end_ - page_));  // poison: NaN or huge
    }
    char* slice = arena_.data() + page_ + layer_ * s_.page_bytes();
    const auto put = [&](const std::vector<float>& from_rows, int64_t dim, char* to) {
      for (int64_t i = 0; i < n; ++i) {
        for (int h = 0; h < s_.kv_heads; ++h)
          store(to + (h * s_.page + used_ + i) * dim * block_bytes(s_.dtype),
                &from_rows[size_t(((from + i) * s_.kv_heads + h) * dim)],
                dim);
      }
    };
    put(x.k, s_.k_dim, slice);
    put(x.v, s_.v_dim, slice + s_.page * s_.kv_heads * s_.k_dim * block_bytes(s_.dtype));
    const int64_t slot = page_ / 256 * s_.page + used_;
    used_ += n;
    return slot;
  }
  void store(char* to, const float* from, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) {
      const uint16_t h = s_.dtype == DType::kF16 ? f32_to_f16(from[i]) : f32_to_bf16(from[i]);
      if (s_.dtype == DType::kF32)
        std::memcpy(to + i * 4, from + i, 4);
      else
        std::memcpy(to + i * 2, &h, 2);
    }
  }

  Shape s_;
  int64_t layers_, layer_, page_ = 0, end_ = 0, used_ = 1 << 30;
  Buffer arena_;
  std::vector<int64_t> runs_, start_, offset_, first_;
  std::vector<int32_t> pos_, counts_, tokens_, split_, kv_from_, q_start_{0}, ids_;
  int32_t n_ids_ = 0;
  std::vector<float> q_, k_, v_, out_, lse_;
  StepRows step_;
  Present present_;
  AttendArgs args_;
  AttentionPart part_;
  Arena scratch_;
};

// A loader of plain planes: the same keys through the door of the codecs.
inline void load_plain(const AttentionPart& part, int kv_head, int64_t slot, int n, bool values, float* out) {
  const TensorView& p = part.planes[values ? 1 : 0];
  for (int i = 0; i < n; ++i) {
    const void* row = p.at<char>((slot + i) / part.index.page, (slot + i) % part.index.page, kv_head);
    for (int64_t d = 0; d < p.shape[3]; ++d) {
      const auto half = [&] { return static_cast<const uint16_t*>(row)[d]; };
      out[i * p.shape[3] + d] = p.dtype == DType::kF32   ? static_cast<const float*>(row)[d]
                                : p.dtype == DType::kF16 ? f16_to_f32(half())
                                                         : bf16_to_f32(half());
    }
  }
}

}  // namespace se::attention_testing
