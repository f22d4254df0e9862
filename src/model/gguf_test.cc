// What is written is read back, typed.
#include "model/gguf.h"

#include <gtest/gtest.h>

#include <cstring>

#include "model/gguf_vocab.h"
#include "model/testing/gguf_writer.h"
#include "model/testing/tiny_llama.h"

namespace se {
namespace {

std::string floats(std::initializer_list<float> values) {
  return std::string(reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(float));
}

GgufWriter sample() {
  GgufWriter w;
  w.set("a.u32", uint32_t(7));
  w.set("a.i32", int32_t(-7));
  w.set("a.u64", uint64_t(1) << 40);
  w.set("a.f32", 1.5f);
  w.set("a.bool", true);
  w.set("a.text", std::string("caf\xc3\xa9\0x", 7));
  w.set("a.texts", std::vector<std::string>{"one", "", "three"});
  w.set("a.ints", std::vector<int32_t>{3, -1, 2});
  w.set("a.same", std::vector<int32_t>{4, 4, 4});
  w.set("a.floats", std::vector<float>{0.25f, -2});
  w.tensor("x", DType::kF32, {3, 2}, floats({1, 2, 3, 4, 5, 6}));
  w.tensor("y", DType::kQ8_0, {2, 32}, std::string(68, '\1'));
  w.tensor("z", DType::kF16, {5}, std::string(10, '\2'));
  return w;
}

TEST(Gguf, ReadsBackEveryKindOfKey) {
  const TempFile file(sample().bytes());
  auto opened = Gguf::open(file.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const Gguf& g = *opened;
  EXPECT_EQ(g.version(), 3);
  EXPECT_TRUE(g.has("a.u32"));
  EXPECT_FALSE(g.has("a.u3"));
  EXPECT_EQ(*g.integer("a.u32", 0, 10), 7);
  EXPECT_EQ(*g.integer("a.i32", -10, 10), -7);
  EXPECT_EQ(*g.integer("a.u64", 0, INT64_MAX), int64_t(1) << 40);
  EXPECT_EQ(*g.number("a.f32", 0, 2), 1.5);
  EXPECT_EQ(*g.number("a.u32", 0, 10), 7.0);
  EXPECT_EQ(*g.boolean("a.bool"), true);
  EXPECT_EQ(*g.string("a.text"), std::string("caf\xc3\xa9\0x", 7));
  EXPECT_EQ(*g.strings("a.texts"), (std::vector<std::string>{"one", "", "three"}));
  EXPECT_EQ(*g.ints("a.ints"), (std::vector<int32_t>{3, -1, 2}));
  EXPECT_EQ(*g.floats("a.floats"), (std::vector<float>{0.25f, -2}));
  EXPECT_EQ(*g.uniform_integer("a.same", 1, 9), 4);
  EXPECT_EQ(*g.uniform_integer("a.u32", 1, 9), 7);
}

TEST(Gguf, FallbacksStandInForMissingKeysOnly) {
  const TempFile file(sample().bytes());
  const Gguf g = Gguf::open(file.path()).take();
  EXPECT_EQ(*g.integer("none", 0, 1, 1), 1);
  EXPECT_EQ(*g.string("none", "x"), "x");
  EXPECT_EQ(g.integer("none", 0, 1).status().code(), Code::kNotFound);
  EXPECT_EQ(g.integer("a.text", 0, 1, 1).status().code(), Code::kInvalid);
  EXPECT_EQ(g.integer("a.u32", 8, 9, 8).status().code(), Code::kInvalid);
  EXPECT_EQ(g.number("a.f32", 2, 3).status().code(), Code::kInvalid);
  EXPECT_EQ(g.boolean("a.u32").status().code(), Code::kInvalid);
  EXPECT_EQ(g.strings("a.ints").status().code(), Code::kInvalid);
  EXPECT_EQ(g.floats("a.ints").status().code(), Code::kInvalid);
  EXPECT_EQ(g.ints("a.texts").status().code(), Code::kInvalid);
  EXPECT_EQ(g.uniform_integer("a.ints", 0, 9).status().code(), Code::kUnsupported);
}

TEST(Gguf, ViewsTensorsInPlaceRowsFirst) {
  for (const uint32_t version : {2u, 3u}) {
    for (const int64_t alignment : {32, 64}) {
      GgufWriter w = sample();
      w.set("general.alignment", uint32_t(alignment));
      const TempFile file(w.bytes(version, alignment));
      const Gguf g = Gguf::open(file.path()).take();
      ASSERT_EQ(g.tensors().size(), 3u);
      const TensorView x = g.view(*g.find_tensor("x"));
      EXPECT_EQ(to_string(x), "f32[3, 2]");
      EXPECT_EQ(*x.at<float>(2, 1), 6);
      EXPECT_EQ(x.ptr<uint8_t>(), g.file().data() + g.find_tensor("x")->offset);
      EXPECT_EQ(to_string(g.view(*g.find_tensor("y"))), "q8_0[2, 32]");
      EXPECT_EQ(g.find_tensor("y")->bytes, 68);
      EXPECT_EQ(to_string(g.view(*g.find_tensor("z"))), "f16[5]");
      EXPECT_EQ(g.find_tensor("w"), nullptr);
    }
  }
}

TEST(Gguf, StaysInPlaceWhenMoved) {
  const TempFile file(sample().bytes());
  Gguf first = Gguf::open(file.path()).take();
  const TensorView x = first.view(*first.find_tensor("x"));
  const Gguf second = std::move(first);
  EXPECT_EQ(second.view(*second.find_tensor("x")).data, x.data);
  EXPECT_EQ(*x.at<float>(0, 0), 1);
}

TEST(GgufVocab, FillsTheRecordAndChecksIds) {
  GgufWriter w = tiny_llama();
  {
    const TempFile file(w.bytes());
    const auto vocab = read_vocab(Gguf::open(file.path()).take());
    ASSERT_TRUE(vocab.ok()) << vocab.status().message();
    EXPECT_EQ(vocab->model, "gpt2");
    EXPECT_EQ(vocab->tokens.size(), size_t(kTinyVocab));
    EXPECT_EQ(vocab->types.size(), size_t(kTinyVocab));
    EXPECT_EQ(vocab->tokens[size_t(kTinyFirstByte + 'a')], "a");
    EXPECT_EQ(vocab->eos, kTinyImEnd);
    EXPECT_EQ(vocab->eot, -1);
    EXPECT_FALSE(vocab->add_bos);
  }
  const auto error_with = [&](auto change) {
    GgufWriter broken = w;
    change(broken);
    const TempFile file(broken.bytes());
    return read_vocab(Gguf::open(file.path()).take()).status();
  };
  EXPECT_FALSE(error_with([](GgufWriter& b) { b.set("tokenizer.ggml.eos_token_id", uint32_t(300)); }).ok());
  EXPECT_FALSE(
      error_with([](GgufWriter& b) { b.set("tokenizer.ggml.token_type", std::vector<int32_t>{1}); }).ok());
  EXPECT_FALSE(error_with([](GgufWriter& b) { b.set("tokenizer.ggml.scores", std::vector<float>{1}); }).ok());
  EXPECT_FALSE(error_with([](GgufWriter& b) { b.erase("tokenizer.ggml.tokens"); }).ok());
  EXPECT_FALSE(error_with([](GgufWriter& b) { b.erase("tokenizer.ggml.model"); }).ok());
  EXPECT_TRUE(error_with([](GgufWriter& b) { b.set("tokenizer.ggml.eos_token_id", int32_t(-1)); }).ok());
}

}  // namespace
}  // namespace se
