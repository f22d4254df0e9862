#include "model/hf/hf_rope.h"

#include "base/fmt.h"
#include "base/quoted.h"
#include "model/gguf.h"

namespace se {
namespace {

constexpr int64_t kMaxContext = int64_t(1) << 40;

Status read_optional(
    const JsonObject& o, const char* key, double min, double max, std::optional<double>& out) {
  if (!o.has(key)) return ok();
  SE_ASSIGN(out, o.number(key, min, max));
  return ok();
}

// The kind is in `rope_type`, or in `type` of older files.
Result<std::string> kind_of(const JsonObject& scaling) {
  SE_ASSIGN(const std::string legacy, scaling.string("type", "default"));
  return scaling.string("rope_type", legacy);
}

Status read_yarn(const JsonObject& scaling, RopeConfig& r) {
  r.scaling = RopeScaling::kYarn;
  SE_ASSIGN(r.beta_fast, scaling.number("beta_fast", 0, 1e9, r.beta_fast));
  SE_ASSIGN(r.beta_slow, scaling.number("beta_slow", 0, 1e9, r.beta_slow));
  SE_TRY(read_optional(scaling, "attention_factor", 0, 1e9, r.attention_factor));
  SE_TRY(read_optional(scaling, "mscale", 0, 1e9, r.mscale));
  SE_TRY(read_optional(scaling, "mscale_all_dim", 0, 1e9, r.mscale_all_dim));
  SE_ASSIGN(r.truncate, scaling.boolean("truncate", true));
  return ok();
}

Status read_scaling(const JsonObject& scaling, int64_t context, RopeConfig& r) {
  SE_ASSIGN(const std::string kind, kind_of(scaling));
  // "mrope" of multimodal models is the default rotation for text.
  if (kind == "default" || kind == "mrope") return ok();
  if (kind != "linear" && kind != "llama3" && kind != "yarn") {
    return unsupported(
        scaling.bad("rope_type", format("is {}, expected default, linear, llama3 or yarn", se::quoted(kind)))
            .message());
  }
  SE_ASSIGN(r.factor, scaling.number("factor", 1e-9, 1e9));
  SE_ASSIGN(r.original_context, scaling.integer("original_max_position_embeddings", 1, kMaxContext, context));
  if (kind == "linear") r.scaling = RopeScaling::kLinear;
  if (kind == "yarn") return read_yarn(scaling, r);
  if (kind == "llama3") {
    r.scaling = RopeScaling::kLlama3;
    SE_ASSIGN(r.low_freq_factor, scaling.number("low_freq_factor", 1e-9, 1e9));
    SE_ASSIGN(r.high_freq_factor, scaling.number("high_freq_factor", 1e-9, 1e9));
  }
  return ok();
}

// Channels that rotate: rotary_dim, or a share of a head's.
Status read_dim(const JsonObject& config, const JsonObject* scaling, HyperParameters& h, RopeConfig& r) {
  const int head = h.mla.kv_rank > 0 ? h.mla.rope_dim : h.head_dim;
  SE_ASSIGN(double share, config.number("partial_rotary_factor", 0, 1, 1.0));
  if (scaling != nullptr) {
    SE_ASSIGN(share, scaling->number("partial_rotary_factor", 0, 1, share));
  }
  SE_ASSIGN(const int64_t dim, config.integer("rotary_dim", 2, head, int64_t(head * share)));
  if (dim < 2 || dim % 2 != 0)
    return config.bad("head_dim", format("gives {} rotated channels, expected an even number of them", dim));
  r.dim = int(dim);
  return ok();
}

// One kind of layer: `scaling` holds its kind and perhaps its theta.
Status read_one(const JsonObject& config, const JsonObject* scaling, HyperParameters& h, RopeConfig& r) {
  SE_TRY(read_dim(config, scaling, h, r));
  SE_TRY(read_optional(config, "rope_theta", 1, 1e12, r.theta));
  if (scaling == nullptr) return ok();
  SE_TRY(read_optional(*scaling, "rope_theta", 1, 1e12, r.theta));
  return read_scaling(*scaling, h.context, r);
}

}  // namespace

Status read_hf_rope(const JsonObject& config, HyperParameters& h) {
  h.rope.interleaved = false;
  if (h.mla.kv_rank > 0) {
    SE_ASSIGN(h.rope.interleaved, config.boolean("rope_interleave", true));
  }
  h.rope_local.interleaved = h.rope.interleaved;
  const char* key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!config.has(key)) {
    SE_TRY(read_one(config, nullptr, h, h.rope));
  } else {
    SE_ASSIGN(const JsonObject scaling, config.object(key));
    if (scaling.is_object("full_attention")) {
      SE_ASSIGN(const JsonObject full, scaling.object("full_attention"));
      SE_TRY(read_one(config, &full, h, h.rope));
      h.rope_local = h.rope;
      if (!scaling.has("sliding_attention")) return ok();
      SE_ASSIGN(const JsonObject local, scaling.object("sliding_attention"));
      h.rope_local = RopeConfig();
      h.rope_local.interleaved = h.rope.interleaved;
      return read_one(config, &local, h, h.rope_local);
    }
    SE_TRY(read_one(config, &scaling, h, h.rope));
  }
  h.rope_local = h.rope;
  if (h.architecture != "gemma3") return ok();
  h.rope_local.scaling = RopeScaling::kNone, h.rope_local.factor = 1;
  SE_ASSIGN(h.rope_local.theta, config.number("rope_local_base_freq", 1, 1e12, 1e4));
  return ok();
}

}  // namespace se
