// model/blocks/mlp.h -- the gated MLP of every family: down(act(gate h) * up h).
#pragma once
#include "model/blocks/work.h"
#include "model/weights.h"

namespace se {

enum class Activation : uint8_t { kSilu, kGeluTanh };

struct MlpWeights {
  Weight gate, up;  // [ffn, hidden]
  Weight down;      // [hidden, ffn]
};

// Tensors blk.LAYER.ffn_{gate,up,down}SUFFIX.weight; errors as Weights'.
Result<MlpWeights> read_mlp(
    Weights& tensors, int layer, int64_t hidden, int64_t ffn, const char* suffix = "");

// h, out f32 [tokens, hidden]; out may be h.
void mlp(
    const TensorView& h, const MlpWeights& w, Activation activation, const TensorView& out, const Work& work);

}  // namespace se
