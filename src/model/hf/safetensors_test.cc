// A file that lies costs one line, never a crash and never memory beyond the file's size.
#include "model/hf/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/rng.h"
#include "model/testing/gguf_writer.h"
#include "model/testing/safetensors_writer.h"

namespace se {
namespace {

Status open_bytes(std::string_view bytes) {
  const TempFile file(bytes);
  const auto opened = Safetensors::open(file.path());
  if (opened.ok()) return ok();
  EXPECT_EQ(opened.status().message().find(file.path()), 0u) << opened.status().message();
  EXPECT_EQ(opened.status().message().find('\n'), std::string::npos) << opened.status().message();
  EXPECT_LT(opened.status().message().size(), 500u);
  return opened.status();
}

TEST(Safetensors, ReadsWhatIsWritten) {
  SafetensorsWriter w;
  w.tensor("a", DType::kF32, {2, 1}, std::string("\0\0\x80\x3f\0\0\0\x40", 8));
  w.tensor("scalar", DType::kF16, {}, std::string(2, '\1'));
  w.tensor("odd", DType::kBF16, {3}, std::string(6, '\2'));
  const TempFile file(w.bytes());
  const auto opened = Safetensors::open(file.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  ASSERT_EQ(opened->tensors().size(), 3u);
  const TensorView a = opened->view(opened->tensors()[0]);
  EXPECT_EQ(to_string(a), "f32[2, 1]");
  float second = 0;
  std::memcpy(&second, a.at<char>(1), 4);  // of any alignment
  EXPECT_EQ(second, 2);
  EXPECT_EQ(to_string(opened->view(opened->tensors()[1])), "f16[1]");
  EXPECT_EQ(opened->tensors()[2].bytes, 6);
}

TEST(Safetensors, RefusesEveryLie) {
  const auto one = [](const std::string& entry) {
    return safetensors_bytes("{" + entry + "}", std::string(16, '\0'));
  };
  const std::string good = R"("x":{"dtype":"F32","shape":[4],"data_offsets":[0,16]})";
  ASSERT_TRUE(open_bytes(one(good)).ok());
  std::string deep(100000, '[');
  const std::pair<std::string, const char*> cases[] = {
      {"", "empty"},
      {"abc", "expected the length of a header"},
      {std::string(8, '\xff') + "{}", "the header has 18446744073709551615 bytes"},
      {GgufBytes().put(uint64_t(100)).raw("{}").data(), "the header has 100 bytes, expected at most 2"},
      {safetensors_bytes("", ""), "not JSON"},
      {safetensors_bytes("[]", ""), "has an array"},
      {safetensors_bytes("7", ""), "has a number"},
      {safetensors_bytes(deep, ""), "has an array"},
      {safetensors_bytes("{\"x\":" + deep, ""), "has an array"},
      {safetensors_bytes("{", ""), "not JSON here"},
      {safetensors_bytes("{\"\xff\xfe\": {}}", ""), "not JSON here"},
      {one(good + "," + good), "'x' is there twice"},
      {one(good + R"(,"y":{"dtype":"F32","shape":[4],"data_offsets":[0,16]})"), "they overlap"},
      {one(good + R"(,"y":{"dtype":"F32","shape":[1],"data_offsets":[12,16]})"), "they overlap"},
      {one(R"("x":{"dtype":"F64","shape":[2],"data_offsets":[0,16]})"), "has dtype 'F64', expected one of"},
      {one(R"("x":{"shape":[4],"data_offsets":[0,16]})"), "has dtype ''"},
      {one(R"("x":{"dtype":"F32","data_offsets":[0,16]})"), "has no shape"},
      {one(R"("x":{"dtype":"F32","shape":[4]})"), "has 0 data_offsets"},
      {one(R"("x":{"dtype":"F32","shape":[4],"data_offsets":[0]})"), "has 1 data_offsets"},
      {one(R"("x":{"dtype":"F32","shape":[4],"data_offsets":[0,16,16]})"), "more than 2 numbers"},
      {one(R"("x":{"dtype":"F32","shape":[1,1,1,1,1,4],"data_offsets":[0,16]})"), "more than 5 numbers"},
      {one(R"("x":{"dtype":"F32","shape":[5],"data_offsets":[0,16]})"), "expected 20 bytes for its shape"},
      {one(R"("x":{"dtype":"F32","shape":[4],"data_offsets":[16,0]})"), "expected 16 bytes"},
      {one(R"("x":{"dtype":"F32","shape":[4],"data_offsets":[4,20]})"), "truncated?"},
      {one(R"("x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})"), "has 0 as dimension 0"},
      {one(R"("x":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]})"), "has -4 as dimension 0"},
      {one(R"("x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]})"),
       "fewer than 2^63"},
      {one(R"("x":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,16]})"),
       "18446744073709551615"},
      {one(R"("x":{"dtype":"F32","shape":[1.5],"data_offsets":[0,16]})"), "has a fraction"},
      {one(R"("x":{"dtype":7,"shape":[4],"data_offsets":[0,16]})"), "has a number"},
      {one(R"("x":{"dtype":"F32","shape":[[4]],"data_offsets":[0,16]})"), "has an array"},
      {one(R"("x":null)"), "has null"},
      {one(R"("__metadata__":{"a":{"b":"c"}})"), "has an object"},
      {one(R"("__metadata__":{"a":1})"), "has a number"},
  };
  for (const auto& [bytes, message] : cases) {
    const Status status = open_bytes(bytes);
    EXPECT_NE(status.message().find(message), std::string::npos)
        << "wanted " << message << ", got: " << (status.ok() ? "ok" : status.message());
  }
}

TEST(Safetensors, EveryTruncationIsAnErrorAndRandomDamageIsSurvived) {
  SafetensorsWriter w;
  w.tensor("model.a", DType::kF32, {4, 4}, std::string(64, '\0'));
  w.tensor("model.b", DType::kBF16, {8}, std::string(16, '\0'));
  const std::string good = w.bytes();
  for (size_t n = 0; n < good.size(); ++n) ASSERT_FALSE(open_bytes(good.substr(0, n)).ok()) << "cut to " << n;
  Rng rng(4);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = good;
    for (int64_t n = 1 + rng.below(4); n > 0; --n)
      bytes[size_t(rng.below(int64_t(bytes.size())))] = char(rng.below(256));
    (void)open_bytes(bytes);  // ok or one line: open_bytes checks
  }
}

}  // namespace
}  // namespace se
