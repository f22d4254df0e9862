// base/rng.h -- a counter-based generator: the value depends on (seed, stream, counter) alone, so
// sampling depends neither on batch nor on arrival. Philox 4x32-10, Salmon et al. 2011.
#pragma once
#include <array>
#include <cstdint>

namespace se {

// The 128-bit block number `counter` of stream `stream` under key `seed`.
std::array<uint32_t, 4> philox(uint64_t seed, uint64_t stream, uint64_t counter);

// Uniform in [0, 1) with 53 bits, from the first two words of the block.
double uniform(uint64_t seed, uint64_t stream, uint64_t counter);

// A sequential view of one stream, for tests and synthetic data.
class Rng {
 public:
  explicit Rng(uint64_t seed, uint64_t stream = 0) : seed_(seed), stream_(stream) {}
  double uniform() { return se::uniform(seed_, stream_, next_++); }    // [0, 1)
  int64_t below(int64_t n) { return int64_t(uniform() * double(n)); }  // [0, n)
  float normal();                                                      // N(0, 1), Box-Muller

 private:
  uint64_t seed_, stream_, next_ = 0;
};

}  // namespace se
