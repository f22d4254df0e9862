// Every stage and every legal sum of stages, checked alike, on every kind of toy.
#include "sparse/testing/conformance.h"

#include <gtest/gtest.h>

#include "sparse/testing/toy_model.h"

namespace se::testing {
namespace {

const ToyModel& model() {
  static const ToyModel m;
  return m;
}

// (12) Every field that says it changes the bytes or the reads changes the fingerprint that promises it.
TEST(Fingerprints, FieldsEnterThemAsTheySay) {
  struct Bump final : FieldVisitor {
    std::vector<std::pair<std::string, Affects>> texts;
    void operator()(const Field& f, int64_t& v) override {
      const int64_t up = f.power_of_two ? v * 2 : v + std::max<int64_t>(f.multiple, f.odd ? 2 : 1);
      if (double(up) <= f.max) texts.emplace_back(std::string(f.name) + "=" + std::to_string(up), f.affects);
    }
    void operator()(const Field& f, double& v) override {
      texts.emplace_back(std::string(f.name) + "=" + std::to_string(v + 1 <= f.max ? v + 1 : v / 2),
                         f.affects);
    }
    void operator()(const Field& f, bool& v) override {
      texts.emplace_back(std::string(f.name) + (v ? "=off" : "=on"), f.affects);
    }
    void operator()(const Field& f, TokenBudget& v) override {
      texts.emplace_back(std::string(f.name) + "=" + std::to_string(v.tokens + 16), f.affects);
    }
    void operator()(const Field&, std::string&) override {}
    void choice(const Field& f, int& v, std::span<const char* const> names) override {
      if (names.size() > 1)
        texts.emplace_back(std::string(f.name) + "=" + names[size_t(v) == 0 ? 1 : 0], f.affects);
    }
  };
  int checked = 0;
  for (const StageEntry* e : stage_entries()) {
    const auto base = parse_plan(e->name, model().kv());
    ASSERT_TRUE(base.ok()) << base.status().message();
    Bump bump;
    e->make()->visit(bump);
    for (const auto& [text, affects] : bump.texts) {
      const auto plan = parse_plan(std::string(e->name) + "(" + text + ")", model().kv());
      if (!plan.ok()) continue;  // not legal by itself
      ++checked;
      const bool new_page =
          (*plan)->page != (*base)->page;  // a unit larger than a page: the page grows with it
      EXPECT_EQ((*plan)->state_id != (*base)->state_id, affects == Affects::kState || new_page)
          << e->name << " " << text;
      EXPECT_EQ((*plan)->read_id != (*base)->read_id, affects != Affects::kNothing) << e->name << " " << text;
    }
  }
  EXPECT_GE(checked, 15);
}

}  // namespace
}  // namespace se::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (se::testing::Toy kind :
       {se::testing::Toy::kPlain, se::testing::Toy::kWindows, se::testing::Toy::kLatent})
    se::testing::add_conformance_tests(to_string(kind), std::make_shared<se::testing::ToyModel>(kind));
  return RUN_ALL_TESTS();
}
