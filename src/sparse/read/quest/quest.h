// read/quest/quest.h -- Tang et al. 2024: read the units whose key bounds promise most.
#pragma once
#include "sparse/contract.h"

namespace se {
namespace quest {

struct Config {
  int64_t budget = 2048, unit = 16, dense_layers = 2;
};

}  // namespace quest

extern const StageEntry stage_read_quest;

}  // namespace se
