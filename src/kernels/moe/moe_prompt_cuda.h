// kernels/moe/moe_prompt_cuda.h -- the sparse MLP of a prompt's chunk on CUDA (spec/models.md 2.5, 4.4, 7.2):
// rows sorted by expert, two grouped products over FP8 blocks, the parts of a row added up.
//
//   y = x + sum over the chosen, in ascending order of choice: weight * down(silu(gate_proj h) * (up_proj
//   h)), h = norm(x)
//
// h and the MLP's product are rounded to E4M3 with a factor a row and 128 channels, parts to BF16. A row's
// result depends on that row only, bit for bit.
#pragma once
#include <cstdint>

#include "kernels/moe/moe_cuda.h"

namespace se::cuda {

// Pairs (row, choice) sorted by expert, then row: pair r * top_k + j lies at place[r * top_k + j].
struct MoeOrder {
  float* weight = nullptr;    // f32 [rows * top_k]
  int32_t* expert = nullptr;  // i32 [rows * top_k], best first
  int32_t* place = nullptr;   // i32 [rows * top_k]
  int32_t* first = nullptr;   // i32 [experts + 1]: expert e has places first[e] .. first[e + 1]
  int32_t* counts = nullptr;  // scratch i32 [moe_order_counts()]
};
int64_t moe_order_counts(int rows, int experts);

// The top_k best of each row's logits f32 [rows, experts] (ties: lower expert), softmax over the chosen
// (`over_chosen`) or over all, and their order. At most 256 experts, 8 chosen.
void moe_order(const float* logits,
               int rows,
               int experts,
               int top_k,
               bool over_chosen,
               const MoeOrder& out,
               Stream& stream);

struct MoePromptParams {
  const float* x = nullptr;     // f32 [rows, k]
  const float* norm = nullptr;  // f32 [k]
  float eps = 0;
  const uint8_t* up = nullptr;      // E4M3 [experts, 2 * inner, k]: gate_proj, then up_proj, of each expert
  const float* up_scale = nullptr;  // f32 [experts, 2 * inner / 128, k / 128]
  const uint8_t* down = nullptr;    // E4M3 [experts, k, inner]
  const float* down_scale = nullptr;
  int rows = 0, k = 0, experts = 0, top_k = 0, inner = 0;  // k and inner multiples of 128
  MoeOrder order;                                          // of moe_order
  // Scratch, for pairs = rows * top_k.
  uint8_t* h = nullptr;            // [pairs, k]
  float* h_scale = nullptr;        // [k / 128, block_pitch(pairs)]
  uint8_t* product = nullptr;      // [pairs, inner]
  float* product_scale = nullptr;  // [inner / 128, block_pitch(pairs)]
  void* parts = nullptr;           // BF16 [pairs, k]
  float* y = nullptr;              // f32 [rows, k], may be x
};
// Its steps, one after the other; each may be enqueued alone, in this order.
void moe_prompt_sort(const MoePromptParams& params, Stream& stream);     // norm, codes, places
void moe_prompt_up(const MoePromptParams& params, Stream& stream);       // h -> product
void moe_prompt_down(const MoePromptParams& params, Stream& stream);     // product -> parts
void moe_prompt_combine(const MoePromptParams& params, Stream& stream);  // parts -> y

}  // namespace se::cuda
