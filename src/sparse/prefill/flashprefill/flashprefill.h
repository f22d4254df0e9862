// prefill/flashprefill/flashprefill.h -- Fan et al. 2026: tiles of queries read the blocks of keys whose mean
// promises most; the others count as their mean.
#pragma once
#include "sparse/contract.h"

namespace se {
namespace flashprefill {

struct Config {
  double threshold = 0.12;
  int64_t block = 128, sink = 2, window = 4, last = 8;
  bool correction = true;
  int64_t min_len = 2048, dense_layers = 0;
};

inline constexpr int kTile = 128;        // packed query rows
inline constexpr int64_t kChunk = 2048;  // of prompts: whole tiles for any group, so that none is cut

}  // namespace flashprefill

extern const StageEntry stage_prefill_flashprefill;

}  // namespace se
