#include "sparse/keep/snapkv/snapkv.h"

#include <algorithm>

#include "sparse/keep_best.h"

namespace se {
namespace snapkv {
namespace {

constexpr const char* kScores[] = {"prob", "logits"};
enum : size_t { kPromptVotes, kDecodeVotes };  // specs; params: budget, pool

class SnapKv final : public Keeper {
 public:
  void visit(FieldVisitor& f) override {
    f({.name = "budget",
       .help = "tokens that stay per layer, or a share of the prompt",
       .min = 1,
       .max = 1 << 30},
      c_.budget);
    f({.name = "sink", .help = "first tokens that always stay", .max = 1 << 30}, c_.sink);
    f({.name = "recent",
       .help = "last tokens that always stay (the default leaves half of a small budget to votes)",
       .max = 1 << 30},
      c_.recent);
    f({.name = "window", .help = "last queries that vote", .min = 1, .max = 1024}, c_.window);
    f({.name = "pool",
       .help = "width of the max-pooling of a prompt's votes, 1: none",
       .min = 1,
       .max = 1023,
       .odd = true},
      c_.pool);
    f.choice(
        {.name = "score", .help = "what a vote is: attention probabilities, or raw q.k"}, c_.score, kScores);
    f({.name = "every", .help = "decode steps between picks, 0: none after the prompt", .max = 1 << 30},
      c_.every);
  }
  Status validate() const override {
    const int64_t fixed = c_.sink + recent();
    if (c_.budget.percent == 0 && fixed > c_.budget.tokens) {
      return invalid(
          format("snapkv.sink = {} and snapkv.recent = {} exceed snapkv.budget = {}; a budget of at least {} "
                 "holds them",
                 c_.sink,
                 recent(),
                 c_.budget.tokens,
                 fixed));
    }
    return ok();
  }
  std::string family() const override {
    return format("snapkv({},{},{},{},{})", c_.sink, recent(), c_.window, kScores[c_.score], c_.every > 0);
  }

  KeeperSpec spec(const ModelKv&, const CodecSpec&) const override {
    KeeperSpec s;
    s.prefix = PrefixMode::kChain;
    s.last_chunk = c_.window;
    s.sink = c_.sink, s.recent = recent();
    ScoreSpec votes;
    votes.queries = ScoreSpec::Queries::kWindow, votes.window = int(c_.window);
    votes.skip_first = int(c_.sink), votes.skip_last = int(recent());
    votes.prob = c_.score == kProb;
    votes.over_queries = votes.prob ? Reduce::kMean : Reduce::kMax;
    s.scores.push_back(votes);
    votes.queries = ScoreSpec::Queries::kRing;
    if (c_.every > 0) s.scores.push_back(votes);
    return s;
  }

  bool due(int layer, const SeqView& q) const override {
    const int64_t held = q.resident[size_t(layer)];
    if (q.last_chunk) return held > budget(q);
    return q.decode && c_.every > 0 && held >= budget(q) + c_.every;
  }
  int64_t resident(int layer, const SeqView& q) const override {
    return due(layer, q) ? budget(q) : q.resident[size_t(layer)];
  }
  int64_t peak(int /*layer*/, const SeqView& q) const override {
    int64_t grown = std::min(q.prompt, budget(q)) + q.max_new;
    if (c_.every > 0) grown = std::min(grown, budget(q) + c_.every);
    return q.staged ? grown : std::max(q.prompt, grown);
  }
  std::array<int32_t, 8> params(const SeqView& q) const override {
    return {int32_t(budget(q)), int32_t(c_.pool)};
  }

  void pick(int /*layer*/, const KeepInput& in, KeepList& out, DeviceStep& s) const override {
    const bool prompt = !in.scores[kPromptVotes].empty();
    const Scores votes = prompt || c_.every == 0 ? in.scores[kPromptVotes] : in.scores[kDecodeVotes];
    const int64_t budget = votes.empty() ? in.in.counts.ptr<int32_t>()[0]  // nobody votes: nobody goes
                                         : *s.params.at<int32_t>(0, 0);
    const std::span<const float> score(votes.ptr<float>(), votes.empty() ? 0 : size_t(votes.shape[2]));
    keep_best(in, score, c_.sink, recent(), budget, prompt ? *s.params.at<int32_t>(0, 1) : 1, out);
  }

 private:
  // The default of `recent` is made for budgets of thousands; of a small one it leaves half to the votes, so
  // that snapkv(budget=512) means something (docs/adr/0008-small-budgets.md). A value that was written
  // stands.
  int64_t recent() const {
    const bool written = c_.recent != Config{}.recent || c_.budget.percent > 0;
    return written ? c_.recent : std::min(c_.recent, std::max<int64_t>(c_.budget.tokens / 2 - c_.sink, 0));
  }
  // A share of a short prompt still holds the sink and the recent tokens.
  int64_t budget(const SeqView& q) const {
    return c_.budget.percent > 0 ? std::max({c_.budget.of(q.prompt), c_.sink + recent(), int64_t(1)})
                                 : c_.budget.tokens;
  }
  Config c_;
};

}  // namespace
}  // namespace snapkv

const StageEntry stage_keep_snapkv = {
    Axis::kKeep, "snapkv", "the prompt's last queries vote for what stays", "Li et al. 2024", [] {
      return std::unique_ptr<Stage>(std::make_unique<snapkv::SnapKv>());
    }};

}  // namespace se
