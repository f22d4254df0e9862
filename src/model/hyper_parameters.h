// model/hyper_parameters.h -- what a checkpoint says of its shape, by one set of names whatever the
// container: keys of a GGUF file (spec/models.md 9.1) or config.json of a Hugging Face folder (spec/models.md
// 3).
//
// Values are checked for kind and range by the readers, with the key in the message; whether a family
// computes them is the family's business. A plain field was in the file or has the container's default; an
// optional one that is empty was not in the file, and its default belongs to the family.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/attention/model_kv.h"

namespace se {

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn };

// Rotation of one kind of layer. GGUF files carry llama3 scaling as the tensor rope_freqs.weight (divisors of
// the frequencies) and say kNone; folders say kLlama3.
struct RopeConfig {
  std::optional<double> theta;
  int dim = 0;               // rotated channels of a head, even
  bool interleaved = false;  // pairs (x[2i], x[2i + 1]) in the rows of q and k as stored; else half-split
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;
  int64_t original_context = 0;                      // llama3 and yarn: tokens of pre-training
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  std::optional<double> attention_factor;            // yarn: multiplies sines and cosines
  std::optional<double> mscale, mscale_all_dim;      // yarn of DeepSeek
  bool truncate = true;                              // yarn: round the ends of the ramp to whole channels
};

enum class Gating : uint8_t { kSoftmax, kSigmoid };

struct MoeConfig {
  int experts = 0, used = 0;       // 0 experts: a dense model
  int ffn = 0;                     // width of an expert
  int shared = 0, shared_ffn = 0;  // shared experts and the width of all of them together; 0: none or unsaid
  std::optional<Gating> gating;
  std::optional<bool> normalise;  // weights of the chosen sum to 1
  double scale = 1;               // of the weights
  int groups = 1, groups_used = 1;
  std::vector<bool> sparse;  // per layer: experts (true) or the dense MLP
};

struct MlaConfig {
  int q_rank = 0, kv_rank = 0;  // kv_rank 0: ordinary attention; q_rank 0: one projection for q
  int nope_dim = 0, rope_dim = 0, v_dim = 0;
};

struct HyperParameters {
  std::string architecture;  // as GGUF spells it: llama, qwen2, qwen3, qwen3moe, gemma3, deepseek2, ...
  std::string name;          // of the model; may be empty
  int layers = 0;            // without the blocks for predicting further tokens
  int extra_layers = 0;      // such blocks: their tensors are ignored
  int hidden = 0;
  int ffn = 0;                                                  // of dense layers; 0: there are none
  int q_heads = 0, kv_heads = 0, head_dim = 0, v_head_dim = 0;  // kv_heads divides q_heads
  int64_t vocab = 0;                                            // 0: as many rows as the embedding has
  int64_t context = 0;
  double norm_eps = 1e-6;
  std::optional<bool> tied;            // the head is the embedding; empty: where there is no output.weight
  std::optional<bool> attention_bias;  // folders only; empty: where there are tensors
  std::string activation;              // of the MLP: "silu" or "gelu_tanh"; empty: unsaid
  std::string dtype;                   // the checkpoint was trained in: "f32", "f16", "bf16"; empty: unsaid

  RopeConfig rope;               // of full-attention layers
  RopeConfig rope_local;         // of windowed layers; equal to `rope` where the file makes no difference
  std::vector<LayerKind> kinds;  // per layer: kFull or kWindow
  int64_t window = 0;            // of the windowed layers: tokens a query sees, itself included
  std::optional<double> attention_scale;  // Gemma: query_pre_attn_scalar^-0.5
  std::optional<double> final_softcap, attention_softcap;
  MoeConfig moe;
  MlaConfig mla;
};

}  // namespace se
