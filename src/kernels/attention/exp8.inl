// kernels/attention/exp8.inl -- e^x of eight floats, the one exponential of attention, merging and scores.
// Include after one of vec8_*.inl.
//
// x = n ln 2 + r with |r| <= ln(2)/2, e^r by a polynomial of degree 7 (the coefficients of Cephes' expf),
// times 2^n. Error at most 2 ulp; exp8(0) is 1 exactly; 0 below -87.3 (no subnormal results); above 88, e^88.
// NaN stays.
namespace {

inline F8 exp8(F8 x) {
  const F8 low = set8(-87.3f);
  const F8 c = min8(set8(88.f), max8(low, x));
  const F8 n = round8(mul8(c, set8(1.44269504088896341f)));
  const F8 r = fma8(n, set8(2.12194440e-4f), fma8(n, set8(-0.693359375f), c));  // n * the upper part is exact
  F8 p = set8(1.9875691500e-4f);
  p = fma8(p, r, set8(1.3981999507e-3f));
  p = fma8(p, r, set8(8.3334519073e-3f));
  p = fma8(p, r, set8(4.1665795894e-2f));
  p = fma8(p, r, set8(1.6666665459e-1f));
  p = fma8(p, r, set8(5.0000001201e-1f));
  p = fma8(mul8(p, r), r, add8(r, set8(1.f)));
  return zero_below8(mul8(p, pow2_8(n)), x, low);
}
inline float exp1(float x) {
  float out[8];
  store8(out, exp8(set8(x)));
  return out[0];
}

}  // namespace
