#include <gtest/gtest.h>

#include <cmath>

#include "text/detokenizer.h"
#include "text/testing.h"

namespace se::text {
namespace {

using testing::golden;
using Ids = std::vector<int32_t>;

VocabSpec vocab_of(const nlohmann::ordered_json& json) {
  VocabSpec spec;
  spec.model = json["model"];
  spec.tokens = json["tokens"].get<std::vector<std::string>>();
  spec.types = json["types"].get<std::vector<int32_t>>();
  spec.scores = json["scores"].get<std::vector<float>>();
  spec.unk = json["unk"];
  return spec;
}

Tokenizer trained(bool prefix) {
  VocabSpec spec = vocab_of(golden("sentencepiece.json")["vocab"]);
  spec.add_space_prefix = prefix;
  return Tokenizer::create(std::move(spec)).take();
}

TEST(SentencePiece, IdsEqualTheReferenceWithAndWithoutSpacePrefix) {
  const auto goldens = golden("sentencepiece.json");
  for (const bool prefix : {true, false}) {
    const Tokenizer tokenizer = trained(prefix);
    const auto& cases = goldens[prefix ? "prefixed" : "bare"];
    ASSERT_GT(cases.size(), 50u);
    for (const auto& item : cases) {
      // Control tokens written in the text are none to SentencePiece.
      const Ids ids = tokenizer.encode(item["text"].get<std::string>(), {.parse_special = false});
      EXPECT_EQ(ids, item["ids"].get<Ids>()) << item["text"];
      EXPECT_EQ(tokenizer.decode(ids), item["decoded"].get<std::string>());
      EXPECT_EQ(tokenizer.decode(ids), item["text"].get<std::string>());
    }
  }
}

TEST(SentencePiece, StreamingGivesTheTextOfDecoding) {
  const Tokenizer tokenizer = trained(true);
  const auto goldens = golden("sentencepiece.json");
  for (const auto& item : goldens["prefixed"]) {
    Detokenizer stream(tokenizer);
    for (int round = 0; round < 2; ++round) {
      std::string text;
      for (const int32_t id : item["ids"].get<Ids>()) text += stream.push(id);
      EXPECT_EQ(text + stream.finish(), item["text"].get<std::string>());
    }
  }
}

TEST(SentencePiece, ASpaceIsPutBeforeEachStretchAfterAControlToken) {
  const Tokenizer tokenizer = trained(true);
  const Ids a = tokenizer.encode("a"), b = tokenizer.encode("b");
  const int32_t bos = tokenizer.find("<s>");
  Ids wanted = a;
  wanted.push_back(bos);
  wanted.insert(wanted.end(), b.begin(), b.end());
  EXPECT_EQ(tokenizer.encode("a<s>b"), wanted);
  EXPECT_EQ(tokenizer.encode("<s>"), Ids{bos});
}

TEST(SentencePiece, LongRunsTakeNoQuadraticTime) {
  for (const bool prefix : {true, false}) {
    const Tokenizer tokenizer = trained(prefix);
    for (const char* unit : {"a", " ", "\n", "the", "<b", "\u4e00", "\U0001F600", "\u2581"}) {
      std::string text;
      while (text.size() < (1 << 16)) text += unit;
      const Ids ids = tokenizer.encode(text);
      if (std::string(unit) != "\u2581") {
        EXPECT_EQ(tokenizer.decode(ids), text);
      }
    }
  }
}

TEST(SentencePiece, UnknownCharactersBecomeBytesOrOneUnknownToken) {
  VocabSpec spec = vocab_of(golden("sentencepiece.json")["vocab"]);
  const Tokenizer with = Tokenizer::create(spec).take();
  EXPECT_EQ(with.encode("\u13a0"), (Ids{with.find("<0xE1>"), with.find("<0x8E>"), with.find("<0xA0>")}));
  EXPECT_EQ(with.decode_bytes(with.encode("x\xff")), "x\xff");
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (TokenType(spec.types[id]) == TokenType::kByte) spec.types[id] = int32_t(TokenType::kUnused);
  }
  const Tokenizer without = Tokenizer::create(spec).take();
  EXPECT_EQ(without.encode("\u13a0\u13a1\u13a2"), (Ids{spec.unk}));
  EXPECT_EQ(without.encode("a\u13a0a"), (Ids{without.find("a"), spec.unk, without.find("a")}));
}

TEST(SentencePiece, ContradictoryVocabulariesAreRefused) {
  const VocabSpec good = vocab_of(golden("sentencepiece.json")["vocab"]);
  VocabSpec spec = good;
  spec.scores.pop_back();
  EXPECT_EQ(Tokenizer::create(spec).status().code(), Code::kInvalid);
  spec = good;
  spec.scores[20] = NAN;
  EXPECT_EQ(Tokenizer::create(spec).status().message(), "the score of token 20 is not a number");
  spec = good;
  spec.types[size_t(spec.tokens.size()) - 1] = int32_t(TokenType::kByte);
  EXPECT_EQ(Tokenizer::create(spec).status().code(), Code::kInvalid);
  spec = good;
  spec.rules = {{.id = int32_t(spec.tokens.size())}};
  EXPECT_EQ(Tokenizer::create(spec).status().code(), Code::kInvalid);
}

}  // namespace
}  // namespace se::text
