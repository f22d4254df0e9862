#include "sparse/store/fp8/fp8.h"

#include <gtest/gtest.h>

#include "base/npy.h"
#include "sparse/testing/attend_check.h"
#include "sparse/testing/set_fields.h"

namespace se {
namespace {

std::unique_ptr<Codec> make(int format, int scale, int prefill = fp8::kStored) {
  return make_stage<Codec>(stage_store_fp8, {{"format", format}, {"scale", scale}, {"prefill", prefill}});
}

TEST(Fp8, StoresTheOraclesValues) {
  const ModelKv m = tiny_model(3, 3, 64);
  const auto codec = make(fp8::kE4M3, fp8::kHead);
  FakeView view(m, 16, *codec);
  view.add_row();
  view.begin({33}, Phase::kPrefill);
  RandomPresent p(m.layers[0], 33, 1);
  p.k = Npy::load("src/sparse/store/fp8/goldens/kv.npy").as<float>();
  p.x.k.data = p.k.data();
  DeviceStep s = view.step();
  codec->write(1, p.x, s);
  view.commit();
  EXPECT_EQ(stored_rows(view, *codec, 1, view.past(1))[0].k,
            Npy::load("src/sparse/store/fp8/goldens/e4m3_head_values.npy").as<float>());
}

TEST(Fp8, PresentAsStoredIsWhatLaterStepsRead) {
  const ModelKv m = tiny_model(2, 3, 40);
  for (int format : {fp8::kE4M3, fp8::kE5M2}) {
    for (int scale : {fp8::kHead, fp8::kToken}) {
      const auto codec = make(format, scale);
      FakeView view(m, 16, *codec);
      view.add_row(), view.add_row();
      view.begin({21, 5}, Phase::kPrefill);
      RandomPresent p(m.layers[0], 26, 9);
      DeviceStep s = view.step();
      codec->write(1, p.x, s);
      codec->as_stored(1, p.x, s);
      view.commit();
      const auto rows = stored_rows(view, *codec, 1, view.past(1));
      EXPECT_EQ(rows[0].k, std::vector<float>(p.k.begin(), p.k.begin() + 21 * 80));
      EXPECT_EQ(rows[1].v, std::vector<float>(p.v.begin() + 21 * 80, p.v.end()));
    }
  }
}

TEST(Fp8, ExactPrefillRoundsInDecodeOnly) {
  const ModelKv m = tiny_model(1, 1, 16);
  const auto exact = make(fp8::kE4M3, fp8::kHead, fp8::kExact);
  EXPECT_EQ(exact->spec(m).chunk, 2048);
  EXPECT_EQ(make(fp8::kE4M3, fp8::kHead)->spec(m).chunk, 0);
  FakeView view(m, 16, *exact);
  view.add_row();
  for (Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    view.begin({1}, phase);
    RandomPresent p(m.layers[0], 1, 3);
    const std::vector<float> before = p.k;
    DeviceStep s = view.step();
    exact->as_stored(0, p.x, s);
    EXPECT_EQ(p.k == before, phase == Phase::kPrefill);
  }
}

TEST(Fp8, AttendsWhatItStoredAndThePresent) {
  const ModelKv m = tiny_model(2, 3, 64);
  for (int scale : {fp8::kHead, fp8::kToken}) {
    const auto codec = make(fp8::kE4M3, scale);
    FakeView view(m, 16, *codec);
    view.add_row(), view.add_row();
    for (const std::vector<int64_t>& tokens : {std::vector<int64_t>{33, 7}, {1, 20}, {1, 1}}) {
      view.begin(tokens, tokens[1] == 1 ? Phase::kDecode : Phase::kPrefill);
      RandomPresent p(m.layers[0], tokens[0] + tokens[1], uint64_t(tokens[1]));
      DeviceStep s = view.step();
      codec->write(1, p.x, s);
      codec->as_stored(1, p.x, s);
      const KvIndex past = view.past(1);
      EXPECT_LT(attend_error(view, *codec, 1, past, m.layers[0], p.x, stored_rows(view, *codec, 1, past)),
                1e-5);
      view.commit();
    }
  }
}

}  // namespace
}  // namespace se
