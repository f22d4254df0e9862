// sparse/rows.h -- small loops that stages share: the tokens of listed rows, the runs of an index, rows of
// narrow floats.
#pragma once
#include <algorithm>
#include <cstring>

#include "base/half.h"
#include "sparse/contract.h"

namespace se {

// Calls fn(row, first packed token, tokens) for every listed row.
template <typename Fn>
void for_each_row(const StepRows& rows, const RowList& list, const Fn& fn) {
  const int32_t *ids = list.ids.ptr<int32_t>(), *start = rows.q_start.ptr<int32_t>();
  for (int64_t i = 0; i < *list.n.ptr<int32_t>(); ++i)
    fn(int64_t(ids[i]), int64_t(start[ids[i]]), int64_t(start[ids[i] + 1] - start[ids[i]]));
}

// Calls fn(slot, tokens) for the runs of one row of an index, in order; the row's offset is added to the
// slot.
template <typename Fn>
void for_each_run(const KvIndex& index, int64_t row, const Fn& fn) {
  const int64_t* runs = index.runs.ptr<int64_t>() + index.start.ptr<int64_t>()[row];
  const int64_t offset = index.offset.ptr<int64_t>()[row];
  for (int64_t e = 0; e < index.counts.ptr<int32_t>()[row]; ++e)
    fn(run_slot(runs[e]) + offset, run_tokens(runs[e]));
}

inline int64_t tokens_of(const KvIndex& index, int64_t row) { return index.tokens.ptr<int32_t>()[row]; }

// n floats of a plane (f32, f16, bf16) as f32, exactly; and back, rounded to nearest even. What is beyond
// f16's range becomes its largest finite number: one outlier must not turn a whole row into NaN. NaN stays.
inline void widen_row(DType dtype, const void* in, int64_t n, float* out) {
  const uint16_t* h = static_cast<const uint16_t*>(in);
  switch (dtype) {
    case DType::kF32:
      if (n > 0) std::memcpy(out, in, size_t(n) * 4);
      return;
    case DType::kF16:
      for (int64_t i = 0; i < n; ++i) out[i] = f16_to_f32(h[i]);
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < n; ++i) out[i] = bf16_to_f32(h[i]);
      return;
    default:
      SE_CHECK(false, "widen_row: {} is not f32, f16 or bf16", to_string(dtype));
  }
}
inline void narrow_row(DType dtype, const float* in, int64_t n, void* out) {
  constexpr float kTop = 65504;  // of f16
  uint16_t* h = static_cast<uint16_t*>(out);
  switch (dtype) {
    case DType::kF32:
      if (n > 0) std::memcpy(out, in, size_t(n) * 4);  // latent heads have no values: nothing, from nowhere
      return;
    case DType::kF16:
      for (int64_t i = 0; i < n; ++i) h[i] = f32_to_f16(in[i] > kTop ? kTop : in[i] < -kTop ? -kTop : in[i]);
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < n; ++i) h[i] = f32_to_bf16(in[i]);
      return;
    default:
      SE_CHECK(false, "narrow_row: {} is not f32, f16 or bf16", to_string(dtype));
  }
}

}  // namespace se
