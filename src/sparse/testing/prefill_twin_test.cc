// A driver under a plan with flashprefill against the whole method in double: means, energies, choice and
// attention as the specification writes them, by position, without tables, tiles of the kernels or chunks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "sparse/testing/slow_port.h"
#include "sparse/testing/toy_model.h"

namespace se::testing {
namespace {

struct Rule {
  double threshold = 0.95;
  size_t block = 16, sink = 1, window = 1, last = 1, min_len = 24;
  bool correction = true;
};

class SlowFlashPrefill final : public SlowPort {
 public:
  SlowFlashPrefill(ModelKv kv, Rule rule) : SlowPort(std::move(kv)), rule_(rule) {}
  bool prompt = true;                    // calls to come
  int pruned = 0, close = 0, tiles = 0;  // blocks left out; energies near the threshold

 private:
  struct Tile {
    std::vector<uint8_t> state;  // by block: 1 read, 2 its mean
    std::vector<Row> k, v;       // means
  };
  std::vector<Column> columns(int layer, size_t t, int a, size_t position) override {
    const LayerKv& l = kv_.layers[size_t(layer)];
    if (!prompt || l.kind != LayerKind::kFull) return SlowPort::columns(layer, t, a, position);
    const size_t group = size_t(l.q_heads / l.kv_heads), head = size_t(a) / group;
    const size_t packed = t * group + size_t(a) % group, number = packed / 128;
    const Tile& tile = tile_of(layer, head, number, position - t);
    std::vector<Column> seen;
    for (size_t j = 0; j <= position; ++j) {
      if (tile.state[j / rule_.block] == 1)
        seen.push_back({&keys_[size_t(layer)][j][head], &values_[size_t(layer)][j][head]});
    }
    for (size_t b = 0; b < tile.state.size(); ++b) {
      if (tile.state[b] == 2) seen.push_back({&tile.k[b], &tile.v[b], double(rule_.block)});
    }
    return seen;
  }

  const Tile& tile_of(int layer, size_t head, size_t number, size_t begin) {
    if (layer_ == layer && head_ == head && number_ == number && begin_ == begin) return tile_;
    layer_ = layer, head_ = head, number_ = number, begin_ = begin;
    const LayerKv& l = kv_.layers[size_t(layer)];
    const size_t group = size_t(l.q_heads / l.kv_heads), rows = queries_.size() * group, B = rule_.block;
    const size_t r0 = number * 128, r1 = std::min(rows, r0 + 128);
    const auto place = [&](size_t r) { return begin + r / group; };
    const size_t low = place(r0), high = place(r1 - 1), blocks = high / B + 1, active = (high + 1) / B;
    tile_ = {};
    tile_.state.assign(blocks, 1);
    if (high + 1 <= rule_.min_len || number + rule_.last >= (rows + 127) / 128) return tile_;
    ++tiles;
    const auto mean = [&](const std::vector<std::vector<Row>>& x, size_t b) {
      Row m(x[0][head].size(), 0);
      for (size_t j = b * B; j < (b + 1) * B; ++j)
        for (size_t d = 0; d < m.size(); ++d) m[d] += x[j][head][d] / double(B);
      return m;
    };
    std::vector<double> energy(active, 0);
    std::vector<std::vector<double>> logits(r1 - r0, std::vector<double>(active, -INFINITY));
    double top = -INFINITY, best = 0;
    for (size_t b = 0; b < active; ++b)
      tile_.k.push_back(mean(keys_[size_t(layer)], b)), tile_.v.push_back(mean(values_[size_t(layer)], b));
    for (size_t r = r0; r < r1; ++r) {
      const Row& q = queries_[r / group][head * group + r % group];
      for (size_t b = 0; b < active && b * B <= place(r); ++b) {
        double dot = 0;
        for (size_t d = 0; d < q.size(); ++d) dot += q[d] * tile_.k[b][d];
        logits[r - r0][b] = double(l.scale) * dot, top = std::max(top, double(l.scale) * dot);
      }
    }
    for (const auto& row : logits)
      for (size_t b = 0; b < active; ++b) energy[b] += std::exp(row[b] - top);
    for (double e : energy) best = std::max(best, e);
    for (size_t b = 0; b < blocks; ++b) {
      const bool forced = b < rule_.sink || b + rule_.window > low / B;
      if (forced || (b < active && energy[b] >= rule_.threshold * best)) continue;
      tile_.state[b] = rule_.correction && (b + 1) * B <= low ? 2 : 0;
      ++pruned;
    }
    for (double e : energy) close += std::abs(e - rule_.threshold * best) < 2e-5 * best;
    return tile_;
  }

