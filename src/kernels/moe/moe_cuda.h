// kernels/moe/moe_cuda.h -- the sparse MLP of a decode step on CUDA (spec/models.md 2.5, 4.4): the router's
// logits, then the chosen experts, each chosen expert's weights read once for all the rows that chose it.
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
inline constexpr int kMoeTables = 8192, kMoeProducts = 64;

struct RouteParams {
  const float* x = nullptr;     // f32 [rows, k]
  const float* norm = nullptr;  // f32 [k]
  float eps = 0;
  const void* gate = nullptr;        // BF16 [experts, k]
  int rows = 0, k = 0, experts = 0;  // k a multiple of 8 up to 4,096; at most 64 rows, 256 experts
  __half* h = nullptr;               // out: norm(x) as halves [rows, k]
  float* logits = nullptr;           // out: f32 [rows, experts]
};
void moe_route(const RouteParams& params, Stream& stream);

struct ExpertParams {
  // Weights and factors begin at multiples of 16 bytes.
  const uint8_t* up = nullptr;      // E4M3 [experts, 2 * inner, k]: gate_proj, then up_proj, of each expert
  const float* up_scale = nullptr;  // f32 [experts, 2 * inner / 128, k / 128]
  const uint8_t* down = nullptr;    // E4M3 [experts, k, inner]
  const float* down_scale = nullptr;
  int experts = 0, k = 0, inner = 0;  // k a multiple of 1024, inner of 256
  int rows = 0, top_k = 0;            // at most 64 rows, 8 chosen of 256 experts
  bool over_chosen = true;            // softmax over the chosen only; false: over all experts
  const float* logits = nullptr;      // of moe_route
  const __half* h = nullptr;          // [rows, k]
  // Scratch of one stream's launches; all bits of `product` set and `tables` zero before the first of them.
  __half* product = nullptr;   // [kMoeProducts + rows * top_k, inner]
  uint32_t* tables = nullptr;  // kMoeTables + 4 bytes
  const float* x = nullptr;    // residual f32 [rows, k], may be y
  float* y = nullptr;          // f32 [rows, k]
  // Out: the j-th best expert of row r is expert[r * top_k + j].
  int32_t* expert = nullptr;  // i32 [rows * top_k]
  float* weight = nullptr;    // f32 [rows * top_k]
};
// Up to 32 pairs it is one kernel whose blocks wait for one another: nothing else may hold the processors for
// ever meanwhile, so no two of them at once on a device (adr/0018).
void moe_experts(const ExpertParams& params, Stream& stream);

}  // namespace se::cuda
