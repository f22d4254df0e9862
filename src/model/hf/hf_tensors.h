// model/hf/hf_tensors.h -- collects the tensors of a folder's shards under GGUF's names: scales join their
// weights, experts join their row. Used by hf_folder.cc only.
#pragma once
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "model/hf/safetensors.h"
#include "model/model_file.h"

namespace se {

class HfTensors {
 public:
  explicit HfTensors(const HyperParameters& config) : config_(config) {}
  // Views keep pointing into the shard, which must keep its address.
  Status add(const Safetensors& shard);
  bool has(const std::string& hf_name) const { return seen_.contains(hf_name); }
  // All tensors in the order of their first part. Call once, after the last shard.
  Result<std::vector<ModelTensor>> take();

 private:
  Status add_tensor(const StoredTensor& stored);
  Status add_part(const std::string& name, int64_t expert, bool minus_one, const StoredTensor& stored);
  Status join_scales(StoredTensor& stored);
  Status check_head();

  const HyperParameters& config_;
  std::set<std::string, std::less<>> seen_;
  std::map<std::string, StoredTensor> scales_;  // by the name of their weight
  std::vector<ModelTensor> tensors_;
  std::map<std::string, size_t> index_;
};

}  // namespace se
