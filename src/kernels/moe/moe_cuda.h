// kernels/moe/moe_cuda.h -- the sparse MLP of a decode step on CUDA (spec/models.md 2.5, 4.4): routing, then
// the chosen experts, each chosen expert's weights read once for all the rows that chose it.
//
//   h = norm(x); logits = gate h; top_k best (ties: lower expert); weights = softmax over the chosen
//   y = x + sum over the chosen, in ascending order of choice: weight * down(silu(gate_proj h) * (up_proj h))
//
// A row's result depends on that row only. Rounding: the router is f32 throughout over BF16 weights; experts
// take h as halves (2^-11) and the product of the MLP as halves of 2^-6 (|product| < 4e6, steps of 2^-18).
#pragma once
#include <cuda_fp16.h>

#include <cstdint>

namespace se::cuda {

class Stream;

inline constexpr int kMoeRows = 64, kMoeChosen = 8, kMoeExperts = 256;

// The result of routing. Pair r * top_k + j is the j-th best expert of row r. A task is up to 8 pairs of one
// expert: most experts that were chosen are one task. `tasks` and `first` are written whole.
struct Routing {
  float* weight = nullptr;    // f32 [rows * top_k]
  int32_t* expert = nullptr;  // i32 [rows * top_k]
  int32_t* tasks = nullptr;   // i32 [1 + moe_tasks()]  their number, then the expert of each, ascending
  int32_t* first = nullptr;   // i32 [1 + moe_tasks()]  task t has pairs[first[t]] .. pairs[first[t + 1]]
  int32_t* pairs = nullptr;   // i32 [rows * top_k] by expert, then row
};
inline constexpr int kMoeTaskPairs = 8;
inline int moe_tasks(int rows, int experts, int top_k) {  // the most there can be
  const int pairs = rows * top_k;
  return (pairs < experts ? pairs : experts) + pairs / kMoeTaskPairs;
}

struct RouteParams {
  const float* x = nullptr;     // f32 [rows, k]
  const float* norm = nullptr;  // f32 [k]
  float eps = 0;
  const void* gate = nullptr;                   // BF16 [experts, k]
  int rows = 0, k = 0, experts = 0, top_k = 0;  // k a multiple of 256; at most 64 rows, 256 experts, 8 chosen
  bool over_chosen = true;                      // softmax over the chosen only; false: over all experts
  __half* h = nullptr;                          // out: norm(x) as halves [rows, k]
  float* logits = nullptr;                      // out: f32 [rows, experts]
  int32_t* ready = nullptr;                     // i32 [1], zero between launches
  Routing out;
};
void moe_route(const RouteParams& params, Stream& stream);

struct ExpertParams {
  const uint8_t* up = nullptr;      // E4M3 [experts, 2 * inner, k]: gate_proj, then up_proj, of each expert
  const float* up_scale = nullptr;  // f32 [experts, 2 * inner / 128, k / 128]
  const uint8_t* down = nullptr;    // E4M3 [experts, k, inner]
  const float* down_scale = nullptr;
  int experts = 0, k = 0, inner = 0;  // k a multiple of 1024, inner of 256
  int rows = 0, top_k = 0;
  int most_tasks = 0;  // set by moe_experts
  Routing routing;
  const __half* h = nullptr;  // [rows, k]
  __half* product = nullptr;  // scratch [rows * top_k, inner]
  const float* x = nullptr;   // residual f32 [rows, k], may be y
  float* y = nullptr;         // f32 [rows, k]
};
void moe_experts(const ExpertParams& params, Stream& stream);

}  // namespace se::cuda
