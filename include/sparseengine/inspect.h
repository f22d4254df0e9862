// sparseengine/inspect.h -- what a model file holds and what it would take to run it, without running it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "sparseengine/status.h"

namespace se {

struct InspectModelOptions {
  std::string model;               // a GGUF file or a Hugging Face folder
  std::vector<int64_t> contexts;   // tokens to price; empty: 4096 and what the model was trained for
  std::vector<std::string> plans;  // empty: dense
  bool tensors = false;            // list every tensor
  bool json = false;               // one JSON object instead of text for people
};

// Architecture, shapes, types, tokenizer, memory of weights and of KV under each plan (as the engine's
// admission prices it). Weights are checked for shape and type, not read. What the tokenizer lacks is told,
// not an error. Errors as load_checkpoint and parse_plan; a context below 1 or over the trained one.
Result<std::string> inspect_model(const InspectModelOptions& options);

}  // namespace se
