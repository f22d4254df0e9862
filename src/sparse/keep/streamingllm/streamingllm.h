// keep/streamingllm/streamingllm.h -- Xiao et al. 2024: the first tokens and the newest ones stay.
#pragma once
#include "sparse/contract.h"

namespace se {
namespace streamingllm {

struct Config {
  TokenBudget budget{4096, 0};
  int64_t sink = 64;
  double factor = 2;
};

}  // namespace streamingllm

extern const StageEntry stage_keep_streamingllm;

}  // namespace se
