// bench/kbench/layer_chain.h -- a whole decode step in the shape of Qwen3-30B-A3B with random weights: 48
// layers, head and argmax, as one chain of the ops that the engine will run.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "kbench/kbench.h"
#include "kernels/attention/decode_params_cuda.h"
#include "kernels/moe/moe_cuda.h"

namespace se::kbench {

struct ChainModel {
  int layers = 48, hidden = 2048, q_heads = 32, kv_heads = 4, dim = 128, experts = 128, top_k = 8,
      inner = 768;
  int64_t vocab = 151936;
};

// What attention reads: all pages (dense, or what a keeper left), or the best `chosen` of them (quest).
struct ChainCase {
  int rows = 1;
  int64_t tokens = 131072;  // resident, of each row
  int chosen = 0;           // pages; 0: all
  int split = 4096;
  bool layer_major = false;  // the arena by layer, then page; false: by page, then layer
};

enum ChainOp : int {
  kNormOp,
  kQkvOp,
  kRopeOp,
  kScoreOp,
  kTopKOp,
  kAttendOp,
  kOutOp,
  kRouteOp,
  kExpertsOp,
  kHeadOp,
  kChainOps
};
const char* name_of(ChainOp op);

// Weights of all layers: 31 GB.
class ChainWeights {
 public:
  ChainWeights(const ChainModel& m, Bench& b);
  const ChainModel& model() const { return m_; }
  struct Layer {
    const uint8_t *qkv, *out, *up, *down;
    const float *qkv_scale, *out_scale, *up_scale, *down_scale;
    const void* gate;
  };
  Layer layer(int i) const;
  const void* head() const { return head_.data(); }
  const float* norms() const { return norms_.ptr<float>(); }  // f32 [hidden]: all norms are this one

 private:
  ChainModel m_;
  cuda::Buffer bytes_, scales_, gates_, head_, norms_;
};

class Chain {
 public:
  Chain(const ChainCase& c, const ChainWeights& w, Bench& b);
  // All layers and the head but for the ops in `skip` (bits 1 << ChainOp), to place the time.
  void enqueue(Bench& b, unsigned skip = 0);
  double layer_bytes(ChainOp op) const;  // that one layer's op must read (kHeadOp: the head's)
  double distinct_experts() const;       // mean over layers, after a run
  std::vector<float> hidden() const {
    return download<float>(x_.data(), int64_t(c_.rows) * w_.model().hidden);
  }
  std::vector<int32_t> tokens() const { return download<int32_t>(token_.data(), c_.rows); }
  int kernels(unsigned skip) const;  // of a layer

 private:
  void layer(int i, Bench& b, unsigned skip);
  cuda::DecodeParams attention(int i) const;

  ChainCase c_;
  const ChainWeights& w_;
  int64_t slice_ = 0, pages_ = 0;  // bytes of a page's slice of one layer; pages of a row
  int splits_ = 1, grid_ = 1;
  cuda::Buffer arena_, first_x_, x_, h16_, qkv_, out_, out16_, lse_, logits_, head_x_, runs_, starts_,
      chosen_starts_, counts_, ids_, n_, q_start_, from_, split_, offsets_, slots_, pos_, rope_, scores_,
      units_, index_, chosen_, part_out_, part_lse_, ready_, route_logits_, weight_, expert_, tables_,
      product_, best_, token_;
};

}  // namespace se::kbench
