// sparse/plan_testing.h -- a model and a table of made-up stages, for tests of the plan language and of
// costs: they say what they would do and do nothing.
#pragma once
#include <algorithm>

#include "base/fmt.h"
#include "sparse/build_plan.h"

namespace se::testing {

inline ModelKv tiny_model(int layers = 3, DType dtype = DType::kF16) {
  ModelKv m;
  m.layers.resize(size_t(layers));
  for (LayerKv& l : m.layers) l.q_heads = 4, l.kv_heads = 2, l.k_dim = l.v_dim = 16, l.scale = 0.25f;
  m.dtype = dtype;
  return m;
}

inline ComponentSpec component(
    std::string_view name, Block block, int per, DType dtype, std::vector<int64_t> shape) {
  return {name, block, per, dtype, std::move(shape), per != kPerSequence, {}, {}};
}

class TestCodec : public Codec {
 public:
  std::string family() const override { return "test"; }
  void write(int, const Present&, DeviceStep&) const override {}
  void parts(int, const KvIndex&, AttentionView&, DeviceStep&) const override {}
  StoredKv values(int, const KvIndex&, bool, DeviceStep&) const override { return {}; }
};

class Dtype final : public TestCodec {
 public:
  void visit(FieldVisitor& f) override {
    static constexpr const char* kTypes[] = {"auto", "f32", "f16"};
    f.choice({.name = "type", .help = "element type"}, type_, kTypes);
  }
  CodecSpec spec(const ModelKv& m) const override {
    CodecSpec s;
    const DType t = type_ == 0 ? m.dtype : type_ == 1 ? DType::kF32 : DType::kF16;
    s.components = {component("k", Block::kPayload, 1, t, {16}), component("v", Block::kPayload, 1, t, {16})};
    return s;
  }

 private:
  int type_ = 0;
};

class Half final : public TestCodec {  // a second codec, one byte per element
 public:
  void visit(FieldVisitor&) override {}
  Status accepts(const ModelKv& m) const override {
    return m.layers.size() < 10 ? ok() : unsupported("ten layers are too many");
  }
  CodecSpec spec(const ModelKv&) const override {
    CodecSpec s;
    s.components = {component("kv", Block::kPayload, 1, DType::kU8, {32})};
    return s;
  }
};

class Ring final : public TestCodec {  // groups of 32 behind a ring
 public:
  void visit(FieldVisitor& f) override {
    f({.name = "residual", .help = "exact tokens", .min = 0, .max = 128, .multiple = 32}, residual_);
    f({.name = "noise", .help = "none", .affects = Affects::kNothing, .min = 0.5, .max = 2}, noise_);
  }
  CodecSpec spec(const ModelKv&) const override {
    CodecSpec s;
    s.grain = s.bounds_per = 32, s.residual = int(residual_), s.tail = s.residual + s.grain, s.chunk = 256;
    s.components = {component("codes", Block::kPayload, 32, DType::kU8, {32, 16}),
                    component("ring", Block::kPayload, kPerSequence, DType::kF16, {s.tail, 2, 32})};
    return s;
  }

 private:
  int64_t residual_ = 32;
  double noise_ = 1;
};

class TestKeeper : public Keeper {
 public:
  std::string family() const override { return "test"; }
  bool due(int l, const SeqView& q) const override {
    const int64_t n = q.resident[size_t(l)], b = budget_.of(q.prompt);
    return q.last_chunk ? n > b : q.decode && every_ > 0 && n >= b + every_;
  }
  int64_t resident(int l, const SeqView& q) const override {
    return due(l, q) ? budget_.of(q.prompt) : q.resident[size_t(l)];
  }
  int64_t peak(int, const SeqView& q) const override { return q.prompt + q.max_new; }
  void pick(int, const KeepInput&, KeepList&, DeviceStep&) const override {}
  void visit(FieldVisitor& f) override {
    f({.name = "budget", .help = "tokens kept", .min = 1}, budget_);
    f({.name = "every", .help = "decode steps between picks", .max = 1024}, every_);
    f({.name = "pool", .help = "votes pooled", .min = 1, .max = 63, .odd = true}, pool_);
    f({.name = "trace", .help = "print picks", .affects = Affects::kNothing}, trace_);
  }

