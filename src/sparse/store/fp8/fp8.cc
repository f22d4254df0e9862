#include "sparse/store/fp8/fp8.h"

#include "device/cpu/thread_pool.h"
#include "kernels/attention/attention.h"
#include "sparse/rows.h"

namespace se {
namespace fp8 {
namespace {

constexpr const char* kFormats[] = {"e4m3", "e5m2"};
constexpr const char* kScales[] = {"head", "token"};
constexpr const char* kPrefills[] = {"stored", "exact"};
enum : int { kK, kV, kKScale, kVScale };    // planes of the part ...
constexpr int kComponent[] = {0, 2, 1, 3};  // ... and their components: MLA has those of keys only

// codes [page id, page, heads, dim] and scales [page id, page, heads or absent, 1] of keys or values.
struct Rows {
  Format format;
  bool by_head;
  int64_t page;
  TensorView codes, scales;

  int64_t heads() const { return codes.shape[2]; }
  int64_t dim() const { return codes.shape[3]; }
  float* scale(int64_t slot, int64_t head) const {
    return by_head ? scales.at<float>(slot / page, slot % page, head)
                   : scales.at<float>(slot / page, slot % page);
  }
  uint8_t* code(int64_t slot, int64_t head) const {
    return codes.at<uint8_t>(slot / page, slot % page, head);
  }
};

Rows rows_of(const AttentionPart& part, bool values) {
  return {Format(part.args[0]),
          part.args[1] == kHead,
          part.index.page,
          part.planes[values ? kV : kK],
          part.planes[values ? kVScale : kKScale]};
}

void load(const AttentionPart& part, int kv_head, int64_t slot, int n, bool values, float* out) {
  const Rows r = rows_of(part, values);
  for (int t = 0; t < n; ++t) {
    decode_row(r.format, r.code(slot + t, kv_head), r.dim(), *r.scale(slot + t, kv_head), out + t * r.dim());
  }
}

// The tokens of a page lie together, codes and scales (KvLayout).
cpu::CodePiece piece(const AttentionPart& part, int kv_head, int64_t slot, int n) {
  const Rows k = rows_of(part, false), v = rows_of(part, true);
  cpu::CodePiece p;
  p.n = n;
  p.k = k.code(slot, kv_head), p.k_step = k.scale(slot, kv_head);
  p.v = v.code(slot, kv_head), p.v_step = v.scale(slot, kv_head);
  return p;
}
void attend(const AttendArgs& args, const AttentionPart& part, Stream& stream) {
  const TensorView &k = part.planes[kK], &v = part.planes[kV];
  const int k_dim = int(k.shape[3]), v_dim = v.empty() ? 0 : int(v.shape[3]);  // MLA: part.v_in_k
  const cpu::CodeType type = part.args[0] == kE4M3 ? cpu::CodeType::kE4M3 : cpu::CodeType::kE5M2;
  const cpu::CodeSource codes{{type, k_dim, v_dim, v_dim, {}}, part.index.page, &piece};
  cpu::attend_tiles(args, part, k_dim, v_dim, int(k.shape[2]), &load, stream, v.empty() ? nullptr : &codes);
}
void logits(const AttendArgs& args, const AttentionPart& part, Stream& stream) {
  const TensorView& k = part.planes[kK];
  cpu::logits_tiles(args, part, int(k.shape[3]), int(k.shape[2]), &load, stream);
}

class Fp8 final : public Codec {
 public:
  void visit(FieldVisitor& f) override {
    f.choice({.name = "format", .help = "number format of K and V"}, c_.format, kFormats);
    f.choice(
        {.name = "scale", .help = "one F32 scale per token and KV head, or per token"}, c_.scale, kScales);
    f.choice(
        {.name = "prefill", .help = "what a prompt's chunk sees of itself: as stored, or exact (chunk 2048)"},
        c_.prefill,
        kPrefills);
  }
  std::string family() const override {
    return format("fp8({},{},{})", kFormats[c_.format], kScales[c_.scale], kPrefills[c_.prefill]);
  }

  CodecSpec spec(const ModelKv& m) const override {
    const LayerKv& layer = m.layers[0];
    const DType type = c_.format == kE4M3 ? DType::kF8E4M3 : DType::kF8E5M2;
    const bool by_head = c_.scale == kHead;
    CodecSpec s;
    s.present_as_stored = true;
    s.chunk = c_.prefill == kExact ? 2048 : 0;
    const auto add = [&](const char* name, DType t, int64_t dim, bool heads) {
      s.components.push_back({name, Block::kPayload, 1, t, {dim}, heads, {}, {}});
    };
    add("k", type, layer.k_dim, true), add("k_scale", DType::kF32, 1, by_head);
    if (layer.latent()) return s;  // the value is in the key
    add("v", type, layer.v_dim, true), add("v_scale", DType::kF32, 1, by_head);
    return s;
  }

