#include "eval/eval.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>

#include "engine/engine_testing.h"
#include "eval/divergence.h"

namespace se::eval {
namespace {

std::string folder() {
  std::string path = "/tmp/se_eval_XXXXXX";
  SE_CHECK(::mkdtemp(path.data()) != nullptr, "no folder under /tmp");
  return path;
}

std::string read(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Tasks, PlantsFactsWhereTheySayAndScoresByWhatIsFound) {
  const Question q = make_question(Suite::kNeedle, 1, 3, 0.5);
  ASSERT_EQ(q.facts.size(), 1u);
  const std::string text = planted({"a.", "b.", "c.", "d."}, q);
  EXPECT_EQ(text, "a. b. " + q.facts[0] + " c. d.");
  EXPECT_EQ(score(q, "It is " + q.wanted[0] + "."), 1);
  EXPECT_EQ(score(q, "It is 1."), 0);
  EXPECT_NE(q.facts[0].find(q.wanted[0]), std::string::npos);
  EXPECT_NE(make_question(Suite::kNeedle, 1, 4, 0.5).facts, q.facts);
  EXPECT_NE(make_question(Suite::kNeedle, 2, 3, 0.5).facts, q.facts);
  EXPECT_EQ(make_question(Suite::kNeedle, 1, 3, 0.5).facts, q.facts);

  const Question many = make_question(Suite::kMultikey, 1, 0, 0);
  EXPECT_EQ(std::set<std::string>(many.facts.begin(), many.facts.end()).size(), 8u);
  const Question chain = make_question(Suite::kVartrack, 1, 0, 0);
  ASSERT_EQ(chain.wanted.size(), 5u);
  EXPECT_TRUE(std::is_sorted(chain.depths.begin(), chain.depths.end()));
  EXPECT_NEAR(score(chain, chain.wanted[0] + " and " + chain.wanted[3]), 0.4, 1e-12);
}

TEST(Tasks, HaystackKeepsTheTextAsItIs) {
  const Haystack h("One. Two!\nThree\n\nFour is long. ");
  EXPECT_EQ(h.take(0, 5), (std::vector<std::string>{"One.", "Two!", "Three", "Four is long.", "One."}));
  EXPECT_EQ(h.stretch(0, 2, 9), "One. Two!");
  EXPECT_EQ(h.stretch(0, 2, 900), "");
  EXPECT_EQ(Haystack("").take(1, 100).size(), 100u);
  EXPECT_NE(Haystack("").take(1, 100), Haystack("").take(2, 100));
}

TEST(Divergence, EqualsThePlainFormula) {
  Rng rng(5);
  std::vector<float> a(500), b(500);
  for (float& x : a) x = rng.normal() * 3;
  for (size_t i = 0; i < b.size(); ++i) b[i] = a[i] + rng.normal();
  double za = 0, zb = 0, kl = 0;
  for (size_t i = 0; i < a.size(); ++i) za += std::exp(double(a[i])), zb += std::exp(double(b[i]));
  for (size_t i = 0; i < a.size(); ++i) {
    const double p = std::exp(double(a[i])) / za, q = std::exp(double(b[i])) / zb;
    kl += p * std::log(p / q);
  }
  const Divergence d = diverge(log_softmax(a), b, 7);
  EXPECT_NEAR(d.kl, kl, 1e-5);
  EXPECT_NEAR(d.nll, std::log(zb) - double(b[7]), 1e-9);
  EXPECT_LT(std::abs(diverge(log_softmax(a), a, 7).kl), 1e-6);
  EXPECT_TRUE(diverge(log_softmax(a), a, 7).same_top);
}

EvalOptions options(const std::string& out) {
  EvalOptions o;
  o.suites = {Suite::kKld, Suite::kRecall, Suite::kNeedle, Suite::kMultikey, Suite::kVartrack};
  for (const char* plan :
       {"quest(budget=4096,dense_layers=0)", "snapkv(budget=64,sink=4,recent=16,window=8)", "kivi"})
    o.plans.push_back(plan);
  o.lengths = {700};
  o.samples = 2, o.continue_by = 6, o.folder = out;
  Rng rng(8);
  for (int i = 0; i < 8000; ++i)
    o.text += i % 9 == 8 ? (i % 90 == 89 ? ". " : " ") : std::string(1, char('a' + rng.below(26)));
  return o;
}

TEST(Evaluate, SharesPromptsResumesAndSummarises) {
  const std::string out = folder();
  auto engine = testing::tiny_engine();
  EvalOptions o = options(out);
  const auto first = evaluate(*engine, o);
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_EQ(first->size(), 4u * 2 * 4);  // suites, samples, plans
  std::vector<std::string> plans;
  for (const Record& r : *first) {
    if (std::find(plans.begin(), plans.end(), r.plan) == plans.end()) plans.push_back(r.plan);
    EXPECT_GT(r.prompt_tokens, 300) << r.suite;
    EXPECT_LE(r.prompt_tokens, 700) << r.suite;
    EXPECT_EQ(r.cached_tokens > 0, r.plan.find("kivi") == std::string::npos) << r.plan;
    if (r.suite != "text") continue;
    if (r.plan == "dense" || r.plan.find("quest") == 0) {
      EXPECT_NEAR(r.kl, 0, 1e-5) << r.plan;
      EXPECT_NEAR(r.recall, 1, 1e-6) << r.plan;
    } else {
      EXPECT_GT(r.kl, 1e-7) << r.plan;
      if (r.plan.find("snapkv") == 0) {
        EXPECT_GT(r.recall, 0.02) << r.plan;
        EXPECT_LT(r.recall, 0.9) << r.plan;
      }
    }
  }
  ASSERT_EQ(plans.size(), 4u);
  EXPECT_EQ(plans[0], "dense");

  // Killed in the middle of a line: what is missing is made again, and equal.
  const std::string file = out + "/samples.jsonl", whole = read(file);
  std::ofstream(file, std::ios::trunc) << whole.substr(0, whole.size() * 2 / 3);
  int64_t total = 0;
  o.progress = [&](int64_t, int64_t of) { total = of; };
  const auto again = evaluate(*engine, o);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_GT(total, 3);
  EXPECT_LT(total, 20);
  EXPECT_EQ(read(file), whole);

  o.seed = 2;
  const auto other = evaluate(*engine, o);
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("seed was 1, is 2"), std::string::npos) << other.status().message();

