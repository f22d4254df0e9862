// What every family tells of its file.
#include <algorithm>
#include <map>
#include <vector>

#include "base/fmt.h"
#include "model/family.h"

namespace se {
namespace {

struct Share {
  int64_t tensors = 0, bytes = 0;
};

// "q4_1 (210), f32 (61)": types by bytes, with the tensors of each.
std::string types_text(const std::map<DType, Share>& shares) {
  std::vector<std::pair<DType, Share>> order(shares.begin(), shares.end());
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.second.bytes > b.second.bytes;
  });
  std::string text;
  for (const auto& [dtype, share] : order)
    text += format("{}{} ({})", text.empty() ? "" : ", ", to_string(dtype), share.tensors);
  return text;
}

}  // namespace

ModelShape describe_file(const ModelFile& file) {
  const HyperParameters& h = file.config();
  ModelShape shape;
  shape.architecture = h.architecture, shape.name = h.name;
  shape.layers = h.layers, shape.hidden = h.hidden, shape.ffn = h.ffn;
  shape.q_heads = h.q_heads, shape.kv_heads = h.kv_heads, shape.head_dim = h.head_dim;
  shape.context = h.context, shape.vocab = h.vocab;
  const ModelTensor* embedding = file.find("token_embd.weight");
  if (shape.vocab == 0 && embedding != nullptr) shape.vocab = embedding->parts.front().view.shape[0];
  std::map<DType, Share> shares;
  for (const ModelTensor& t : file.tensors()) {
    Share& share = shares[t.parts.front().view.dtype];
    share.tensors += 1;
    for (const StoredTensor& part : t.parts) {
      const int64_t bytes = part.bytes + bytes_of(part.scales.dtype, part.scales.numel());
      share.bytes += bytes, shape.weight_bytes += bytes;
      shape.parameters += part.view.numel();
    }
  }
  shape.weight_types = types_text(shares);
  return shape;
}

}  // namespace se
