#include "model/blocks/frame.h"

#include <utility>

#include "base/fmt.h"
#include "kernels/embed/embed.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "model/family.h"

namespace se {
namespace {

// What the projections of the layers are precise to: a float type as it is, F16 for quantised files.
DType kv_dtype(const ModelFile& file) {
  DType dtype = DType::kF32;
  for (const ModelTensor& t : file.tensors()) {
    const TensorView& view = t.parts.front().view;
    if (view.rank < 2 || !t.name.starts_with("blk.")) continue;
    if (block_elements(view.dtype) > 1) return DType::kF16;
    if (view.dtype == DType::kF16 || view.dtype == DType::kBF16) dtype = view.dtype;
    if (view.dtype == DType::kF8E4M3) dtype = DType::kBF16;
  }
  return dtype;
}

}  // namespace

ModelKv Frame::kv(Compute compute) const {
  ModelKv kv;
  kv.layers = layers;
  kv.dtype = compute == Compute::kExact ? DType::kF32 : kv_dtype;
  return kv;
}

void Frame::embed(std::span<const int32_t> ids, const TensorView& x, Stream& stream) const {
  se::embed(ids, embedding, embed_scale, x, stream);
}

void Frame::logits(const TensorView& x, const TensorView& out, const Work& work) const {
  rms_norm(x, norm, shape.norm_eps, x, work.stream);
  linear(x, head, {}, out, work.compute, work.scratch, work.stream);
}

Status refuse_unknown(const ModelFile& file, const Known& known) {
  const HyperParameters& h = file.config();
  if (h.moe.experts > 0 && !known.experts)
    return file.refuse(format("expert_count is {}, expected a dense model", h.moe.experts));
  if (h.moe.experts == 0 && known.experts && !known.latent)
    return file.refuse("expert_count is 0, expected a mixture of experts");
  if ((h.mla.kv_rank > 0) != known.latent)
    return file.refuse(
        format("kv_lora_rank is {}, expected {}", h.mla.kv_rank, known.latent ? "one" : "none"));
  if (h.v_head_dim != h.head_dim && !known.latent)
    return file.refuse(format("value_length is {}, expected the key length {}", h.v_head_dim, h.head_dim));
  if (h.window > 0 && !known.windows)
    return file.refuse(format("sliding_window is {}, expected none", h.window));
  if (!h.activation.empty() && h.activation != known.activation)
    return file.refuse(format("the activation is {}, expected {}", h.activation, known.activation));
  for (const auto& [name, cap] :
       {std::pair("attn", h.attention_softcap), std::pair("final", h.final_softcap)}) {
    if (cap.value_or(0) != 0)
      return file.refuse(format("{}_logit_softcapping is {}, expected none", name, *cap));
  }
  return ok();
}

Result<Frame> read_frame(const ModelFile& file, Weights& tensors, double default_theta) {
  const HyperParameters& h = file.config();
  Frame f;
  f.shape = describe_file(file);
  f.shape.norm_eps = float(h.norm_eps), f.shape.rope_theta = h.rope.theta.value_or(default_theta);
  f.shape.tied = h.tied.value_or(true) && !tensors.has("output.weight");
  SE_ASSIGN(f.embedding, tensors.table("token_embd.weight", f.shape.vocab, f.shape.hidden));
  SE_ASSIGN(f.head,
            tensors.projection(
                f.shape.tied ? "token_embd.weight" : "output.weight", f.shape.vocab, f.shape.hidden));
  SE_ASSIGN(f.norm, tensors.vector("output_norm.weight", f.shape.hidden));
  f.kv_dtype = kv_dtype(file);
  return f;
}

}  // namespace se
