#include "sparse/keep/streamingllm/streamingllm.h"

#include <algorithm>
#include <cmath>

#include "sparse/keep_best.h"

namespace se {
namespace streamingllm {
namespace {

class StreamingLlm final : public Keeper {
 public:
  void visit(FieldVisitor& f) override {
    f({.name = "budget", .help = "tokens that stay, or a share of the prompt", .min = 1, .max = 1 << 30},
      c_.budget);
    f({.name = "sink", .help = "first tokens that always stay", .max = 1 << 30}, c_.sink);
    f({.name = "factor",
       .help = "row length, in budgets, at which decode picks again",
       .min = 1,
       .max = 1024},
      c_.factor);
  }
  Status validate() const override {
    if (c_.budget.percent == 0 && c_.sink >= c_.budget.tokens) {
      return invalid(format(
          "streamingllm.sink = {} leaves no room for new tokens in streamingllm.budget = {}; at most {}",
          c_.sink,
          c_.budget.tokens,
          c_.budget.tokens - 1));
    }
    return ok();
  }
  std::string family() const override { return format("streamingllm({})", c_.sink); }

  KeeperSpec spec(const ModelKv&, const CodecSpec&) const override {
    KeeperSpec s;
    s.scope = KeepScope::kAllLayers;
    s.sink = c_.sink;
    s.prefix = PrefixMode::kChain;
    return s;
  }

  bool due(int layer, const SeqView& q) const override {
    const int64_t held = q.resident[size_t(layer)];
    return q.last_chunk ? held > budget(q) : q.decode && held >= trigger(q);
  }
  int64_t resident(int layer, const SeqView& q) const override {
    return due(layer, q) ? budget(q) : q.resident[size_t(layer)];
  }
  int64_t peak(int /*layer*/, const SeqView& q) const override {
    const int64_t grown = std::min(std::min(q.prompt, budget(q)) + q.max_new, trigger(q));
    return q.staged ? grown : std::max(q.prompt, grown);
  }
  std::array<int32_t, 8> params(const SeqView& q) const override { return {int32_t(budget(q))}; }

  void pick(int /*layer*/, const KeepInput& in, KeepList& out, DeviceStep& s) const override {
    const int64_t budget = *s.params.at<int32_t>(0, 0);
    keep_best(in, {}, c_.sink, budget - c_.sink, budget, 1, out);
  }

 private:
  // A share of a short prompt still holds the sink and the newest token.
  int64_t budget(const SeqView& q) const {
    return c_.budget.percent > 0 ? std::max(c_.budget.of(q.prompt), c_.sink + 1) : c_.budget.tokens;
  }
  // Tokens at which a decode step picks: with factor 1, each step that exceeds the budget.
  int64_t trigger(const SeqView& q) const {
    return std::max(int64_t(std::ceil(c_.factor * double(budget(q)))), budget(q) + 1);
  }
  Config c_;
};

}  // namespace
}  // namespace streamingllm

const StageEntry stage_keep_streamingllm = {
    Axis::kKeep, "streamingllm", "the first and the newest tokens stay", "Xiao et al. 2024", [] {
      return std::unique_ptr<Stage>(std::make_unique<streamingllm::StreamingLlm>());
    }};

}  // namespace se
