// Codes multiplied as they lie against attention in double over the numbers that they stand for.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/half.h"
#include "base/rng.h"
#include "device/cpu/isa.h"
#include "kernels/attention/core.h"

namespace se::cpu {
namespace {

// An 8-bit float by its definition; the callers have no NaN and no infinity.
double float8(CodeType type, uint8_t code) {
  const int mantissa = type == CodeType::kE4M3 ? 3 : 2, bias = type == CodeType::kE4M3 ? 7 : 15;
  const int exponent = (code & 0x7f) >> mantissa, rest = code & ((1 << mantissa) - 1);
  const double size = exponent == 0 ? std::ldexp(rest, 1 - bias - mantissa)
                                    : std::ldexp((1 << mantissa) + rest, exponent - bias - mantissa);
  return code & 0x80 ? -size : size;
}

// Tokens of one KV head in pieces of the given lengths, codes and metadata at random.
struct Coded {
  CodeFormat f;
  std::vector<int> lengths;
  struct Piece {
    std::vector<uint8_t> k, v;
    std::vector<float> k_min, v_min;  // as stored
    std::vector<uint16_t> k_narrow, v_narrow, k_step, v_step;
    std::vector<float> k_scale, v_scale;  // steps of floats
  };
  std::vector<Piece> data;
  std::vector<CodePiece> pieces;

