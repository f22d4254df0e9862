#include "kernels/moe/moe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "base/half.h"
#include "base/rng.h"
#include "device/cpu/isa.h"
#include "device/cpu/thread_pool.h"
#include "kernels/moe/moe_ref.h"

namespace se {
namespace {

constexpr double kEps = std::numeric_limits<float>::epsilon();

std::vector<float> normals(int64_t n, float scale, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = rng.normal() * scale;
  return v;
}

TensorView f32(std::vector<float>& v, std::initializer_list<int64_t> shape) {
  return TensorView::of(v.data(), DType::kF32, shape);
}

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed route(std::vector<float> logits, std::vector<float> bias, const MoeRouting& r, int threads = 2) {
  ThreadPool pool(threads);
  Stream stream(pool);
  const int64_t experts = bias.empty() ? 0 : int64_t(bias.size());
  const int64_t n = experts ? experts : 16, tokens = int64_t(logits.size()) / n;
  Routed out;
  out.ids.resize(size_t(tokens * r.used)), out.weights.resize(out.ids.size());
  moe_route(f32(logits, {tokens, n}),
            bias.empty() ? TensorView{} : f32(bias, {n}),
            r,
            TensorView::of(out.ids.data(), DType::kI32, {tokens, r.used}),
            f32(out.weights, {tokens, r.used}),
            stream);
  return out;
}

MoeRouting routing(int used, RouterScore score, bool normalise, float scale, int groups, int groups_used) {
  return {used, score, normalise, scale, groups, groups_used};
}

TEST(MoeRoute, EqualsSortingInDouble) {
  constexpr int64_t kExperts = 16, kTokens = 500;
  const auto logits = normals(kTokens * kExperts, 2, 1), bias = normals(kExperts, 0.2f, 2);
  for (const MoeRouting& r : {routing(4, RouterScore::kSoftmax, true, 1, 1, 1),
                              routing(2, RouterScore::kSoftmax, false, 1, 1, 1),
                              routing(4, RouterScore::kSigmoid, true, 1.8f, 1, 1),
                              routing(4, RouterScore::kSigmoid, true, 2.5f, 4, 2),
                              routing(3, RouterScore::kSigmoid, false, 1, 16, 5),
                              routing(16, RouterScore::kSoftmax, true, 1, 1, 1)}) {
    for (const bool biased : {false, true}) {
      const Routed got = route(logits, biased ? bias : std::vector<float>{}, r);
      for (int64_t t = 0; t < kTokens; ++t) {
        const RoutedRow want = moe_route_ref(std::span(logits).subspan(size_t(t * kExperts), kExperts),
                                             biased ? std::span(bias) : std::span<const float>{},
                                             r);
        for (int i = 0; i < r.used; ++i) {
          const size_t at = size_t(t * r.used + i);
          ASSERT_EQ(got.ids[at], want.ids[size_t(i)]) << "token " << t << " place " << i;
          // A score and its normalised weight round once each.
          ASSERT_NEAR(got.weights[at], want.weights[size_t(i)], 2 * kEps * want.weights[size_t(i)]);
        }
      }
    }
  }
}

TEST(MoeRoute, TiesGoToTheLowerIndexAndNanRanksLast) {
  std::vector<float> logits(16, 1.f);
  logits[2] = std::numeric_limits<float>::quiet_NaN(), logits[9] = 2;
  EXPECT_EQ(route(logits, {}, routing(4, RouterScore::kSigmoid, false, 1, 1, 1)).ids,
            (std::vector<int32_t>{9, 0, 1, 3}));
  // Groups of four: the one with the 9 first, then the lowest of equals; group 0 has a NaN but two good ones.
  EXPECT_EQ(route(logits, {}, routing(4, RouterScore::kSigmoid, false, 1, 4, 2)).ids,
            (std::vector<int32_t>{9, 0, 1, 3}));
  EXPECT_EQ(
      route(std::vector<float>(16, -30.f), {}, routing(2, RouterScore::kSoftmax, true, 1, 1, 1)).weights,
      (std::vector<float>{0.5f, 0.5f}));
}

TEST(MoeRoute, TheBiasChoosesButDoesNotWeigh) {
  std::vector<float> bias(16, 0.f);
  bias[5] = 10;
  const Routed got =
      route(std::vector<float>(16, 0.f), bias, routing(1, RouterScore::kSigmoid, false, 3, 1, 1));
  EXPECT_EQ(got.ids, std::vector<int32_t>{5});
  EXPECT_EQ(got.weights, std::vector<float>{1.5f});
}

// Random experts, F32 values encoded as a type each: mixed in one layer.
struct Layer {
  static constexpr int64_t kExperts = 6, kHidden = 64, kFfn = 96;
  std::vector<std::string> bytes;
  std::vector<Expert> experts;

