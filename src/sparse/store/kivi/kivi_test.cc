#include "sparse/store/kivi/kivi.h"

#include <gtest/gtest.h>

#include "base/npy.h"
#include "sparse/testing/attend_check.h"
#include "sparse/testing/set_fields.h"

namespace se {
namespace {

std::unique_ptr<Codec> make(int bits = 4, int group = 32, int residual = 32) {
  return make_stage<Codec>(stage_store_kivi, {{"bits", bits}, {"group", group}, {"residual", residual}});
}

// Steps through a row and remembers every token exactly, so that the ring's contents are known.
struct Talk {
  ModelKv model;
  std::unique_ptr<Codec> codec;
  FakeView view;
  std::vector<ExactKv> exact;  // by row, all tokens so far

  Talk(int bits, int group, int residual, int rows)
      : model(tiny_model(2, 3, 64)),
        codec(make(bits, group, residual)),
        view(model, 64, *codec),
        exact(size_t(rows)) {
    for (int r = 0; r < rows; ++r) view.add_row();
  }
  int64_t token_floats() const { return int64_t(model.layers[0].kv_heads) * model.layers[0].k_dim; }
  void remember(const RandomPresent& p) {
    const int32_t* start = view.step_rows().q_start.ptr<int32_t>();
    for (size_t r = 0; r < exact.size(); ++r) {
      exact[r].k.insert(exact[r].k.end(),
                        p.k.begin() + start[r] * token_floats(),
                        p.k.begin() + start[r + 1] * token_floats());
      exact[r].v.insert(exact[r].v.end(),
                        p.v.begin() + start[r] * token_floats(),
                        p.v.begin() + start[r + 1] * token_floats());
    }
  }
  // What the rows hold before this step: paged tokens as decoded, the ring as it was written.
  std::vector<ExactKv> held(int layer) {
    std::vector<ExactKv> rows = stored_rows(view, *codec, layer, view.past(layer));
    for (size_t r = 0; r < rows.size(); ++r) {
      const int64_t from = view.paged(int64_t(r)) * token_floats();
      rows[r].k.insert(rows[r].k.end(), exact[r].k.begin() + from, exact[r].k.end());
      rows[r].v.insert(rows[r].v.end(), exact[r].v.begin() + from, exact[r].v.end());
    }
    return rows;
  }
  // One step in layer 1; returns the error of its attention.
  double run(const std::vector<int64_t>& tokens, Phase phase, uint64_t seed) {
    view.begin(tokens, phase);
    RandomPresent p(model.layers[0], view.tokens(), seed);
    const std::vector<ExactKv> past = held(1);
    const auto write = [&] {
      DeviceStep s = view.step();
      codec->write(1, p.x, s);
    };
    if (phase == Phase::kDecode) write();
    const double error = attend_error(view, *codec, 1, view.past(1), model.layers[0], p.x, past);
    if (phase == Phase::kPrefill) write();  // it overwrites the ring that the chunk reads
    remember(p);
    view.commit();
    for (size_t r = 0; r < exact.size(); ++r) {
      if (view.tail_tokens(int64_t(r)) < codec->spec(model).tail) continue;
      const Units u = view.close(int64_t(r), 1);
      DeviceStep s = view.step();
      codec->close(1, u, s);
      view.count_closed(int64_t(r));
    }
    return error;
  }
};

TEST(Kivi, ChunkAppendAndCloseKeepEveryTokenInPlace) {
  for (const auto& [bits, group, residual] :
       {std::array{4, 32, 32}, std::array{2, 16, 40}, std::array{4, 64, 0}}) {
    Talk talk(bits, group, residual, 2);
    uint64_t seed = 1;
    for (const std::vector<int64_t>& tokens : {std::vector<int64_t>{150, 7}, {33, 20}, {1, 200}})
      EXPECT_LT(talk.run(tokens, Phase::kPrefill, seed++), 1e-5) << group << " " << residual;
    for (int i = 0; i < 2 * (group + residual) + 5; ++i)
      EXPECT_LT(talk.run({1, 1}, Phase::kDecode, seed++), 1e-5) << i;
    EXPECT_LT(talk.run({90, 1}, Phase::kPrefill, seed++), 1e-5);
    // The codes are those of the exact tokens: within half a step of them, and a step is at most range /
    // levels.
    const auto rows = stored_rows(talk.view, *talk.codec, 1, talk.view.past(1));
    for (size_t r = 0; r < rows.size(); ++r) {
      ASSERT_EQ(talk.view.paged(int64_t(r)) % group, 0);
      ASSERT_GT(rows[r].k.size(), 0u);
      const double bound = 10.0 / ((1 << bits) - 1) * 0.51;
      for (size_t i = 0; i < rows[r].k.size(); ++i) {
        ASSERT_NEAR(rows[r].k[i], talk.exact[r].k[i], bound) << r << " " << i;
        ASSERT_NEAR(rows[r].v[i], talk.exact[r].v[i], bound) << r << " " << i;
      }
    }
  }
}

TEST(Kivi, AppendingTokenByTokenEqualsOneChunk) {
  Talk chunk(4, 32, 32, 1), steps(4, 32, 32, 1);
  RandomPresent p(chunk.model.layers[0], 200, 77);
  const auto one_step = [&](Talk& t, int64_t first, int64_t n, Phase phase) {
    t.view.begin({n}, phase);
    Present x{p.x.q.slice(first, first + n), p.x.k.slice(first, first + n), p.x.v.slice(first, first + n)};
    DeviceStep s = t.view.step();
    t.codec->write(0, x, s);
    t.view.commit();
    if (t.view.tail_tokens(0) == 64) {
      const Units u = t.view.close(0, 0);
      DeviceStep c = t.view.step();
      t.codec->close(0, u, c);
      t.view.count_closed(0);
    }
  };
  one_step(chunk, 0, 200, Phase::kPrefill);
  for (int i = 0; i < 200; ++i) one_step(steps, i, 1, Phase::kDecode);
  ASSERT_EQ(chunk.view.paged(0), 160);
  ASSERT_EQ(steps.view.paged(0), 160);
  const auto a = stored_rows(chunk.view, *chunk.codec, 0, chunk.view.past(0)),
             b = stored_rows(steps.view, *steps.codec, 0, steps.view.past(0));
  EXPECT_EQ(a[0].k, b[0].k);
  EXPECT_EQ(a[0].v, b[0].v);
}

TEST(Kivi, StoresTheOraclesValues) {
  Talk talk(4, 32, 0, 1);
  const auto dir = std::string("src/sparse/store/kivi/goldens/");
  RandomPresent p(talk.model.layers[0], 64, 1);
  p.k = Npy::load(dir + "k.npy").as<float>(), p.v = Npy::load(dir + "v.npy").as<float>();
  p.x.k.data = p.k.data(), p.x.v.data = p.v.data();
  talk.view.begin({64}, Phase::kPrefill);
  DeviceStep s = talk.view.step();
  talk.codec->write(1, p.x, s);
  talk.view.commit();
  const auto rows = stored_rows(talk.view, *talk.codec, 1, talk.view.past(1));
  EXPECT_EQ(rows[0].k, Npy::load(dir + "b4_k_values.npy").as<float>());
  EXPECT_EQ(rows[0].v, Npy::load(dir + "b4_v_values.npy").as<float>());
}

TEST(Kivi, BoundsHoldExactlyForDecodedKeys) {
  for (int bits : {4, 2}) {
    Talk talk(bits, 32, 32, 1);
    talk.run({300}, Phase::kPrefill, 3);
    const KeyBounds b = talk.codec->bounds(1, talk.view);
    ASSERT_EQ(b.per, 32);
    const KvIndex past = talk.view.past(1);
    const auto rows = stored_rows(talk.view, *talk.codec, 1, past);
    for (int64_t t = 0; t < talk.view.paged(0); ++t) {
      const int64_t slot = run_slot(past.runs.ptr<int64_t>()[t / 64]) + past.offset.ptr<int64_t>()[0];
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t d = 0; d < 64; ++d) {
          const float lo = f16_to_f32(*b.lo.at<uint16_t>(slot / 64, t % 64 / 32, h, d));
          const float hi =
              lo + float(b.levels) * f16_to_f32(*b.step.at<uint16_t>(slot / 64, t % 64 / 32, h, d));
          const float x = rows[0].k[size_t((t * 2 + h) * 64 + d)];
          ASSERT_LE(lo, x);
          ASSERT_LE(x, hi);
        }
      }
    }
  }
}

TEST(Kivi, RefusesAModelWhoseHeadsItsGroupDoesNotDivide) {
  EXPECT_TRUE(make(4, 32)->accepts(tiny_model(1, 1, 64)).ok());
  EXPECT_NE(make(4, 128)->accepts(tiny_model(1, 1, 64)).message().find("nearest: 64"), std::string::npos);
  EXPECT_FALSE(make(4, 32)->accepts(tiny_model(1, 1, 48)).ok());
}

TEST(Kivi, FlushesAsTheOracleCounts) {
  const auto flush = Npy::load("src/sparse/store/kivi/goldens/flush.npy").as<int>();
  int which = 0;
  for (int residual : {0, 32, 64}) {
    for (int64_t n : {1, 31, 32, 33, 63, 64, 65, 95, 96, 199}) {
      Talk talk(4, 32, residual, 1);
      talk.run({n}, Phase::kPrefill, 1);
      EXPECT_EQ(talk.view.paged(0), flush[size_t(which * 200 + n)]) << residual << " " << n;
    }
    ++which;
  }
}

}  // namespace
}  // namespace se
