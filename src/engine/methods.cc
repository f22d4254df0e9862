// The stages of this build for people (table) and programs (JSON), and which of them compose.
#include <nlohmann/json.hpp>

#include "sparse/plan.h"
#include "sparseengine/engine.h"

namespace se {
namespace {

// Two layers of a common shape: enough to ask whether two stages compose.
ModelKv probe_model() {
  ModelKv m;
  LayerKv l;
  l.q_heads = 4, l.kv_heads = 2, l.k_dim = l.v_dim = 64, l.scale = 0.125f;
  m.layers.assign(4, l);
  return m;
}

std::string fields_text(const StageEntry& entry) {
  const auto stage = entry.make();
  std::string s;
  for (const FieldInfo& f : describe_fields(*stage)) s += (s.empty() ? "" : ", ") + f.name + "=" + f.value;
  return s;
}

std::string as_json(bool matrix) {
  std::string out;
  for (const StageEntry* e : stage_entries()) {
    nlohmann::ordered_json o{
        {"axis", to_string(e->axis)}, {"stage", e->name}, {"summary", e->summary}, {"source", e->source}};
    const auto stage = e->make();
    for (const FieldInfo& f : describe_fields(*stage))
      o["fields"].push_back({{"name", f.name}, {"default", f.value}, {"help", f.help}});
    if (matrix) {
      const ModelKv model = probe_model();
      for (const StageEntry* other : stage_entries()) {
        if (other == e) continue;
        const auto plan = parse_plan(std::string(e->name) + "+" + other->name, model);
        o["with"][other->name] = plan.ok() ? "ok" : plan.status().message();
      }
    }
    out += o.dump() + "\n";
  }
  return out;
}

}  // namespace

std::string methods_table(bool matrix, bool json) {
  if (json) return as_json(matrix);
  std::string out;
  if (!matrix) {
    out += format("{:<8} {:<14} {:<52} {}\n", "axis", "stage", "what it does", "source");
    for (const StageEntry* e : stage_entries()) {
      out += format("{:<8} {:<14} {:<52} {}\n", to_string(e->axis), e->name, e->summary, e->source);
      if (const std::string f = fields_text(*e); !f.empty()) out += format("{:<8} {:<14} {}\n", "", "", f);
    }
    out +=
        "\nstages act on the layers with full attention, those of the axis store on layers with windows "
        "too;\n";
    out += "how many there are: sparse-engine inspect model FILE\n";
    return out;
  }
  const ModelKv model = probe_model();
  const auto entries = stage_entries();
  out += format("{:<14}", "");
  for (const StageEntry* e : entries) out += format(" {:>12}", e->name);
  out += "\n";
  std::string refusals;
  for (const StageEntry* a : entries) {
    out += format("{:<14}", a->name);
    for (const StageEntry* b : entries) {
      if (a == b) {
        out += format(" {:>12}", ".");
        continue;
      }
      const auto plan = parse_plan(std::string(a->name) + "+" + b->name, model);
      out += format(" {:>12}", plan.ok() ? "yes" : "no");
      if (!plan.ok() && a < b) refusals += format("{} + {}: {}\n", a->name, b->name, plan.status().message());
    }
    out += "\n";
  }
  return out + (refusals.empty() ? "" : "\n" + refusals);
}

}  // namespace se
