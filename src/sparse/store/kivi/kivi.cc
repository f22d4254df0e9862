#include "sparse/store/kivi/kivi.h"

#include "device/cpu/thread_pool.h"
#include "kernels/attention/attention.h"
#include "sparse/rows.h"
#include "sparse/store/kivi/quantise.h"

namespace se {
namespace kivi {
namespace {

// What one layer's planes say about a group: where it lies and how it is coded.
struct Codes {
  std::array<TensorView, 6> planes;  // [page id, item in page, KV head, ...]
  int bits, group;
  int64_t page;

  int kv_heads() const { return int(planes[kKMin].shape[2]); }
  int k_dim() const { return int(planes[kKMin].shape[3]); }
  int v_dim() const { return has_values() ? int(planes[kVMin].shape[4]) * group : 0; }
  bool has_values() const { return !planes[kVMin].empty(); }  // MLA: they are in the keys
  // Of the group that holds `slot`; the token's place in it is slot % group.
  template <typename T>
  T* at(int component, int64_t slot, int head) const {
    return planes[size_t(component)].at<T>(slot / page, slot % page / group, head);
  }

  void encode(const float* k,
              const float* v,
              int64_t slot,
              int head) const {  // [group, kv_heads, dim] of all heads
    encode_keys(k + head * k_dim(),
                int64_t(kv_heads()) * k_dim(),
                group,
                k_dim(),
                bits,
                planes[kKMin].dtype,
                at<uint8_t>(kKCodes, slot, head),
                at<void>(kKMin, slot, head),
                at<uint16_t>(kKScale, slot, head));
    encode_values(v + head * v_dim(),
                  int64_t(kv_heads()) * v_dim(),
                  group,
                  v_dim(),
                  group,
                  bits,
                  planes[kVMin].dtype,
                  at<uint8_t>(kVCodes, slot, head),
                  at<void>(kVMin, slot, head),
                  at<uint16_t>(kVScale, slot, head));
  }
  // n tokens of one head from `slot` on, in one page, into rows of `stride` floats.
  void decode(int head, int64_t slot, int64_t n, bool values, float* out, int64_t stride) const {
    for (int64_t end = slot + n; slot < end;) {
      const int64_t t = slot % group, m = std::min(end - slot, group - t);
      if (values) {
        const int groups = v_dim() / group;
        const auto* low = at<char>(kVMin, slot, head) + bytes_of(planes[kVMin].dtype, t * groups);
        decode_values(at<uint8_t>(kVCodes, slot, head) + t * (v_dim() * bits / 8),
                      low,
                      at<uint16_t>(kVScale, slot, head) + t * groups,
                      int(m),
                      v_dim(),
                      group,
                      bits,
                      planes[kVMin].dtype,
                      out,
                      stride);
      } else {
        decode_keys(at<uint8_t>(kKCodes, slot, head) + t * (k_dim() * bits / 8),
                    at<void>(kKMin, slot, head),
                    at<uint16_t>(kKScale, slot, head),
                    int(m),
                    k_dim(),
                    bits,
                    planes[kKMin].dtype,
                    out,
                    stride);
      }
      slot += m, out += m * stride;
    }
  }
};

Codes codes_of(const AttentionPart& part) {
  Codes c{{}, part.args[0], part.args[1], part.index.page};
  std::copy_n(part.planes.begin(), c.planes.size(), c.planes.begin());
  return c;
}
void load(const AttentionPart& part, int kv_head, int64_t slot, int n, bool values, float* out) {
  const Codes c = codes_of(part);
  c.decode(kv_head, slot, n, values, out, values ? c.v_dim() : c.k_dim());
}
cpu::CodePiece piece(const AttentionPart& part, int kv_head, int64_t slot, int n) {
  const Codes c = codes_of(part);
  const int64_t t = slot % c.group, groups = c.v_dim() / c.group;
  cpu::CodePiece p;
  p.n = n;
  p.k = c.at<uint8_t>(kKCodes, slot, kv_head) + t * (c.k_dim() * c.bits / 8);
  p.k_min = c.at<void>(kKMin, slot, kv_head), p.k_step = c.at<void>(kKScale, slot, kv_head);
  p.v = c.at<uint8_t>(kVCodes, slot, kv_head) + t * (c.v_dim() * c.bits / 8);
  p.v_min = c.at<char>(kVMin, slot, kv_head) + bytes_of(c.planes[kVMin].dtype, t * groups);
  p.v_step = c.at<uint16_t>(kVScale, slot, kv_head) + t * groups;
  return p;
}
void attend(const AttendArgs& args, const AttentionPart& part, Stream& stream) {
  const Codes c = codes_of(part);
  const DType min = c.planes[kKMin].dtype;
  const cpu::CodeSource codes{{c.bits == 4 ? cpu::CodeType::k4 : cpu::CodeType::k2,
                               c.k_dim(),
                               c.v_dim(),
                               c.group,
                               min == DType::kF32   ? cpu::RowType::kF32
                               : min == DType::kF16 ? cpu::RowType::kF16
                                                    : cpu::RowType::kBF16},
                              c.group,
                              &piece};
  cpu::attend_tiles(
      args, part, c.k_dim(), c.v_dim(), c.kv_heads(), &load, stream, c.has_values() ? &codes : nullptr);
}
void logits(const AttendArgs& args, const AttentionPart& part, Stream& stream) {
  const Codes c = codes_of(part);
  cpu::logits_tiles(args, part, c.k_dim(), c.kv_heads(), &load, stream);
}

// The ring of one layer: slot = item * tail + place.
struct Ring {
  TensorView k, v;  // [item id, tail, kv_heads, dim]

