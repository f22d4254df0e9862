#include "kernels/rope/rope.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "device/cpu/thread_pool.h"
#include "kernels/rmsnorm/rmsnorm_routines.h"
#include "kernels/rope/rope_scaling.h"

namespace se {
namespace {

constexpr int64_t kMaxPairs = 512;

struct Rotation {
  std::array<float, kMaxPairs> cos, sin;
};

// cos and sin of a finite |a| < 2^31, to f32. In double and with our own series, so that every machine and
// libm gives the same bits: pi/2 in parts of 24 bits (the first two products are exact below 2^29 quarter
// turns), then Taylor series on |r| <= pi/4 whose rests, 7e-12 and 4e-13, vanish in f32.
void cos_sin(float angle, float& cos, float& sin) {
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1, kToInteger = 0x1.8p52;
  constexpr double kHalfPi1 = 0x1.921fb4p+0, kHalfPi2 = 0x1.4442dp-24, kHalfPi3 = 0x1.8469898cc517p-48;
  const double a = angle, shifted = a * kTwoOverPi + kToInteger, n = shifted - kToInteger;
  const double r = ((a - n * kHalfPi1) - n * kHalfPi2) - n * kHalfPi3, z = r * r;
  const double s =
      r + r * z * (-1. / 6 + z * (1. / 120 + z * (-1. / 5040 + z * (1. / 362880 + z * (-1. / 39916800)))));
  const double c =
      1 + z * (-1. / 2 + z * (1. / 24 + z * (-1. / 720 +
                                             z * (1. / 40320 + z * (-1. / 3628800 + z * (1. / 479001600))))));
  const uint64_t quarter = std::bit_cast<uint64_t>(shifted) & 3;  // n mod 4, also of negative n
  const double cos_of[4] = {c, -s, -c, s}, sin_of[4] = {s, c, -s, -c};
  cos = float(cos_of[quarter]);
  sin = float(sin_of[quarter]);
}

// One head x [dim]: pair i is (x[i * step], x[i * step + apart]).
void rotate(float* x, int64_t pairs, const Rotation& r, bool interleaved) {
  const int64_t step = interleaved ? 2 : 1, apart = interleaved ? 1 : pairs;
  for (int64_t i = 0; i < pairs; ++i) {
    float &u = x[i * step], &v = x[i * step + apart];
    const float turned_u = u * r.cos[size_t(i)] - v * r.sin[size_t(i)];
    v = v * r.cos[size_t(i)] + u * r.sin[size_t(i)];
    u = turned_u;
  }
}

void check_heads(
    const char* name, const TensorView& x, const TensorView& norm, int64_t tokens, int64_t pairs) {
  SE_CHECK(x.dtype == DType::kF32 && x.rank == 3 && x.shape[0] == tokens &&
               x.stride[2] == int64_t(sizeof(float)) && 2 * pairs <= x.shape[2],
           "qk_norm_rope: {} {}, wanted f32 [{}, heads, dim >= {}]",
           name,
           to_string(x),
           tokens,
           2 * pairs);
  SE_CHECK(norm.empty() || (norm.dtype == DType::kF32 && norm.contiguous() && norm.numel() == x.shape[2]),
           "qk_norm_rope: norm of {} {}, wanted f32 [{}]",
           name,
           to_string(norm),
           x.shape[2]);
}

}  // namespace

void qk_norm_rope(
    const TensorView& q, const TensorView& k, const QkTransform& t, const TensorView& pos, Stream& stream) {
  const int64_t tokens = pos.numel(), pairs = t.rope.empty() ? 0 : t.rope.numel();
  SE_CHECK(pos.dtype == DType::kI32 && pos.contiguous(),
           "qk_norm_rope: pos {}, wanted i32 [tokens]",
           to_string(pos));
  SE_CHECK(pairs == 0 || (t.rope.dtype == DType::kF32 && t.rope.contiguous() && pairs <= kMaxPairs),
           "qk_norm_rope: rope {}, wanted f32 [pairs <= {}]",
           to_string(t.rope),
           kMaxPairs);
  check_heads("q", q, t.q_norm, tokens, pairs);
  check_heads("k", k, t.k_norm, tokens, pairs);
  const auto norm_row = rmsnorm::row();
  const auto heads =
      [&](const TensorView& x, const TensorView& norm, int64_t token, const Rotation& rotation) {
        for (int64_t h = 0; h < x.shape[1]; ++h) {
          float* head = x.at<float>(token, h);
          if (!norm.empty()) norm_row(head, norm.ptr<float>(), t.eps, x.shape[2], head);
          rotate(head, pairs, rotation, t.interleaved);
        }
      };
  constexpr int64_t kTokens = 8;
  stream.pool().run((tokens + kTokens - 1) / kTokens, [&](int64_t item, int) {
    Rotation rotation;
    for (int64_t token = item * kTokens; token < std::min(tokens, (item + 1) * kTokens); ++token) {
      const float position = float(pos.ptr<int32_t>()[token]);
      for (int64_t i = 0; i < pairs; ++i) {
        cos_sin(position * t.rope.ptr<float>()[i], rotation.cos[size_t(i)], rotation.sin[size_t(i)]);
        rotation.cos[size_t(i)] *= t.amplitude, rotation.sin[size_t(i)] *= t.amplitude;
      }
      heads(q, t.q_norm, token, rotation);
      heads(k, t.k_norm, token, rotation);
    }
  });
}

std::vector<float> rope_frequencies(int dim, double theta) { return rope_table(dim, theta, {}).frequencies; }

}  // namespace se
