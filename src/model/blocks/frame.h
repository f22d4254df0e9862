// model/blocks/frame.h -- what every decoder has around its layers: embedding, final norm, head, and what the
// KV side is told.
#pragma once
#include <span>
#include <utility>
#include <vector>

#include "model/blocks/work.h"
#include "model/model.h"
#include "model/weights.h"

namespace se {

struct Frame {
  ModelShape shape;
  TensorView embedding;  // [vocab, hidden]
  Weight head;           // [vocab, hidden]; the embedding's tensor when tied
  TensorView norm;       // f32 [hidden]
  float embed_scale = 1;
  std::vector<LayerKv> layers;
  DType kv_dtype = DType::kF16;  // of K and V in the default mode

  ModelKv kv(Compute compute) const;
  // As Model's functions of these names.
  void embed(std::span<const int32_t> ids, const TensorView& x, Stream& stream) const;
  void logits(const TensorView& x, const TensorView& logits, const Work& work) const;
};

// A model whose frame is all it has around its layers: families add `layer`. Immutable; any thread may call,
// each with its own stream and arena.
class FramedModel : public Model {
 public:
  const ModelShape& shape() const final { return frame_.shape; }
  ModelKv kv(Compute compute) const final { return frame_.kv(compute); }
  void embed(std::span<const int32_t> ids, const TensorView& x, Stream& stream) const final {
    frame_.embed(ids, x, stream);
  }
  void head(const TensorView& x,
            const TensorView& logits,
            Compute compute,
            Arena& scratch,
            Stream& stream) const final {
    frame_.logits(x, logits, {compute, scratch, stream});
  }

 protected:
  explicit FramedModel(Frame frame) : frame_(std::move(frame)) {}
  const Frame frame_;  // views into the file, as the weights are
};

// What a family computes beyond plain heads, full attention and a gated MLP; anything else that the file has
// is refused with its name.
struct Known {
  bool experts = false, windows = false, latent = false;
  std::string_view activation = "silu";
};
Status refuse_unknown(const ModelFile& file, const Known& known);

// All but `layers` and embed_scale. default_theta: see ModelShape::rope_theta. Errors as Weights'.
Result<Frame> read_frame(const ModelFile& file, Weights& tensors, double default_theta);

}  // namespace se