  const std::vector<Summary> s = summarise(*again, plans);
  EXPECT_NEAR(s[0].kv_share, 1, 1e-9);
  EXPECT_LT(s[2].kv_share, 0.3);
  const std::string t = table(s);
  EXPECT_EQ(std::count(t.begin(), t.end(), '\n'), 6);
  for (const std::string& svg : {needle_map(*again, plans), quality_map(s)}) {
    EXPECT_EQ(svg.rfind("<svg", 0), 0u);
    EXPECT_NE(svg.find("</svg>"), std::string::npos);
  }
  Request last;  // sessions are closed by then
  last.ids = {se::kTinyFirstByte}, last.max_tokens = 1;
  engine->run(last);
  EXPECT_EQ(engine->stats().live_pages, 0);
  EXPECT_EQ(std::system(("rm -r " + out).c_str()), 0);
}

TEST(Evaluate, RefusesWhatItCannotMeasure) {
  auto engine = testing::tiny_engine();
  EvalOptions o = options("/nowhere/at/all");
  const auto error = [&] {
    const auto r = evaluate(*engine, o);
    return r.ok() ? std::string() : r.status().message();
  };
  EXPECT_NE(error().find("/nowhere/at/all"), std::string::npos);
  o.plans.push_back("qest");
  EXPECT_NE(error().find("quest"), std::string::npos);
  o.plans.pop_back(), o.lengths = {5000};
  EXPECT_NE(error().find("length 5000"), std::string::npos);
  o.lengths = {700}, o.text = "";
  EXPECT_NE(error().find("--text"), std::string::npos);
}

}  // namespace
}  // namespace se::eval
