// Tensors come out in the shape and form that a graph asks for, whatever the file made of them.
#include "model/weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/half.h"
#include "device/cpu/thread_pool.h"
#include "model/testing/llama_folder.h"

namespace se {
namespace {

std::string floats(std::initializer_list<float> values) {
  return std::string(reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(float));
}

// 0, 1, 2, ... of the type.
std::string counted(DType dtype, int64_t n) {
  std::string out;
  for (int64_t i = 0; i < n; ++i) {
    const float x = float(i);
    const uint16_t half = dtype == DType::kF16 ? f32_to_f16(x) : f32_to_bf16(x);
    out.append(
        dtype == DType::kF32 ? reinterpret_cast<const char*>(&x) : reinterpret_cast<const char*>(&half),
        size_t(block_bytes(dtype)));
  }
  return out;
}

ArchitectureCheck any() {
  return [](const std::string&, const std::string&) { return ok(); };
}

// A file of the keys of tiny_llama and these tensors alone.
struct Opened {
  explicit Opened(const std::function<void(GgufWriter&)>& fill) : temp(bytes(fill)) {
    auto opened = ModelFile::open(temp.path(), any());
    SE_CHECK(opened.ok(), "{}", opened.status().message());
    file = opened.take();
  }
  static std::string bytes(const std::function<void(GgufWriter&)>& fill) {
    GgufWriter w = tiny_llama();
    for (const TinyTensor& t : tiny_llama_tensors({})) w.erase_tensor(t.name);
    fill(w);
    return w.bytes();
  }
  TempFile temp;
  ModelFile file;
};

TEST(Weights, AsksForShapeAndType) {
  Opened o([](GgufWriter& w) {
    w.tensor("x", DType::kF32, {3, 2}, floats({1, 2, 3, 4, 5, 6}));
    w.tensor("y", DType::kQ8_0, {2, 32}, std::string(68, '\1'));
    w.tensor("i", DType::kI32, {5}, std::string(20, '\1'));
  });
  Weights w(o.file);
  EXPECT_EQ(*w.projection("x", 3, 2)->at<float>(2, 1), 6);
  EXPECT_EQ(w.projection("x", 2, 3).status().code(), Code::kInvalid);
  EXPECT_EQ(w.vector("x", 6).status().code(), Code::kInvalid);
  EXPECT_EQ(w.projection("q", 6, 1).status().code(), Code::kNotFound);
  EXPECT_TRUE(w.projection("y", 2, 32).ok());
  EXPECT_EQ(w.vector("i", 5).status().code(), Code::kInvalid);
  EXPECT_TRUE(w.vector_if_any("nothing", 5)->empty());
}

// Packed where this machine's level packs: the same products, and pages of the file may go.
TEST(Weights, ProjectionsArePackedOnceAndMultiplyTheSame) {
  const int64_t out = 40, in = 64;
  std::string rows(size_t(bytes_of(DType::kQ8_0, out * in)), '\0');
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = char(i % 34 < 2 ? 0x2c : i * 7);  // scales 0.066
  Opened o([&](GgufWriter& w) {
    w.tensor("x", DType::kQ8_0, {out, in}, rows);
    w.tensor("y", DType::kF32, {1, 2}, floats({1, 2}));
  });
  Weights w(o.file);
  const Weight weight = w.projection("x", out, in).take();
  EXPECT_EQ(w.projection("y", 1, 2)->packed, nullptr);
  EXPECT_EQ(weight.packed != nullptr, packed_bytes(weight) > 0);
  EXPECT_EQ(o.file.packed_bytes(), packed_bytes(weight));
  o.file.pack();
  std::vector<float> x(size_t(3 * in)), packed(size_t(3 * out)), plain(packed.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(i % 13) - 6;
  const auto multiply = [&](const Weight& by, std::vector<float>& y) {
    ThreadPool pool(1);
    Stream stream(pool);
    Arena scratch;
    linear(TensorView::of(x.data(), DType::kF32, {3, in}),
           by,
           {},
           TensorView::of(y.data(), DType::kF32, {3, out}),
           Compute::kDefault,
           scratch,
           stream);
  };
  multiply(weight, packed);
  o.file.release_packed();
  multiply(Weight(static_cast<const TensorView&>(weight)), plain);
  EXPECT_EQ(packed, plain);
  EXPECT_NE(packed, std::vector<float>(packed.size()));
}

TEST(Weights, RefusesWhatNobodyUses) {
  Opened o([](GgufWriter& w) {
    w.tensor("x", DType::kF32, {1, 1}, floats({1}));
    w.tensor("y", DType::kF32, {1}, floats({1}));
  });
  Weights w(o.file);
  ASSERT_TRUE(w.projection("x", 1, 1).ok());
  EXPECT_NE(w.all_used().message().find("'y'"), std::string::npos);
  ASSERT_TRUE(w.vector("y", 1).ok());
  EXPECT_TRUE(w.all_used().ok());
}

TEST(Weights, VectorsOfHalvesBecomeF32AndMustBeFinite) {
  const float inf = std::numeric_limits<float>::infinity();
  Opened o([&](GgufWriter& w) {
    w.tensor("half", DType::kF16, {5}, counted(DType::kF16, 5));
    w.tensor("nan", DType::kF32, {2}, floats({1, std::nanf("")}));
    w.tensor("inf", DType::kF32, {2}, floats({-inf, 0}));
  });
  Weights w(o.file);
  const auto half = w.vector("half", 5);
  ASSERT_TRUE(half.ok());
  EXPECT_EQ(half->dtype, DType::kF32);
  EXPECT_EQ(*half->at<float>(4), 4);
  EXPECT_NE(w.vector("nan", 2).status().message().find("has nan at 1, expected finite"), std::string::npos);
  EXPECT_NE(w.vector("inf", 2).status().message().find("has -inf at 0, expected finite"), std::string::npos);
}

TEST(Weights, HandsOutExpertsFromAStackAndFromAFusedOne) {
  Opened o([&](GgufWriter& w) {
    w.tensor("blk.0.ffn_down_exps.weight", DType::kF32, {3, 2, 4}, counted(DType::kF32, 24));
    w.tensor("blk.0.ffn_gate_up_exps.weight", DType::kF32, {3, 4, 2}, counted(DType::kF32, 24));
  });
  Weights w(o.file);
  const auto down = w.experts("blk.0.ffn_down_exps.weight", 3, 2, 4);
  ASSERT_TRUE(down.ok()) << down.status().message();
  EXPECT_EQ(*(*down)[1].at<float>(1, 2), 14);
  const auto gate = w.experts("blk.0.ffn_gate_exps.weight", 3, 2, 2);
  const auto up = w.experts("blk.0.ffn_up_exps.weight", 3, 2, 2);
  ASSERT_TRUE(gate.ok() && up.ok());
  EXPECT_EQ(*(*gate)[2].at<float>(1, 0), 18);
  EXPECT_EQ(*(*up)[2].at<float>(0, 1), 21);
  EXPECT_TRUE(w.all_used().ok());
  EXPECT_FALSE(w.experts("blk.0.ffn_down_exps.weight", 4, 2, 4).ok());
  EXPECT_FALSE(w.experts("blk.0.ffn_down_exps.weight", 3, 4, 2).ok());
  EXPECT_FALSE(w.projection("blk.0.ffn_down_exps.weight", 2, 4).ok());
}

// heads 2, nope 2, v 1, rank 32; the same numbers three ways.
TEST(Weights, LatentProjectionsAreTheSameFusedSplitAndQuantised) {
  const MlaConfig mla{0, 32, 2, 2, 1};
  const int64_t heads = 2, rank = 32;
  std::string kv, k(size_t(heads * rank * 2) * 4, '\0'), v;
  std::string kv_q8;
  const auto value = [](int64_t row, int64_t c) {
    return float(row * 16 + c % 16 - 20);
  };  // codes at scale 1
  for (int64_t row = 0; row < heads * 3; ++row) {
    const uint16_t one = f32_to_f16(1);
    kv_q8.append(reinterpret_cast<const char*>(&one), 2);
    for (int64_t c = 0; c < rank; ++c) {
      const float x = value(row, c);
      const char* bytes = reinterpret_cast<const char*>(&x);
      kv.append(bytes, 4);
      kv_q8 += char(int8_t(x));
      if (row % 3 == 2) v.append(bytes, 4);
      if (row % 3 < 2) std::memcpy(&k[size_t((row / 3 * rank + c) * 2 + row % 3) * 4], bytes, 4);
    }
  }
  const std::function<void(GgufWriter&)> files[] = {
      [&](GgufWriter& w) {
        w.tensor("blk.0.attn_kv_b.weight", DType::kF32, {heads * 3, rank}, kv);
      },
      [&](GgufWriter& w) {
        w.tensor("blk.0.attn_k_b.weight", DType::kF32, {heads, rank, 2}, k);
        w.tensor("blk.0.attn_v_b.weight", DType::kF32, {heads, 1, rank}, v);
      },
      [&](GgufWriter& w) {
        w.tensor("blk.0.attn_kv_b.weight", DType::kQ8_0, {heads * 3, rank}, kv_q8);
      }};
  for (const auto& fill : files) {
    Opened o(fill);
    Weights w(o.file);
    const auto up = w.latent_up(0, heads, mla);
    ASSERT_TRUE(up.ok()) << up.status().message();
    EXPECT_EQ(to_string(up->w_uk), "f32[2, 2, 32]");
    EXPECT_EQ(to_string(up->w_uv), "f32[2, 1, 32]");
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t c = 0; c < rank; ++c) {
        for (int64_t i = 0; i < 2; ++i) ASSERT_EQ(*up->w_uk.at<float>(h, i, c), value(h * 3 + i, c));
        ASSERT_EQ(*up->w_uv.at<float>(h, 0, c), value(h * 3 + 2, c));
      }
    }
    EXPECT_TRUE(w.all_used().ok());
  }
}

}  // namespace
}  // namespace se
