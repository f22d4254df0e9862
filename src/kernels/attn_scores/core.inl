// kernels/attn_scores/core.inl -- the bodies of ScoresCore, for the eight-lane type of the including file.
namespace {

using se::cpu::ScoresCore;

constexpr int64_t kStretch = 1024;

float largest(const float* x, int64_t n) {
  F8 top = set8(-__builtin_inff());
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) top = max8(load8(x + i), top);
  float m = largest8(top);
  for (; i < n; ++i) m = x[i] > m ? x[i] : m;
  return m;
}

double exp_sum(float* x, int64_t n, float scale, float shift) {
  const F8 factor = set8(scale), down = set8(shift);
  double total = 0;
  int64_t i = 0;
  for (int64_t end = kStretch; i + 8 <= n; end += kStretch) {
    F8 sum = zero8();
    for (; i < end && i + 8 <= n; i += 8) {
      const F8 e = exp8(sub8(mul8(load8(x + i), factor), down));
      store8(x + i, e);
      sum = add8(sum, e);
    }
    total += double(sum8(sum));
  }
  for (; i < n; ++i) {
    x[i] = exp1(x[i] * scale - shift);
    total += double(x[i]);
  }
  return total;
}

void divide(float* x, int64_t n, float by) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store8(x + i, div8(load8(x + i), set8(by)));
  for (; i < n; ++i) x[i] /= by;
}

void add(float* to, const float* x, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store8(to + i, add8(load8(to + i), load8(x + i)));
  for (; i < n; ++i) to[i] += x[i];
}

void raise(float* to, const float* x, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store8(to + i, max8(load8(to + i), load8(x + i)));
  for (; i < n; ++i) to[i] = to[i] > x[i] ? to[i] : x[i];
}

}  // namespace
