// Latent attention: the ops against their slow twins and the NumPy oracle, a prompt's expanded pass against
// the absorbed one, and what must not show in a bit.
#include "kernels/attention/latent.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/npy.h"
#include "device/cpu/isa.h"
#include "kernels/attention/attention_testing.h"

namespace se {
namespace {

using namespace attention_testing;  // NOLINT: a test's own helpers

struct LatentShape {
  int heads, nope, rope, latent, head_v;
  DType weights;
};

// Weights in one tensor [heads, nope + head_v, latent], as checkpoints have them.
struct Weights {
  explicit Weights(const LatentShape& s) {
    Rng rng(31);
    const int64_t n = int64_t(s.heads) * (s.nope + s.head_v) * s.latent;
    wide.resize(size_t(n));
    for (float& x : wide) x = rounded(rng.normal() / std::sqrt(float(s.latent)), s.weights);
    for (float x : wide) {
      narrow.push_back(s.weights == DType::kF16 ? f32_to_f16(x) : f32_to_bf16(x));
    }
    void* data = s.weights == DType::kF32 ? static_cast<void*>(wide.data()) : narrow.data();
    TensorView all = TensorView::of(data, s.weights, {s.heads, s.nope + s.head_v, s.latent});
    layer.q_heads = s.heads, layer.kv_heads = 1, layer.k_dim = s.latent + s.rope, layer.v_dim = s.latent;
    layer.scale = 1 / std::sqrt(float(s.nope + s.rope));
    layer.w_uk = layer.w_uv = all;
    layer.w_uk.shape[1] = s.nope, layer.w_uv.shape[1] = s.head_v;
    layer.w_uv.data = all.at<char>(0, s.nope);
  }
  std::vector<float> wide;
  std::vector<uint16_t> narrow;
  LayerKv layer;
};

std::vector<float> normals(int64_t n, uint64_t seed, float scale = 1) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = rng.normal() * scale;
  return x;
}
TensorView view(std::vector<float>& x, std::initializer_list<int64_t> shape) {
  return TensorView::of(x.data(), DType::kF32, shape);
}

struct LatentCase {
  LatentShape shape;
  cpu::Isa isa;
};

class Latent : public ::testing::TestWithParam<LatentCase> {
 protected:
  void SetUp() override {
    if (GetParam().isa > cpu::best_isa()) GTEST_SKIP() << "no " << cpu::to_string(GetParam().isa);
    cpu::set_isa_for_test(GetParam().isa);
  }
  void TearDown() override { cpu::set_isa_for_test(cpu::best_isa()); }
  // Of a sum of n products of numbers of size 1 and 1.5 at most 4 deviations out, in f32.
  static float tolerance(int n) { return float(n) * 0x1p-24f * 24; }
  const LatentShape& s() const { return GetParam().shape; }
  ThreadPool pool_{3};
  Stream stream_{pool_};
};

TEST_P(Latent, OpsEqualTheirTwins) {
  Weights w(s());
  const LayerKv& l = w.layer;
  for (int64_t n : {1, 5, 33, 70}) {
    auto q = normals(n * s().heads * l.q_dim(), 1), keys = normals(n * l.k_dim, 2);
    auto o = normals(n * s().heads * l.v_dim, 3);
    std::vector<float> absorbed(size_t(n * s().heads * l.k_dim)), k(size_t(n * s().heads * l.q_dim()));
    std::vector<float> v(size_t(n * s().heads * l.out_dim())), out(v.size()), want(1024), want_v(1024);
    absorb_queries(l, view(q, {n, s().heads, l.q_dim()}), view(absorbed, {n, s().heads, l.k_dim}), stream_);
    expand_keys(l,
                view(keys, {n, l.k_dim}),
                view(k, {n, s().heads, l.q_dim()}),
                view(v, {n, s().heads, l.out_dim()}),
                stream_);
    latent_outputs(l, view(o, {n, s().heads, l.v_dim}), view(out, {n, s().heads, l.out_dim()}), stream_);
    const auto expect = [&](const float* got, const float* wanted, int dim, const char* what) {
      for (int d = 0; d < dim; ++d) ASSERT_NEAR(got[d], wanted[d], tolerance(l.v_dim)) << what << " " << d;
    };
    for (int64_t t = 0; t < n; ++t) {
      for (int h = 0; h < s().heads; ++h) {
        const int64_t i = t * s().heads + h;
        ref::absorb_query(l, h, &q[size_t(i * l.q_dim())], want.data());
        expect(&absorbed[size_t(i * l.k_dim)], want.data(), l.k_dim, "absorbed");
        ref::expand_key(l, h, &keys[size_t(t * l.k_dim)], want.data(), want_v.data());
        expect(&k[size_t(i * l.q_dim())], want.data(), l.q_dim(), "k");
        expect(&v[size_t(i * l.out_dim())], want_v.data(), l.out_dim(), "v");
        ref::latent_output(l, h, &o[size_t(i * l.v_dim)], want.data());
        expect(&out[size_t(i * l.out_dim())], want.data(), l.out_dim(), "out");
      }
    }
  }
}

// Prompts over paged latent keys. `drop`: a key's value is its first channels, nothing else is stored.
struct LatentPass {
  LatentPass(const LayerKv& layer, DType dtype) : l(layer) {
    shape.q_heads = l.q_heads, shape.kv_heads = 1, shape.k_dim = l.k_dim, shape.v_dim = l.v_dim;
    shape.dtype = dtype;
  }
  // Queries [past, past + fresh) of q [n, heads, q_dim]; out [fresh, heads, out_dim].
  std::vector<float> run(const Tokens& x,
                         std::vector<float>& q,
                         int64_t past,
                         int64_t fresh,
                         bool expanded,
                         bool with_present,
                         Stream& stream) {
    Scene scene(shape);
    scene.add_row(x, past, fresh, 64);
    scene.build(with_present);
    AttendArgs& a = scene.args();
    AttentionPart& part = scene.part();
    part.planes[1] = {}, part.v_in_k = l.v_dim;
    Present present = scene.present();
    present.v = present.k, present.v.shape[2] = l.v_dim;
    a.present = with_present ? &present : nullptr;
    a.scale = l.scale;
    const int64_t heads = l.q_heads;
    std::vector<float> out(size_t(fresh * heads * l.out_dim()), NAN), latent(size_t(fresh * heads * l.v_dim));
    std::vector<float> absorbed(size_t(fresh * heads * l.k_dim));
    a.q = TensorView::of(&q[size_t(past * heads * l.q_dim())], DType::kF32, {fresh, heads, l.q_dim()});
    a.out = view(out, {fresh, heads, l.out_dim()});
    if (expanded) {
      a.expanded = &l;
    } else {
      absorb_queries(l, a.q, view(absorbed, {fresh, heads, l.k_dim}), stream);
      a.q = view(absorbed, {fresh, heads, l.k_dim});
      a.out = view(latent, {fresh, heads, l.v_dim});
    }
    attend_plain(a, part, stream);
    if (!with_present) {  // merged, as the driver does
      std::vector<float> other(size_t(a.out.numel())), lse(size_t(a.lse.numel()));
      AttendArgs b = a;
      b.present = &present;
      b.out = TensorView::of(other.data(), DType::kF32, {fresh, heads, a.out.shape[2]});
      b.lse = view(lse, {fresh, heads});
      attend_present(b, stream);
      merge_attention(scene.step(), a.list, b.out, b.lse, a.out, a.lse, stream);
    }
    if (!expanded) latent_outputs(l, a.out, view(out, {fresh, heads, l.out_dim()}), stream);
    return out;
  }
  LayerKv l;
  Shape shape;
};

// Both forms are one softmax over equal numbers. A score is a sum of up to n products of size 1.5 * 4, so the
// forms' scores differ by 2 n 2^-24 of their size at most; weights change by as much, outputs by twice that.
TEST_P(Latent, ExpandedEqualsAbsorbed) {
  Weights w(s());
  LatentPass pass(w.layer, DType::kF16);
  const Tokens x(pass.shape, 330, 32);
  auto q = normals(x.n * s().heads * w.layer.q_dim(), 33);
  for (auto [past, fresh] : {std::pair<int64_t, int64_t>{0, 70}, {300, 1}, {257, 30}, {16, 300}}) {
    for (bool present : {true, false}) {
      const auto a = pass.run(x, q, past, fresh, true, present, stream_);
      const auto b = pass.run(x, q, past, fresh, false, present, stream_);
      for (size_t i = 0; i < a.size(); ++i)
        ASSERT_NEAR(a[i], b[i], 8 * tolerance(w.layer.k_dim)) << past << " " << fresh << " " << i;
    }
  }
}

TEST_P(Latent, CutsOfAPromptAndThreadsDoNotShow) {
  Weights w(s());
  LatentPass pass(w.layer, DType::kF16);
  const Tokens x(pass.shape, 300, 34);
  auto q = normals(x.n * s().heads * w.layer.q_dim(), 35);
  const auto whole = pass.run(x, q, 0, x.n, true, true, stream_);
  ThreadPool one(1);
  Stream alone(one);
  for (int64_t chunk : {1, 7, 64, 130}) {
    std::vector<float> all;
    for (int64_t at = 0; at < x.n; at += chunk) {
      if (chunk == 1 && at == 20) at = 250;  // ends of the splits are in there
      const auto part =
          pass.run(x, q, at, std::min(chunk, x.n - at), true, true, chunk == 7 ? alone : stream_);
      const size_t first = size_t(at) * size_t(s().heads * w.layer.out_dim());
      EXPECT_EQ(std::memcmp(part.data(), &whole[first], part.size() * 4), 0) << chunk << " at " << at;
    }
  }
}

TEST_P(Latent, EqualsTheOracle) {
  const auto load = [](const std::string& field) {
    return Npy::load("src/kernels/attention/goldens/latent_d32_" + field + ".npy");
  };
  const auto sizes = load("sizes").as<int>();
  auto w_uk = load("w_uk").as<float>(), w_uv = load("w_uv").as<float>(), q_fresh = load("q").as<float>();
  const int64_t heads = load("w_uk").shape[0], nope = sizes[0], past = sizes[2], fresh = load("q").shape[0];
  LayerKv l;
  l.q_heads = int(heads), l.kv_heads = 1, l.v_dim = int(load("w_uk").shape[2]),
  l.k_dim = int(load("keys").shape[1]);
  l.w_uk = view(w_uk, {heads, nope, l.v_dim});
  l.w_uv = view(w_uv, {heads, load("w_uv").shape[1], l.v_dim});
  l.scale = 1 / std::sqrt(float(l.q_dim()));
  LatentPass pass(l, DType::kF16);
  Tokens x(pass.shape, 0, 0);
  x.n = past + fresh, x.k = load("keys").as<float>();
  x.v.assign(size_t(x.n * l.v_dim), NAN);  // nobody reads it
  x.q.assign(size_t(x.n * heads * l.k_dim), 0.f);
  std::vector<float> q(size_t(past * heads * l.q_dim()), 0.f);
  q.insert(q.end(), q_fresh.begin(), q_fresh.end());
  const auto out = load("out").as<float>(), absorbed = load("absorbed").as<float>();
  for (bool expanded : {true, false}) {
    const auto got = pass.run(x, q, past, fresh, expanded, true, stream_);
    for (size_t i = 0; i < out.size(); ++i)
      ASSERT_NEAR(got[i], out[i], 4e-6f * (1 + std::abs(out[i]))) << expanded << " " << i;
  }
  std::vector<float> a(absorbed.size());
  absorb_queries(l, view(q_fresh, {fresh, heads, l.q_dim()}), view(a, {fresh, heads, l.k_dim}), stream_);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], absorbed[i], 4e-6f * (1 + std::abs(a[i]))) << i;
}

