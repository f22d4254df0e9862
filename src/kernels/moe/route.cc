#include <algorithm>
#include <cmath>
#include <limits>

#include "device/cpu/thread_pool.h"
#include "kernels/moe/moe.h"

namespace se {
namespace {

constexpr float kLast = -std::numeric_limits<float>::infinity();

// The best of values[0, n) that is not in `taken`, ties to the lower index; marks it.
int64_t take_best(const float* values, int64_t n, uint8_t* taken) {
  int64_t best = -1;
  float best_value = kLast;
  for (int64_t i = 0; i < n; ++i) {
    if (taken[i]) continue;
    const float v = values[i] == values[i] ? values[i] : kLast;
    if (best < 0 || v > best_value) best = i, best_value = v;
  }
  taken[best] = 1;
  return best;
}

void softmax(const float* logits, int64_t n, float* out) {
  const float peak = *std::max_element(logits, logits + n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(double(logits[i]) - double(peak));
  for (int64_t i = 0; i < n; ++i) out[i] = float(std::exp(double(logits[i]) - double(peak)) / sum);
}

void sigmoid(const float* logits, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = float(1 / (1 + std::exp(-double(logits[i]))));
}

// Marks the experts of all but the best groups as taken. rank f32 [groups], used u8 [groups]: scratch.
void drop_groups(
    const float* choice, int64_t experts, const MoeRouting& r, float* rank, uint8_t* used, uint8_t* taken) {
  const int64_t size = experts / r.groups;
  for (int64_t g = 0; g < r.groups; ++g) {
    float first = kLast, second = kLast;
    for (const float* c = choice + g * size; c < choice + (g + 1) * size; ++c) {
      if (*c > first) {
        second = first, first = *c;
      } else if (*c > second) {
        second = *c;
      }
    }
    rank[g] = size > 1 ? first + second : first, used[g] = 0;
  }
  for (int i = 0; i < r.groups_used; ++i) take_best(rank, r.groups, used);
  for (int64_t e = 0; e < experts; ++e) taken[e] = !used[e / size];
}

struct Row {  // scratch of one thread
  std::vector<float> score, choice, rank;
  std::vector<uint8_t> taken, group_used;
};

void route_row(
    const float* logits, const float* bias, const MoeRouting& r, Row& s, int32_t* ids, float* weights) {
  const int64_t experts = int64_t(s.score.size());
  (r.score == RouterScore::kSoftmax ? softmax : sigmoid)(logits, experts, s.score.data());
  // Softmax keeps the order of the logits, and they tie less often.
  const float* plain = r.score == RouterScore::kSoftmax && bias == nullptr ? logits : s.score.data();
  for (int64_t e = 0; e < experts; ++e) s.choice[size_t(e)] = plain[e] + (bias ? bias[e] : 0.0f);
  std::fill(s.taken.begin(), s.taken.end(), uint8_t(0));
  if (r.groups > 1)
    drop_groups(s.choice.data(), experts, r, s.rank.data(), s.group_used.data(), s.taken.data());
  double sum = 0;
  for (int i = 0; i < r.used; ++i) {
    ids[i] = int32_t(take_best(s.choice.data(), experts, s.taken.data()));
    weights[i] = s.score[size_t(ids[i])];
    sum += double(weights[i]);
  }
  const double factor = double(r.scale) / (r.normalise ? sum + 1e-20 : 1.0);
  for (int i = 0; i < r.used; ++i) weights[i] = float(double(weights[i]) * factor);
}

}  // namespace

void moe_route(const TensorView& logits,
               const TensorView& bias,
               const MoeRouting& r,
               const TensorView& ids,
               const TensorView& weights,
               Stream& stream) {
  SE_CHECK(logits.dtype == DType::kF32 && logits.rank == 2 && logits.contiguous(),
           "moe_route: logits {}, wanted f32 [tokens, experts]",
           to_string(logits));
  const int64_t tokens = logits.shape[0], experts = logits.shape[1];
  SE_CHECK(bias.empty() || (bias.dtype == DType::kF32 && bias.numel() == experts && bias.contiguous()),
           "moe_route: bias {}, wanted f32 [{}]",
           to_string(bias),
           experts);
  SE_CHECK(r.groups >= 1 && r.groups_used >= 1 && r.groups_used <= r.groups && experts % r.groups == 0 &&
               r.used >= 1 && r.used <= experts / r.groups * r.groups_used,
           "moe_route: {} of {} experts from {} of {} groups",
           r.used,
           experts,
           r.groups_used,
           r.groups);
  for (const TensorView* t : {&ids, &weights}) {
    SE_CHECK(t->dtype == (t == &ids ? DType::kI32 : DType::kF32) && t->rank == 2 && t->shape[0] == tokens &&
                 t->shape[1] == r.used && t->contiguous(),
             "moe_route: {} {}, wanted [{}, {}]",
             t == &ids ? "ids" : "weights",
             to_string(*t),
             tokens,
             r.used);
  }
  Row fresh;
  fresh.score.resize(size_t(experts)), fresh.choice = fresh.score, fresh.taken.resize(size_t(experts));
  fresh.rank.resize(size_t(r.groups)), fresh.group_used.resize(size_t(r.groups));
  std::vector<Row> rows(size_t(stream.pool().threads()), fresh);
  constexpr int64_t kTokens = 8;
  stream.pool().run((tokens + kTokens - 1) / kTokens, [&](int64_t item, int thread) {
    for (int64_t t = item * kTokens; t < std::min(tokens, (item + 1) * kTokens); ++t) {
      route_row(logits.at<float>(t),
                bias.empty() ? nullptr : bias.ptr<float>(),
                r,
                rows[size_t(thread)],
                ids.at<int32_t>(t),
                weights.at<float>(t));
    }
  });
}

}  // namespace se
