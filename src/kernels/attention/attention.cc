#include "kernels/attention/attention.h"

#include <algorithm>

#include "device/cpu/isa.h"
#include "device/cpu/thread_pool.h"
#include "kernels/attention/drive.h"
#include "kernels/attention/prompt_tile.h"

namespace se {
namespace cpu {

const AttentionCore& attention_core() {
  return isa() >= Isa::kAvx512 ? kCoreAvx512 : isa() >= Isa::kAvx2 ? kCoreAvx2 : kCoreBaseline;
}
const PromptCore* prompt_core() {
  return isa() >= Isa::kAmx ? &kPromptAmx : isa() >= Isa::kAvx512 ? &kPromptAvx512 : nullptr;
}

void attend_tiles(const AttendArgs& args,
                  const AttentionPart& part,
                  int k_dim,
                  int v_dim,
                  int kv_heads,
                  LoadTile load,
                  Stream& stream,
                  const CodeSource* codes) {
  KeySource source = KeySource::coded(part, args.present, kv_heads, k_dim, v_dim, load);
  source.codes = codes;
  attend(args, source, stream);
}

void logits_tiles(const AttendArgs& args,
                  const AttentionPart& part,
                  int k_dim,
                  int kv_heads,
                  LoadTile load,
                  Stream& stream) {
  logits(args, KeySource::coded(part, nullptr, kv_heads, k_dim, 0, load), stream);
}

}  // namespace cpu

void attend_plain(const AttendArgs& args, const AttentionPart& part, Stream& stream) {
  cpu::attend(args, cpu::KeySource::plain(part, args.present), stream);
}

void logits_plain(const AttendArgs& args, const AttentionPart& part, Stream& stream) {
  cpu::logits(args, cpu::KeySource::plain(part, nullptr), stream);
}

void attend_present(const AttendArgs& args, Stream& stream) {
  SE_CHECK(args.present != nullptr, "attend_present needs args.present");
  cpu::attend(args, cpu::KeySource::of_present(*args.present), stream);
}

void logits_present(const AttendArgs& args, Stream& stream) {
  SE_CHECK(args.present != nullptr, "logits_present needs args.present");
  cpu::logits(args, cpu::KeySource::of_present(*args.present), stream);
}

void merge_attention(const StepRows& rows,
                     const RowList& list,
                     const TensorView& other,
                     const TensorView& other_lse,
                     const TensorView& out,
                     const TensorView& lse,
                     Stream& stream) {
  SE_CHECK(out.rank == 3 && other.rank == 3 && lse.rank == 2 && other_lse.rank == 2 &&
               out.shape == other.shape && out.stride[2] == 4 && other.stride[2] == 4,
           "merge of {} with {}",
           to_string(out),
           to_string(other));
  const auto& core = cpu::attention_core();
  const int32_t *ids = list.ids.ptr<int32_t>(), *start = rows.q_start.ptr<int32_t>();
  const int64_t heads = out.shape[1], dim = out.shape[2];
  const auto merge_row = [&](int64_t row) {
    for (int64_t t = start[row]; t < start[row + 1]; ++t) {
      for (int64_t h = 0; h < heads; ++h)
        core.merge(out.at<float>(t, h),
                   lse.at<float>(t, h),
                   other.at<float>(t, h),
                   *other_lse.at<float>(t, h),
                   int(dim));
    }
  };
  stream.pool().run(*list.n.ptr<int32_t>(), [&merge_row, ids](int64_t i, int) { merge_row(ids[i]); });
}

}  // namespace se
