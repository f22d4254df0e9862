// The plan language over the stages of this build.
#include "sparse/plan.h"

#include <gtest/gtest.h>

namespace se {
namespace {

ModelKv small_model() {  // SmolLM2-135M's shape, fewer layers
  ModelKv m;
  m.layers.resize(6);
  for (LayerKv& l : m.layers) l.q_heads = 9, l.kv_heads = 3, l.k_dim = l.v_dim = 64, l.scale = 0.125f;
  return m;
}

TEST(PlanTable, IsSortedByAxisThenName) {
  const auto entries = stage_entries();
  ASSERT_FALSE(entries.empty());
  for (size_t i = 0; i + 1 < entries.size(); ++i) {
    const StageEntry &a = *entries[i], &b = *entries[i + 1];
    EXPECT_TRUE(a.axis < b.axis || (a.axis == b.axis && std::string_view(a.name) < b.name))
        << a.name << ", " << b.name;
  }
}

TEST(PlanTable, EveryStageAloneIsAPlanAndItsOwnCanonicalText) {
  for (const StageEntry* entry : stage_entries()) {
    const auto plan = parse_plan(entry->name, small_model());
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ((*plan)->text, std::string_view(entry->name) == "dtype" ? "dense" : entry->name);
    for (const FieldInfo& f : describe_fields(*entry->make()))
      EXPECT_FALSE(f.help.empty()) << entry->name << "." << f.name;
    EXPECT_STRNE(entry->summary, "") << entry->name;
  }
}

}  // namespace
}  // namespace se
