// model/weights.h -- the tensors of a checkpoint by name, each checked against the shape and type its user
// expects, and made usable where the container stores it otherwise.
#pragma once
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "device/tensor.h"
#include "kernels/linear/linear.h"
#include "model/model_file.h"

namespace se {

// From a layer's latent to its heads, as LayerKv wants them (multi-head latent attention,
// spec/models.md 4.6): f32, f16 or bf16; channels lie together, other strides are any.
struct LatentUp {
  TensorView w_uk;  // [heads, nope, rank]: k_nope of head h = w_uk[h] c
  TensorView w_uv;  // [heads, v, rank]
};

// Views returned are read-only and live as long as the ModelFile (moves included): into its mappings, or into
// memory it owns where the bytes had to change. Not thread-safe; used while loading only.
// Errors are one line: kNotFound for a missing tensor, kInvalid for a wrong shape, type or value, naming
// both.
class Weights {
 public:
  explicit Weights(ModelFile& file) : file_(file) {}

  bool has(std::string_view name) const { return file_.find(name) != nullptr; }
  // [out, in] of a type that linear() takes, with a packed form where this machine uses one: it is made by
  // ModelFile::pack().
  Result<Weight> projection(std::string_view name, int64_t out, int64_t in);
  // [rows, dim] of a type that embed() takes.
  Result<TensorView> table(std::string_view name, int64_t rows, int64_t dim);
  // One [out, in] for each expert. name: "blk.3.ffn_gate_exps.weight".
  Result<std::vector<Weight>> experts(std::string_view name, int64_t experts, int64_t out, int64_t in);
  // f32 [n], finite: norms (as factors: w, never w - 1), biases, frequency divisors. Stored as f32, f16 or
  // bf16.
  Result<TensorView> vector(std::string_view name, int64_t n);
  // The same, or an empty view where the file has no such tensor.
  Result<TensorView> vector_if_any(std::string_view name, int64_t n);
  // blk.LAYER.attn_k_b and attn_v_b, or attn_kv_b, whichever the file has; block types are widened to f32,
  // and attn_k_b is stored transposed, so those are copies.
  Result<LatentUp> latent_up(int layer, int64_t heads, const MlaConfig& shape);

  // A tensor nobody asked for is something the graph does not compute: refused, with its name.
  Status all_used() const;

 private:
  Result<const ModelTensor*> find(std::string_view name, std::span<const int64_t> shape);
  Result<TensorView> need(std::string_view name, std::initializer_list<int64_t> shape);
  Result<TensorView> multiplied(std::string_view name, int64_t out, int64_t in);
  Result<Weight> packable(const TensorView& view);
  Result<TensorView> usable(const StoredTensor& stored);
  Result<TensorView> widened(const StoredTensor& stored, const TensorView& view);
  Result<TensorView> transposed(const TensorView& view);

  ModelFile& file_;
  std::set<std::string, std::less<>> used_;
};

}  // namespace se
