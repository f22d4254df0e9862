#include "kernels/attention/walk.h"

#include <algorithm>
#include <cstring>

namespace se::cpu {

RowType row_type(DType dtype) {
  SE_CHECK(dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16,
           "plain K/V of dtype {}: expected f32, f16 or bf16",
           to_string(dtype));
  return dtype == DType::kF32 ? RowType::kF32 : dtype == DType::kF16 ? RowType::kF16 : RowType::kBF16;
}

namespace {

void check_present(const KeySource& s) {
  if (!s.present) return;
  SE_CHECK(s.v_in_k == s.present->v_in_k(), "values lie in the keys of the past or of the present only");
  const TensorView &k = s.present->k, &v = s.present->v;
  SE_CHECK(k.rank == 3 && v.rank == 3 && k.shape[1] == s.kv_heads && v.shape[1] == s.kv_heads &&
               k.shape[2] == s.k_dim && v.shape[2] == s.v_dim && k.stride[2] == 4 && v.stride[2] == 4,
           "present K {}, V {}: expected f32 [tokens, {}, {}] and [tokens, {}, {}]",
           to_string(k),
           to_string(v),
           s.kv_heads,
           s.k_dim,
           s.kv_heads,
           s.v_dim);
}

}  // namespace

KeySource KeySource::plain(const AttentionPart& part, const Present* present) {
  const TensorView &k = part.planes[0], &v = part.planes[1];
  SE_CHECK(k.rank == 4 && (v.empty() || (v.rank == 4 && v.shape[2] == k.shape[2] && v.dtype == k.dtype)),
           "planes K {}, V {}: expected [page id, page, kv_heads, dim] of one dtype",
           to_string(k),
           to_string(v));
  KeySource s;
  s.part = &part, s.present = present, s.type = row_type(k.dtype);
  s.kv_heads = int(k.shape[2]), s.k_dim = int(k.shape[3]), s.v_dim = v.empty() ? 0 : int(v.shape[3]);
  if (part.v_in_k > 0) s.v_in_k = true, s.v_dim = part.v_in_k;
  const int64_t size = block_bytes(k.dtype);
  SE_CHECK(k.stride[3] == size && (v.empty() || v.stride[3] == size),
           "the channels of a key must lie together");
  check_present(s);
  return s;
}

KeySource KeySource::coded(
    const AttentionPart& part, const Present* present, int kv_heads, int k_dim, int v_dim, LoadTile load) {
  KeySource s;
  s.part = &part, s.load = load, s.present = present;
  s.kv_heads = kv_heads, s.k_dim = k_dim, s.v_dim = v_dim;
  if (part.v_in_k > 0) s.v_in_k = true, s.v_dim = part.v_in_k;
  check_present(s);
  return s;
}

KeySource KeySource::of_present(const Present& present) {
  KeySource s;
  s.present = &present, s.kv_heads = int(present.k.shape[1]);
  s.k_dim = int(present.k.shape[2]), s.v_dim = int(present.v.shape[2]), s.v_in_k = present.v_in_k();
  check_present(s);
  return s;
}

RowKeys row_keys(const KeySource& source, const AttendArgs& args, int64_t row, int kv_head) {
  RowKeys keys;
  keys.kv_head = kv_head;
  keys.first = args.rows->kv_from.ptr<int32_t>()[row];
  if (!source.part) {
    if (args.window > 0) keys.base = keys.extent = args.rows->pos.ptr<int32_t>()[keys.first];
    return keys;
  }
  const KvIndex& index = source.part->index;
  SE_CHECK(index.row_heads == 1 || index.row_heads == source.kv_heads,
           "row_heads {}: expected 1 or {}",
           index.row_heads,
           source.kv_heads);
  const int64_t r = index.row_heads == 1 ? row : row * source.kv_heads + kv_head;
  SE_CHECK(args.window == 0 || !index.first.empty(),
           "a window of {} over a row of unknown positions",
           args.window);
  keys.base = keys.extent = index.first.empty() ? 0 : index.first.ptr<int64_t>()[r];
  keys.n_runs = index.counts.ptr<int32_t>()[r];
  keys.offset = index.offset.empty() ? 0 : index.offset.ptr<int64_t>()[r];
  if (keys.n_runs == 0) return keys;
  keys.runs = index.runs.ptr<int64_t>() + index.start.ptr<int64_t>()[r];
  keys.extent = keys.base + (keys.n_runs - 1) * index.unit + run_tokens(keys.runs[keys.n_runs - 1]);
  return keys;
}

int64_t reader_floats(const KeySource& s) {
  return kKeyBlock * (round_up8(s.k_dim) + round_up8(s.v_dim) + std::max(s.k_dim, s.v_dim)) + 16;
}

BlockReader::BlockReader(const KeySource& source, const AttentionCore& core, float* scratch)
    : source_(source), core_(core), k_stride_(round_up8(source.k_dim)), v_stride_(round_up8(source.v_dim)) {
  k_tile_ = scratch;
  v_tile_ = k_tile_ + kKeyBlock * k_stride_;
  packed_ = v_tile_ + kKeyBlock * v_stride_;
  const bool padded = k_stride_ != source.k_dim || v_stride_ != source.v_dim;  // the padding stays zero
  if (padded) std::memset(scratch, 0, size_t(packed_ - scratch) * sizeof(float));
}

// A codec's tokens into rows of the tile. Its rows lie dense; ours are padded to whole lanes.
void BlockReader::decode(int kv_head, int64_t slot, int n, bool values, float* tile) const {
  const int64_t dim = values ? source_.v_dim : source_.k_dim, stride = values ? v_stride_ : k_stride_;
  if (dim == stride) return source_.load(*source_.part, kv_head, slot, n, values, tile);
  source_.load(*source_.part, kv_head, slot, n, values, packed_);
  for (int i = 0; i < n; ++i) std::memcpy(tile + i * stride, packed_ + i * dim, size_t(dim) * sizeof(float));
}

void BlockReader::read_runs(
    const RowKeys& row, int64_t at, int64_t to, bool direct, bool values, KeyBlockView& b) const {
  const KvIndex& index = source_.part->index;
  const int64_t begin = at - row.base, end = to - row.base;  // as if places began at 0
  const int64_t unit = index.unit, page = index.page;
  const TensorView &kp = source_.part->planes[0], &vp = source_.part->planes[1];
  for (int64_t e = std::max<int64_t>(begin, 0) / unit; e < row.n_runs && e * unit < end; ++e) {
    const int64_t t0 = std::max<int64_t>(begin - e * unit, 0);
    const int64_t t1 = std::min(run_tokens(row.runs[e]), end - e * unit);
    if (t0 >= t1) continue;
    const int64_t slot = run_slot(row.runs[e]) + row.offset + t0, n = t1 - t0;
    for (int64_t i = 0; i < n; ++i) b.place[b.n + i] = int32_t(e * unit + t0 + i - begin);
    for (int64_t i = b.n; !direct && i < b.n + n; ++i) {
      b.k[i] = k_tile_ + i * k_stride_;
      b.v[i] = source_.v_in_k ? b.k[i] : v_tile_ + i * v_stride_;
    }
    const bool own_values = values && !source_.v_in_k;
    if (source_.load) {
      decode(row.kv_head, slot, int(n), false, k_tile_ + b.n * k_stride_);
      if (own_values) decode(row.kv_head, slot, int(n), true, v_tile_ + b.n * v_stride_);
    } else {
      const int64_t id = slot / page, token = slot % page;
      const char* k = kp.at<char>(id, token, row.kv_head);
      const char* v = own_values ? vp.at<char>(id, token, row.kv_head) : k;
      if (direct) {
        const int64_t v_step = own_values ? vp.stride[1] : kp.stride[1];
        for (int64_t i = 0; i < n; ++i) {
          b.k[b.n + i] = k + i * kp.stride[1];
          b.v[b.n + i] = v + i * v_step;
        }
      } else {
        core_.widen(
            k, kp.stride[1], source_.type, int(n), source_.k_dim, k_tile_ + b.n * k_stride_, k_stride_);
        if (own_values)
          core_.widen(
              v, vp.stride[1], source_.type, int(n), source_.v_dim, v_tile_ + b.n * v_stride_, v_stride_);
      }
    }
    b.n += int(n);
  }
}

int BlockReader::codes(const RowKeys& row, int64_t begin, int64_t end, CodePiece* pieces) const {
  const KvIndex& index = source_.part->index;
  const int64_t unit = index.unit, share = source_.codes->tokens;
  int n_pieces = 0;
  int64_t from = 0, n = 0;  // slots of the piece under way; it goes on where the next run follows it
  const auto finish = [&] {
    if (n > 0) pieces[n_pieces++] = source_.codes->piece(*source_.part, row.kv_head, from, int(n));
  };
  for (int64_t e = begin / unit; e < row.n_runs && e * unit < end; ++e) {
    const int64_t t0 = std::max<int64_t>(begin - e * unit, 0);
    const int64_t t1 = std::min(run_tokens(row.runs[e]), end - e * unit);
    for (int64_t t = t0; t < t1;) {
      const int64_t slot = run_slot(row.runs[e]) + row.offset + t,
                    more = std::min(t1 - t, share - slot % share);
      if (n == 0 || slot != from + n || slot % share == 0) {
        finish();
        from = slot, n = 0;
      }
      n += more, t += more;
    }
  }
  finish();
  return n_pieces;
}

bool BlockReader::steps_to_next_head(const KeyBlockView& b) const {
  return !source_.load && source_.part && b.n_past == b.n && b.n > 0 && b.direct;
}

void BlockReader::next_head(KeyBlockView& b) const {
  const int64_t k_step = source_.part->planes[0].stride[2],
                v_step = source_.v_in_k ? k_step : source_.part->planes[1].stride[2];
  for (int j = 0; j < (b.n + 3) / 4 * 4; ++j) b.k[j] = static_cast<const char*>(b.k[j]) + k_step;
  for (int j = 0; j < b.n; ++j) b.v[j] = static_cast<const char*>(b.v[j]) + v_step;
}

void BlockReader::look_ahead(
    const RowKeys& row, int64_t at, int64_t to, bool values, int heads, Ahead& ahead) const {
  ahead.n = ahead.at = 0;
  if (!source_.part || at >= row.extent || at >= to) return;
  const KvIndex& index = source_.part->index;
  const int64_t begin = at - row.base, end = to - row.base;
  const int64_t unit = index.unit, page = index.page;
  struct Piece {  // tokens [first, first + n) of a page
    int64_t page, first, n;
  } pieces[kKeyBlock];
  int n_pieces = 0;
  for (int64_t e = std::max<int64_t>(begin, 0) / unit; e < row.n_runs && e * unit < end; ++e) {
    const int64_t t0 = std::max<int64_t>(begin - e * unit, 0);
    const int64_t n = std::min(run_tokens(row.runs[e]), end - e * unit) - t0;
    const int64_t slot = run_slot(row.runs[e]) + row.offset + t0;
    if (n > 0) pieces[n_pieces++] = {slot / page, slot % page, n};
  }
  // Plain: the planes of keys and values. A codec's: all that lie in pages by item and KV head.
  const int planes = source_.load ? int(source_.part->planes.size()) : values && !source_.v_in_k ? 2 : 1;
  for (int i = 0; i < n_pieces; ++i) {  // in the order in which they lie
    for (int p = 0; p < planes; ++p) {
      const TensorView& plane = source_.part->planes[size_t(p)];
      if (source_.load && (plane.rank < 4 || plane.shape[1] <= 0 || page % plane.shape[1] != 0)) continue;
      const int64_t step = plane.stride[1], bytes = source_.load ? step : plane.shape[3] * plane.stride[3];
      const int64_t per = plane.shape[1] == page ? 1 : page / plane.shape[1];  // tokens per item
      int64_t item = pieces[i].first, items = pieces[i].n;
      if (per > 1) item /= per, items = (pieces[i].first + pieces[i].n - 1) / per - item + 1;
      const char* key = plane.at<char>(pieces[i].page, item, row.kv_head);
      for (int h = 0; h < heads; ++h, key += plane.stride[2]) {
        if (step == bytes) ahead.add(key, items * bytes);
        for (int64_t t = 0; step != bytes && t < items; ++t) ahead.add(key + t * step, bytes);
      }
    }
  }
}

void BlockReader::read_present(
    const RowKeys& row, int64_t begin, int64_t end, bool values, KeyBlockView& b) const {
  const TensorView &k = source_.present->k, &v = source_.present->v;
  for (int64_t at = begin; at < end; ++at, ++b.n) {
    const int64_t token = row.first + at - row.extent;
    float* to_k = k_tile_ + b.n * k_stride_;
    std::memcpy(to_k, k.at<float>(token, row.kv_head), size_t(source_.k_dim) * sizeof(float));
    b.k[b.n] = b.v[b.n] = to_k;
    if (!values || source_.v_in_k) continue;
    float* to_v = v_tile_ + b.n * v_stride_;
    std::memcpy(to_v, v.at<float>(token, row.kv_head), size_t(source_.v_dim) * sizeof(float));
    b.v[b.n] = to_v;
  }
}

void BlockReader::read(const RowKeys& row,
                       int64_t begin,
                       int64_t end,
                       int64_t present_end,
                       bool few,
                       bool values,
                       KeyBlockView& b) const {
  b.n = 0;
  const int64_t last =
      source_.present ? row.extent + std::max<int64_t>(present_end - row.first, 0) : row.extent;
  const int64_t p0 = std::max(begin, row.extent), p1 = std::min(end, last);
  const bool whole_lanes = k_stride_ == source_.k_dim && v_stride_ == source_.v_dim;
  const bool direct = !source_.load && few && whole_lanes && p0 >= p1;
  b.direct = direct;
  b.type = direct ? source_.type : RowType::kF32;
  if (row.n_runs > 0 && begin < row.extent) read_runs(row, begin, end, direct, values, b);
  b.n_past = b.n;
  b.first_present = row.first + p0 - row.extent;
  if (p0 < p1) {
    for (int64_t at = p0; at < p1; ++at) b.place[b.n_past + at - p0] = int32_t(at - begin);
    read_present(row, p0, p1, values, b);
  }
  for (int j = b.n; j % 4 != 0; ++j) b.k[j] = b.k[b.n - 1];  // AttentionCore::dots takes keys by four
}

}  // namespace se::cpu
