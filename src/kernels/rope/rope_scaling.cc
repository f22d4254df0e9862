#include "kernels/rope/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace se {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

// Wavelengths beyond the context are stretched, short ones stay, those between are blended.
double llama3(double f, const RopeParameters& s) {
  const double turns = s.original * f / kTurn;  // over the original context
  if (turns > s.high) return f;
  if (turns < s.low) return f / s.factor;
  const double m = (turns - s.low) / (s.high - s.low);
  return (1 - m) * f / s.factor + m * f;
}

// The channels between which YaRN goes from plain to stretched frequencies.
struct Ramp {
  double low = 0, high = 1;
  double stretched(double i) const { return std::clamp((i - low) / (high - low), 0.0, 1.0); }
};

Ramp yarn_ramp(int dim, double theta, const RopeParameters& s) {
  const auto channel = [&](double turns) {
    return dim * std::log(s.original / (kTurn * turns)) / (2 * std::log(theta));
  };
  Ramp r{channel(s.beta_fast), channel(s.beta_slow)};
  if (s.truncate) r = {std::floor(r.low), std::ceil(r.high)};
  r = {std::max(r.low, 0.0), std::min(r.high, double(dim - 1))};
  if (r.low == r.high) r.high += 0.001;
  return r;
}

double yarn_amplitude(const RopeParameters& s) {
  if (s.attention_factor > 0) return s.attention_factor;
  if (s.mscale > 0 && s.mscale_all > 0)
    return yarn_mscale(s.factor, s.mscale) / yarn_mscale(s.factor, s.mscale_all);
  return yarn_mscale(s.factor, 1);
}

}  // namespace

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

RopeTable rope_table(int dim, double theta, const RopeParameters& s, const float* divisors) {
  using Kind = RopeParameters::Kind;
  SE_CHECK(dim > 0 && dim % 2 == 0 && theta > 0 && s.factor > 0,
           "rope_table: {} rotary channels, theta {}, factor {}",
           dim,
           theta,
           s.factor);
  SE_CHECK((s.kind != Kind::kLlama3 && s.kind != Kind::kYarn) || s.original > 0,
           "rope_table: original context {}",
           s.original);
  RopeTable table;
  table.frequencies.resize(size_t(dim) / 2);
  const Ramp ramp = s.kind == Kind::kYarn ? yarn_ramp(dim, theta, s) : Ramp{};
  for (size_t i = 0; i < table.frequencies.size(); ++i) {
    double f = std::pow(theta, -2.0 * double(i) / dim);
    if (divisors != nullptr) f /= double(divisors[i]);
    if (s.kind == Kind::kLinear) f /= s.factor;
    if (s.kind == Kind::kLlama3) f = llama3(f, s);
    if (s.kind == Kind::kYarn) {
      const double m = ramp.stretched(double(i));
      f = m * f / s.factor + (1 - m) * f;
    }
    table.frequencies[i] = float(f);
  }
  if (s.kind == Kind::kYarn) table.amplitude = float(yarn_amplitude(s));
  return table;
}

}  // namespace se