  TensorView matrix(DType dtype, int64_t out, int64_t in, uint64_t seed) {
    const auto values = normals(out * in, 1 / std::sqrt(float(in)), seed);
    std::string data(size_t(bytes_of(dtype, out * in)), '\0');
    if (dtype == DType::kF32) {
      std::memcpy(data.data(), values.data(), data.size());
    } else if (dtype == DType::kF16) {
      for (size_t i = 0; i < values.size(); ++i) {
        const uint16_t h = f32_to_f16(values[i]);
        std::memcpy(&data[2 * i], &h, 2);
      }
    } else {  // Q8_0: a scale and 32 bytes
      for (size_t b = 0; b < values.size() / 32; ++b) {
        const uint16_t scale = f32_to_f16(1.f / 512);
        std::memcpy(&data[34 * b], &scale, 2);
        for (size_t i = 0; i < 32; ++i)
          data[34 * b + 2 + i] = char(int8_t(std::clamp(values[32 * b + i] * 512, -127.f, 127.f)));
      }
    }
    bytes.push_back(std::move(data));
    return TensorView::of(bytes.back().data(), dtype, {out, in});
  }
  Layer() {
    bytes.reserve(3 * kExperts);
    constexpr DType kTypes[] = {DType::kF32, DType::kQ8_0, DType::kF16};
    for (uint64_t e = 0; e < kExperts; ++e) {
      const auto type = [&](uint64_t i) { return kTypes[(e + i) % 3]; };
      const TensorView gate = matrix(type(0), kFfn, kHidden, 10 * e),
                       up = matrix(type(1), kFfn, kHidden, 10 * e + 1),
                       down = matrix(type(2), kHidden, kFfn, 10 * e + 2);
      experts.push_back({gate, up, down});
    }
  }
};

struct Tokens {
  static constexpr int64_t kUsed = 3;
  int64_t n;
  std::vector<float> x, weights;
  std::vector<int32_t> ids;
  explicit Tokens(int64_t count) : n(count), x(normals(n * Layer::kHidden, 1, 77)) {
    Rng rng(5);
    for (int64_t t = 0; t < n; ++t) {
      std::set<int32_t> chosen;
      while (int64_t(chosen.size()) < kUsed) {
        const int32_t e = int32_t(rng.below(Layer::kExperts - 1));  // the last one has no tokens
        if (!chosen.insert(e).second) continue;
        ids.push_back(e), weights.push_back(float(rng.uniform()));
      }
    }
  }
  std::vector<float> run(const Layer& layer, Compute compute, int64_t first, int64_t count, int threads) {
    ThreadPool pool(threads);
    Stream stream(pool);
    Arena scratch;
    std::vector<float> out(size_t(count * Layer::kHidden), 99.f);
    moe_experts(f32(x, {n, Layer::kHidden}).slice(first, first + count),
                TensorView::of(ids.data(), DType::kI32, {n, kUsed}).slice(first, first + count),
                f32(weights, {n, kUsed}).slice(first, first + count),
                layer.experts,
                f32(out, {count, Layer::kHidden}),
                compute,
                scratch,
                stream);
    return out;
  }
};

TEST(MoeExperts, ExactModeIsWithinTheDerivedBoundOfTheReference) {
  const Layer layer;
  Tokens tokens(37);
  const std::vector<float> got = tokens.run(layer, Compute::kExact, 0, tokens.n, 2);
  for (int64_t t = 0; t < tokens.n; ++t) {
    std::vector<double> want, error;
    moe_experts_ref(std::span(tokens.x).subspan(size_t(t * Layer::kHidden), Layer::kHidden),
                    std::span(tokens.ids).subspan(size_t(t * Tokens::kUsed), Tokens::kUsed),
                    std::span(tokens.weights).subspan(size_t(t * Tokens::kUsed), Tokens::kUsed),
                    layer.experts,
                    want,
                    error);
    for (size_t d = 0; d < want.size(); ++d)
      ASSERT_NEAR(got[size_t(t * Layer::kHidden) + d], want[d], kEps * error[d]) << "token " << t;
  }
}

TEST(MoeExperts, ARowDependsOnNothingButItself) {
  const Layer layer;
  Tokens tokens(41);
  for (const Compute compute : {Compute::kDefault, Compute::kExact}) {
    const std::vector<float> whole = tokens.run(layer, compute, 0, tokens.n, 1);
    EXPECT_EQ(tokens.run(layer, compute, 0, tokens.n, 3), whole);
    for (int64_t t = 0; t < tokens.n; ++t) {
      const std::vector<float> alone = tokens.run(layer, compute, t, 1, 2);
      ASSERT_EQ(std::memcmp(alone.data(), &whole[size_t(t * Layer::kHidden)], alone.size() * 4), 0) << t;
    }
  }
}

TEST(MoeExperts, AnEmptyBatchIsNothing) {
  const Layer layer;
  Tokens tokens(1);
  EXPECT_TRUE(tokens.run(layer, Compute::kDefault, 0, 0, 1).empty());
}

}  // namespace
}  // namespace se
