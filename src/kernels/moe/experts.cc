#include <algorithm>
#include <cstring>
#include <vector>

#include "device/cpu/thread_pool.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/moe/moe.h"

namespace se {
namespace {

struct Visit {  // one token of one expert
  int32_t token;
  float weight;
};

// visits[starts[e], starts[e + 1]): the tokens of expert e, ascending.
struct Plan {
  std::vector<int64_t> starts;
  std::vector<Visit> visits;
};

Plan by_expert(const TensorView& ids, const TensorView& weights, int64_t experts) {
  const int64_t n = ids.numel(), used = ids.shape[1];
  const int32_t* id = ids.ptr<int32_t>();
  Plan plan;
  plan.starts.assign(size_t(experts + 1), 0);
  for (int64_t i = 0; i < n; ++i) {
    SE_CHECK(id[i] >= 0 && id[i] < experts, "moe_experts: expert {} of {}", id[i], experts);
    ++plan.starts[size_t(id[i]) + 1];
  }
  for (size_t e = 0; e < size_t(experts); ++e) plan.starts[e + 1] += plan.starts[e];
  std::vector<int64_t> next(plan.starts.begin(), plan.starts.end() - 1);
  plan.visits.resize(size_t(n));
  for (int64_t i = 0; i < n; ++i)
    plan.visits[size_t(next[size_t(id[i])]++)] = {int32_t(i / used), weights.ptr<float>()[i]};
  return plan;
}

// Rows of an item: some microseconds of copying.
constexpr int64_t kRows = 16;

void gather(const TensorView& x, std::span<const Visit> visits, const TensorView& rows, Stream& stream) {
  const int64_t n = int64_t(visits.size()), bytes = x.shape[1] * int64_t(sizeof(float));
  stream.pool().run((n + kRows - 1) / kRows, [&](int64_t item, int) {
    for (int64_t i = item * kRows; i < std::min(n, (item + 1) * kRows); ++i)
      std::memcpy(rows.at<float>(i), x.at<float>(visits[size_t(i)].token), size_t(bytes));
  });
}

// out[token] += weight * row; no token comes twice.
void scatter_add(const TensorView& rows,
                 std::span<const Visit> visits,
                 const TensorView& out,
                 Stream& stream) {
  const int64_t n = int64_t(visits.size()), dim = out.shape[1];
  stream.pool().run((n + kRows - 1) / kRows, [&](int64_t item, int) {
    for (int64_t i = item * kRows; i < std::min(n, (item + 1) * kRows); ++i) {
      const float* row = rows.at<float>(i);
      float* sum = out.at<float>(visits[size_t(i)].token);
      for (int64_t d = 0; d < dim; ++d) sum[d] += visits[size_t(i)].weight * row[d];
    }
  });
}

}  // namespace

void moe_experts(const TensorView& x,
                 const TensorView& ids,
                 const TensorView& weights,
                 std::span<const Expert> experts,
                 const TensorView& out,
                 Compute compute,
                 Arena& scratch,
                 Stream& stream) {
  SE_CHECK(x.dtype == DType::kF32 && x.rank == 2 && x.contiguous(),
           "moe_experts: x {}, wanted f32 [tokens, hidden]",
           to_string(x));
  SE_CHECK(out.dtype == DType::kF32 && out.rank == 2 && out.shape == x.shape && out.contiguous() &&
               out.data != x.data,
           "moe_experts: out {}, wanted {} elsewhere",
           to_string(out),
           to_string(x));
  SE_CHECK(ids.dtype == DType::kI32 && ids.rank == 2 && ids.shape[0] == x.shape[0] && ids.contiguous() &&
               weights.dtype == DType::kF32 && weights.rank == 2 && weights.shape == ids.shape &&
               weights.contiguous(),
           "moe_experts: ids {}, weights {}, wanted i32 and f32 [{}, used]",
           to_string(ids),
           to_string(weights),
           x.shape[0]);
  if (x.shape[0] == 0) return;
  const Plan plan = by_expert(ids, weights, int64_t(experts.size()));
  std::memset(out.data, 0, size_t(out.numel()) * sizeof(float));
  for (size_t e = 0; e < experts.size(); ++e) {
    const int64_t n = plan.starts[e + 1] - plan.starts[e], ffn = experts[e].gate.shape[0];
    if (n == 0) continue;
    const std::span visits(&plan.visits[size_t(plan.starts[e])], size_t(n));
    const Arena::Mark mark = scratch.mark();
    const TensorView rows = scratch.take(DType::kF32, {n, x.shape[1]});  // in, then out
    const TensorView gate = scratch.take(DType::kF32, {n, ffn});
    const TensorView up = scratch.take(DType::kF32, {n, ffn});
    gather(x, visits, rows, stream);
    const Product both[] = {{experts[e].gate, {}, gate}, {experts[e].up, {}, up}};
    linear(rows, both, compute, scratch, stream);
    silu_mul(gate, up, gate, stream);
    linear(gate, experts[e].down, {}, rows, compute, scratch, stream);
    scatter_add(rows, visits, out, stream);
    scratch.rewind(mark);
  }
}

}  // namespace se
