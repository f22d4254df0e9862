#include "sparse/read/quest/quest.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/npy.h"
#include "sparse/testing/attend_check.h"
#include "sparse/testing/fake_codec.h"
#include "sparse/testing/set_fields.h"

namespace se {
namespace {

const std::string kGoldens = "src/sparse/read/quest/goldens/";

std::unique_ptr<Reader> make(int64_t budget, int unit = 16, int dense = 0) {
  return make_stage<Reader>(stage_read_quest,
                            {{"budget", double(budget)}, {"unit", unit}, {"dense_layers", dense}});
}

// One row whose keys are given; everything full is indexed.
struct Store {
  ModelKv model;
  FakeCodec codec;
  std::unique_ptr<Reader> reader;
  FakeView view;
  Store(const ModelKv& m, std::unique_ptr<Reader> r, int64_t page, int bounds_per = 0)
      : model(m), codec(bounds_per), reader(std::move(r)), view(model, page, codec, reader.get()) {}

  void add(const float* keys, int64_t tokens, int layer) {
    view.add_row();
    if (tokens > 0) put(keys, tokens, layer);
  }
  void put(const float* keys, int64_t tokens, int layer) {
    const LayerKv& l = model.layers[0];
    view.begin({tokens}, Phase::kPrefill);
    std::vector<float> v(size_t(tokens * l.kv_heads * l.v_dim));
    Present x;
    x.k = TensorView::of(const_cast<float*>(keys), DType::kF32, {tokens, l.kv_heads, l.k_dim});
    x.v = TensorView::of(v.data(), DType::kF32, {tokens, l.kv_heads, l.v_dim});
    DeviceStep s = view.step();
    codec.write(layer, x, s);
    const int64_t before = view.paged(0);
    view.commit();
    const int unit = reader->spec(model, codec.spec(model)).unit;
    const Units u = view.units(0, before / unit * unit, view.paged(0), unit, layer);
    DeviceStep c = view.step(reader.get());
    if (u.n > 0 && reader->spec(model, codec.spec(model)).index_unit > 0) reader->index(layer, u, c);
  }
  std::vector<int64_t> picked_slots;
  // Ordinals and token counts of the runs picked for a query.
  std::pair<std::vector<int>, std::vector<int>> select(const float* q, int layer, bool latent = false) {
    const LayerKv& l = model.layers[0];
    view.begin({1}, Phase::kDecode);
    Present x;
    std::vector<float> key(size_t(l.k_dim), 0.f);  // the present's own, which nobody scores
    if (latent) x.k = x.v = TensorView::of(key.data(), DType::kF32, {1, 1, l.k_dim});
    x.q = TensorView::of(const_cast<float*>(q), DType::kF32, {1, l.q_heads, l.k_dim});
    DeviceStep s = view.step(reader.get());
    reader->select(layer, x, s);
    const KvIndex i = view.picked(layer);
    const int n = i.counts.ptr<int32_t>()[0];
    std::pair<std::vector<int>, std::vector<int>> out;
    int total = 0;
    picked_slots.clear();
    for (int e = 0; e < n; ++e) {
      const int64_t r = i.runs.ptr<int64_t>()[e];
      out.first.push_back(*view.picked_ordinals().at<int32_t>(0, e)),
          out.second.push_back(int(run_tokens(r)));
      picked_slots.push_back(run_slot(r));
      total += int(run_tokens(r));
    }
    EXPECT_EQ(total, i.tokens.ptr<int32_t>()[0]);
    return out;
  }
};

// The worked example Q-3 of methods-dynamic.md: a latent key for three heads; their mean query scores
// 8/3, 7/3, 13/3, the largest of the heads' bounds would be 7, 8, 10.
TEST(Quest, LatentKeysAreScoredByTheMeanQuery) {
  const std::vector<float> keys{1, 0, 2, 1, 0, 1,  -1, 2, 3, 0, 0, -1, 1, -2,
                                1, 0, 0, 2, 2, -2, 1,  1, 0, 1, 9, 9,  9, 9};
  const std::vector<float> heads{2, -1, 0, 1, -1, 3, 1, 1, 0, 0, 2, -3};
  using Picks = std::vector<int>;
  for (bool latent : {true, false}) {
    Store store(tiny_model(1, 3, 4), make(6, 2), 16);
    store.add(keys.data(), 7, 1);
    EXPECT_EQ(store.select(heads.data(), 1, latent).first, latent ? (Picks{0, 4, 6}) : (Picks{2, 4, 6}));
  }
}

TEST(Quest, PicksEqualTheOracle) {
  const auto keys = Npy::load(kGoldens + "keys.npy").as<float>(),
             queries = Npy::load(kGoldens + "queries.npy").as<float>();
  const Npy table = Npy::load(kGoldens + "cases.npy");
  const auto cases = table.as<int>(), picks = Npy::load(kGoldens + "picks.npy").as<int>(),
             sizes = Npy::load(kGoldens + "pick_tokens.npy").as<int>();
  for (int64_t i = 0; i < table.shape[0]; ++i) {
    const int* c = &cases[size_t(i * 6)];
    for (int page : {32, 64}) {
      Store store(tiny_model(2, 2, 16), make(c[2], c[1]), page);
      store.add(keys.data(), c[0], 1);
      const auto [ordinals, tokens] = store.select(&queries[size_t(c[3]) * 64], 1);
      EXPECT_EQ(ordinals, std::vector<int>(picks.begin() + c[4], picks.begin() + c[4] + c[5]))
          << "case " << i;
      EXPECT_EQ(tokens, std::vector<int>(sizes.begin() + c[4], sizes.begin() + c[4] + c[5])) << "case " << i;
      const KvIndex past = store.view.past(1);
      for (size_t e = 0; e < ordinals.size(); ++e) {  // the runs are those tokens' places
        const int64_t first = run_slot(past.runs.ptr<int64_t>()[ordinals[e] / page]);
        EXPECT_EQ(store.picked_slots[e], first + ordinals[e] % page);
      }
      EXPECT_LE(std::accumulate(tokens.begin(), tokens.end(), 0), store.reader->read_tokens(c[0]));
    }
  }
}

TEST(Quest, TiesGoToTheLowerUnit) {
  const auto keys = Npy::load(kGoldens + "tie_keys.npy").as<float>(),
             query = Npy::load(kGoldens + "tie_query.npy").as<float>();
  const Npy table = Npy::load(kGoldens + "tie_cases.npy");
  const auto cases = table.as<int>(), picks = Npy::load(kGoldens + "tie_picks.npy").as<int>();
  for (int64_t i = 0; i < table.shape[0]; ++i) {
    const int* c = &cases[size_t(i * 3)];
    Store store(tiny_model(2, 2, 16), make(c[0]), 16);
    store.add(keys.data(), 96, 0);
    EXPECT_EQ(store.select(query.data(), 0).first,
              std::vector<int>(picks.begin() + c[1], picks.begin() + c[1] + c[2]));
  }
}

TEST(Quest, SpecExampleQ5Budgets) {  // there n counts the token of the step: n - 1 are stored
  const struct {
    int64_t budget, unit, n, units, view;  // units and tokens read, the present's own included
  } cases[] = {{2048, 16, 2048, 128, 2048},
               {2048, 16, 2049, 128, 2033},
               {2048, 16, 1000, 63, 1000},
               {2048, 16, 2064, 128, 2048},
               {40, 16, 100, 3, 36}};
  const ModelKv m = tiny_model(1, 1, 8, DType::kF16, 1);
  for (const auto& c : cases) {
    Store store(m, make(c.budget, int(c.unit)), 64);
    const std::vector<float> keys(size_t(c.n * 8), 1.f), q(8, 1.f);
    store.add(keys.data(), c.n - 1, 0);
    const auto [ordinals, tokens] = store.select(q.data(), 0);
    EXPECT_EQ(int64_t(ordinals.size()) + ((c.n - 1) % c.unit == 0), c.units) << c.n;
    EXPECT_EQ(std::accumulate(tokens.begin(), tokens.end(), 1), c.view) << c.n;
  }
}

TEST(Quest, IndexDoesNotDependOnTheCutOfThePrompt) {
  const auto keys = Npy::load(kGoldens + "keys.npy").as<float>(),
             queries = Npy::load(kGoldens + "queries.npy").as<float>();
  Store whole(tiny_model(2, 2, 16), make(64), 32), cut(tiny_model(2, 2, 16), make(64), 32);
  whole.add(keys.data(), 205, 1);
  cut.add(keys.data(), 0, 1);
  for (int64_t at = 0, n = 1; at < 205; at += n, n = n * 7 % 29 + 1)
    cut.put(&keys[size_t(at * 32)], std::min(n, 205 - at), 1);
  for (int i = 0; i < 8; ++i)
    EXPECT_EQ(whole.select(&queries[size_t(i * 64)], 1), cut.select(&queries[size_t(i * 64)], 1));
}

TEST(Quest, ForcedSelectionOverEverythingReadsEverything) {
  const auto keys = Npy::load(kGoldens + "keys.npy").as<float>(),
             queries = Npy::load(kGoldens + "queries.npy").as<float>();
  for (int64_t tokens : {0, 5, 16, 100, 304}) {
    Store store(tiny_model(2, 2, 16), make(4096), 32);
    store.add(keys.data(), tokens, 0);
    const auto plain = store.select(queries.data(), 0);
    store.view.force = true;
    EXPECT_EQ(store.select(queries.data(), 0), plain);
    EXPECT_EQ(std::accumulate(plain.second.begin(), plain.second.end(), 0), tokens);
  }
}

TEST(Quest, BoundsOfTheCodecReplaceItsIndex) {
  const auto keys = Npy::load(kGoldens + "keys.npy").as<float>(),
             queries = Npy::load(kGoldens + "queries.npy").as<float>();
  const ModelKv m = tiny_model(2, 2, 16);
  Store own(m, make(96, 32), 64), lent(m, make(96, 32), 64, 32);
  EXPECT_TRUE(lent.reader->spec(m, lent.codec.spec(m)).components.empty());
  EXPECT_EQ(lent.reader->spec(m, lent.codec.spec(m)).index_unit, 0);
  own.add(keys.data(), 300, 1);
  lent.add(keys.data(), 300, 1);
  lent.codec.make_bounds(lent.view, 1, keys.data(), 300);
  for (int i = 0; i < 8; ++i)
    EXPECT_EQ(own.select(&queries[size_t(i * 64)], 1), lent.select(&queries[size_t(i * 64)], 1));
}

TEST(Quest, SpecNamesLayersThatSelect) {
  const ModelKv m = tiny_model(2, 2, 16, DType::kF16, 4);
  FakeCodec codec(0);
  const ReaderSpec s = make(2048, 16, 2)->spec(m, codec.spec(m));
  EXPECT_EQ(s.source, (std::vector<int>{-1, -1, 2, 3}));
  EXPECT_EQ(s.components[0].layers, (std::vector<int>{2, 3}));
  EXPECT_EQ(s.cap, 128);
  EXPECT_TRUE(make(2048, 16, 9)->spec(m, codec.spec(m)).components.empty());
}

}  // namespace
}  // namespace se