TEST(LatentForm, ExpandsWhereThatIsCheaper) {
  LatentShape glm{20, 192, 64, 512, 256, DType::kF32};
  LayerKv l;
  l.q_heads = glm.heads, l.kv_heads = 1, l.k_dim = 576, l.v_dim = 512;
  float some = 0;
  l.w_uk = TensorView::of(&some, DType::kF32, {20, 192, 512});
  l.w_uv = TensorView::of(&some, DType::kF32, {20, 256, 512});
  EXPECT_EQ(expands_from(l), 399);  // (192 + 256) * 512 / (576 + 512 - 256 - 256)
  l.v_dim = 8, l.k_dim = 16;        // a latent smaller than the heads
  l.w_uk = TensorView::of(&some, DType::kF32, {20, 192, 8});
  l.w_uv = TensorView::of(&some, DType::kF32, {20, 256, 8});
  EXPECT_EQ(expands_from(l), INT64_MAX);
}

std::vector<LatentCase> cases() {
  std::vector<LatentCase> all;
  for (cpu::Isa isa : {cpu::Isa::kBaseline, cpu::Isa::kAvx2, cpu::Isa::kAvx512, cpu::Isa::kAmx}) {
    all.push_back({{4, 12, 8, 32, 16, DType::kF32}, isa});
    all.push_back({{3, 40, 6, 72, 33, DType::kF16}, isa});
    all.push_back({{2, 7, 4, 16, 50, DType::kBF16}, isa});
  }
  return all;
}

std::string name_of(const ::testing::TestParamInfo<LatentCase>& info) {
  return std::string(cpu::to_string(info.param.isa)) + "_" + to_string(info.param.shape.weights);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Latent, ::testing::ValuesIn(cases()), name_of);

}  // namespace
}  // namespace se
