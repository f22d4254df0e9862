// The plan language over the stages of this build; docs/plan-language.md is read and must say what the build
// does.
#include "sparse/plan.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/fmt.h"

namespace se {
namespace {

ModelKv small_model() {  // SmolLM2-135M's shape, fewer layers
  ModelKv m;
  m.layers.resize(6);
  for (LayerKv& l : m.layers) l.q_heads = 9, l.kv_heads = 3, l.k_dim = l.v_dim = 64, l.scale = 0.125f;
  return m;
}

std::shared_ptr<const Plan> need(std::string_view text) {
  auto plan = parse_plan(text, small_model());
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan ? *plan : nullptr;
}

std::string refusal(std::string_view text) {
  const auto plan = parse_plan(text, small_model());
  if (plan) return "accepted as " + (*plan)->text;
  return plan.status().message().substr(format("plan '{}': ", text).size());
}

// Cells of the table rows under a heading of the document, backquotes taken off.
std::vector<std::vector<std::string>> table_under(const std::string& heading) {
  std::ifstream in("docs/plan-language.md");
  EXPECT_TRUE(in.good()) << "tests run in the source root";
  std::vector<std::vector<std::string>> rows;
  bool here = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("## ")) here = line == "## " + heading;
    if (!here || !line.starts_with("| ")) continue;
    std::vector<std::string> cells;
    for (size_t at = 2; at < line.size();) {
      const size_t end = line.find(" |", at);
      std::string cell = line.substr(at, end - at);
      if (cell.size() > 1 && cell.front() == '`' && cell.back() == '`')
        cell = cell.substr(1, cell.size() - 2);
      cells.push_back(std::move(cell));
      at = end == std::string::npos ? line.size() : end + 3;
    }
    rows.push_back(std::move(cells));
  }
  if (!rows.empty()) rows.erase(rows.begin());  // the table's head
  EXPECT_FALSE(rows.empty()) << heading;
  return rows;
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
    const auto plan = need(entry->name);
    ASSERT_NE(plan, nullptr);
    EXPECT_EQ(plan->text, std::string_view(entry->name) == "dtype" ? "dense" : entry->name);
    EXPECT_STRNE(entry->summary, "") << entry->name;
    const auto stage = entry->make();
    for (const FieldInfo& f : describe_fields(*stage))
      EXPECT_FALSE(f.help.empty()) << entry->name << "." << f.name;
  }
}

TEST(PlanTable, EveryFieldReadsBackAsPrintedAndChangesAFingerprint) {
  for (const StageEntry* entry : stage_entries()) {
    const auto stage = entry->make();
    std::string all;
    for (const FieldInfo& f : describe_fields(*stage))
      all += (all.empty() ? "" : ",") + f.name + "=" + f.value;
    EXPECT_EQ(need(format("{}({})", entry->name, all))->text, need(entry->name)->text);
  }
  for (const char* text : {"snapkv(budget=4097)",
                           "snapkv(budget=10%)",
                           "snapkv(pool=7)",
                           "snapkv(every=64)",
                           "snapkv(score=logits)",
                           "streamingllm(factor=1.5)",
                           "streamingllm(sink=4)",
                           "dtype(type=f32)",
                           "fp8(scale=token)",
                           "fp8(format=e5m2)",
                           "kivi(bits=2)",
                           "kivi(residual=64)"}) {
    const std::string name = std::string(text).substr(0, std::string_view(text).find('('));
    EXPECT_NE(need(text)->state_id, need(name)->state_id) << text;
    EXPECT_EQ(need(text)->text, text);
  }
  for (const char* text : {"quest(budget=1024)", "quest(dense_layers=0)"}) {
    EXPECT_EQ(need(text)->state_id, need("quest")->state_id) << text;
    EXPECT_NE(need(text)->read_id, need("quest")->read_id) << text;
  }
}

TEST(ParsePlan, ComposesEveryLegalSum) {
  for (const char* keep : {"", "snapkv+", "streamingllm+", "snapkv+streamingllm+", "streamingllm+snapkv+"}) {
    for (const char* store : {"", "fp8+", "kivi+", "kivi(bits=2)+", "dtype(type=f32)+"}) {
      for (const char* read : {"", "quest+", "quest(unit=32)+"}) {
        const std::string text = format("{}{}{}", keep, store, read);
        const auto plan = need(text.empty() ? "" : text.substr(0, text.size() - 1));
        ASSERT_NE(plan, nullptr);
        EXPECT_EQ(plan->text, text.empty() ? "dense" : text.substr(0, text.size() - 1));
        const bool by_layer = std::string_view(keep).find("snapkv") != std::string_view::npos;
        EXPECT_EQ(plan->layout->groups().size(), by_layer ? 6u : 1u) << text;
        EXPECT_EQ(plan->staging == Staging::kLayer, *keep != 0) << text;
        EXPECT_EQ(plan->prefix, *keep ? PrefixMode::kChain : PrefixMode::kRadix) << text;
      }
    }
  }
}

TEST(ParsePlan, KiviAndQuestShareAPageAndItsBounds) {
  const auto small = need("kivi+quest"), shared = need("kivi+quest(unit=32)");
  EXPECT_EQ(small->page, 32);
  EXPECT_EQ(small->read_spec.unit, 16);
  EXPECT_FALSE(small->read_spec.components.empty());
  EXPECT_EQ(shared->page, 32);
  EXPECT_TRUE(shared->read_spec.components.empty());
  EXPECT_EQ(shared->layout->page_bytes(0, Block::kIndex), 0);
  EXPECT_GT(small->layout->page_bytes(0, Block::kIndex), 0);
  EXPECT_EQ(need("quest")->page, 16);
}

TEST(PlanLanguagePage, ListsTheStagesThatExist) {
  std::vector<std::string> listed;
  for (const auto& row : table_under("Stages")) {
    ASSERT_GE(row.size(), 3u);
    listed.push_back(row[0] + " " + row[1]);
    for (const StageEntry* entry : stage_entries()) {
      if (row[1] != entry->name) continue;
      const auto stage = entry->make();
      std::string fields;
      for (const FieldInfo& f : describe_fields(*stage))
        fields += (fields.empty() ? "" : ", ") + f.name + "=" + f.value;
      EXPECT_EQ(row[2], fields) << entry->name;
    }
  }
  std::vector<std::string> built;
  for (const StageEntry* entry : stage_entries())
    built.push_back(format("{} {}", to_string(entry->axis), entry->name));
  EXPECT_EQ(listed, built);
}

TEST(PlanLanguagePage, ShowsPlansThatParse) {
  for (const auto& row : table_under("Examples")) need(row[0]);
  EXPECT_EQ(need("quest(unit=16)+snapkv(every=0,budget=8k)")->text, "snapkv(budget=8192)+quest");
}

TEST(PlanLanguagePage, QuotesRefusalsWordByWord) {
  for (const auto& row : table_under("Refusals")) {
    ASSERT_EQ(row.size(), 2u);
    EXPECT_EQ(refusal(row[0]), row[1]);
  }
}

}  // namespace
}  // namespace se
