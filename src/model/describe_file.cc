// What every family tells of its file.
#include <algorithm>
#include <map>
#include <vector>

#include "base/fmt.h"
#include "model/family.h"

namespace se {

ModelShape describe_file(const Gguf& file) {
  ModelShape shape;
  if (auto architecture = file.string("general.architecture"); architecture.ok())
    shape.architecture = *architecture;
  if (auto name = file.string("general.name", ""); name.ok()) shape.name = *name;
  struct Share {
    int64_t tensors = 0, bytes = 0;
  };
  std::map<DType, Share> shares;
  for (const GgufTensor& t : file.tensors()) {
    shape.weight_bytes += t.bytes;
    shape.parameters += t.numel();
    shares[t.dtype].tensors += 1;
    shares[t.dtype].bytes += t.bytes;
  }
  std::vector<std::pair<DType, Share>> order(shares.begin(), shares.end());
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.second.bytes > b.second.bytes;
  });
  for (const auto& [dtype, share] : order) {
    shape.weight_types +=
        format("{}{} ({})", shape.weight_types.empty() ? "" : ", ", to_string(dtype), share.tensors);
  }
  return shape;
}

}  // namespace se
