// The same request at every SE_ISA level that this machine has: the tokens that a layer keeps and a step
// reads are the same, and logits are within the rounding of sums in another order.
//
// What differs between levels is the order of sums in attention, some 1e-7 of a value. Two things can make
// more of it: a code of an activation (int8, by default) or of a stored key or value (fp8, kivi) whose number
// lies within that of the midpoint of two codes. All that follows in the text then sees other numbers, so a
// long answer by default may part for good; one step from one and the same state may not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "device/cpu/isa.h"
#include "engine/engine_testing.h"

namespace se::testing {
namespace {

struct Told {
  std::map<int, std::vector<int32_t>> kept;                      // by layer
  std::map<std::pair<int64_t, int>, std::vector<int32_t>> read;  // by step and layer
  std::vector<std::vector<float>> logits;                        // by token of the answer
};

// Records what run(request, callbacks) tells. Answers are given, so that no level goes its own way after a
// near tie of two tokens.
template <typename Run>
Told tell(Request r, const Run& run) {
  Told told;
  Callbacks c;
  c.on_kept = [&](int layer, std::span<const int32_t> p) { told.kept[layer].assign(p.begin(), p.end()); };
  c.on_read = [&](const ReadTrace& t, int) {
    told.read[{t.step, t.layer}].assign(t.positions.begin(), t.positions.end());
  };
  c.on_logits = [&](std::span<const float> l, int64_t, int) { told.logits.emplace_back(l.begin(), l.end()); };
  r.trace = true;
  const Answer a = run(r, c);
  EXPECT_EQ(a.ids, r.forced) << a.error.message();
  EXPECT_EQ(told.logits.size(), r.forced.size());
  return told;
}

Request request(int prompt, int answer, uint64_t seed) {
  Rng rng(seed);
  const auto id = [&] { return kTinyFirstByte + int32_t(rng.below(256)); };
  Request r;
  for (int i = 0; i < prompt; ++i) r.ids.push_back(id());
  for (int i = 0; i < answer; ++i) r.forced.push_back(id());
  return r;
}

std::unique_ptr<Engine> engine_at(cpu::Isa level, bool exact) {
  cpu::set_isa_for_test(level);
  EngineOptions o;
  o.exact = exact;
  return tiny_engine(o);
}

// The largest difference of logits, over the range of the row's.
double distance(const Told& want, const Told& got) {
  double most = 0;
  for (size_t row = 0; row < std::min(want.logits.size(), got.logits.size()); ++row) {
    const std::vector<float>&w = want.logits[row], &g = got.logits[row];
    const auto [low, high] = std::minmax_element(w.begin(), w.end());
    for (size_t i = 0; i < w.size(); ++i) {
      const double off = std::fabs(double(g[i]) - double(w[i])) / (double(*high) - double(*low));
      if (!(off <= most)) most = off;
    }
  }
  return most;
}

struct Case {
  std::string plan;
  bool codes = false;  // K and V are rounded to codes
};
const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"dense"},
      {"quest(budget=128,dense_layers=0)"},
      {"quest(budget=256,unit=32,dense_layers=1)"},
      {"snapkv(budget=160,sink=4,recent=32,window=16)"},
      {"snapkv(budget=160,sink=4,recent=32,window=16,every=16)"},
      {"snapkv(budget=192,sink=4,recent=32,window=16)+quest(budget=96,dense_layers=0)"},
      {"streamingllm(budget=128,sink=4)"},
      {"flashprefill(threshold=0.9,block=16,sink=1,window=2,last=1,min_len=64)+quest(budget=128,dense_layers="
       "0)"},
      {"fp8+quest(budget=128,dense_layers=0)", true},
      {"kivi+quest(budget=128,dense_layers=0)", true},
      {"kivi(bits=2)", true},
      {"snapkv(budget=192,sink=4,recent=32,window=16)+kivi+quest(budget=96,dense_layers=0)", true},
      {"snapkv(budget=192,sink=4,recent=32,window=16)+fp8", true},
      {"streamingllm(budget=256,sink=4)+fp8(format=e5m2)+quest(budget=96,dense_layers=0)", true}};
  return all;
}

