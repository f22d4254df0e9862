#include "kernels/attention/attention_ref.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/half.h"

namespace se::ref {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Keys {  // what one (token, KV head) sees
  std::vector<std::vector<float>> k, v;
  std::vector<int64_t> place;  // linear place; for the present alone j - kv_from
  std::vector<double> times;   // how often each counts; empty: once
};

// What args.blocks says of one (row, token, query head).
struct Chosen {
  const BlockList* list = nullptr;
  int64_t listed = 0, item = 0;
  Chosen(const AttendArgs& args, int64_t row, int64_t token, int64_t q_head, int64_t group, int64_t kv_heads)
      : list(args.blocks) {
    if (!list) return;
    while (args.list.ids.ptr<int32_t>()[listed] != row) ++listed;
    const int32_t* start = args.rows->q_start.ptr<int32_t>();
    const int64_t rows = int64_t(start[row + 1] - start[row]) * group, head = q_head / group;
    const int64_t tiles = (rows + list->tile - 1) / list->tile;
    SE_CHECK(head < kv_heads, "query head {} of {} KV heads", q_head, kv_heads);
    item = list->first.ptr<int64_t>()[listed] + head * tiles +
           ((token - start[row]) * group + q_head % group) / list->tile;
  }
  bool reads(int64_t place) const {
    if (!list) return true;
    const int32_t* of = list->blocks.at<int32_t>(item);
    return std::find(of, of + list->counts.ptr<int32_t>()[item], int32_t(place / list->block)) !=
           of + list->counts.ptr<int32_t>()[item];
  }
  void add_means(int head, Keys& keys) const {
    if (!list || list->mean_counts.empty()) return;
    keys.times.assign(keys.k.size(), 1.0);
    for (int32_t i = 0; i < list->mean_counts.ptr<int32_t>()[item]; ++i) {
      const int64_t b = list->mean_blocks.at<int32_t>(item)[i];
      const auto row_of = [&](const TensorView& t) {
        const float* x = t.at<float>(listed, head, b);
        return std::vector<float>(x, x + t.shape[3]);
      };
      keys.k.push_back(row_of(list->mean_k)), keys.v.push_back(row_of(list->mean_v));
      keys.times.push_back(double(list->block));
    }
  }
};

std::vector<float> plain_row(const TensorView& plane, int64_t page, int64_t slot, int head) {
  std::vector<float> row(size_t(plane.shape[3]));
  for (size_t d = 0; d < row.size(); ++d) {
    if (plane.dtype == DType::kF32)
      row[d] = *plane.at<float>(slot / page, slot % page, head, int64_t(d));
    else if (plane.dtype == DType::kF16)
      row[d] = f16_to_f32(*plane.at<uint16_t>(slot / page, slot % page, head, int64_t(d)));
    else
      row[d] = bf16_to_f32(*plane.at<uint16_t>(slot / page, slot % page, head, int64_t(d)));
  }
  return row;
}

std::vector<float> loaded_row(const AttentionPart& part,
                              int k_dim,
                              int v_dim,
                              cpu::LoadTile load,
                              int64_t slot,
                              int head,
                              bool values) {
  if (values && part.v_in_k > 0) {  // the first channels of the key
    std::vector<float> key = loaded_row(part, k_dim, k_dim, load, slot, head, false);
    key.resize(size_t(part.v_in_k));
    return key;
  }
  const int dim = values ? v_dim : k_dim;
  if (!load) return plain_row(part.planes[values ? 1 : 0], part.index.page, slot, head);
  std::vector<float> row(static_cast<size_t>(dim));
  load(part, head, slot, 1, values, row.data());
  return row;
}

Keys gather(const AttendArgs& args,
            const AttentionPart* part,
            int k_dim,
            int v_dim,
            int kv_heads,
            cpu::LoadTile load,
            int64_t row,
            int64_t token,
            int head,
            const Chosen& chosen,
            bool values) {
  Keys keys;
  const int32_t* pos = args.rows->pos.ptr<int32_t>();
  const int64_t first = args.rows->kv_from.ptr<int32_t>()[row];
  const int64_t low = args.window > 0 ? pos[token] - args.window + 1 : 0;  // lowest place that is seen
  int64_t extent = args.window > 0 && !part ? pos[first] : 0;
  if (part) {
    const KvIndex& x = part->index;
    const int64_t r = x.row_heads == 1 ? row : row * kv_heads + head;
    const int64_t base = extent = x.first.empty() ? 0 : x.first.ptr<int64_t>()[r];
    for (int64_t e = 0; e < x.counts.ptr<int32_t>()[r]; ++e) {
      const int64_t run = x.runs.ptr<int64_t>()[x.start.ptr<int64_t>()[r] + e];
      const int64_t slot = run_slot(run) + (x.offset.empty() ? 0 : x.offset.ptr<int64_t>()[r]);
      for (int64_t t = 0; t < run_tokens(run); ++t) {
        extent = base + e * x.unit + t + 1;
        if (extent <= low || !chosen.reads(extent - 1)) continue;
        keys.k.push_back(loaded_row(*part, k_dim, v_dim, load, slot + t, head, false));
        if (values) keys.v.push_back(loaded_row(*part, k_dim, v_dim, load, slot + t, head, true));
        keys.place.push_back(extent - 1);
      }
    }
  }
  if (!args.present) return keys;
  const TensorView &k = args.present->k, &v = args.present->v;
  for (int64_t j = std::max(first, first + low - extent); j <= token; ++j) {
    if (!chosen.reads(extent + j - first)) continue;
    keys.k.emplace_back(k.at<float>(j, head), k.at<float>(j, head) + k.shape[2]);
    if (values) keys.v.emplace_back(v.at<float>(j, head), v.at<float>(j, head) + v.shape[2]);
    keys.place.push_back(extent + j - first);
  }
  return keys;
}

// fn(row, token, query head) for every query of the listed rows.
template <typename Fn>
void for_each_query(const AttendArgs& args, const Fn& fn) {
  const int32_t* start = args.rows->q_start.ptr<int32_t>();
  for (int64_t i = 0; i < *args.list.n.ptr<int32_t>(); ++i) {
    const int64_t row = args.list.ids.ptr<int32_t>()[i];
    for (int64_t t = start[row]; t < start[row + 1]; ++t) {
      for (int64_t h = 0; h < args.q.shape[1]; ++h) fn(row, t, h);
    }
  }
}

double dot(const float* q, const std::vector<float>& k) {
  double s = 0;
  for (size_t d = 0; d < k.size(); ++d) s += double(q[d]) * double(k[d]);
  return s;
}

}  // namespace

