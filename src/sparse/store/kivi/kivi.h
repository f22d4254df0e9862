// store/kivi/kivi.h -- keys quantised per channel over a group of tokens, values per token over a group of
// channels.
#pragma once
#include "sparse/contract.h"

namespace se {
namespace kivi {

struct Config {
  int64_t bits = 4, group = 32, residual = 32;
};
enum : int {
  kKCodes,
  kKMin,
  kKScale,
  kVCodes,
  kVMin,
  kVScale,
  kTailK,
  kTailV
};                                                             // planes: codes, then the ring's
inline constexpr int kComponent[] = {0, 1, 2, 4, 5, 6, 3, 7};  // of each: MLA has those of keys only

}  // namespace kivi

extern const StageEntry stage_store_kivi;

}  // namespace se
