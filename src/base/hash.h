// base/hash.h -- fingerprints: 64-bit, stable across machines and versions of the engine (XXH3).
#pragma once
#include <cstdint>
#include <string_view>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace se {

class Fingerprint {
 public:
  Fingerprint& add(std::string_view bytes) {  // length-prefixed, so that fields cannot run together
    const uint64_t n = bytes.size();
    value_ = XXH3_64bits_withSeed(&n, sizeof n, value_);
    value_ = XXH3_64bits_withSeed(bytes.data(), bytes.size(), value_);
    return *this;
  }
  Fingerprint& add(int64_t number) { return add({reinterpret_cast<const char*>(&number), sizeof number}); }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0x5e5e5e5e;
};

}  // namespace se