  void put(const Present& x, int64_t token, int64_t slot) const {
    narrow_row(k.dtype,
               x.k.at<float>(token),
               k.shape[2] * k.shape[3],
               k.at<void>(slot / k.shape[1], slot % k.shape[1]));
    if (!v.empty())
      narrow_row(v.dtype,
                 x.v.at<float>(token),
                 v.shape[2] * v.shape[3],
                 v.at<void>(slot / v.shape[1], slot % v.shape[1]));
  }
  void get(int64_t slot, float* to_k, float* to_v) const {
    widen_row(k.dtype, k.at<void>(slot / k.shape[1], slot % k.shape[1]), k.shape[2] * k.shape[3], to_k);
    if (!v.empty())
      widen_row(v.dtype, v.at<void>(slot / v.shape[1], slot % v.shape[1]), v.shape[2] * v.shape[3], to_v);
  }
};

int64_t slot_of(const KvIndex& index, int64_t row, int64_t i) {  // of the i-th token of a row
  int64_t found = -1;
  for_each_run(index, row, [&](int64_t slot, int64_t n) {
    if (found < 0 && i < n) found = slot + i;
    i -= n;
  });
  SE_CHECK(found >= 0, "row {} has no token {}", row, i);
  return found;
}

class Kivi final : public Codec {
 public:
  void visit(FieldVisitor& f) override {
    f({.name = "bits", .help = "bits of a code: 4 or 2", .min = 2, .max = 4, .power_of_two = true}, c_.bits);
    f({.name = "group",
       .help = "tokens per key scale, channels per value scale",
       .min = 8,
       .max = 256,
       .power_of_two = true},
      c_.group);
    f({.name = "residual", .help = "newest tokens held exact, at least", .max = 16384}, c_.residual);
  }
  Status accepts(const ModelKv& m) const override {
    const LayerKv& layer = m.layers[0];
    if (layer.latent()) {  // keys have a scale per channel
      return layer.k_dim % 8 == 0 && layer.k_dim <= kMaxDim
                 ? ok()
                 : invalid(format(
                       "kivi packs latent keys of a multiple of 8 channels, at most {}; this model's have {}",
                       kMaxDim,
                       layer.k_dim));
    }
    for (const int dim : {layer.k_dim, layer.v_dim}) {
      if (dim % c_.group != 0 || dim > kMaxDim) {
        return invalid(format(
            "kivi.group = {} does not divide the head dimension {} of this model (at most {}); nearest: {}",
            c_.group,
            dim,
            kMaxDim,
            std::min<int64_t>(c_.group, dim & -dim)));
      }
    }
    return ok();
  }
  std::string family() const override { return format("kivi({},{},{})", c_.bits, c_.group, c_.residual); }

