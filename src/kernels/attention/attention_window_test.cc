// Sliding windows: against the NumPy oracle and the slow twin, and what must not show in a bit: cuts, pages
// that have gone, batch mates, threads, what a token does not see.
#include <gtest/gtest.h>

#include <cmath>

#include "base/npy.h"
#include "device/cpu/isa.h"
#include "kernels/attention/attention_ref.h"
#include "kernels/attention/attention_testing.h"

namespace se {
namespace {

using namespace attention_testing;  // NOLINT: a test's own helpers

struct Outcome {
  std::vector<float> out, lse;
  bool operator==(const Outcome& o) const {
    return out.size() == o.out.size() && std::memcmp(out.data(), o.out.data(), out.size() * 4) == 0 &&
           std::memcmp(lse.data(), o.lse.data(), lse.size() * 4) == 0;
  }
  void append(const Outcome& o) {
    out.insert(out.end(), o.out.begin(), o.out.end());
    lse.insert(lse.end(), o.lse.begin(), o.lse.end());
  }
};

Outcome attend(Scene& scene, int window, int threads = 2) {
  ThreadPool pool(threads);
  Stream stream(pool);
  scene.use_window(window);
  scene.build();
  attend_plain(scene.args(), scene.part(), stream);
  return {scene.out(), scene.lse()};
}

// Whole pages before the window of position `next`.
int64_t gone(int64_t next, int window, int page) {
  return std::max<int64_t>(next - window + 1, 0) / page * page;
}

struct WindowCase {
  Shape shape;
  cpu::Isa isa;
};

class AttentionWindow : public ::testing::TestWithParam<WindowCase> {
 protected:
  void SetUp() override {
    if (GetParam().isa > cpu::best_isa()) GTEST_SKIP() << "no " << cpu::to_string(GetParam().isa);
    cpu::set_isa_for_test(GetParam().isa);
    shape_ = GetParam().shape;
  }
  void TearDown() override { cpu::set_isa_for_test(cpu::best_isa()); }
  Shape shape_;
};

// Both compute in f32 sums of at most `window` products of size <= 1.5 * 4: the twin in double.
TEST_P(AttentionWindow, EqualsTheSlowTwin) {
  const Tokens x(shape_, 290, 21);
  for (int window : {1, 16, 33, 1000}) {
    for (int split : {64, 48}) {
      Scene scene(shape_, 1, 0, 8 << 20);
      for (int64_t past : {0, 41, 250}) {
        for (int64_t fresh : {1, 3, 40})
          scene.add_row(x, past, fresh, split, {}, std::min(gone(past, window, shape_.page), past));
      }
      const Outcome got = attend(scene, window);
      ref::attend(scene.args(), &scene.part(), shape_.k_dim, shape_.v_dim, shape_.kv_heads, nullptr);
      for (size_t i = 0; i < got.out.size(); ++i)
        ASSERT_NEAR(got.out[i], scene.out()[i], 1e-5) << window << " " << split << " " << i;
      for (size_t i = 0; i < got.lse.size(); ++i) ASSERT_NEAR(got.lse[i], scene.lse()[i], 1e-5) << i;
    }
  }
}

TEST_P(AttentionWindow, ThePresentAloneEqualsTheSlowTwin) {
  const Tokens x(shape_, 200, 22);
  ThreadPool pool(2);
  Stream stream(pool);
  for (int window : {1, 7, 40, 500}) {
    Scene scene(shape_);
    scene.add_row(x, 30, 1, 64), scene.add_row(x, 90, 100, 48);
    scene.use_window(window);
    scene.build();
    attend_present(scene.args(), stream);
    const Outcome got{scene.out(), scene.lse()};
    ref::attend(scene.args(), nullptr, shape_.k_dim, shape_.v_dim, shape_.kv_heads, nullptr);
    for (size_t i = 0; i < got.out.size(); ++i) ASSERT_NEAR(got.out[i], scene.out()[i], 1e-5) << window;
  }
}

// A prompt whole, in chunks, and in chunks whose old pages have gone.
TEST_P(AttentionWindow, CutsAndDroppedPagesDoNotShow) {
  const Tokens x(shape_, 203, 23);
  for (int window : {1, 32, 70}) {
    for (int split : {64, 48}) {
      const auto prefill = [&](int64_t chunk, bool drop) {
        Outcome all;
        for (int64_t at = 0; at < x.n; at += chunk) {
          Scene scene(shape_);
          const int64_t first = drop ? std::min(gone(at, window, shape_.page), at) : 0;
          scene.add_row(x, at, std::min(chunk, x.n - at), split, {}, first);
          all.append(attend(scene, window));
        }
        return all;
      };
      const Outcome whole = prefill(x.n, false);
      for (int64_t chunk : {1, 7, 64}) {
        EXPECT_TRUE(whole == prefill(chunk, false)) << window << " " << split << " " << chunk;
        EXPECT_TRUE(whole == prefill(chunk, true)) << window << " " << split << " " << chunk;
      }
    }
  }
}

TEST_P(AttentionWindow, BatchMatesAndThreadsDoNotShow) {
  const Tokens x(shape_, 260, 24), y(shape_, 90, 25);
  Scene alone(shape_);
  alone.add_row(x, 250, 1, 64, {}, 160);
  const Outcome row = attend(alone, 70, 1);
  for (int threads : {1, 2, 5}) {
    Scene scene(shape_);
    scene.add_row(y, 40, 3, 32);
    scene.add_row(x, 250, 1, 64, {}, 160);
    scene.add_row(y, 20, 70, 128);
    const Outcome all = attend(scene, 70, threads);
    const Outcome mine{{all.out.begin() + 3 * shape_.q_heads * shape_.v_dim,
                        all.out.begin() + 4 * shape_.q_heads * shape_.v_dim},
                       {all.lse.begin() + 3 * shape_.q_heads, all.lse.begin() + 4 * shape_.q_heads}};
    EXPECT_TRUE(row == mine) << threads;
  }
}

// Values before the window may hold anything, as long as their keys are numbers.
TEST_P(AttentionWindow, ValuesOutsideContributeNothing) {
  const Tokens x(shape_, 120, 26);
  Tokens bad = x;
  const int window = 21;
  const int64_t first = 90;
  for (size_t i = 0; i < size_t(first - window + 1) * size_t(shape_.kv_heads * shape_.v_dim); ++i)
    bad.v[i] = INFINITY;
  Scene a(shape_), b(shape_);
  a.add_row(x, first, 30, 64), b.add_row(bad, first, 30, 64);
  EXPECT_TRUE(attend(a, window) == attend(b, window));
}

// A window at or over the length is no window.
TEST_P(AttentionWindow, AWideWindowEqualsNone) {
  const Tokens x(shape_, 203, 27);
  Scene a(shape_), b(shape_);
  a.add_row(x, 150, 50, 64), b.add_row(x, 150, 50, 64);
  EXPECT_TRUE(attend(a, 200) == attend(b, 0));
}

TEST_P(AttentionWindow, EqualsTheOracle) {
  const auto load = [](const std::string& field) {
    return Npy::load("src/kernels/attention/goldens/window_d32_" + field + ".npy");
  };
  const auto sizes = load("sizes").as<int>();
  Shape shape;
  shape.q_heads = sizes[0], shape.kv_heads = sizes[1], shape.unit = sizes[2];
  shape.k_dim = shape.v_dim = int(load("k").shape[2]);
  const int64_t dropped = sizes[5], past = sizes[6], fresh = load("q").shape[0];
  Tokens x(shape, 0, 0);
  x.n = past + fresh;
  const auto fill = [&](std::vector<float>& to, int64_t skipped, std::initializer_list<const char*> fields) {
    to.assign(size_t(skipped), 0.f);
    for (const char* f : fields) {
      const auto more = load(f).as<float>();
      to.insert(to.end(), more.begin(), more.end());
    }
  };
  fill(x.k, dropped * shape.kv_heads * shape.k_dim, {"k", "k_new"});
  fill(x.v, dropped * shape.kv_heads * shape.v_dim, {"v", "v_new"});
  fill(x.q, past * shape.q_heads * shape.k_dim, {"q"});
  Scene scene(shape);
  scene.add_row(x, past, fresh, sizes[3], {}, dropped);
  const Outcome got = attend(scene, sizes[4]);
  const auto out = load("out").as<float>(), lse = load("lse").as<float>();
  for (size_t i = 0; i < out.size(); ++i)
    ASSERT_NEAR(got.out[i], out[i], 4e-6f * (1 + std::abs(out[i]))) << i;
  for (size_t i = 0; i < lse.size(); ++i)
    ASSERT_NEAR(got.lse[i], lse[i], 4e-6f * (1 + std::abs(lse[i]))) << i;
}

std::vector<WindowCase> cases() {
  std::vector<WindowCase> all;
  for (cpu::Isa isa : {cpu::Isa::kBaseline, cpu::Isa::kAvx2, cpu::Isa::kAvx512, cpu::Isa::kAmx}) {
    all.push_back({{9, 3, 64, 64, DType::kF16}, isa});
    all.push_back({{4, 1, 36, 20, DType::kBF16}, isa});
    all.push_back({{4, 2, 128, 128, DType::kF32, 32, 32}, isa});
  }
  return all;
}

std::string name_of(const ::testing::TestParamInfo<WindowCase>& info) {
  return std::string(cpu::to_string(info.param.isa)) + "_" + to_string(info.param.shape.dtype);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionWindow, ::testing::ValuesIn(cases()), name_of);

}  // namespace
}  // namespace se