  Rule rule_;
  Tile tile_;
  int layer_ = -1;
  size_t head_ = 0, number_ = 0, begin_ = 0;
};

class PrefillTwin : public ::testing::TestWithParam<Toy> {};

// As DriverTwin (twin_test.cc); seeds are such that no energy lies at the threshold.
TEST_P(PrefillTwin, EqualsTheWholeMethodInDouble) {
  const ToyModel model(GetParam(), 3, DType::kF32);
  for (bool correction : {true, false}) {
    Rule rule;
    rule.correction = correction;
    Player player(model);
    const auto seq =
        player.open(std::string("flashprefill(threshold=0.95,block=16,sink=1,window=1,last=1,min_len=24") +
                    (correction ? ")" : ",correction=off)"));
    SlowFlashPrefill port(model.kv(), rule);
    const auto slow = [&](const std::vector<int32_t>& ids) { return last_state(model, port, ids); };
    for (int64_t prompt : {300, 9, 170}) {  // the second and third behind a past of no whole blocks
      const auto ids = random_ids(uint64_t(prompt), prompt), more = random_ids(uint64_t(prompt) + 1, 7);
      port.prompt = true;
      expect_as_twin(player.prefill(*seq, ids, 64, 8), slow(ids), -1);
      port.prompt = false;
      for (size_t i = 0; i < more.size(); ++i)
        expect_as_twin(player.decode(*seq, more[i]), slow({more[i]}), int64_t(i));
    }
    EXPECT_EQ(port.close, 0) << "an energy at the threshold: another seed";
    EXPECT_GT(port.pruned, port.tiles);
    const auto& reads = seq->counters().prompt;
    ASSERT_EQ(int(reads.size()), model.layers());
    for (int l = 0; l < model.layers(); ++l) {
      const auto& r = reads[size_t(l)];
      if (model.kv().layers[size_t(l)].kind != LayerKind::kFull)
        EXPECT_EQ(r.seen, 0);
      else
        EXPECT_LT(r.read, r.seen * 9 / 10);
    }
  }
}

// A prompt of two chunks: layer by layer it reads the same blocks, to the same bits, as chunk by chunk.
TEST(PrefillChunks, LayerMajorPromptsReadTheSame) {
  const ToyModel model(Toy::kPlain);
  const std::string text = "flashprefill(threshold=0.95,block=32,sink=1,window=1,min_len=64)";
  const auto ids = random_ids(7, 2300);
  Player player(model);
  const auto chunked = player.open(text), staged = player.open(text + "+streamingllm(budget=4096)");
  const std::vector<float> a = player.prefill(*chunked, ids, 64, 2), b = player.prefill(*staged, ids, 64, 2);
  EXPECT_EQ(a, b);
  const auto& reads = chunked->counters().prompt;
  for (int l = 0; l < model.layers(); ++l) {
    EXPECT_EQ(reads[size_t(l)].read, staged->counters().prompt[size_t(l)].read);
    EXPECT_LT(reads[size_t(l)].read, reads[size_t(l)].seen);
  }
}

TEST(PrefillPlans, AreRefusedOnLatentHeadsAndBesideRings) {
  const auto latent = parse_plan("flashprefill", ToyModel(Toy::kLatent).kv());
  ASSERT_FALSE(latent.ok());
  EXPECT_EQ(latent.status().code(), Code::kUnsupported);
  EXPECT_NE(latent.status().message().find("flashprefill scores mean keys"), std::string::npos);
  const ModelKv plain = ToyModel(Toy::kPlain).kv();
  EXPECT_EQ(parse_plan("flashprefill+kivi(group=8)", plain).status().code(), Code::kUnsupported);
  EXPECT_TRUE(parse_plan("flashprefill+snapkv+kivi(group=8)", plain).ok());
  EXPECT_TRUE(parse_plan("flashprefill+streamingllm+fp8+quest", plain).ok());
}

INSTANTIATE_TEST_SUITE_P(Toys,
                         PrefillTwin,
                         ::testing::Values(Toy::kPlain, Toy::kNorms, Toy::kWindows),
                         [](const auto& toy) { return std::string(to_string(toy.param)); });

}  // namespace
}  // namespace se::testing