void attend(const AttendArgs& args,
            const AttentionPart* part,
            int k_dim,
            int v_dim,
            int kv_heads,
            cpu::LoadTile load) {
  const int64_t group = args.q.shape[1] / kv_heads;
  for_each_query(args, [&](int64_t row, int64_t token, int64_t head) {
    const Chosen chosen(args, row, token, head, group, kv_heads);
    Keys keys = gather(args, part, k_dim, v_dim, kv_heads, load, row, token, int(head / group), chosen, true);
    chosen.add_means(int(head / group), keys);
    std::vector<double> s(keys.k.size()), sum(size_t(args.out.shape[2]), 0.0);
    double top = -kInf, total = 0;
    for (size_t j = 0; j < s.size(); ++j) {
      s[j] = double(args.scale) * dot(args.q.at<float>(token, head), keys.k[j]);
      top = std::max(top, s[j]);
    }
    for (size_t j = 0; j < s.size(); ++j) {
      const double w = std::exp(s[j] - top) * (keys.times.empty() ? 1.0 : keys.times[j]);
      total += w;
      for (size_t d = 0; d < sum.size(); ++d) sum[d] += w * double(keys.v[j][d]);
    }
    for (size_t d = 0; d < sum.size(); ++d)
      *args.out.at<float>(token, head, int64_t(d)) = s.empty() ? 0.f : float(sum[d] / total);
    *args.lse.at<float>(token, head) =
        s.empty() ? -std::numeric_limits<float>::infinity() : float(top + std::log(total));
  });
}

void logits(const AttendArgs& args, const AttentionPart* part, int k_dim, int kv_heads, cpu::LoadTile load) {
  AttendArgs only = args;
  only.blocks = nullptr;
  if (part) only.present = nullptr;
  const int64_t group = args.q.shape[1] / kv_heads;
  for_each_query(only, [&](int64_t row, int64_t token, int64_t head) {
    const Chosen all(only, row, token, head, group, kv_heads);
    const Keys keys = gather(only, part, k_dim, 0, kv_heads, load, row, token, int(head / group), all, false);
    for (size_t j = 0; j < keys.k.size(); ++j)
      *args.logits.at<float>(token, head, keys.place[j]) =
          float(dot(args.q.at<float>(token, head), keys.k[j]));
  });
}

void merge(const StepRows& rows,
           const RowList& list,
           const TensorView& other,
           const TensorView& other_lse,
           const TensorView& out,
           const TensorView& lse) {
  AttendArgs args;
  args.rows = &rows, args.list = list, args.q = out;
  for_each_query(args, [&](int64_t, int64_t t, int64_t h) {
    const double a = *lse.at<float>(t, h), b = *other_lse.at<float>(t, h), m = std::max(a, b);
    if (b == -kInf) return;
    const double w = std::exp(a - m), u = std::exp(b - m);
    for (int64_t d = 0; d < out.shape[2]; ++d) {
      float* o = out.at<float>(t, h, d);
      *o = float((w * double(*o) + u * double(*other.at<float>(t, h, d))) / (w + u));
    }
    *lse.at<float>(t, h) = float(m + std::log(w + u));
  });
}

}  // namespace se::ref
