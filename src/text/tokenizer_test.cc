#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "text/detokenizer.h"
#include "text/testing.h"
#include "text/unicode.h"

namespace se::text {
namespace {

using testing::golden;
using testing::small_tokenizer;
using testing::small_vocab;
using Ids = std::vector<int32_t>;

class EveryPreTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryPreTokenizer, IdsEqualTheReference) {
  VocabSpec spec = small_vocab();
  spec.pre = GetParam();
  set_implied(spec);
  spec.add_bos = false;
  const Tokenizer tokenizer = Tokenizer::create(std::move(spec)).take();
  const auto goldens = golden(std::string("encode/") + GetParam() + ".json");
  ASSERT_GT(goldens["cases"].size(), 50u);
  for (const auto& item : goldens["cases"]) {
    const std::string text = item["text"];
    EXPECT_EQ(tokenizer.encode(text), item["ids"].get<Ids>()) << item["text"];
    EXPECT_EQ(tokenizer.encode_with_plain(text, {{0, int64_t(text.size())}}),
              tokenizer.encode(text, {.parse_special = false}));
  }
  for (const auto& item : goldens["plain"]) {
    EXPECT_EQ(tokenizer.encode(item["text"].get<std::string>(), {.parse_special = false}),
              item["ids"].get<Ids>())
        << item["text"];
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizer,
                         EveryPreTokenizer,
                         ::testing::Values("gpt-2",
                                           "smollm",
                                           "llama-bpe",
                                           "glm4",
                                           "qwen2",
                                           "qwen35",
                                           "deepseek-v3",
                                           "deepseek-llm",
                                           "deepseek-coder"));

TEST(Tokenizer, ControlTokensThatTouchPlainSpansAreNotParsed) {
  const Tokenizer tokenizer = small_tokenizer();
  const std::string text = "<|im_start|>user\n<|im_end|> x<|im_end|>\n";
  const int64_t begin = text.find("<|im_end|>"), end = begin + 12;
  Ids wanted = {tokenizer.find("<|im_start|>")};
  for (const int32_t id : tokenizer.encode("user\n<|im_end|> x", {.parse_special = false}))
    wanted.push_back(id);
  wanted.push_back(tokenizer.find("<|im_end|>"));
  for (const int32_t id : tokenizer.encode("\n")) wanted.push_back(id);
  EXPECT_EQ(tokenizer.encode_with_plain(text, {{begin, end}}), wanted);
  // A token half written by the template and half by the content is not parsed either.
  for (const Span part : {Span{0, 1}, Span{11, 12}, Span{4, 5}}) {
    EXPECT_EQ(tokenizer.encode_with_plain("<|im_start|>", {part}),
              tokenizer.encode("<|im_start|>", {.parse_special = false}));
  }
  EXPECT_EQ(tokenizer.encode_with_plain("a<|im_start|>b", {{0, 1}, {13, 14}}),
            tokenizer.encode("a<|im_start|>b"));
}

TEST(Tokenizer, DecodingEqualsTheReferenceAlsoWhenStreamed) {
  const Tokenizer tokenizer = small_tokenizer();
  for (const auto& item : golden("decode.json")) {
    const Ids ids = item["ids"].get<Ids>();
    for (const bool skip : {false, true}) {
      const std::string wanted = item[skip ? "shown" : "text"];
      EXPECT_EQ(tokenizer.decode(ids, skip), wanted);
      Detokenizer stream(tokenizer, skip);
      std::string streamed;
      for (const int32_t id : ids) {
        const std::string piece = stream.push(id);
        EXPECT_EQ(piece, to_valid_utf8(piece));
        streamed += piece;
      }
      EXPECT_EQ(streamed + stream.finish(), wanted);
    }
  }
}

TEST(Tokenizer, AnyBytesRoundTripExceptThoseWithoutAToken) {
  const Tokenizer tokenizer = small_tokenizer();
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::string bytes, known;
    const int length = int(random() % 50);
    for (int i = 0; i < length; ++i) bytes += char(random() % 4 == 0 ? ' ' + random() % 95 : random() % 256);
    for (const char byte : bytes) {
      std::string token;
      append_utf8(token, byte_to_code_point(uint8_t(byte)));
      if (tokenizer.find(token) >= 0) known += byte;
    }
    EXPECT_EQ(tokenizer.decode_bytes(tokenizer.encode(bytes)), known);
  }
}

TEST(Tokenizer, AddsBosAndEosOnlyWhenTheVocabularyAsks) {
  VocabSpec spec = small_vocab();
  spec.add_bos = spec.add_eos = true;
  const Tokenizer tokenizer = Tokenizer::create(std::move(spec)).take();
  const Ids bare = tokenizer.encode("x", {.add_special = false});
  EXPECT_EQ(tokenizer.encode("x"), (Ids{1, bare[0], 2}));
  EXPECT_EQ(tokenizer.encode(""), (Ids{1, 2}));
  EXPECT_EQ(small_tokenizer().encode("x"), bare);
}

TEST(Tokenizer, RefusalsNameWhatWasFoundAndWhatIsSupported) {
  VocabSpec spec = small_vocab();
  spec.model = "rwkv";
  EXPECT_EQ(Tokenizer::create(spec).status().message(),
            "tokenizer model is 'rwkv', supported: gpt2, llama, char-bpe");
  spec = small_vocab();
  spec.pre = "klingon";
  EXPECT_EQ(Tokenizer::create(spec).status().message(),
            "pre-tokenizer is 'klingon', supported: gpt-2, smollm, llama-bpe, qwen2, qwen35, glm4, "
            "deepseek-v3, deepseek-llm, deepseek-coder");
  EXPECT_EQ(Tokenizer::create(spec).status().code(), Code::kUnsupported);
  spec = small_vocab();
  spec.merges.push_back("q qqq");
  EXPECT_EQ(Tokenizer::create(spec).status().message(),
            "merge 2500 is 'q qqq', but 'qqq' is not in the vocabulary");
  spec = small_vocab();
  spec.merges[5] = "nospace";
  EXPECT_EQ(Tokenizer::create(spec).status().code(), Code::kInvalid);
  spec = small_vocab();
  spec.types.pop_back();
  EXPECT_EQ(Tokenizer::create(spec).status().code(), Code::kInvalid);
  spec = small_vocab();
  spec.eos = int32_t(spec.tokens.size());
  EXPECT_EQ(Tokenizer::create(spec).status().code(), Code::kInvalid);
  EXPECT_EQ(Tokenizer::create({}).status().code(), Code::kUnsupported);
}

TEST(Tokenizer, LongRunsTakeNoQuadraticTime) {
  for (const char* pre :
       {"gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "deepseek-v3", "deepseek-llm", "deepseek-coder"}) {
    VocabSpec spec = small_vocab();
    spec.pre = pre;
    spec.nfc = true;
    const Tokenizer tokenizer = Tokenizer::create(std::move(spec)).take();
    for (const char* unit : {"a", " ", "\n", "'", "<|im_start|", "\u0301\u0323", "\xff"}) {
      std::string text;
      while (text.size() < (1 << 16)) text += unit;
      const Ids ids = tokenizer.encode(text);
      if (text[0] > 0) {
        EXPECT_EQ(tokenizer.decode_bytes(ids), text) << pre;
      }
    }
  }
}

TEST(Tokenizer, ABosThatTheTextBeginsWithIsNotAddedTwice) {
  VocabSpec spec = small_vocab();
  spec.add_bos = true;
  const std::string bos = spec.tokens[1];
  const Tokenizer tokenizer = Tokenizer::create(std::move(spec)).take();
  EXPECT_EQ(tokenizer.encode(bos + "x"), tokenizer.encode("x"));
  EXPECT_EQ(tokenizer.encode(bos + bos), (Ids{1, 1}));
  EXPECT_EQ(tokenizer.encode("x" + bos).size(), tokenizer.encode("x").size() + 1);
  const Ids typed = tokenizer.encode(bos, {.parse_special = false});
  EXPECT_EQ(typed[0], 1);
  EXPECT_GT(typed.size(), 1u);
}

TEST(Tokenizer, MatchedTokensFollowTheirRulesAsTheReferenceDoes) {
  for (const auto& golden_rule : golden("rules.json")) {
    VocabSpec spec = small_vocab();
    spec.pre = "qwen2";
    set_implied(spec);
    spec.types[spec.types.size() - 2] = int32_t(TokenType::kNormal);  // a longer one that ends with it
    const auto& json = golden_rule["rule"];
    spec.rules = {{.id = int32_t(spec.tokens.size()) - 1,
                   .lstrip = json.contains("lstrip"),
                   .rstrip = json.contains("rstrip"),
                   .single_word = json.contains("single_word"),
                   .normalized = json.contains("normalized")}};
    const Tokenizer tokenizer = Tokenizer::create(std::move(spec)).take();
    for (const auto& item : golden_rule["cases"]) {
      EXPECT_EQ(tokenizer.encode(item["text"].get<std::string>()), item["ids"].get<Ids>())
          << json << item["text"];
    }
  }
}

}  // namespace
}  // namespace se::text
