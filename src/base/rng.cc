#include "base/rng.h"

#include <cmath>

namespace se {

std::array<uint32_t, 4> philox(uint64_t seed, uint64_t stream, uint64_t counter) {
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  std::array<uint32_t, 4> c{
      uint32_t(counter), uint32_t(counter >> 32), uint32_t(stream), uint32_t(stream >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t(0xD2511F53u) * c[0], b = uint64_t(0xCD9E8D57u) * c[2];
    c = {uint32_t(b >> 32) ^ c[1] ^ k0, uint32_t(b), uint32_t(a >> 32) ^ c[3] ^ k1, uint32_t(a)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

double uniform(uint64_t seed, uint64_t stream, uint64_t counter) {
  const auto c = philox(seed, stream, counter);
  const uint64_t bits = (uint64_t(c[0]) << 32 | c[1]) >> 11;
  return double(bits) * 0x1p-53;
}

float Rng::normal() {
  const double u = uniform(), v = uniform();
  return float(std::sqrt(-2 * std::log(1 - u)) * std::cos(6.283185307179586 * v));
}

}  // namespace se
