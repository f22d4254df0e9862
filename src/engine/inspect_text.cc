// The facts of `inspect model` for people.
#include <algorithm>

#include "base/quoted.h"
#include "device/cpu/isa.h"
#include "engine/inspect_facts.h"

namespace se {
namespace {

std::string size(double bytes) {
  const char* unit = "B";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (bytes < 1024) break;
    bytes /= 1024, unit = next;
  }
  return *unit == 'B' ? format("{:.0f} B", bytes) : format("{:.2f} {}", bytes, unit);
}

std::string line(const char* name, const std::string& text) { return format("{:<12} {}\n", name, text); }

std::string layers_line(const HyperParameters& h) {
  const auto windowed = std::count(h.kinds.begin(), h.kinds.end(), LayerKind::kWindow);
  std::string text = format("{}", h.layers);
  if (windowed > 0)
    text += format(
        ": {} with full attention, {} with a window of {} tokens", h.layers - windowed, windowed, h.window);
  return line("layers", text);
}

std::string attention_line(const HyperParameters& h) {
  if (h.mla.kv_rank > 0) {
    return line("attention",
                format("{} query heads of {} + {} (rotated) over a latent of {} + {}, values of {}",
                       h.q_heads,
                       h.mla.nope_dim,
                       h.mla.rope_dim,
                       h.mla.kv_rank,
                       h.mla.rope_dim,
                       h.mla.v_dim));
  }
  return line("attention",
              format("{} query heads, {} KV heads, {} wide, {} channels rotated",
                     h.q_heads,
                     h.kv_heads,
                     h.head_dim,
                     h.rope.dim));
}

std::string moe_line(const MoeConfig& m) {
  if (m.experts == 0) return "";
  const auto sparse = std::count(m.sparse.begin(), m.sparse.end(), true);
  std::string text = format("{} of {} used, {} wide, in {} layers", m.used, m.experts, m.ffn, sparse);
  if (m.shared_ffn > 0) text += format("; shared: {} wide", m.shared_ffn);
  return line("experts", text);
}

std::string model_lines(const ModelFacts& f) {
  const HyperParameters& h = f.loaded.file.config();
  const ModelShape& s = f.loaded.model->shape();
  const Gguf* gguf = f.loaded.file.gguf();
  const std::string container = gguf != nullptr
                                    ? format("GGUF {}", gguf->version())
                                    : format("folder, {} safetensors", f.loaded.file.files().size());
  std::string out =
      line("file", format("{} ({}, {})", f.loaded.file.path(), container, size(double(f.file_bytes))));
  out += line("model",
              format("{}{}{}, {:.1f} M parameters",
                     s.name,
                     s.name.empty() ? "" : ", ",
                     s.architecture,
                     double(s.parameters) / 1e6));
  out += line("types", s.weight_types);
  out += layers_line(h) + attention_line(h);
  out += line("widths", format("hidden {}, MLP {}", s.hidden, h.ffn));
  out += moe_line(h.moe);
  out += line("vocabulary",
              format("{} rows, head {}", s.vocab, s.tied ? "tied to the embedding" : "of its own"));
  return out + line("context", format("{} tokens, as trained", s.context));
}

std::string text_lines(const ModelFacts& f) {
  if (!f.text_error.empty() && f.text.vocab.tokens.empty()) return line("tokenizer", f.text_error);
  const text::VocabSpec& v = f.text.vocab;
  std::string out = line("tokenizer",
                         format("{}, pre-tokenizer {}, {} tokens, {} merges{}",
                                v.model,
                                v.pre,
                                v.tokens.size(),
                                v.merges.size(),
                                f.text_error.empty() ? "" : "; cannot be used: " + f.text_error));
  const auto name = [&](int32_t id) { return format("{} {}", id, quoted(v.tokens[size_t(id)])); };
  std::string ends;
  for (const int32_t id : f.text.end_ids) {
    if (id >= 0 && size_t(id) < v.tokens.size()) ends += (ends.empty() ? "" : ", ") + name(id);
  }
  if (v.bos >= 0) out += line("begins with", name(v.bos) + (v.add_bos ? "" : " (not added)"));
  out += line("ends with", ends.empty() ? "nothing named" : ends);
  const auto bytes = f.text.chat_template.size();
  return out + line("template", bytes > 0 ? format("{} bytes", bytes) : std::string("none"));
}

std::string memory_lines(const ModelFacts& f) {
  const int64_t owned = f.loaded.file.owned_bytes();
  std::string weights = size(double(f.loaded.model->shape().weight_bytes));
  const int64_t packed = f.loaded.file.packed_bytes();
  if (packed > 0)
    weights += format(", {} in memory packed for {}", size(double(packed)), cpu::to_string(cpu::isa()));
  weights += packed > 0 ? ", the rest used where it lies in the file" : ", used where they lie in the file";
  if (owned > 0) weights += format(", and {} in memory in another form", size(double(owned)));
  std::string kv = format("{} a token as {}", size(double(f.full_token_bytes)), to_string(f.kv.dtype));
  if (f.window_token_bytes > 0)
    kv += format(", and {} a token within the windows", size(double(f.window_token_bytes)));
  std::string out = "\n" + line("weights", weights) + line("KV", kv) + "\n";
  out += format("{:>10}  {:>12}  {:>12}  {:>12}  {:>10}  {}\n",
                "context",
                "resident",
                "peak",
                "read a step",
                "tokens",
                "plan");
  for (const PricedPlan& p : f.prices) {
    for (const PricedContext& c : p.contexts) {
      out += format("{:>10}  {:>12}  {:>12}  {:>12}  {:>10.0f}  {}\n",
                    c.tokens,
                    size(double(c.cost.resident_bytes)),
                    size(double(c.cost.peak_bytes)),
                    size(double(c.cost.read_bytes)),
                    c.cost.resident_tokens,
                    p.plan);
    }
  }
  return out;
}

std::string tensor_lines(const ModelFile& file) {
  std::string out =
      format("\n{:<8} {:>14} {:>14}  {:<24} {}\n", "type", "bytes", "at byte", "shape", "tensor");
  for (const ModelTensor& t : file.tensors()) {
    const StoredTensor& first = t.parts.front();
    int64_t bytes = 0;
    for (const StoredTensor& part : t.parts) bytes += part.bytes;
    std::string shape = to_string(first.view);
    shape = shape.substr(shape.find('['));
    if (t.stacked) shape = format("{} x {}", t.parts.size(), shape);
    out += format(
        "{:<8} {:>14} {:>14}  {:<24} {}\n", to_string(first.view.dtype), bytes, first.offset, shape, t.name);
  }
  return out;
}

}  // namespace

std::string facts_as_text(const ModelFacts& f, bool tensors) {
  return model_lines(f) + text_lines(f) + memory_lines(f) + (tensors ? tensor_lines(f.loaded.file) : "");
}

}  // namespace se