 protected:
  TokenBudget budget_{256, 0};
  int64_t every_ = 0, pool_ = 1;
  bool trace_ = false;
};

class Votes final : public TestKeeper {  // a set per layer, by scores
 public:
  KeeperSpec spec(const ModelKv&, const CodecSpec&) const override {
    KeeperSpec s;
    s.prefix = PrefixMode::kChain, s.last_chunk = 8;
    s.scores.push_back({.queries = ScoreSpec::Queries::kWindow, .window = 8, .layers = {}});
    if (every_ > 0) s.scores.push_back({.queries = ScoreSpec::Queries::kRing, .window = 4, .layers = {}});
    return s;
  }
};

class Ends final : public TestKeeper {  // one set for all layers, no scores
 public:
  KeeperSpec spec(const ModelKv&, const CodecSpec&) const override {
    KeeperSpec s;
    s.scope = KeepScope::kAllLayers, s.prefix = PrefixMode::kChain;
    return s;
  }
};

class Jury final : public TestKeeper {  // one set for all layers, by scores: more than this version can
 public:
  KeeperSpec spec(const ModelKv&, const CodecSpec&) const override {
    KeeperSpec s;
    s.scope = KeepScope::kAllLayers;
    s.scores.emplace_back();
    return s;
  }
};

class TestReader : public Reader {
 public:
  std::string family() const override { return "test"; }
  void select(int, const Present&, DeviceStep&) const override {}
  int64_t read_tokens(int64_t paged) const override { return std::min(paged, budget_); }
  void visit(FieldVisitor& f) override {
    f({.name = "budget", .help = "tokens read", .affects = Affects::kReads, .min = 16, .multiple = 16},
      budget_);
    f({.name = "unit", .help = "tokens per unit", .min = 16, .max = 64, .power_of_two = true}, unit_);
  }
  Status validate() const override { return budget_ < unit_ ? invalid("budget is below a unit") : ok(); }

 protected:
  int64_t budget_ = 64, unit_ = 16;
};

class Units16 final : public TestReader {  // selects in every layer but the first
 public:
  ReaderSpec spec(const ModelKv& m, const CodecSpec& codec) const override {
    ReaderSpec s;
    s.unit = s.index_unit = int(unit_), s.cap = budget_ / unit_;
    for (int l = 0; l < int(m.layers.size()); ++l) s.source.push_back(l == 0 ? -1 : l);
    if (codec.bounds_per != unit_) s.components = {component("lo", Block::kIndex, int(unit_), m.dtype, {16})};
    return s;
  }
};

class Reuse final : public TestReader {  // selects in layer 0, all others reuse it
 public:
  ReaderSpec spec(const ModelKv& m, const CodecSpec&) const override {
    ReaderSpec s;
    s.unit = int(unit_), s.cap = budget_ / unit_;
    s.source.assign(m.layers.size(), 0);
    return s;
  }
};

template <typename T>
std::unique_ptr<Stage> make_stage() {
  return std::make_unique<T>();
}
inline constexpr StageEntry kEntries[] = {
    {Axis::kKeep, "ends", "first and last", "-", make_stage<Ends>},
    {Axis::kKeep, "jury", "all layers vote", "-", make_stage<Jury>},
    {Axis::kKeep, "votes", "each layer votes", "-", make_stage<Votes>},
    {Axis::kStore, "dtype", "as is", "-", make_stage<Dtype>},
    {Axis::kStore, "half", "bytes", "-", make_stage<Half>},
    {Axis::kStore, "ring", "groups behind a ring", "-", make_stage<Ring>},
    {Axis::kRead, "reuse", "one layer selects", "-", make_stage<Reuse>},
    {Axis::kRead, "units", "units by bounds", "-", make_stage<Units16>},
};
inline std::span<const StageEntry* const> table() {
  static const auto pointers = [] {
    std::array<const StageEntry*, std::size(kEntries)> p{};
    for (size_t i = 0; i < p.size(); ++i) p[i] = &kEntries[i];
    return p;
  }();
  return pointers;
}

inline Result<std::shared_ptr<const Plan>> build(std::string_view text, const ModelKv& model = tiny_model()) {
  return build_plan(text, model, table());
}

}  // namespace se::testing
