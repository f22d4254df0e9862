#include "sparse/compose.h"

#include <bit>

#include "base/fmt.h"
#include "base/hash.h"
#include "sparse/field_visitors.h"

namespace se {
namespace {

// Of what stages write: rises with every change of the same plan's bytes.
constexpr int64_t kStateVersion = 2;

const char* name_of(LayerKind kind) {
  switch (kind) {
    case LayerKind::kFull:
      return "full";
    case LayerKind::kWindow:
      return "sliding-window";
    case LayerKind::kShared:
      return "shared-KV";
    case LayerKind::kRecurrent:
      return "recurrent";
  }
  return "?";
}

// What a stage must get right by itself: a bug if it does not.
void check_specs(const Plan& plan, std::span<const std::string> names) {
  const CodecSpec& c = plan.store_spec;
  SE_CHECK(c.grain >= 1 && std::has_single_bit(unsigned(c.grain)), "{}: grain {}", names[1], c.grain);
  SE_CHECK(c.tail == 0 || c.tail == c.residual + c.grain,
           "{}: tail {}, residual {}, grain {}",
           names[1],
           c.tail,
           c.residual,
           c.grain);
  SE_CHECK(!plan.read || plan.read_spec.source.size() == plan.model.layers.size(),
           "{}: {} sources for {} layers",
           names.back(),
           plan.read_spec.source.size(),
           plan.model.layers.size());
  SE_CHECK(!plan.prefill || plan.prefill_spec.narrows.size() == plan.model.layers.size(),
           "{}: {} flags for {} layers",
           names[3],
           plan.prefill_spec.narrows.size(),
           plan.model.layers.size());
}

void add_model(Fingerprint& f, const ModelKv& model) {
  f.add(to_string(model.dtype)).add(int64_t(model.ranks)).add(int64_t(model.layers.size()));
  for (const LayerKv& l : model.layers) {
    f.add(int64_t(l.kind))
        .add(int64_t(l.q_heads))
        .add(int64_t(l.kv_heads))
        .add(int64_t(l.k_dim))
        .add(int64_t(l.v_dim));
    if (l.latent()) f.add(int64_t(l.q_dim())).add(int64_t(l.out_dim()));
    f.add(int64_t(std::bit_cast<uint32_t>(l.scale))).add(int64_t(l.window)).add(int64_t(l.donor));
  }
}

// One latent head, its value in front, expansions that fit.
Status check_latent(const LayerKv& l, size_t number) {
  const auto fits = [&](const TensorView& w) {
    const bool type = w.dtype == DType::kF32 || w.dtype == DType::kF16 || w.dtype == DType::kBF16;
    return type && w.rank == 3 && w.shape[0] == l.q_heads && w.shape[1] > 0 && w.shape[2] == l.v_dim &&
           w.stride[2] == block_bytes(w.dtype);
  };
  if (l.kind != LayerKind::kFull || l.kv_heads != 1 || l.v_dim >= l.k_dim || l.v_dim % 8 != 0) {
    return unsupported(format(
        "layer {} is latent with {} attention, {} KV heads of {} and {} channels: wanted full attention and "
        "one head, the value being the first channels of the key, a multiple of 8",
        number,
        name_of(l.kind),
        l.kv_heads,
        l.k_dim,
        l.v_dim));
  }
  if (!fits(l.w_uk) || !fits(l.w_uv)) {
    return invalid(format("layer {}: w_uk {} and w_uv {}, wanted f32, f16 or bf16 [{}, rows, {}]",
                          number,
                          to_string(l.w_uk),
                          to_string(l.w_uv),
                          l.q_heads,
                          l.v_dim));
  }
  if (!l.qk.q_norm.empty() || !l.qk.k_norm.empty() ||
      (!l.qk.rope.empty() && 2 * l.qk.rope.numel() > l.k_dim - l.v_dim)) {
    return invalid(format("layer {}: a latent head has no norms of q and k, and RoPE for {} channels at most",
                          number,
                          l.k_dim - l.v_dim));
  }
  return ok();
}

}  // namespace

Status check_model(const ModelKv& model) {
  if (model.layers.empty()) return invalid("a model without attention layers");
  const LayerKv& first = model.layers[0];
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const LayerKv& l = model.layers[i];
    if (!l.stores()) {
      return unsupported(
          format("layer {} has {} attention, this version's plans need full or sliding-window attention in "
                 "all layers",
                 i,
                 name_of(l.kind)));
    }
    if (l.kind == LayerKind::kWindow && l.window < 1)
      return invalid(format("layer {} has a window of {} keys, wanted 1 or more", i, l.window));
    if (l.latent() || !l.w_uv.empty()) SE_TRY(check_latent(l, i));
    if (l.latent() != first.latent() || l.q_dim() != first.q_dim() || l.out_dim() != first.out_dim())
      return unsupported(
          format("layer {} has query heads of {} and outputs of {} channels, layer 0 {} and {}: this "
                 "version's plans "
                 "need layers of one shape",
                 i,
                 l.q_dim(),
                 l.out_dim(),
                 first.q_dim(),
                 first.out_dim()));
    if (l.q_heads != first.q_heads || l.kv_heads != first.kv_heads || l.k_dim != first.k_dim ||
        l.v_dim != first.v_dim) {
      return unsupported(format(
          "layer {} has {} query and {} KV heads of {} and {} channels, layer 0 has {}, {}, {} and {}: "
          "this version's plans need layers of one shape",
          i,
          l.q_heads,
          l.kv_heads,
          l.k_dim,
          l.v_dim,
          first.q_heads,
          first.kv_heads,
          first.k_dim,
          first.v_dim));
    }
  }
  return ok();
}

