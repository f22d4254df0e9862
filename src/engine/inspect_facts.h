// engine/inspect_facts.h -- the facts that `inspect model` prints as text or JSON. Used by inspect_model.cc
// and inspect_text.cc only.
#pragma once
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "sparse/plan.h"
#include "sparseengine/inspect.h"

namespace se {

struct PricedContext {
  int64_t tokens = 0;
  Cost cost;
};

struct PricedPlan {
  std::string plan;  // canonical
  std::vector<PricedContext> contexts;
};

struct ModelFacts {
  LoadedModel loaded;
  CheckpointText text;
  std::string text_error;  // why the tokenizer cannot be used; empty: it can
  ModelKv kv;              // of the default mode
  int64_t file_bytes = 0;
  int64_t full_token_bytes = 0, window_token_bytes = 0;  // of K/V for a token, over full and windowed layers
  std::vector<PricedPlan> prices;
};

std::string facts_as_text(const ModelFacts& facts, bool tensors);
std::string facts_as_json(const ModelFacts& facts, bool tensors);

}  // namespace se
