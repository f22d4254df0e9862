#include "model/hf/hf_tensors.h"

#include <algorithm>
#include <cstring>

#include "base/fmt.h"
#include "base/quoted.h"
#include "model/hf/hf_names.h"

namespace se {
namespace {

constexpr std::string_view kScaleSuffix = "_scale_inv";  // of WEIGHT_scale_inv; the scale multiplies
constexpr int64_t kScaleBlock = 128;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Status HfTensors::add(const Safetensors& shard) {
  for (const SafeTensor& t : shard.tensors()) {
    const StoredTensor stored{t.name, &shard.file(), t.offset, t.bytes, shard.view(t), {}};
    if (!seen_.insert(t.name).second) return stored.bad("is in another shard, too: expected once");
    SE_TRY(add_tensor(stored));
  }
  return ok();
}

Status HfTensors::add_tensor(const StoredTensor& stored) {
  const std::string_view name = stored.name;
  if (name.ends_with(kScaleSuffix)) {
    scales_.emplace(name.substr(0, name.size() - kScaleSuffix.size()), stored);
    return ok();
  }
  const HfName to = translate(name, config_);
  if (to.ignored) return ok();
  const TensorView& view = stored.view;
  if (to.gate_up) {
    if (view.rank != 3 || view.shape[1] % 2 != 0)
      return stored.bad(format("is {}, expected [experts, 2 width, hidden]", to_string(view)));
    for (const auto& [role, half] :
         {std::pair("ffn_gate_exps.weight", 0), std::pair("ffn_up_exps.weight", 1)}) {
      const int64_t rows = view.shape[1] / 2;
      index_[to.name + role] = tensors_.size();
      tensors_.push_back(split_experts(to.name + role, stored, half * rows, (half + 1) * rows));
    }
    return ok();
  }
  if (view.rank == 3 && to.name.ends_with("_exps.weight")) {
    index_[to.name] = tensors_.size();
    tensors_.push_back(split_experts(to.name, stored, 0, view.shape[1]));
    return ok();
  }
  return add_part(to.name, to.expert, to.minus_one, stored);
}

Status HfTensors::add_part(const std::string& name,
                           int64_t expert,
                           bool minus_one,
                           const StoredTensor& stored) {
  const auto [it, is_new] = index_.emplace(name, tensors_.size());
  if (is_new) tensors_.push_back({name, {}, expert >= 0, minus_one});
  ModelTensor& tensor = tensors_[it->second];
  if (!is_new && (expert < 0 || !tensor.stacked))
    return stored.bad(format("is {}, and so is {}: expected one of them",
                             se::quoted(name),
                             se::quoted(tensor.parts.empty() ? "" : tensor.parts.front().name)));
  const size_t at = size_t(std::max<int64_t>(expert, 0));
  if (expert >= config_.moe.experts)
    return stored.bad(
        format("is of expert {}, expected fewer than the {} of config.json", expert, config_.moe.experts));
  if (tensor.parts.size() <= at) tensor.parts.resize(at + 1);
  tensor.parts[at] = stored;
  return ok();
}

Status HfTensors::join_scales(StoredTensor& stored) {
  const auto it = scales_.find(stored.name);
  if (it == scales_.end()) {
    if (stored.view.dtype != DType::kF8E4M3) return ok();
    return stored.bad("is f8e4m3, expected a tensor of scales with the name of it and " +
                      std::string(kScaleSuffix));
  }
  const StoredTensor& scales = it->second;
  const TensorView& s = scales.view;
  if (stored.view.dtype != DType::kF8E4M3 || stored.view.rank != 2)
    return stored.bad(format("is {}, but has scales: expected f8e4m3 [out, in]", to_string(stored.view)));
  const int64_t rows = ceil_div(stored.view.shape[0], kScaleBlock),
                columns = ceil_div(stored.view.shape[1], kScaleBlock);
  if ((s.dtype != DType::kF32 && s.dtype != DType::kBF16) || s.rank != 2 || s.shape[0] != rows ||
      s.shape[1] != columns)
    return scales.bad(format("is {}, expected f32 or bf16 [{}, {}]", to_string(s), rows, columns));
  stored.scales = s;
  scales_.erase(it);
  return ok();
}

// A tied head may be stored a second time, but only as what it is tied to.
Status HfTensors::check_head() {
  const auto head = index_.find("output.weight"), embedding = index_.find("token_embd.weight");
  if (!config_.tied.value_or(false) || head == index_.end() || embedding == index_.end()) return ok();
  const StoredTensor& h = tensors_[head->second].parts.front();
  const StoredTensor& e = tensors_[embedding->second].parts.front();
  if (h.view.dtype != e.view.dtype || h.bytes != e.bytes ||
      std::memcmp(h.view.data, e.view.data, size_t(h.bytes)) != 0)
    return h.bad("differs from the embedding, expected the same: config.json says tie_word_embeddings");
  tensors_.erase(tensors_.begin() + int64_t(head->second));
  return ok();
}

Result<std::vector<ModelTensor>> HfTensors::take() {
  for (ModelTensor& tensor : tensors_) {
    for (size_t i = 0; i < tensor.parts.size(); ++i) {
      StoredTensor& part = tensor.parts[i];
      if (part.file == nullptr) {  // the last part is never empty
        return tensor.parts.back().bad(
            format("is there, but expert {} of {} is missing", i, se::quoted(tensor.name)));
      }
      SE_TRY(join_scales(part));
    }
  }
  if (!scales_.empty()) return scales_.begin()->second.bad("has scales for a weight that is missing");
  SE_TRY(check_head());
  return std::move(tensors_);
}

}  // namespace se
