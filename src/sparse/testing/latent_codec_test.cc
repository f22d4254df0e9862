// Every codec on one latent head: what it stores is the key alone, and attention reads values out of it.
#include <gtest/gtest.h>

#include "sparse/plan.h"
#include "sparse/testing/attend_check.h"

namespace se {
namespace {

class LatentCodec : public ::testing::TestWithParam<const StageEntry*> {
 protected:
  std::unique_ptr<Codec> make() const {
    std::unique_ptr<Stage> stage = GetParam()->make();
    Codec* codec = dynamic_cast<Codec*>(stage.get());
    (void)stage.release();
    return std::unique_ptr<Codec>(codec);
  }
};

std::vector<const StageEntry*> codecs() {
  std::vector<const StageEntry*> out;
  for (const StageEntry* e : stage_entries()) {
    if (e->axis == Axis::kStore) out.push_back(e);
  }
  return out;
}

TEST_P(LatentCodec, StoresTheKeyAlone) {
  const auto codec = make();
  const ModelKv latent = latent_tiny_model(3, 64, 16), heads = tiny_model(1, 3, 80);
  ASSERT_TRUE(codec->accepts(latent).ok()) << codec->accepts(latent).message();
  const auto bytes = [&](const ModelKv& m, bool ring) {
    int64_t n = 0;
    for (const ComponentSpec& c : codec->spec(m).components) {
      int64_t elements = 1;
      for (int64_t d : c.shape) elements *= d;
      if ((c.per == kPerSequence) == ring) n += bytes_of(c.dtype, elements) * 256 / std::max(1, c.per);
    }
    return n;
  };
  EXPECT_GT(bytes(latent, false), 0);
  if (heads.layers[0].v_dim % codec->spec(heads).grain == 0) {
    EXPECT_LE(bytes(latent, false) * 2, bytes(heads, false) + 1) << "half of keys and values of 80 channels";
  }
  EXPECT_EQ(bytes(latent, true) * 2, bytes(heads, true)) << "and half of the ring";
}

// Attention in double over what values() says is stored and the exact ring.
TEST_P(LatentCodec, AttendsWhatItStoredAndThePresent) {
  const auto codec = make();
  const ModelKv m = latent_tiny_model(5, 64, 16);
  const LayerKv& l = m.layers[0];
  FakeView view(m, 64, *codec);
  view.add_row(), view.add_row();
  std::vector<std::vector<float>> exact(2);  // by row, keys of all tokens
  for (const std::vector<int64_t>& tokens : {std::vector<int64_t>{133, 7}, {1, 90}, {1, 1}}) {
    const bool decode = tokens[1] == 1;
    view.begin(tokens, decode ? Phase::kDecode : Phase::kPrefill);
    RandomPresent p(l, tokens[0] + tokens[1], uint64_t(tokens[1]));
    const CodecSpec spec = codec->spec(m);
    DeviceStep s = view.step();
    const bool late = !decode && spec.tail > 0;  // overwrites the ring that the chunk still reads
    if (!late) codec->write(1, p.x, s);
    if (spec.present_as_stored) codec->as_stored(1, p.x, s);
    std::vector<ExactKv> past = stored_rows(view, *codec, 1, view.past(1), false);
    for (size_t r = 0; r < 2; ++r) {
      const int64_t ring = view.tail_tokens(int64_t(r)) * l.k_dim;
      past[r].k.insert(past[r].k.end(), exact[r].end() - ring, exact[r].end());
    }
    EXPECT_LT(attend_error(view, *codec, 1, view.past(1), l, p.x, past), 2e-5) << tokens[1];
    if (late) codec->write(1, p.x, s);
    for (size_t r = 0; r < 2; ++r) {
      const auto from = p.k.begin() + (r == 0 ? 0 : tokens[0] * l.k_dim);
      exact[r].insert(exact[r].end(), from, from + tokens[r] * l.k_dim);
    }
    view.commit();
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, LatentCodec, ::testing::ValuesIn(codecs()), [](const auto& codec) {
  return std::string(codec.param->name);
});

}  // namespace
}  // namespace se
