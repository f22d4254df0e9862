// kernels/attention/core.h -- the inner loops of attention on the CPU, one table per instruction set: what is
// done with one block of up to kKeyBlock keys. The walk over rows, splits and runs is walk.h's.
//
// Every result belongs to one (query row, block): it does not depend on which rows or how many are handed in
// together, so tiles, cuts and threads never show. Within a table all functions agree bit for bit; between
// tables they agree up to rounding.
#pragma once
#include <cstdint>

#include "kernels/attention/codes.h"

namespace se::cpu {

inline constexpr int kKeyBlock = 32;

// The running softmax of some query rows over one split: maximum, sum of weights, weighted sum of values.
// A fresh one is m = -inf, l = 0, acc = 0.
struct Running {
  float* m = nullptr;
  float* l = nullptr;
  float* acc = nullptr;  // [rows, stride]
  int64_t stride = 0;
};

// Memory that the next block will read, asked for line by line between the products of this one: a burst
// would wait for the few misses that a core can have under way, and lines in the order in which they lie let
// the machine's own prefetcher run ahead.
struct Ahead {
  static constexpr int kMost = 2 * kKeyBlock;
  const char *begin[kMost], *end[kMost];
  int n = 0, at = 0;
  void add(const char* from, int64_t bytes) {
    if (n > 0 && end[n - 1] == from) {
      end[n - 1] += bytes;
    } else if (n < kMost) {
      begin[n] = from, end[n++] = from + bytes;
    }
  }
};

using AbsorbCodes = void(const float* q,
                         int64_t q_stride,
                         int rows,
                         float scale,
                         const CodeFormat& format,
                         const CodePiece* pieces,
                         int n_pieces,
                         const Running& run,
                         Ahead* ahead);

struct AttentionCore {
  // out[r * kKeyBlock + j] = q[r] . keys[j] for j < n. dim is a multiple of 8; keys[] goes on with any valid
  // pointers up to the next multiple of 4. Lane d % 8 sums its products in ascending d, then the lanes in
  // pairs.
  void (*dots)(const float* q,
               int64_t q_stride,
               int rows,
               const void* const* keys,
               RowType type,
               int n,
               int dim,
               float* out,
               Ahead* ahead);
  // Folds a block into `run`: row r sees keys from[r] .. seen[r] of it (from null: from 0), scores[r *
  // kKeyBlock + j] being raw dots (overwritten by the weights). dim, of the values, is a multiple of 8.
  // Values of keys not seen are never touched.
  void (*absorb)(float* scores,
                 float scale,
                 const int32_t* from,
                 const int32_t* seen,
                 int rows,
                 const void* const* values,
                 RowType type,
                 int dim,
                 const Running& run,
                 Ahead* ahead);
  // out[0 .. dim) += sum of weights[j] x rows[j], j < n ascending; dim a multiple of 8.
  void (*add_rows)(const float* weights, const void* const* rows, RowType type, int n, int dim, float* out);
  // `to` becomes the running softmax over its keys and those of `split`, row by row: both sums rescaled to
  // the greater maximum, to + split. An empty side leaves the other one bit for bit. dim, of acc, is a
  // multiple of 8.
  void (*add_split)(const Running& to, const Running& split, int rows, int dim);
  // out[0 .. dim) = acc / l; returns m + ln l. Nothing seen: zeros and -inf.
  float (*finish)(float m, float l, const float* acc, int dim, float* out);
  // merge_attention's formula for one (token, head).
  void (*merge)(float* out, float* lse, const float* other, float other_lse, int dim);
  // `rows` rows of `dim` elements as f32, exactly. in_stride is in bytes, out_stride in floats.
  void (*widen)(
      const char* in, int64_t in_stride, RowType type, int rows, int dim, float* out, int64_t out_stride);
  // Up to so many query rows read plain keys where they lie; for more, a block is widened once. No bit shows
  // it.
  int few_rows = 3;
  // Folds up to kKeyBlock keys that all of up to eight rows see into `run`, their codes multiplied as they
  // are: key steps are folded into the queries, value steps into the weights, minima are summed apart. dims
  // at most kMostCodeDim. Null: this table has no such loop, codes are restored.
  AbsorbCodes* absorb_codes = nullptr;
};

extern const AttentionCore kCoreBaseline;
extern const AttentionCore kCoreAvx2;
extern const AttentionCore kCoreAvx512;
const AttentionCore& attention_core();  // of isa()

}  // namespace se::cpu
