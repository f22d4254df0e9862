// sparse/testing/fake_codec.h -- keys in F32 and, if asked, bounds of `per` tokens as a lossy codec would
// lend them; for tests of readers, which must not know a real codec.
#pragma once
#include "sparse/rows.h"
#include "sparse/testing/fake_view.h"

namespace se {

class FakeCodec final : public Codec {
 public:
  explicit FakeCodec(int bounds_per) : per_(bounds_per) {}
  void visit(FieldVisitor&) override {}
  std::string family() const override { return "fake"; }
  CodecSpec spec(const ModelKv& m) const override {
    CodecSpec s;
    s.bounds_per = per_;
    s.components = {{"k", Block::kPayload, 1, DType::kF32, {m.layers[0].k_dim}, true, {}, {}}};
    if (per_ == 0) return s;
    s.components.push_back({"lo", Block::kPayload, per_, DType::kF16, {m.layers[0].k_dim}, true, {}, {}});
    s.components.push_back({"step", Block::kPayload, per_, DType::kF16, {m.layers[0].k_dim}, true, {}, {}});
    return s;
  }
  void write(int layer, const Present& x, DeviceStep& s) const override {
    const TensorView k = s.kv.plane(*this, layer, 0);
    const int64_t page = s.kv.past(layer).page;
    for (int64_t t = 0; t < x.k.shape[0]; ++t) {
      const int64_t slot = s.kv.slots(layer).ptr<int64_t>()[t];
      for (int64_t h = 0; h < k.shape[2]; ++h)
        std::copy_n(x.k.at<float>(t, h), k.shape[3], k.at<float>(slot / page, slot % page, h));
    }
  }
  void parts(int, const KvIndex&, AttentionView&, DeviceStep&) const override {}
  StoredKv values(int layer, const KvIndex& index, bool, DeviceStep& s) const override {
    const TensorView k = s.kv.plane(*this, layer, 0);
    int64_t total = 0, to = 0;
    for (int64_t r = 0; r < index.counts.numel(); ++r) total += tokens_of(index, r);
    StoredKv out{s.scratch.take(DType::kF32, {total, k.shape[2], k.shape[3]}), {}};
    for (int64_t r = 0; r < index.counts.numel(); ++r) {
      for_each_run(index, r, [&](int64_t slot, int64_t n) {
        for (int64_t t = slot; t < slot + n; ++t, ++to) {
          for (int64_t h = 0; h < k.shape[2]; ++h)
            std::copy_n(k.at<float>(t / index.page, t % index.page, h), k.shape[3], out.k.at<float>(to, h));
        }
      });
    }
    return out;
  }
  KeyBounds bounds(int layer, const KvView& kv) const override {
    return {kv.plane(*this, layer, 1), {}, kv.plane(*this, layer, 2), 1, per_, Block::kPayload};
  }
  // Bounds of the full items of a row's keys f32 [tokens, heads, dim]; with one level, hi = lo + step exactly
  // if F16 holds both.
  void make_bounds(const FakeView& view, int layer, const float* keys, int64_t tokens) const {
    const KeyBounds b = bounds(layer, view);
    const KvIndex past = view.past(layer);
    const int64_t heads = b.lo.shape[2], dim = b.lo.shape[3];
    for (int64_t u = 0; u < tokens / per_; ++u) {
      const int64_t slot = run_slot(past.runs.ptr<int64_t>()[u * per_ / past.page]) +
                           past.offset.ptr<int64_t>()[0] + u * per_ % past.page;
      for (int64_t i = 0; i < heads * dim; ++i) {
        float lo = keys[u * per_ * heads * dim + i], hi = lo;
        for (int64_t t = 1; t < per_; ++t) {
          const float x = keys[(u * per_ + t) * heads * dim + i];
          lo = std::min(lo, x), hi = std::max(hi, x);
        }
        const int64_t id = slot / past.page, item = slot % past.page / per_;
        *b.lo.at<uint16_t>(id, item, i / dim, i % dim) = f32_to_f16(lo);
        *b.step.at<uint16_t>(id, item, i / dim, i % dim) = f32_to_f16(hi - lo);
      }
    }
  }

 private:
  int per_;
};

}  // namespace se
