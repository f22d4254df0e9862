#include "sparse/store/dtype/dtype.h"

#include "device/cpu/thread_pool.h"
#include "kernels/attention/attention.h"
#include "sparse/rows.h"

namespace se {
namespace dtype {
namespace {

constexpr const char* kNames[] = {"auto", "f32", "f16", "bf16"};
enum : int { kK, kV };

DType resolve(int type, DType model) {
  constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  return type == kAuto ? model : kTypes[type - 1];
}

class PlainCodec final : public Codec {
 public:
  void visit(FieldVisitor& f) override {
    f.choice({.name = "type", .help = "element type of K and V; auto: the checkpoint's"}, c_.type, kNames);
  }
  std::string family() const override { return format("dtype({})", kNames[c_.type]); }

  CodecSpec spec(const ModelKv& m) const override {
    const LayerKv& layer = m.layers[0];
    const DType type = resolve(c_.type, m.dtype);
    CodecSpec s;
    s.present_as_stored = type != m.dtype && type != DType::kF32;  // F32 holds the model's values exactly
    s.components = {{"k", Block::kPayload, 1, type, {layer.k_dim}, true, {}, {}}};
    if (!layer.latent()) s.components.push_back({"v", Block::kPayload, 1, type, {layer.v_dim}, true, {}, {}});
    return s;
  }

  void write(int layer, const Present& x, DeviceStep& s) const override {
    const TensorView k = s.kv.plane(*this, layer, kK), v = s.kv.plane(*this, layer, kV);
    const int64_t page = s.kv.past(layer).page, *slots = s.kv.slots(layer).ptr<int64_t>();
    for_each_row(s.rows, s.list, [&](int64_t, int64_t first, int64_t n) {
      s.stream.pool().run(n, [&, first](int64_t i, int) {
        const int64_t token = first + i, id = slots[token] / page, place = slots[token] % page;
        if (slots[token] < 0) return;
        for (int64_t h = 0; h < k.shape[2]; ++h) {
          narrow_row(k.dtype, x.k.at<float>(token, h), k.shape[3], k.at<void>(id, place, h));
          if (!v.empty()) narrow_row(v.dtype, x.v.at<float>(token, h), v.shape[3], v.at<void>(id, place, h));
        }
      });
    });
  }

  void as_stored(int layer, Present& x, DeviceStep& s) const override {
    const DType type = s.kv.plane(*this, layer, kK).dtype;
    if (type == DType::kF32) return;
    for_each_row(s.rows, s.list, [&](int64_t, int64_t first, int64_t n) {
      for (const bool values : {false, true}) {
        if (values && x.v_in_k()) break;
        const TensorView& t = values ? x.v : x.k;
        s.stream.pool().run(n, [&, first](int64_t i, int) {
          std::array<uint16_t, 1024> narrow;
          for (int64_t h = 0; h < t.shape[1]; ++h) {
            for (int64_t d = 0; d < t.shape[2]; d += int64_t(narrow.size())) {
              const int64_t part = std::min(t.shape[2] - d, int64_t(narrow.size()));
              narrow_row(type, t.at<float>(first + i, h, d), part, narrow.data());
              widen_row(type, narrow.data(), part, t.at<float>(first + i, h, d));
            }
          }
        });
      }
    });
  }

  void parts(int layer, const KvIndex& read, AttentionView& v, DeviceStep& s) const override {
    AttentionPart& part = v.parts[size_t(v.n++)];
    part = {};
    part.attend = &attend_plain, part.logits = &logits_plain;
    part.index = read;
    part.planes[kK] = s.kv.plane(*this, layer, kK), part.planes[kV] = s.kv.plane(*this, layer, kV);
    part.with_present = true;
  }

  StoredKv values(int layer, const KvIndex& index, bool want_v, DeviceStep& s) const override {
    StoredKv out;
    out.k = gather(s.kv.plane(*this, layer, kK), index, s);
    if (want_v) out.v = gather(s.kv.plane(*this, layer, kV), index, s);
    return out;
  }

 private:
  // f32 [tokens of all rows, heads, dim]
  static TensorView gather(const TensorView& plane, const KvIndex& index, DeviceStep& s) {
    const int64_t rows = index.counts.numel(), heads = plane.shape[2], dim = plane.shape[3];
    int64_t total = 0;
    for (int64_t r = 0; r < rows; ++r) total += tokens_of(index, r);
    const TensorView out = s.scratch.take(DType::kF32, {total, heads, dim});
    int64_t to = 0;
    for (int64_t r = 0; r < rows; ++r) {
      for_each_run(index, r, [&](int64_t slot, int64_t n) {
        for (int64_t t = slot; t < slot + n; ++t, ++to) {
          for (int64_t h = 0; h < heads; ++h)
            widen_row(
                plane.dtype, plane.at<void>(t / index.page, t % index.page, h), dim, out.at<float>(to, h));
        }
      });
    }
    return out;
  }

  Config c_;
};

}  // namespace
}  // namespace dtype

const StageEntry stage_store_dtype = {
    Axis::kStore, "dtype", "K and V as they are, in F32, F16 or BF16", "-", [] {
      return std::unique_ptr<Stage>(std::make_unique<dtype::PlainCodec>());
    }};

}  // namespace se
