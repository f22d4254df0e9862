// Plan texts, on a model of two kinds of layers; what parses must print itself, and be priced.
#include "sparse/plan.h"

#include <cstdlib>

#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const se::ModelKv kModel = [] {
    se::ModelKv m;
    se::LayerKv layer;
    layer.q_heads = 4, layer.kv_heads = 2, layer.k_dim = layer.v_dim = 64, layer.scale = 0.125f;
    m.layers.assign(4, layer);
    return m;
  }();
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto plan = se::parse_plan(text, kModel);
  if (!plan.ok()) {
    se::check_message(plan.status().message());
    return 0;
  }
  const auto again = se::parse_plan((*plan)->text, kModel);
  if (!again.ok() || (*again)->text != (*plan)->text) abort();
  se::SeqView view;
  view.prompt = 1000, view.max_new = 20;
  (void)(*plan)->cost(view);
  return 0;
}
