#include "sparse/build_plan.h"

#include <gtest/gtest.h>

#include <set>

#include "sparse/plan_testing.h"

namespace se {
namespace {

using testing::build;
using testing::tiny_model;

std::shared_ptr<const Plan> need(std::string_view text, const ModelKv& model = tiny_model()) {
  auto plan = build(text, model);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan ? *plan : nullptr;
}

std::string refusal(std::string_view text, const ModelKv& model, Code code) {
  const auto plan = build(text, model);
  if (plan) return "accepted";
  EXPECT_EQ(plan.status().code(), code);
  return plan.status().message();
}

TEST(BuildPlan, EmptyPlanIsOneGroupOfThePlainCodec) {
  const auto plan = need("");
  EXPECT_EQ(plan->layout->groups().size(), 1u);
  EXPECT_EQ(plan->layout->groups()[0].layers, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(plan->page, 16);
  EXPECT_EQ(plan->chunk, 0);
  EXPECT_EQ(plan->last_chunk, 1);
  EXPECT_EQ(plan->prefix, PrefixMode::kRadix);
  EXPECT_EQ(plan->staging, Staging::kNone);
  EXPECT_EQ(plan->staging_layout, nullptr);
  EXPECT_EQ(plan->ring, 0);
  EXPECT_EQ(plan->layout->sequence_bytes(), 0);
  EXPECT_EQ(plan->stages.size(), 3u);
  EXPECT_EQ(plan->stages[kDriverOwner], nullptr);
  EXPECT_EQ(plan->owner(*plan->store), 1);
  EXPECT_EQ(plan->owner(*plan->plain), 2);
  // 16 tokens of 3 layers, 2 heads, K and V of 16 halves
  EXPECT_EQ(plan->layout->page_bytes(0, Block::kPayload), 16 * 3 * 2 * 2 * 16 * 2);
}

TEST(BuildPlan, PageIsTheLargestUnitGrainOrItem) {
  EXPECT_EQ(need("units")->page, 16);
  EXPECT_EQ(need("units(unit=64)")->page, 64);
  EXPECT_EQ(need("ring")->page, 32);
  EXPECT_EQ(need("ring+units")->page, 32);
  EXPECT_EQ(need("ring+units(unit=64)")->page, 64);
}

TEST(BuildPlan, ReaderLiesOnlyWhereItSelects) {
  const auto plan = need("units");
  const int owner = plan->owner(*plan->read);
  EXPECT_EQ(plan->layout->plane(0, owner, 0).rank, 0);
  EXPECT_GT(plan->layout->plane(1, owner, 0).rank, 0);
  EXPECT_GT(plan->layout->page_bytes(0, Block::kIndex), 0);
  EXPECT_EQ(need("ring+units(unit=32)")->layout->page_bytes(0, Block::kIndex), 0)
      << "the codec's bounds serve";
  EXPECT_EQ(need("units", tiny_model(1))->layout->page_bytes(0, Block::kIndex), 0) << "no layer selects";
}

TEST(BuildPlan, GroupsFollowTheKeepersScope) {
  EXPECT_EQ(need("ends+ring")->layout->groups().size(), 1u);
  const auto plan = need("ends+votes");
  ASSERT_EQ(plan->layout->groups().size(), 3u);
  for (int l = 0; l < 3; ++l) {
    EXPECT_EQ(plan->layout->groups()[size_t(l)].layers, std::vector<int>{l});
    EXPECT_EQ(plan->layout->groups()[size_t(l)].domain, l);
  }
}

TEST(BuildPlan, KeepersStageThePromptInPlainPagesOfOneLayer) {
  for (const char* text : {"ends", "votes", "votes+ring+units(unit=32)"}) {
    const auto plan = need(text);
    EXPECT_EQ(plan->staging, Staging::kLayer) << text;
    EXPECT_EQ(plan->prefix, PrefixMode::kChain) << text;
    ASSERT_NE(plan->staging_layout, nullptr) << text;
    EXPECT_EQ(plan->staging_layout->layers(), 1);
    EXPECT_EQ(plan->staging_layout->page(), plan->page);
    EXPECT_EQ(plan->staging_layout->page_bytes(0, Block::kPayload), plan->page * 2 * 2 * 16 * 2) << text;
    EXPECT_GT(plan->staging_layout->plane(0, plan->owner(*plan->plain), 0).rank, 0);
  }
}

TEST(BuildPlan, TakesTheLargestChunkWindowAndRing) {
  EXPECT_EQ(need("ring")->chunk, 256);
  EXPECT_EQ(need("votes+ring")->last_chunk, 8);
  EXPECT_EQ(need("votes")->ring, 0);
  const auto plan = need("votes(every=4)");
  EXPECT_EQ(plan->ring, 4);
  EXPECT_EQ(plan->layout->sequence_bytes(), 3 * 4 * 4 * 16 * 4);  // layers, queries, heads, dim, f32
  const KvPlane plane = plan->layout->plane(2, kDriverOwner, 0);
  EXPECT_TRUE(plane.per_sequence);
  EXPECT_EQ(plane.offset, 2 * 4 * 4 * 16 * 4);
}

TEST(BuildPlan, RefusesStagesThatDoNotGoTogether) {
  const std::string text = refusal("votes+reuse", tiny_model(), Code::kInvalid);
  EXPECT_NE(
      text.find(
          "votes keeps other tokens in each layer, but reuse reuses in layer 1 what it selected in layer 0"),
      std::string::npos)
      << text;
  EXPECT_TRUE(build("ends+reuse").ok());
  const std::string jury = refusal("jury", tiny_model(), Code::kUnsupported);
  EXPECT_NE(jury.find("jury ranks with the scores of all layers"), std::string::npos) << jury;
}

TEST(BuildPlan, RefusesModelsItCannotServe) {
  ModelKv recurrent = tiny_model();
  recurrent.layers[1].kind = LayerKind::kRecurrent;
  EXPECT_EQ(refusal("", recurrent, Code::kUnsupported),
            "plan '': layer 1 has recurrent attention, this version's plans need full or sliding-window "
            "attention in all "
            "layers");
  ModelKv window = tiny_model();
  window.layers[1].kind = LayerKind::kWindow;
  EXPECT_EQ(refusal("", window, Code::kInvalid), "plan '': layer 1 has a window of 0 keys, wanted 1 or more");
  ModelKv uneven = tiny_model();
  uneven.layers[2].kv_heads = 1;
  EXPECT_NE(refusal("", uneven, Code::kUnsupported).find("layer 2 has 4 query and 1 KV heads"),
            std::string::npos);
  EXPECT_EQ(refusal("", ModelKv{}, Code::kInvalid), "plan '': a model without attention layers");
  EXPECT_EQ(refusal("half", tiny_model(10), Code::kUnsupported),
            "plan 'half': half: ten layers are too many");
}

TEST(BuildPlan, LatentLayersAreServedOrRefusedByName) {
  static float some[4 * 16 * 8] = {};
  ModelKv latent = tiny_model();
  for (LayerKv& l : latent.layers) {
    l.kv_heads = 1, l.k_dim = 16, l.v_dim = 8;
    l.w_uk = l.w_uv = TensorView::of(some, DType::kF32, {4, 16, 8});
  }
  const auto plan = need("", latent);
  EXPECT_EQ(plan->expand_from, INT64_MAX) << "heads wider than the latent are never expanded";
  EXPECT_EQ(need("")->expand_from, 0);
  ModelKv two = latent;
  two.layers[2].kv_heads = 2;
  EXPECT_NE(refusal("", two, Code::kUnsupported).find("layer 2 is latent with full attention, 2 KV heads"),
            std::string::npos);
  ModelKv window = latent;
  window.layers[0].kind = LayerKind::kWindow, window.layers[0].window = 4;
  EXPECT_NE(refusal("", window, Code::kUnsupported).find("layer 0 is latent with sliding-window"),
            std::string::npos);
  ModelKv small = latent;
  small.layers[1].w_uv = TensorView::of(some, DType::kF32, {2, 16, 8});
  EXPECT_EQ(
      refusal("", small, Code::kInvalid),
      "plan '': layer 1: w_uk f32[4, 16, 8] and w_uv f32[2, 16, 8], wanted f32, f16 or bf16 [4, rows, 8]");
  ModelKv mixed = tiny_model();
  mixed.layers[1] = latent.layers[1];
  EXPECT_NE(refusal("", mixed, Code::kUnsupported).find("need layers of one shape"), std::string::npos);

  class Heads final : public testing::TestKeeper {  // votes by KV head
   public:
    KeeperSpec spec(const ModelKv&, const CodecSpec&) const override {
      KeeperSpec s;
      s.scores.emplace_back();
      s.scores.back().per_kv_head = true;
      return s;
    }
  };
  static const StageEntry heads{Axis::kKeep, "heads", "by head", "-", testing::make_stage<Heads>};
  std::vector<const StageEntry*> stages(testing::table().begin(), testing::table().end());
  stages.insert(stages.begin(), &heads);
  EXPECT_TRUE(build_plan("heads", tiny_model(), stages).ok());
  EXPECT_EQ(
      build_plan("heads", latent, stages).status().message(),
      "plan 'heads': heads keeps other tokens in each KV head, but this model's latent layers have one key "
      "for all heads");
}

TEST(BuildPlan, WindowedLayersHaveGroupsOfTheirOwn) {
  ModelKv m = tiny_model(6);
  for (int l : {0, 1, 3, 4}) {
    m.layers[size_t(l)].kind = LayerKind::kWindow;
    m.layers[size_t(l)].window = l == 4 ? 100 : 20;
  }
  const auto groups = [&](std::string_view text) {
    std::vector<std::pair<int, std::vector<int>>> out;
    const auto plan = need(text, m);
    for (const KvGroup& g : plan->layout->groups()) out.emplace_back(g.window, g.layers);
    return out;
  };
  using Groups = std::vector<std::pair<int, std::vector<int>>>;
  EXPECT_EQ(groups(""), (Groups{{20, {0, 1, 3}}, {0, {2, 5}}, {100, {4}}}));
  EXPECT_EQ(groups("votes"), (Groups{{20, {0, 1, 3}}, {0, {2}}, {100, {4}}, {0, {5}}}));
  const auto read = need("units", m);
  EXPECT_EQ(read->read_spec.source, (std::vector<int>{-1, -1, 2, -1, -1, 5}));
  EXPECT_EQ(read->layout->page_bytes(0, Block::kIndex), 0);
  EXPECT_GT(read->layout->page_bytes(0, Block::kPayload), 0);
  EXPECT_GT(read->layout->page_bytes(1, Block::kIndex), 0);
}

TEST(BuildPlan, FingerprintsTellWhatMadeTheBytesFromWhatReadsThem) {
  const auto a = need("votes+ring");
  const auto same = need("ring(residual=32)+votes(budget=256)");
  EXPECT_EQ(a->state_id, same->state_id);
  EXPECT_EQ(a->read_id, same->read_id);
  EXPECT_EQ(a->state_id, need("votes(trace=on)+ring(noise=2)")->state_id) << "kNothing fields do not count";

  const auto read = need("votes+ring+units(unit=32)");
  EXPECT_EQ(a->state_id, read->state_id) << "plans that read differently share prompts";
  EXPECT_NE(a->read_id, read->read_id);
  EXPECT_NE(read->read_id, need("votes+ring+units(unit=32,budget=1k)")->read_id);

  std::set<uint64_t> states;
  for (const char* text : {"",
                           "dtype(type=f32)",
                           "half",
                           "ring",
                           "ring(residual=64)",
                           "ends",
                           "votes",
                           "votes(budget=257)",
                           "votes(budget=50%)",
                           "votes(pool=3)",
                           "votes+ends",
                           "ends+votes",
                           "units(unit=64)"}) {  // another page
    EXPECT_TRUE(states.insert(need(text)->state_id).second) << text;
  }
  EXPECT_TRUE(states.insert(need("", tiny_model(4))->state_id).second);
  EXPECT_TRUE(states.insert(need("", tiny_model(3, DType::kF32))->state_id).second);
}

TEST(BuildPlan, DescribesFieldsWithTheirDefaults) {
  testing::Votes votes;
  const std::vector<FieldInfo> fields = describe_fields(votes);
  ASSERT_EQ(fields.size(), 4u);
  EXPECT_EQ(fields[0].name, "budget");
  EXPECT_EQ(fields[0].value, "256");
  EXPECT_EQ(fields[0].affects, Affects::kState);
  EXPECT_EQ(fields[3].value, "off");
  EXPECT_EQ(fields[3].help, "print picks");
}

}  // namespace
}  // namespace se
