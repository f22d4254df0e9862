#include "sparse/parser.h"

#include <gtest/gtest.h>

#include "base/fmt.h"
#include "base/quoted.h"
#include "sparse/plan_testing.h"

namespace se {
namespace {

using testing::build;

std::string canonical(std::string_view text) {
  const auto plan = build(text);
  return plan ? (*plan)->text : "refused: " + plan.status().message();
}

// The message of a refusal, without the plan's text in front.
std::string refusal(std::string_view text, Code code = Code::kInvalid) {
  const auto plan = build(text);
  if (plan) return "accepted as " + (*plan)->text;
  EXPECT_EQ(plan.status().code(), code) << plan.status().message();
  const std::string front = format("plan {}: ", quoted(text)), message = plan.status().message();
  EXPECT_TRUE(message.starts_with(front)) << message;
  return message.substr(std::min(front.size(), message.size()));
}

TEST(Parser, PrintsCanonically) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "dense"},
      {"  ", "dense"},
      {"dense", "dense"},
      {"dense+all+device", "dense"},
      {"dtype", "dense"},
      {"dtype(type=auto)", "dense"},
      {"dtype(type=f32)", "dtype(type=f32)"},
      {"all + votes", "votes"},
      {"dense+units", "units"},
      {"units(budget=64)", "units"},
      {"units(budget=2k)", "units(budget=2048)"},
      {"units+half+votes", "votes+half+units"},
      {"units(unit=32,budget=1k)+ring+votes(every=8,budget=25%)",
       "votes(budget=25%,every=8)+ring+units(budget=1024,unit=32)"},
      {"votes+ends", "votes+ends"},
      {"ends+votes", "ends+votes"},
      {" votes ( budget = 100% , trace = on ) ", "votes(budget=100%,trace=on)"},
      {"ring(noise=0.75,residual=0)", "ring(residual=0,noise=0.75)"},
      {"ring(noise=1.0,residual=32)", "ring"},
  };
  for (const auto& [text, want] : cases) {
    EXPECT_EQ(canonical(text), want) << text;
    EXPECT_EQ(canonical(want), want) << "canonical text is a fixed point";
  }
}

TEST(Parser, RefusesBadGrammarWithColumnAndWish) {
  const std::pair<const char*, const char*> cases[] = {
      {"+", "column 1: found '+', wanted the name of a stage"},
      {"votes+", "column 7: found the end, wanted the name of a stage"},
      {"votes units", "column 7: found 'u', wanted '+' and another stage, or the end"},
      {"votes(", "column 7: found the end, wanted a parameter of votes, as in votes(budget=2048)"},
      {"votes()", "column 7: found ')', wanted a parameter of votes, as in votes(budget=2048)"},
      {"votes(budget)", "column 13: found ')', wanted '=' after votes.budget"},
      {"votes(budget=)", "column 14: found ')', wanted a value of votes.budget"},
      {"votes(budget=8", "column 15: found the end, wanted ',' or ')' in the parameters of votes"},
      {"votes(budget=8,)", "column 16: found ')', wanted a parameter of votes, as in votes(budget=2048)"},
      {"votes(budget=8,budget=9)", "votes.budget is given twice, wanted once"},
      {"votes(budget=8\n9)", "column 16: found '9', wanted ',' or ')' in the parameters of votes"},
      {"votes(budget=8\x01)", "column 15: found byte 0x01, wanted printable ASCII"},
      {"votes(b\xc3\xbc=8)", "column 8: found byte 0xc3, wanted printable ASCII"},
      {"votes)", "column 6: found ')', wanted '+' and another stage, or the end"},
  };
  for (const auto& [text, want] : cases) EXPECT_EQ(refusal(text), want);
}

