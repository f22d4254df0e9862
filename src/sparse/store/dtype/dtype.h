// store/dtype/dtype.h -- K and V as they are, in one float type per element.
#pragma once
#include "sparse/contract.h"

namespace se {

namespace dtype {
enum Type : int { kAuto, kF32, kF16, kBF16 };  // auto: the model's KV dtype
struct Config {
  int type = kAuto;
};
}  // namespace dtype

extern const StageEntry stage_store_dtype;

}  // namespace se
