#include "sparse/store/dtype/dtype.h"

#include <gtest/gtest.h>

#include "sparse/testing/attend_check.h"
#include "sparse/testing/set_fields.h"

namespace se {
namespace {

std::unique_ptr<Codec> make(int type) { return make_stage<Codec>(stage_store_dtype, {{"type", type}}); }

TEST(PlainCodec, AutoIsTheModelsTypeAndRoundsNothing) {
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    const ModelKv m = tiny_model(2, 3, 16, type);
    const CodecSpec s = make(dtype::kAuto)->spec(m);
    EXPECT_EQ(s.components[0].dtype, type);
    EXPECT_FALSE(s.present_as_stored);
  }
  EXPECT_TRUE(make(dtype::kBF16)->spec(tiny_model(1, 1, 8)).present_as_stored);
  EXPECT_FALSE(make(dtype::kF32)->spec(tiny_model(1, 1, 8)).present_as_stored);  // holds F16 exactly
}

TEST(PlainCodec, ReadsBackWhatAsStoredSays) {
  const ModelKv m = tiny_model(2, 3, 24);
  for (int type : {dtype::kAuto, dtype::kF32, dtype::kF16, dtype::kBF16}) {
    const auto codec = make(type);
    FakeView view(m, 16, *codec);
    for (int r = 0; r < 3; ++r) view.add_row();
    view.begin({37, 0, 16}, Phase::kPrefill);
    RandomPresent p(m.layers[0], 53, 5);
    for (int layer : {0, 1}) {
      DeviceStep s = view.step();
      codec->write(layer, p.x, s);
    }
    DeviceStep s = view.step();
    const std::vector<float> exact = p.k;
    codec->as_stored(1, p.x, s);
    EXPECT_EQ(p.k == exact, type != dtype::kBF16);
    view.commit();
    for (int layer : {0, 1}) {
      const auto rows = stored_rows(view, *codec, layer, view.past(layer));
      const int64_t row = 2 * 24;
      EXPECT_EQ(rows[0].k, std::vector<float>(p.k.begin(), p.k.begin() + 37 * row));
      EXPECT_EQ(rows[0].v, std::vector<float>(p.v.begin(), p.v.begin() + 37 * row));
      EXPECT_TRUE(rows[1].k.empty());
      EXPECT_EQ(rows[2].v, std::vector<float>(p.v.begin() + 37 * row, p.v.end()));
    }
  }
}

TEST(PlainCodec, AttendsWhatItStoredAndThePresent) {
  const ModelKv m = tiny_model(2, 3, 24);
  const auto codec = make(dtype::kBF16);
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

TEST(PlainCodec, ValuesBeyondF16SaturateInF16) {
  const ModelKv m = tiny_model(1, 1, 8, DType::kF32);
  const auto codec = make(dtype::kF16);
  FakeView view(m, 16, *codec);
  view.add_row();
  view.begin({1}, Phase::kPrefill);
  RandomPresent p(m.layers[0], 1, 1);
  p.k[0] = 1e6f, p.k[1] = -1e6f;
  DeviceStep s = view.step();
  codec->write(0, p.x, s);
  view.commit();
  const auto rows = stored_rows(view, *codec, 0, view.past(0));
  EXPECT_EQ(rows[0].k[0], 65504.f);
  EXPECT_EQ(rows[0].k[1], -65504.f);
}

}  // namespace
}  // namespace se
