#include "sparse/contract.h"

namespace se {

const char* to_string(Axis axis) {
  switch (axis) {
    case Axis::kPrefill:
      return "prefill";
    case Axis::kKeep:
      return "keep";
    case Axis::kStore:
      return "store";
    case Axis::kRead:
      return "read";
    case Axis::kPlace:
      return "place";
  }
  return "?";
}

}  // namespace se
