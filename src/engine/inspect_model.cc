#include <algorithm>

#include "engine/inspect_facts.h"
#include "sparseengine/inspect.h"
#include "text/tokenizer.h"

namespace se {
namespace {

// The tokenizer is one of the facts: what is wrong with it is told where its facts would stand.
void read_text(ModelFacts& facts) {
  auto text = read_checkpoint_text(facts.loaded.file);
  if (!text.ok()) {
    facts.text_error = text.status().message();
    return;
  }
  facts.text = text.take();
  const auto tokenizer = text::Tokenizer::create(facts.text.vocab);
  if (!tokenizer.ok()) facts.text_error = tokenizer.status().message();
}

void count_token_bytes(ModelFacts& facts) {
  for (const LayerKv& l : facts.kv.layers) {
    if (!l.stores()) continue;
    const int64_t values = int64_t(l.kv_heads) * (l.latent() ? l.k_dim : l.k_dim + l.v_dim);
    (l.kind == LayerKind::kWindow ? facts.window_token_bytes : facts.full_token_bytes) +=
        bytes_of(facts.kv.dtype, values);
  }
}

Result<std::vector<int64_t>> contexts_of(const InspectModelOptions& options, int64_t trained) {
  std::vector<int64_t> contexts = options.contexts;
  if (contexts.empty()) {
    contexts = {std::min<int64_t>(4096, trained)};
    if (trained > 4096) contexts.push_back(trained);
  }
  for (const int64_t c : contexts) {
    if (c < 1 || c > trained)
      return invalid(format("context {}: expected 1 to {}, which the model was trained for", c, trained));
  }
  return contexts;
}

Status price(const InspectModelOptions& options, ModelFacts& facts) {
  SE_ASSIGN(const std::vector<int64_t> contexts, contexts_of(options, facts.loaded.model->shape().context));
  std::vector<std::string> plans = options.plans;
  if (plans.empty()) plans.push_back("dense");
  for (const std::string& text : plans) {
    SE_ASSIGN(const std::shared_ptr<const Plan> plan, parse_plan(text, facts.kv));
    PricedPlan priced{plan->text, {}};
    for (const int64_t tokens : contexts) {
      SeqView view;  // a prompt that fills the context but for one decode step
      view.prompt = std::max<int64_t>(tokens - 2, 1), view.max_new = 2;
      priced.contexts.push_back({tokens, plan->cost(view)});
    }
    facts.prices.push_back(std::move(priced));
  }
  return ok();
}

}  // namespace

Result<std::string> inspect_model(const InspectModelOptions& options) {
  ModelFacts facts;
  SE_ASSIGN(facts.loaded, load_model(options.model, LoadFor::kLook));
  for (const MappedFile* f : facts.loaded.file.files()) facts.file_bytes += f->bytes();
  facts.kv = facts.loaded.model->kv(Compute::kDefault);
  read_text(facts);
  count_token_bytes(facts);
  SE_TRY(price(options, facts));
  SE_TRY(facts.loaded.file.check());
  return options.json ? facts_as_json(facts, options.tensors) : facts_as_text(facts, options.tensors);
}

}  // namespace se