  Coded(const CodeFormat& format, std::vector<int> n, Rng& rng) : f(format), lengths(std::move(n)) {
    if (floats()) {
      make_floats(rng);
      return;
    }
    for (const int tokens : lengths) {
      Piece p;
      const auto codes = [&](int dim) {
        std::vector<uint8_t> c(size_t(tokens * dim * bits() / 8));
        for (uint8_t& x : c) x = uint8_t(rng.below(256));
        return c;
      };
      const auto metas = [&](int64_t count, std::vector<float>& min, std::vector<uint16_t>& narrow) {
        std::vector<uint16_t> step;
        for (int64_t i = 0; i < count; ++i) {
          const float x = rng.normal() - 2;
          narrow.push_back(f.min == RowType::kBF16 ? f32_to_bf16(x) : f32_to_f16(x));
          min.push_back(f.min == RowType::kF32    ? x
                        : f.min == RowType::kBF16 ? bf16_to_f32(narrow.back())
                                                  : f16_to_f32(narrow.back()));
          step.push_back(f32_to_f16(std::fabs(rng.normal()) * 4 / float((1 << bits()) - 1)));
        }
        return step;
      };
      p.k = codes(f.k_dim), p.v = codes(f.v_dim);
      p.k_step = metas(f.k_dim, p.k_min, p.k_narrow);
      p.v_step = metas(int64_t(tokens) * f.v_dim / f.group, p.v_min, p.v_narrow);
      data.push_back(std::move(p));
    }
    for (size_t i = 0; i < data.size(); ++i) {
      const Piece& p = data[i];
      const bool wide = f.min == RowType::kF32;
      pieces.push_back({lengths[i],
                        p.k.data(),
                        p.v.data(),
                        wide ? static_cast<const void*>(p.k_min.data()) : p.k_narrow.data(),
                        wide ? static_cast<const void*>(p.v_min.data()) : p.v_narrow.data(),
                        p.k_step.data(),
                        p.v_step.data()});
    }
  }
  int code(const std::vector<uint8_t>& c, int64_t i) const {
    return c[size_t(i * bits() / 8)] >> (i * bits() % 8) & ((1 << bits()) - 1);
  }
  int bits() const { return bits_of(f.type); }
  bool floats() const { return bits() == 8; }
  void make_floats(Rng& rng) {
    for (const int tokens : lengths) {
      Piece p;
      const auto codes = [&](int dim) {
        std::vector<uint8_t> c;
        const uint64_t least = f.type == CodeType::kE4M3 ? 0x00 : 0x30,
                       most = f.type == CodeType::kE4M3 ? 0x7f : 0x48;
        for (int i = 0; i < tokens * dim; ++i)
          c.push_back(uint8_t((least + rng.below(most - least)) | rng.below(2) << 7));
        return c;
      };
      p.k = codes(f.k_dim), p.v = codes(f.v_dim);
      for (int t = 0; t < tokens; ++t)
        p.k_scale.push_back(std::fabs(rng.normal()) / 100),
            p.v_scale.push_back(std::fabs(rng.normal()) / 100);
      data.push_back(std::move(p));
    }
    for (size_t i = 0; i < data.size(); ++i) {
      const Piece& p = data[i];
      pieces.push_back(
          {lengths[i], p.k.data(), p.v.data(), nullptr, nullptr, p.k_scale.data(), p.v_scale.data()});
    }
  }
  // min and code * step of channel d of a token, apart.
  std::pair<double, double> key(const Piece& p, int t, int d) const {
    if (floats()) return {0, float8(f.type, p.k[size_t(t * f.k_dim + d)]) * p.k_scale[size_t(t)]};
    return {p.k_min[size_t(d)],
            code(p.k, int64_t(t) * f.k_dim + d) * double(f16_to_f32(p.k_step[size_t(d)]))};
  }
  std::pair<double, double> value(const Piece& p, int t, int d) const {
    if (floats()) return {0, float8(f.type, p.v[size_t(t * f.v_dim + d)]) * p.v_scale[size_t(t)]};
    const size_t g = size_t(t * (f.v_dim / f.group) + d / f.group);
    return {p.v_min[g], code(p.v, int64_t(t) * f.v_dim + d) * double(f16_to_f32(p.v_step[g]))};
  }
};

// One block after another into one running softmax. Bound of a score: its 2 dim terms in F32 sums, each off
// by (dim + 4) 2^-24 of the terms' size; a weight is off by twice the score's error and the exponential's 2
// ulp, an output by that and by its own sum of keys, of the size of the terms.
void expect_attends(const CodeFormat& f,
                    const std::vector<std::vector<int>>& blocks,
                    int rows,
                    uint64_t seed) {
  Rng rng(seed);
  std::vector<Coded> coded;
  for (const auto& lengths : blocks) coded.emplace_back(f, lengths, rng);
  std::vector<float> q(size_t(rows * f.k_dim)), acc(size_t(rows * f.v_dim), 0.f), l(size_t(rows), 0.f);
  std::vector<float> m(size_t(rows), -std::numeric_limits<float>::infinity());
  for (float& x : q) x = rng.normal();
  const float scale = 1 / std::sqrt(float(f.k_dim)) / 2;
  const Running run{m.data(), l.data(), acc.data(), f.v_dim};
  for (const Coded& c : coded)
    kCoreAvx512.absorb_codes(
        q.data(), f.k_dim, rows, scale, f, c.pieces.data(), int(c.pieces.size()), run, nullptr);
  for (int r = 0; r < rows; ++r) {
    std::vector<double> score, sum(size_t(f.v_dim)), size(size_t(f.v_dim));
    double off = 0, total = 0;
    const auto each = [&](const auto& fn) {
      for (const Coded& c : coded) {
        for (size_t i = 0; i < c.data.size(); ++i) {
          for (int t = 0; t < c.lengths[i]; ++t) fn(c, c.data[i], t);
        }
      }
    };
    each([&](const Coded& c, const Coded::Piece& p, int t) {
      double s = 0, terms = 0;
      for (int d = 0; d < f.k_dim; ++d) {
        const auto [low, more] = c.key(p, t, d);
        const double x = q[size_t(r * f.k_dim + d)];
        s += x * (low + more), terms += std::fabs(x) * (std::fabs(low) + std::fabs(more));
      }
      score.push_back(s * scale);
      off = std::max(off, terms * scale * (f.k_dim + 4) * 0x1p-24);
    });
    const double top = *std::max_element(score.begin(), score.end());
    size_t i = 0;
    each([&](const Coded& c, const Coded::Piece& p, int t) {
      const double w = std::exp(score[i++] - top);
      total += w;
      for (int d = 0; d < f.v_dim; ++d) {
        const auto [low, more] = c.value(p, t, d);
        sum[size_t(d)] += w * (low + more), size[size_t(d)] += w * (std::fabs(low) + std::fabs(more));
      }
    });
    const double relative = 2 * off + (double(score.size()) + 16) * 0x1p-24;
    std::vector<float> out(size_t(f.v_dim));
    const float lse =
        kCoreAvx512.finish(m[size_t(r)], l[size_t(r)], acc.data() + r * f.v_dim, f.v_dim, out.data());
    EXPECT_NEAR(lse, top + std::log(total), relative + 0x1p-22 * std::fabs(lse));
    for (int d = 0; d < f.v_dim; ++d)
      ASSERT_NEAR(out[size_t(d)], sum[size_t(d)] / total, 2 * relative * size[size_t(d)] / total)
          << "type " << int(f.type) << ", " << rows << " rows, row " << r << " channel " << d;
  }
}

TEST(AttentionCodes, AttendTheNumbersThatTheyStandFor) {
  if (best_isa() < Isa::kAvx512) GTEST_SKIP() << "no AVX-512";
  uint64_t seed = 0;
  for (const CodeType type : {CodeType::k4, CodeType::k2}) {
    for (const RowType min : {RowType::kF32, RowType::kF16, RowType::kBF16}) {
      for (const auto& [k_dim, v_dim, group] : {std::array{16, 16, 16},
                                                std::array{64, 64, 32},
                                                std::array{128, 64, 64},
                                                std::array{256, 256, 16}}) {
        for (int rows = 1; rows <= 8; ++rows) {
          const CodeFormat f{type, k_dim, v_dim, group, min};
          expect_attends(f, {{32}, {16, 16}, {1}, {5, 7, 1, 2}, {31, 1}, {17}}, rows, ++seed);
        }
      }
    }
  }
}

TEST(AttentionCodes, FloatsToo) {
  if (best_isa() < Isa::kAvx512) GTEST_SKIP() << "no AVX-512";
  uint64_t seed = 1000;
  for (const CodeType type : {CodeType::kE4M3, CodeType::kE5M2}) {
    for (const auto& [k_dim, v_dim] :
         {std::array{16, 16}, std::array{64, 64}, std::array{128, 80}, std::array{256, 256}}) {
      for (int rows = 1; rows <= 8; ++rows) {
        const CodeFormat f{type, k_dim, v_dim, v_dim, {}};
        expect_attends(f, {{32}, {16, 16}, {1}, {5, 7, 1, 2}, {31, 1}, {17}}, rows, ++seed);
      }
    }
  }
}

// Every code alone: a key that the query has all of, and a value of weight 1.
TEST(AttentionCodes, EveryFloatComesOutAsItIsAndNanStays) {
  if (best_isa() < Isa::kAvx512) GTEST_SKIP() << "no AVX-512";
  for (const CodeType type : {CodeType::kE4M3, CodeType::kE5M2}) {
    for (int code = 0; code < 256; ++code) {
      const bool nan = (code & 0x7f) > (type == CodeType::kE4M3 ? 0x7e : 0x7c);
      if ((code & 0x7f) == 0x7c && type == CodeType::kE5M2) continue;  // infinity, which is never stored
      for (const bool in_key : {true, false}) {
        std::vector<uint8_t> k(2 * 16, 0), v(2 * 16, 0);
        (in_key ? k : v)[16 + 3] = uint8_t(code);  // of the second token
        k[5] = 0xb8;  // -1 or -0.5: the first token weighs nothing beside the second
        const float steps[] = {1, 1};
        const CodePiece p{2, k.data(), v.data(), nullptr, nullptr, steps, steps};
        std::vector<float> q(16, 0.f), acc(16, 0.f);
        q[5] = 1000, q[3] = 0.001f;
        float m = -INFINITY, l = 0;
        kCoreAvx512.absorb_codes(
            q.data(), 16, 1, 1, {type, 16, 16, 16, {}}, &p, 1, {&m, &l, acc.data(), 16}, nullptr);
        if (in_key) {
          if (nan)
            EXPECT_TRUE(std::isnan(l) && std::isnan(acc[0])) << code;
          else
            EXPECT_FLOAT_EQ(m, float(float8(type, uint8_t(code)) * 0.001f)) << code;
        } else if (nan) {
          EXPECT_TRUE(std::isnan(acc[3])) << code;
          EXPECT_EQ(acc[4], 0);
        } else {
          EXPECT_EQ(acc[3], float(float8(type, uint8_t(code)))) << code;
        }
      }
    }
  }
}

// A row's bits do not depend on how many go with it.
void expect_alone_as_together(CodeType type) {
  Rng rng(3);
  const CodeFormat f{type, 64, 64, type == CodeType::k4 ? 32 : 64, RowType::kF16};
  const Coded c(f, {16, 13}, rng);
  std::vector<float> q(8 * 64);
  for (float& x : q) x = rng.normal();
  const auto run_rows = [&](int first, int rows) {
    std::vector<float> acc(size_t(rows) * 64, 0.f), m(size_t(rows), -INFINITY), l(size_t(rows), 0.f);
    kCoreAvx512.absorb_codes(&q[size_t(first) * 64],
                             64,
                             rows,
                             0.125f,
                             f,
                             c.pieces.data(),
                             2,
                             {m.data(), l.data(), acc.data(), 64},
                             nullptr);
    acc.insert(acc.end(), m.begin(), m.end()), acc.insert(acc.end(), l.begin(), l.end());
    return acc;
  };
  const std::vector<float> all = run_rows(0, 8);
  for (int r = 0; r < 8; ++r) {
    const std::vector<float> one = run_rows(r, 1);
    for (int d = 0; d < 64; ++d) ASSERT_EQ(one[size_t(d)], all[size_t(r * 64 + d)]) << r << " " << d;
    EXPECT_EQ(one[64], all[size_t(8 * 64 + r)]);
    EXPECT_EQ(one[65], all[size_t(8 * 64 + 8 + r)]);
  }
}

TEST(AttentionCodes, NeighboursDoNotShow) {
  if (best_isa() < Isa::kAvx512) GTEST_SKIP() << "no AVX-512";
  for (const CodeType type : {CodeType::k4, CodeType::kE4M3, CodeType::kE5M2}) expect_alone_as_together(type);
}

}  // namespace
}  // namespace se::cpu