  CodecSpec spec(const ModelKv& m) const override {
    const LayerKv& layer = m.layers[0];
    const int64_t g = c_.group, k = layer.k_dim, v = layer.v_dim;
    CodecSpec s;
    s.grain = s.bounds_per = int(g);
    s.residual = int(c_.residual);
    s.tail = int(c_.residual + g);
    s.chunk = 2048;  // a chunk attends itself exactly and older chunks decoded: the cut is part of the result
    const auto add = [&](std::string_view name, int64_t per, DType type, std::vector<int64_t> shape) {
      s.components.push_back(
          {name, Block::kPayload, int(per), type, std::move(shape), per != kPerSequence, {}, {}});
    };
    add("k_codes", g, DType::kU8, {g, k * c_.bits / 8});
    add("k_min", g, m.dtype, {k});
    add("k_scale", g, DType::kF16, {k});
    add("tail_k", kPerSequence, m.dtype, {s.tail, layer.kv_heads, k});  // laid out as a page of a plain codec
    if (layer.latent()) return s;                                       // the value is in the key
    add("v_codes", g, DType::kU8, {g, v * c_.bits / 8});
    add("v_min", g, m.dtype, {g, v / g});
    add("v_scale", g, DType::kF16, {g, v / g});
    add("tail_v", kPerSequence, m.dtype, {s.tail, layer.kv_heads, v});
    return s;
  }

  void write(int layer, const Present& x, DeviceStep& s) const override {
    const int64_t* slots = s.kv.slots(layer).ptr<int64_t>();
    const Ring to = ring(layer, s);
    for_each_row(s.rows, s.list, [&](int64_t row, int64_t first, int64_t n) {
      if (s.phase == Phase::kPrefill)
        encode_fresh(layer, row, x, first, s);  // reads the ring before it is overwritten
      for (int64_t t = first; t < first + n; ++t) {
        if (slots[t] >= 0) to.put(x, t, slots[t]);
      }
    });
  }

  void close(int layer, const Units& u, DeviceStep& s) const override {
    const Ring from = ring(layer, s);
    for (int64_t i = 0; i < u.n; ++i) {
      encode(codes(layer, u.payload.page, s), u.payload, i, s, [&](int64_t token, float* k, float* v) {
        from.get(slot_of(u.tail, i, token), k, v);
      });
    }
  }

  void parts(int layer, const KvIndex& read, AttentionView& v, DeviceStep& s) const override {
    AttentionPart &coded = v.parts[size_t(v.n)], &tail = v.parts[size_t(v.n + 1)];
    v.n += 2;
    coded = {}, tail = {};
    coded.attend = &kivi::attend, coded.logits = &kivi::logits;
    coded.index = read;
    for (int c = kKCodes; c <= kVScale; ++c)
      coded.planes[size_t(c)] = s.kv.plane(*this, layer, kComponent[c]);
    coded.args = {int32_t(c_.bits), int32_t(c_.group)};
    tail.attend = &attend_plain, tail.logits = &logits_plain;
    tail.index = s.kv.tail(layer);
    tail.planes[0] = s.kv.plane(*this, layer, kComponent[kTailK]),
    tail.planes[1] = s.kv.plane(*this, layer, kComponent[kTailV]);
    tail.with_present = true;
  }

  StoredKv values(int layer, const KvIndex& index, bool want_v, DeviceStep& s) const override {
    const Codes from = codes(layer, index.page, s);
    int64_t total = 0;
    for (int64_t r = 0; r < index.counts.numel(); ++r) total += tokens_of(index, r);
    StoredKv out;
    out.k = s.scratch.take(DType::kF32, {total, from.kv_heads(), from.k_dim()});
    if (want_v) out.v = s.scratch.take(DType::kF32, {total, from.kv_heads(), from.v_dim()});
    int64_t to = 0;
    for (int64_t r = 0; r < index.counts.numel(); ++r) {
      for_each_run(index, r, [&](int64_t slot, int64_t n) {
        for (int h = 0; h < from.kv_heads(); ++h) {
          from.decode(h, slot, n, false, out.k.at<float>(to, h), int64_t(from.kv_heads()) * from.k_dim());
          if (want_v)
            from.decode(h, slot, n, true, out.v.at<float>(to, h), int64_t(from.kv_heads()) * from.v_dim());
        }
        to += n;
      });
    }
    return out;
  }

