// keep/snapkv/snapkv.h -- Li et al. 2024: the prompt's last queries vote, then the rest goes.
#pragma once
#include "sparse/contract.h"

namespace se {
namespace snapkv {

enum Score : int { kProb, kLogits };
struct Config {
  TokenBudget budget{4096, 0};
  int64_t sink = 64, recent = 512, window = 32, pool = 1;
  int score = kProb;
  int64_t every = 0;
};

}  // namespace snapkv

extern const StageEntry stage_keep_snapkv;

}  // namespace se
