// The facts of `inspect model` for programs.
#include <nlohmann/json.hpp>

#include "engine/inspect_facts.h"

namespace se {
namespace {

using nlohmann::ordered_json;

const char* name_of(RopeScaling scaling) {
  constexpr const char* kNames[] = {"none", "linear", "llama3", "yarn"};
  return kNames[size_t(scaling)];
}

ordered_json rope_json(const RopeConfig& r) {
  ordered_json o{{"channels", r.dim}, {"interleaved", r.interleaved}, {"scaling", name_of(r.scaling)}};
  if (r.theta) o["theta"] = *r.theta;
  if (r.scaling != RopeScaling::kNone) o["factor"] = r.factor;
  return o;
}

ordered_json shape_json(const HyperParameters& h, const ModelShape& s) {
  ordered_json kinds = ordered_json::array();
  for (const LayerKind kind : h.kinds) kinds.push_back(kind == LayerKind::kWindow ? "window" : "full");
  ordered_json o{{"layers", h.layers},
                 {"layer_kinds", kinds},
                 {"window", h.window},
                 {"hidden", h.hidden},
                 {"ffn", h.ffn},
                 {"q_heads", h.q_heads},
                 {"kv_heads", h.kv_heads},
                 {"head_dim", h.head_dim},
                 {"v_head_dim", h.v_head_dim},
                 {"vocab", s.vocab},
                 {"context", s.context},
                 {"norm_eps", h.norm_eps},
                 {"tied", s.tied},
                 {"rope", rope_json(h.rope)}};
  if (h.window > 0) o["rope_local"] = rope_json(h.rope_local);
  if (h.mla.kv_rank > 0)
    o["mla"] = {{"q_rank", h.mla.q_rank},
                {"kv_rank", h.mla.kv_rank},
                {"nope_dim", h.mla.nope_dim},
                {"rope_dim", h.mla.rope_dim},
                {"v_dim", h.mla.v_dim}};
  if (h.moe.experts > 0)
    o["moe"] = {{"experts", h.moe.experts},
                {"used", h.moe.used},
                {"ffn", h.moe.ffn},
                {"shared_ffn", h.moe.shared_ffn}};
  return o;
}

ordered_json text_json(const ModelFacts& f) {
  const text::VocabSpec& v = f.text.vocab;
  ordered_json o{{"model", v.model},
                 {"pre", v.pre},
                 {"tokens", v.tokens.size()},
                 {"merges", v.merges.size()},
                 {"bos", v.bos},
                 {"add_bos", v.add_bos},
                 {"end_ids", f.text.end_ids},
                 {"chat_template_bytes", f.text.chat_template.size()}};
  if (!f.text_error.empty()) o["error"] = f.text_error;
  return o;
}

ordered_json prices_json(const ModelFacts& f) {
  ordered_json plans = ordered_json::array();
  for (const PricedPlan& p : f.prices) {
    ordered_json contexts = ordered_json::array();
    for (const PricedContext& c : p.contexts)
      contexts.push_back({{"tokens", c.tokens},
                          {"resident_bytes", c.cost.resident_bytes},
                          {"peak_bytes", c.cost.peak_bytes},
                          {"read_bytes", c.cost.read_bytes},
                          {"resident_tokens", c.cost.resident_tokens},
                          {"read_tokens", c.cost.read_tokens}});
    plans.push_back({{"plan", p.plan}, {"contexts", contexts}});
  }
  return plans;
}

ordered_json tensors_json(const ModelFile& file) {
  ordered_json out = ordered_json::array();
  for (const ModelTensor& t : file.tensors()) {
    const StoredTensor& first = t.parts.front();
    ordered_json shape = ordered_json::array();
    if (t.stacked) shape.push_back(t.parts.size());
    for (int d = 0; d < first.view.rank; ++d) shape.push_back(first.view.shape[size_t(d)]);
    int64_t bytes = 0;
    for (const StoredTensor& part : t.parts) bytes += part.bytes;
    out.push_back({{"name", t.name},
                   {"stored_as", first.name},
                   {"type", to_string(first.view.dtype)},
                   {"shape", shape},
                   {"bytes", bytes},
                   {"file", first.file->path()},
                   {"offset", first.offset}});
  }
  return out;
}

}  // namespace

std::string facts_as_json(const ModelFacts& f, bool tensors) {
  const ModelShape& s = f.loaded.model->shape();
  const Gguf* gguf = f.loaded.file.gguf();
  ordered_json o{{"path", f.loaded.file.path()},
                 {"container", gguf != nullptr ? format("GGUF {}", gguf->version()) : "safetensors"},
                 {"file_bytes", f.file_bytes},
                 {"architecture", s.architecture},
                 {"name", s.name},
                 {"parameters", s.parameters},
                 {"weight_bytes", s.weight_bytes},
                 {"copied_bytes", f.loaded.file.owned_bytes()},
                 {"packed_bytes", f.loaded.file.packed_bytes()},
                 {"weight_types", s.weight_types},
                 {"shape", shape_json(f.loaded.file.config(), s)},
                 {"tokenizer", text_json(f)}};
  o["kv"] = {{"dtype", to_string(f.kv.dtype)},
             {"bytes_per_token", f.full_token_bytes},
             {"window_bytes_per_token", f.window_token_bytes},
             {"plans", prices_json(f)}};
  if (tensors) o["tensors"] = tensors_json(f.loaded.file);
  // Bytes of a file that are no UTF-8 become U+FFFD.
  return o.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace se