  void write(int layer, const Present& x, DeviceStep& s) const override {
    const int64_t* slots = s.kv.slots(layer).ptr<int64_t>();
    const Rows k = rows(layer, false, s.kv.past(layer).page, s), v = rows(layer, true, k.page, s);
    for_each_row(s.rows, s.list, [&](int64_t, int64_t first, int64_t n) {
      s.stream.pool().run(n, [&, first](int64_t i, int) {
        if (slots[first + i] < 0) return;
        encode_token(x.k, first + i, k, slots[first + i]);
        if (!x.v_in_k()) encode_token(x.v, first + i, v, slots[first + i]);
      });
    });
  }

  // In decode, and in prefill unless it is exact, a token sees itself and its chunk as later ones will.
  void as_stored(int /*layer*/, Present& x, DeviceStep& s) const override {
    if (s.phase == Phase::kPrefill && c_.prefill == kExact) return;
    for_each_row(s.rows, s.list, [&](int64_t, int64_t first, int64_t n) {
      s.stream.pool().run(n, [&, first](int64_t i, int) {
        round_token(x.k, first + i);
        if (!x.v_in_k()) round_token(x.v, first + i);
      });
    });
  }

  void parts(int layer, const KvIndex& read, AttentionView& v, DeviceStep& s) const override {
    AttentionPart& part = v.parts[size_t(v.n++)];
    part = {};
    part.attend = &fp8::attend, part.logits = &fp8::logits;
    part.index = read;
    for (int c = kK; c <= kVScale; ++c) part.planes[size_t(c)] = s.kv.plane(*this, layer, kComponent[c]);
    part.args = {c_.format, c_.scale};
    part.with_present = true;
  }

  StoredKv values(int layer, const KvIndex& index, bool want_v, DeviceStep& s) const override {
    StoredKv out;
    out.k = gather(rows(layer, false, index.page, s), index, s);
    if (want_v) out.v = gather(rows(layer, true, index.page, s), index, s);
    return out;
  }

 private:
  Format number() const { return Format(c_.format); }
  Rows rows(int layer, bool values, int64_t page, DeviceStep& s) const {
    return {number(),
            c_.scale == kHead,
            page,
            s.kv.plane(*this, layer, kComponent[values ? kV : kK]),
            s.kv.plane(*this, layer, kComponent[values ? kVScale : kKScale])};
  }

  // Scale of one head of a token, or of all of them: x [tokens, heads, dim] is contiguous in a token.
  float scale_for(const TensorView& x, int64_t token, int64_t head) const {
    const int64_t dim = x.shape[2];
    return c_.scale == kHead ? scale_of(number(), x.at<float>(token, head), dim)
                             : scale_of(number(), x.at<float>(token), x.shape[1] * dim);
  }
  void encode_token(const TensorView& x, int64_t token, const Rows& to, int64_t slot) const {
    float scale = 0;
    for (int64_t h = 0; h < to.heads(); ++h) {
      if (h == 0 || to.by_head) *to.scale(slot, h) = scale = scale_for(x, token, h);
      encode_row(number(), x.at<float>(token, h), to.dim(), scale, to.code(slot, h));
    }
  }
  void round_token(const TensorView& x, int64_t token) const {
    float scale = 0;
    for (int64_t h = 0; h < x.shape[1]; ++h) {
      if (h == 0 || c_.scale == kHead) scale = scale_for(x, token, h);
      float* row = x.at<float>(token, h);
      uint8_t codes[256];
      for (int64_t d = 0; d < x.shape[2]; d += 256) {
        const int64_t n = std::min<int64_t>(x.shape[2] - d, 256);
        encode_row(number(), row + d, n, scale, codes);
        decode_row(number(), codes, n, scale, row + d);
      }
    }
  }
  // f32 [tokens of all rows, heads, dim]
  static TensorView gather(const Rows& from, const KvIndex& index, DeviceStep& s) {
    int64_t total = 0, to = 0;
    for (int64_t r = 0; r < index.counts.numel(); ++r) total += tokens_of(index, r);
    const TensorView out = s.scratch.take(DType::kF32, {total, from.heads(), from.dim()});
    for (int64_t r = 0; r < index.counts.numel(); ++r) {
      for_each_run(index, r, [&](int64_t slot, int64_t n) {
        for (int64_t t = slot; t < slot + n; ++t, ++to) {
          for (int64_t h = 0; h < from.heads(); ++h)
            decode_row(from.format, from.code(t, h), from.dim(), *from.scale(t, h), out.at<float>(to, h));
        }
      });
    }
    return out;
  }

  Config c_;
};

}  // namespace
}  // namespace fp8

const StageEntry stage_store_fp8 = {Axis::kStore,
                                    "fp8",
                                    "K and V in 8-bit floats with scales computed on write",
                                    "Micikevicius et al. 2022",
                                    [] { return std::unique_ptr<Stage>(std::make_unique<fp8::Fp8>()); }};

}  // namespace se
