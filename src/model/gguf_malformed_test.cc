// A file that lies costs one line, never a crash and never memory beyond the file's size.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/rng.h"
#include "model/gguf.h"
#include "model/testing/gguf_writer.h"
#include "model/testing/tiny_llama.h"

namespace se {
namespace {

constexpr uint32_t kU32 = 4, kString = 8, kArray = 9;

// Opens the bytes as a file: the error, or ok.
Status open_bytes(std::string_view bytes) {
  const TempFile file(bytes);
  const auto opened = Gguf::open(file.path());
  if (opened.ok()) return ok();
  EXPECT_NE(opened.status().message().find(file.path()), std::string::npos) << opened.status().message();
  EXPECT_EQ(opened.status().message().find('\n'), std::string::npos) << opened.status().message();
  return opened.status();
}

GgufBytes header(uint64_t tensors, uint64_t keys) {
  return GgufBytes().raw("GGUF").put(uint32_t(3)).put(tensors).put(keys);
}

// One f32 tensor 'x' with the given dims (fastest first), type and offset, and 64 bytes of data.
std::string with_tensor(std::vector<uint64_t> dims, uint32_t type, uint64_t offset) {
  GgufBytes b = header(1, 0).text("x").put(uint32_t(dims.size()));
  for (const uint64_t d : dims) b.put(d);
  std::string bytes = b.put(type).put(offset).data();
  bytes.resize((bytes.size() + 31) / 32 * 32 + 64);
  return bytes;
}

std::string two_tensors(const std::string& second, uint64_t first_offset, uint64_t second_offset) {
  std::string bytes = header(2, 0)
                          .text("x")
                          .put(uint32_t(1))
                          .put(uint64_t(16))
                          .put(uint32_t(0))
                          .put(first_offset)
                          .text(second)
                          .put(uint32_t(1))
                          .put(uint64_t(16))
                          .put(uint32_t(0))
                          .put(second_offset)
                          .data();
  bytes.resize((bytes.size() + 31) / 32 * 32 + 128);
  return bytes;
}

struct Case {
  const char* name;
  std::string bytes;
  const char* message;  // part of it
};

std::vector<Case> cases() {
  const auto key = [](uint32_t type) { return header(0, 1).text("k").put(type); };
  const uint64_t huge = uint64_t(1) << 62;
  std::string nested = key(kArray).data();
  for (int i = 0; i < 100; ++i) nested += GgufBytes().put(kArray).put(uint64_t(1)).data();
  nested.resize(nested.size() + 64);
  std::string padded = key(kU32).data() + "ab";
  return {
      {"Magic", std::string("GGML") + header(0, 0).data().substr(4), "starts with 'GGML', expected 'GGUF'"},
      {"MagicUnprintable", std::string("PK\3\n") + std::string(64, 'x'), "'PK\\x03\\x0a'"},
      {"Short", "GG", "expected 'GGUF'"},
      {"OnlyMagic", "GGUF", "the file ends in the version"},
      {"Version1",
       GgufBytes().raw("GGUF").put(uint32_t(1)).put(uint64_t(0)).data(),
       "version 1, expected 2 or 3"},
      {"Version99", GgufBytes().raw("GGUF").put(uint32_t(99)).put(uint64_t(0)).data(), "version 99"},
      {"BigEndian", GgufBytes().raw("GGUF").put(uint32_t(0x03000000)).put(uint64_t(0)).data(), "big-endian"},
      {"NoCounts", GgufBytes().raw("GGUF").put(uint32_t(3)).data(), "the file ends in the number of tensors"},
      {"HugeTensors", header(huge, 0).data(), "the number of tensors is 4611686018427387904"},
      {"NegativeTensors", header(~uint64_t(0), 0).data(), "the number of tensors is 18446744073709551615"},
      {"HugeKeys", header(0, huge).data(), "the number of keys"},
      {"KeyTooLong", header(0, 1).put(uint64_t(1000)).raw("short and sweet").data(), "has length 1000"},
      {"KeyLengthHuge",
       header(0, 1).put(~uint64_t(0)).raw("short and sweet").data(),
       "has length 18446744073709551615"},
      {"KeyEmpty", header(0, 1).text("").put(kU32).put(uint32_t(1)).put(uint64_t(0)).data(), "has no name"},
      {"KeyTwice",
       header(0, 2).text("k").put(kU32).put(uint32_t(1)).text("k").put(kU32).put(uint32_t(2)).data(),
       "key 'k' is there twice"},
      {"KeyType", key(13).put(uint64_t(0)).data(), "has type 13, expected 0 to 12"},
      {"ValueCut", padded, "the file ends in key 'k'"},
      {"StringLength",
       key(kString).put(uint64_t(1) << 40).raw("abc").data(),
       "key 'k' has length 1099511627776"},
      {"ArrayType",
       key(kArray).put(uint32_t(77)).put(uint64_t(1)).put(uint32_t(0)).data(),
       "an array of type 77"},
      {"ArrayHuge",
       key(kArray).put(kU32).put(huge).put(uint32_t(0)).data(),
       "elements of key 'k' is 4611686018427387904"},
      {"ArrayWraps", key(kArray).put(kU32).put(huge * 2 + 1).put(uint32_t(0)).data(), "elements of key 'k'"},
      {"ArrayOfStringsCut",
       key(kArray).put(kString).put(uint64_t(2)).text("a").put(uint64_t(5)).raw("bc").data(),
       "has length 5, but only 2"},
      {"ArraysNest", nested, "nests arrays deeper"},
      {"Alignment",
       header(0, 1).text("general.alignment").put(kU32).put(uint32_t(24)).data(),
       "expected a power of two"},
      {"AlignmentZero",
       header(0, 1).text("general.alignment").put(kU32).put(uint32_t(0)).data(),
       "is 0, expected 8 to"},
      {"AlignmentText",
       header(0, 1).text("general.alignment").put(kString).text("32").data(),
       "is string, expected an int"},
      {"Split", header(0, 1).text("split.count").put(kU32).put(uint32_t(3)).data(), "one part of 3"},
      {"TensorNameEmpty",
       header(1, 0)
           .text("")
           .put(uint32_t(1))
           .put(uint64_t(1))
           .put(uint32_t(0))
           .put(uint64_t(0))
           .put(uint64_t(0))
           .data(),
       "has no name"},
      {"TensorNameEvil",
       header(1, 0).text("a\nb\x1b[2J").put(uint32_t(9)).raw(std::string(64, '\0')).data(),
       "'a\\x0ab\\x1b[2J' has 9 dimensions"},
      {"TensorTwice", two_tensors("x", 0, 64), "tensor 'x' is there twice"},
      {"TensorsOverlap", two_tensors("y", 0, 32), "they overlap"},
      {"TensorsOverlapTwisted", two_tensors("y", 64, 32), "they overlap"},
      {"TensorsShare", two_tensors("y", 0, 0), "they overlap"},
      {"RankZero", with_tensor({}, 0, 0), "has 0 dimensions, expected 1 to 4"},
      {"RankFive", with_tensor({1, 1, 1, 1, 1}, 0, 0), "has 5 dimensions"},
      {"DimZero", with_tensor({4, 0}, 0, 0), "has 0 as dimension 1"},
      {"DimNegative", with_tensor({~uint64_t(0)}, 0, 0), "has 18446744073709551615 as dimension 0"},
      {"DimsOverflow", with_tensor({huge, 8}, 0, 0), "a product below 2^63"},
      {"DimsWrapToSmall",
       with_tensor({uint64_t(1) << 32, uint64_t(1) << 32, 2}, 0, 0),
       "a product below 2^63"},
      {"BytesOverflow", with_tensor({huge}, 0, 0), "expected fewer than 2^63 bytes"},
      {"TypeUnknown", with_tensor({4}, 1234, 0), "has type 1234 (unknown), expected one of F32, F16"},
      {"TypeRemoved", with_tensor({32}, 4, 0), "has type 4 (unknown)"},
      {"TypeNotComputed", with_tensor({32}, 20, 0), "has type 20 (IQ4_NL)"},
      {"RowNotBlocks", with_tensor({33}, 8, 0), "rows of 33 elements, expected whole Q8_0 blocks of 32"},
      {"RowNotSuperblocks", with_tensor({32}, 12, 0), "whole Q4_K blocks of 256"},
      {"OffsetUnaligned", with_tensor({4}, 0, 4), "expected a multiple of 32"},
      {"OffsetBeyond", with_tensor({4}, 0, 4096), "starts at offset 4096, but the file has"},
      {"OffsetHuge", with_tensor({4}, 0, ~uint64_t(0) - 31), "starts at offset 18446744073709551584"},
      {"DataCut", with_tensor({17}, 0, 0), "truncated?"},
      {"DataCutAtOffset", with_tensor({16}, 0, 32), "truncated?"},
      {"DataHuge", with_tensor({uint64_t(1) << 50}, 0, 0), "truncated?"},
  };
}

class Malformed : public ::testing::TestWithParam<Case> {};

TEST_P(Malformed, IsOneErrorLine) {
  const Status status = open_bytes(GetParam().bytes);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find(GetParam().message), std::string::npos) << status.message();
  EXPECT_LT(status.message().size(), 400u);
}

INSTANTIATE_TEST_SUITE_P(Gguf, Malformed, ::testing::ValuesIn(cases()), [](const auto& made) {
  return std::string(made.param.name);
});

TEST(Gguf, NamesWhatIsNoFile) {
  EXPECT_EQ(Gguf::open("no/such/file.gguf").status().code(), Code::kNotFound);
  EXPECT_EQ(Gguf::open("/").status().code(), Code::kIo);
  EXPECT_EQ(Gguf::open("").status().code(), Code::kNotFound);
  EXPECT_EQ(Gguf::open("/dev/null").status().code(), Code::kIo);
  EXPECT_EQ(open_bytes("").code(), Code::kIo);
}

GgufWriter small_model() {
  TinyLlamaOptions o;
  o.layers = 1, o.hidden = 32, o.ffn = 32, o.q_heads = 2, o.kv_heads = 1;
  GgufWriter w = tiny_llama(o);
  w.erase("tokenizer.ggml.tokens");
  w.erase("tokenizer.ggml.token_type");
  w.erase_tensor("token_embd.weight");
  return w;
}

TEST(Gguf, EveryTruncationIsAnError) {
  const std::string bytes = small_model().bytes();
  ASSERT_TRUE(open_bytes(bytes).ok());
  for (size_t n = 0; n < bytes.size(); n += n < 4096 ? 1 : 97) {
    ASSERT_FALSE(open_bytes(std::string_view(bytes).substr(0, n)).ok()) << "cut to " << n;
  }
  EXPECT_FALSE(open_bytes(std::string_view(bytes).substr(0, bytes.size() - 1)).ok());
}

TEST(Gguf, SurvivesRandomDamageToItsHeader) {
  const std::string good = small_model().bytes();
  Rng rng(3);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = good;
    for (int64_t n = 1 + rng.below(4); n > 0; --n) {
      const size_t at = size_t(rng.below(int64_t(std::min<size_t>(bytes.size(), 4096))));
      bytes[at] = rng.below(2) == 0 ? char(rng.below(256)) : char(rng.below(2) == 0 ? 0xff : 0);
    }
    (void)open_bytes(bytes);  // ok or one line: open_bytes checks
  }
}

}  // namespace
}  // namespace se