  KeyBounds bounds(int layer, const KvView& kv)
      const override {  // exact: min and min + levels * step are decoded keys' bounds
    return {kv.plane(*this, layer, kComponent[kKMin]),
            {},
            kv.plane(*this, layer, kComponent[kKScale]),
            (1 << c_.bits) - 1,
            int(c_.group),
            Block::kPayload};
  }

 private:
  Codes codes(int layer, int64_t page, DeviceStep& s) const {
    Codes c{{}, int(c_.bits), int(c_.group), page};
    for (int i = kKCodes; i <= kVScale; ++i) c.planes[size_t(i)] = s.kv.plane(*this, layer, kComponent[i]);
    return c;
  }
  Ring ring(int layer, DeviceStep& s) const {
    return {s.kv.plane(*this, layer, kComponent[kTailK]), s.kv.plane(*this, layer, kComponent[kTailV])};
  }

  // Fills the row's fresh units with the oldest of its tail, then of the present.
  void encode_fresh(int layer, int64_t row, const Present& x, int64_t first, DeviceStep& s) const {
    const KvIndex fresh = s.kv.fresh(layer), tail = s.kv.tail(layer);
    const Ring from = ring(layer, s);
    const int64_t held = tokens_of(tail, row);
    encode(codes(layer, fresh.page, s), fresh, row, s, [&](int64_t i, float* k, float* v) {
      if (i < held) return from.get(slot_of(tail, row, i), k, v);
      const int64_t token = first + i - held;
      std::copy_n(x.k.at<float>(token), x.k.shape[1] * x.k.shape[2], k);
      if (!x.v_in_k()) std::copy_n(x.v.at<float>(token), x.v.shape[1] * x.v.shape[2], v);
    });
  }

  // Encodes the tokens of one row of `to`, group by group; fetch(i, k, v) brings its i-th token, [kv_heads,
  // dim] each.
  template <typename Fetch>
  void encode(const Codes& codec, const KvIndex& to, int64_t row, DeviceStep& s, const Fetch& fetch) const {
    const int64_t g = c_.group, k_row = int64_t(codec.kv_heads()) * codec.k_dim(),
                  v_row = int64_t(codec.kv_heads()) * codec.v_dim(), tokens = tokens_of(to, row);
    const Arena::Mark mark = s.scratch.mark();
    const auto slots = s.scratch.take<int64_t>(tokens / g);
    int64_t units = 0;
    for_each_run(to, row, [&](int64_t slot, int64_t n) {
      SE_CHECK(
          slot % g == 0 && n % g == 0, "kivi encodes whole groups of {}: {} tokens at slot {}", g, n, slot);
      for (int64_t t = 0; t < n; t += g) slots[size_t(units++)] = slot + t;
    });
    const auto exact = s.scratch.take<float>((k_row + v_row) * g * s.stream.pool().threads());
    s.stream.pool().run(units, [&](int64_t u, int thread) {
      float *k = exact.data() + thread * (k_row + v_row) * g, *v = k + k_row * g;
      for (int64_t t = 0; t < g; ++t) fetch(u * g + t, k + t * k_row, v + t * v_row);
      for (int h = 0; h < codec.kv_heads(); ++h) codec.encode(k, v, slots[size_t(u)], h);
    });
    s.scratch.rewind(mark);
  }

  Config c_;
};

}  // namespace
}  // namespace kivi

const StageEntry stage_store_kivi = {
    Axis::kStore, "kivi", "4- or 2-bit codes: keys per channel, values per token", "Liu et al. 2024", [] {
      return std::unique_ptr<Stage>(std::make_unique<kivi::Kivi>());
    }};

}  // namespace se
