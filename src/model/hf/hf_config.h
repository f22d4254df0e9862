// model/hf/hf_config.h -- config.json of a Hugging Face folder, normalised (spec/models.md 3).
#pragma once
#include "base/status.h"
#include "model/hf/json_file.h"
#include "model/hyper_parameters.h"

namespace se {

// As GGUF spells a model_type: "qwen3_moe" -> "qwen3moe". One that is not known comes back as it is.
std::string architecture_of(const std::string& model_type);

// What is inside: text_config of a multimodal checkpoint, else the file itself.
Result<JsonObject> language_config(const JsonObject& file);

// `file` is the whole config.json, `inner` its language_config. Errors name the key.
Result<HyperParameters> read_hf_config(const JsonObject& file, const JsonObject& inner);

}  // namespace se