TEST(Parser, RefusesUnknownNamesWithTheNearest) {
  EXPECT_EQ(refusal("vote"),
            "there is no stage 'vote'; there are dense, all, device, ends, jury, votes, dtype, half, ring, "
            "reuse, units; "
            "nearest: votes");
  EXPECT_EQ(refusal("Votes").substr(0, 26), "there is no stage 'Votes';");
  EXPECT_EQ(refusal("votes(budgt=8)"),
            "votes has no parameter budgt; it has budget, every, pool, trace; nearest: budget");
  EXPECT_EQ(refusal("votes(zzzzzz=8)"), "votes has no parameter zzzzzz; it has budget, every, pool, trace");
  EXPECT_EQ(refusal("half(bits=4)"), "half has no parameter bits; it takes none");
  EXPECT_EQ(refusal("dense(bits=4)"), "dense has no parameter bits; it takes none");
  EXPECT_EQ(refusal("dtype(type=f33)"), "dtype.type = f33 is not one of auto, f32, f16; nearest: f32");
  EXPECT_EQ(refusal("votes(trace=yes)"), "votes.trace = yes is neither on nor off");
}

TEST(Parser, RefusesIllegalNumbersWithTheNearestLegalOnes) {
  const std::pair<const char*, const char*> cases[] = {
      {"units(budget=2050)", "units.budget = 2050 is not a multiple of 16; nearest: 2048, 2064"},
      {"units(budget=8)", "units.budget = 8 is below 16; nearest: 16"},
      {"units(budget=-1k)", "units.budget = -1k is below 16; nearest: 16"},
      {"units(budget=many)", "units.budget = many is not a whole number (2048, 2k, 1m)"},
      {"units(budget=64.5)", "units.budget = 64.5 is not a whole number (2048, 2k, 1m)"},
      {"units(unit=24)", "units.unit = 24 is not a power of two; nearest: 16, 32"},
      {"units(unit=128)", "units.unit = 128 is above 64; nearest: 64"},
      {"votes(pool=4)", "votes.pool = 4 is not odd; nearest: 3, 5"},
      {"votes(pool=64)", "votes.pool = 64 is above 63; nearest: 63"},
      {"ring(residual=129)", "ring.residual = 129 is above 128; nearest: 128"},
      {"ring(residual=127)", "ring.residual = 127 is not a multiple of 32; nearest: 96, 128"},
      {"ring(noise=3)", "ring.noise = 3 is above 2; nearest: 2"},
      {"ring(noise=0)", "ring.noise = 0 is below 0.5; nearest: 0.5"},
      {"ring(noise=nan)", "ring.noise = nan is not a number"},
      {"votes(budget=0)", "votes.budget = 0 is below 1; nearest: 1"},
      {"votes(budget=0%)", "votes.budget = 0% is not a whole percentage from 1% to 100% of the prompt"},
      {"votes(budget=101%)", "votes.budget = 101% is not a whole percentage from 1% to 100% of the prompt"},
      {"votes(budget=12.5%)", "votes.budget = 12.5% is not a whole percentage from 1% to 100% of the prompt"},
      {"votes(every=5%)",
       "votes.every = 5% is a share of the prompt, which only a keeper's budget takes: wanted a whole "
       "number"},
      {"units(budget=25%)",
       "units.budget = 25% is a share of the prompt, which only keepers take: units has a fixed capacity, "
       "wanted a number of "
       "tokens"},
      {"units(budget=16,unit=32)", "units: budget is below a unit"},
  };
  for (const auto& [text, want] : cases) EXPECT_EQ(refusal(text), want);
}

TEST(Parser, RefusesTwoAnswersToOneQuestion) {
  EXPECT_EQ(refusal("half+ring"), "one store per plan: half and ring both answer it");
  EXPECT_EQ(refusal("ring+votes+dtype"), "one store per plan: ring and dtype both answer it");
  EXPECT_EQ(refusal("units+reuse"), "one read per plan: units and reuse both answer it");
  EXPECT_EQ(refusal("all+units"), "one read per plan: all and units both answer it");
  EXPECT_EQ(refusal("votes+votes(budget=8)"), "votes appears twice, wanted once");
}

TEST(Parser, RefusesWhatIsKnownButNotBuilt) {
  EXPECT_EQ(refusal("adakv", Code::kUnsupported),
            "adakv (keep) is known but not built yet in this version: keep has ends, jury, votes");
  EXPECT_EQ(refusal("host(hot=4096)", Code::kUnsupported),
            "host (place) is known but not built yet in this version: place has device");
  EXPECT_EQ(refusal("omnikv", Code::kUnsupported),
            "omnikv (read) is known but not built yet in this version: read has all, reuse, units");
}

}  // namespace
}  // namespace se
