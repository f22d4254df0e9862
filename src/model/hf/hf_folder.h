// model/hf/hf_folder.h -- a Hugging Face folder: config.json, generation_config.json, and the tensors of its
// safetensors files under GGUF's names.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/hf/safetensors.h"
#include "model/model_file.h"

namespace se {

struct HfFolder {
  HyperParameters config;
  std::vector<int32_t> end_ids;
  GenerationDefaults defaults;
  std::vector<std::unique_ptr<Safetensors>> shards;
  std::vector<ModelTensor> tensors;  // views into the shards
};

// Weights are in model.safetensors, or in the shards that model.safetensors.index.json names (plain file
// names in the same folder). Errors, one line each, naming the file: what is missing, what the readers of the
// parts refuse, tensors of the index that are not in their shard, block-FP8 tensors without scales or with
// scales of another shape, experts missing from a row.
Result<HfFolder> read_hf_folder(const std::string& path, const ArchitectureCheck& check);

}  // namespace se
