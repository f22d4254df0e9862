// kernels/attention/walk.h -- how one pass of attention walks the keys of a row: the runs of its part, then
// the present, block by block in the order of their linear place. Internal to this folder.
#pragma once
#include <algorithm>

#include "kernels/attention/attention.h"
#include "kernels/attention/core.h"

namespace se::cpu {

// Where keys come from. Exactly one of: planes as they are (load null, part set), a codec's loader, or no
// part.
struct KeySource {
  const AttentionPart* part = nullptr;  // null: the present alone
  LoadTile load = nullptr;              // null: part->planes are plain
  const CodeSource* codes = nullptr;    // beside load: where codes lie
  const Present* present = nullptr;     // null: the part alone
  int kv_heads = 0, k_dim = 0, v_dim = 0;
  RowType type = RowType::kF32;  // of plain planes
  bool v_in_k = false;           // a value is the first v_dim channels of its key

  static KeySource plain(const AttentionPart& part, const Present* present);
  static KeySource coded(
      const AttentionPart& part, const Present* present, int kv_heads, int k_dim, int v_dim, LoadTile load);
  static KeySource of_present(const Present& present);
};

RowType row_type(DType dtype);  // f32, f16 or bf16

// One row's keys (of one KV head). A linear place is base + run number x unit + place in the run; the present
// goes on at `extent`, with packed token `first`. base: 0, with a window the position of the first key.
struct RowKeys {
  const int64_t* runs = nullptr;
  int64_t n_runs = 0, offset = 0, base = 0, extent = 0;
  int64_t first = 0;
  int kv_head = 0;
};
RowKeys row_keys(const KeySource& source, const AttendArgs& args, int64_t row, int kv_head);
// The lowest place that a query token sees.
inline int64_t lowest_place(const AttendArgs& args, int64_t token) {
  return args.window > 0 ? std::max<int64_t>(args.rows->pos.ptr<int32_t>()[token] - args.window + 1, 0) : 0;
}

// Up to kKeyBlock keys, ascending by place; the first n_past of them are the part's, the others the present
// tokens first_present, first_present + 1, ...
struct KeyBlockView {
  int n = 0, n_past = 0;
  int64_t first_present = 0;
  RowType type = RowType::kF32;
  bool direct = false;  // read where it lies
  const void* k[kKeyBlock];
  const void* v[kKeyBlock];
  int32_t place[kKeyBlock];  // counted from the block's begin
};

inline int64_t round_up8(int64_t n) { return (n + 7) / 8 * 8; }

// Floats of scratch that a reader needs.
int64_t reader_floats(const KeySource& source);

class BlockReader {
 public:
  BlockReader(const KeySource& source, const AttentionCore& core, float* scratch);
  // The keys at places [begin, end), end - begin <= kKeyBlock, of `row`, and as many of the present tokens
  // from row.first on as lie there, up to packed token `present_end`. `few`: so few query rows that plain
  // keys are read where they lie; otherwise they are widened once. The bits are the same.
  void read(const RowKeys& row,
            int64_t begin,
            int64_t end,
            int64_t present_end,
            bool few,
            bool values,
            KeyBlockView& block) const;
  // The codes of the part's keys at places [begin, end), end - begin <= kKeyBlock, in as few pieces as their
  // groups allow, however the row's runs cut them; how many.
  int codes(const RowKeys& row, int64_t begin, int64_t end, CodePiece* pieces) const;
  // A block of plain keys read where they lie, all of the part: the same places of the next KV head.
  bool steps_to_next_head(const KeyBlockView& block) const;
  void next_head(KeyBlockView& block) const;
  // Where the keys (and values) of `heads` KV heads at places [at, to) lie, plain or coded.
  void look_ahead(const RowKeys& row, int64_t at, int64_t to, bool values, int heads, Ahead& ahead) const;

 private:
  void read_runs(const RowKeys& row, int64_t at, int64_t to, bool direct, bool values, KeyBlockView& b) const;
  void read_present(const RowKeys& row, int64_t begin, int64_t end, bool values, KeyBlockView& b) const;
  void decode(int kv_head, int64_t slot, int n, bool values, float* tile) const;

  const KeySource& source_;
  const AttentionCore& core_;
  int64_t k_stride_, v_stride_;  // floats of a widened key, value: dims rounded up to whole lanes
  float *k_tile_, *v_tile_, *packed_;
};

}  // namespace se::cpu
