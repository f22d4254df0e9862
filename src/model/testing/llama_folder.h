// model/testing/llama_folder.h -- the tiny Llama of tiny_llama.h as a Hugging Face folder: the same weights
// under the names and in the order that safetensors has them.
#pragma once
#include "model/testing/safetensors_writer.h"
#include "model/testing/tiny_llama.h"

namespace se {

// The tensors; rows of q and k are un-permuted. Options must ask for F32, no rope_divisors.
SafetensorsWriter llama_safetensors(const TinyLlamaOptions& options, const std::string& prefix = "model.");
std::string llama_config(const TinyLlamaOptions& options);  // config.json

}  // namespace se