// Every level with itself too where it is the only one.
std::vector<cpu::Isa> levels() {
  std::vector<cpu::Isa> some;
  for (const cpu::Isa l : {cpu::Isa::kBaseline, cpu::Isa::kAvx2, cpu::Isa::kAvx512, cpu::Isa::kAmx}) {
    if (l <= cpu::best_isa()) some.push_back(l);
  }
  return some;
}

class Levels : public ::testing::Test {
  const cpu::Isa before_ = cpu::isa();
  void TearDown() override { cpu::set_isa_for_test(before_); }
};

// The whole way, 700 tokens of prompt and 40 steps, in F32. Bound: a row of logits has gone through 3 layers
// of 8 sums of at most 700 terms, each off by some sqrt(700) 2^-24 of its size: 4e-5 of the range at most.
// Where keys and values are codes, a few of 280,000 turn over: numbers that two levels have 2e-7 of their
// size apart lie on two sides of a midpoint in some 3 of a million (e5m2: an eighth of the size between
// midpoints), one code in the run, hardly ever more than three. One moves one of 32 channels by a quarter of
// its value at most (e5m2, kivi(bits=2): a third of the group's range), a hundredth of the head's output if
// it had all the weight. Such a code could carry a unit over the edge of a selection; on these requests none
// does at any of the four levels.
TEST_F(Levels, AgreeOnSelectionsAndLogitsWhenExact) {
  Request r = request(700, 40, 11);
  for (const Case& c : cases()) {
    r.plan = c.plan;
    const auto at = [&](cpu::Isa level) {
      const auto engine = engine_at(level, true);
      return tell(r, [&](const Request& q, const Callbacks& to) { return engine->run(q, to); });
    };
    const Told want = at(cpu::best_isa());
    EXPECT_FALSE(want.kept.empty() || want.read.empty()) << c.plan;
    for (const cpu::Isa level : levels()) {
      const Told got = at(level);
      EXPECT_EQ(got.kept, want.kept) << c.plan << " at " << cpu::to_string(level);
      EXPECT_EQ(got.read, want.read) << c.plan << " at " << cpu::to_string(level);
      EXPECT_LE(distance(want, got), c.codes ? 3e-2 : 4e-5) << c.plan << " at " << cpu::to_string(level);
    }
  }
}

// By default: single steps of every level from one state, saved at the best one. Bound: one int8 code of an
// activation turned over, 1 / 127 of the largest in its block.
TEST_F(Levels, AgreeOnSelectionsAndLogitsOfAStepByDefault) {
  const std::string file = tiny_model_path() + ".kv";
  for (const Case& c : cases()) {
    for (const int tokens : {300, 513, 700}) {
      Request r = request(tokens, 1, uint64_t(tokens));
      {
        const auto engine = engine_at(cpu::best_isa(), false);
        const auto session = engine->open_session(c.plan);
        ASSERT_TRUE(session.ok()) << session.status().message();
        EXPECT_EQ(engine->run_turn(*session, r).ids, r.forced);
        ASSERT_TRUE(engine->save_session(*session, file).ok());
      }
      r = request(1, 2, uint64_t(tokens) + 1);  // the second token of the answer comes from a decode step
      const auto at = [&](cpu::Isa level) {
        const auto engine = engine_at(level, false);
        const auto loaded = engine->load_session(file);
        EXPECT_TRUE(loaded.ok()) << loaded.status().message();
        return tell(r, [&](const Request& q, const Callbacks& to) {
          return engine->run_turn(loaded->session, q, to);
        });
      };
      const Told want = at(cpu::best_isa());
      EXPECT_FALSE(want.read.empty()) << c.plan;
      for (const cpu::Isa level : levels()) {
        const Told got = at(level);
        EXPECT_EQ(got.kept, want.kept) << c.plan << " at " << cpu::to_string(level);
        EXPECT_EQ(got.read, want.read) << c.plan << " at " << cpu::to_string(level);
        EXPECT_LE(distance(want, got), 1.0 / 127) << c.plan << " at " << cpu::to_string(level);
      }
    }
  }
  std::remove(file.c_str());
}

}  // namespace
}  // namespace se::testing