Status check_composition(const Plan& plan, std::span<const std::string> names) {
  check_specs(plan, names);
  // The narrowed past and the present must be one part. A keeper's prompt is staged in plain pages: it is.
  if (plan.prefill && plan.store_spec.tail > 0 && plan.keep.empty()) {
    return unsupported(
        format("{} takes a prompt's past and present as one row of blocks, but {} holds the newest tokens "
               "apart from the encoded ones: wanted a store without a ring (dtype, fp8), or a keeper, whose "
               "prompts lie in plain pages until the pick",
               names[size_t(plan.owner(*plan.prefill))],
               names[1]));
  }
  for (size_t k = 0; k < plan.keep.size(); ++k) {
    const KeeperSpec& spec = plan.keep_specs[k];
    const std::string& keeper = names[size_t(plan.owner(*plan.keep[k]))];
    for (const ScoreSpec& s : spec.scores) {
      if (s.per_kv_head && plan.model.layers[0].latent()) {
        return unsupported(
            format("{} keeps other tokens in each KV head, but this model's latent layers have one key for "
                   "all heads",
                   keeper));
      }
    }
    if (spec.scope == KeepScope::kAllLayers && !spec.scores.empty()) {
      return unsupported(format(
          "{} ranks with the scores of all layers at once, but keepers see the prompt layer by layer in "
          "this version: wanted a set per layer, or no scores",
          keeper));
    }
    if (!plan.read || spec.scope != KeepScope::kLayer) continue;
    for (size_t l = 0; l < plan.read_spec.source.size(); ++l) {
      const int source = plan.read_spec.source[l];
      if (source < 0 || source == int(l)) continue;
      return invalid(format(
          "{} keeps other tokens in each layer, but {} reuses in layer {} what it selected in layer {}: the "
          "same "
          "places hold different tokens there; wanted a keeper with one set for all layers (streamingllm)",
          keeper,
          names[size_t(plan.owner(*plan.read))],
          l,
          source));
    }
  }
  return ok();
}

void add_fingerprints(Plan& plan, std::span<const std::string> names) {
  Fingerprint state;
  state.add(kStateVersion);
  add_model(state, plan.model);
  state.add(plan.page).add(plan.chunk).add(int64_t(plan.staging));
  const auto add = [&](Fingerprint& f, Stage& stage, Affects what) {
    f.add(names[size_t(plan.owner(stage))]);
    add_fields(f, stage, what);
  };
  if (plan.prefill) add(state, *plan.prefill, Affects::kState);
  for (const auto& keeper : plan.keep) add(state, *keeper, Affects::kState);
  add(state, *plan.store, Affects::kState);
  plan.state_id = state.value();

  Fingerprint read = state;
  if (plan.prefill) add(read, *plan.prefill, Affects::kReads);
  for (const auto& keeper : plan.keep) add(read, *keeper, Affects::kReads);
  add(read, *plan.store, Affects::kReads);
  if (plan.read) add(read, *plan.read, Affects::kReads);
  plan.read_id = read.value();
}

}  // namespace se
