#include "text/hf_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "base/fmt.h"
#include "text/testing.h"

namespace se::text {
namespace {

using testing::golden;
using Json = nlohmann::ordered_json;
using Ids = std::vector<int32_t>;

class Folder {
 public:
  Folder() : path_(::testing::TempDir() + format("hf_folder_{}", ::getpid())) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directory(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name) << text;
  }
  void write_json(const std::string& name, const Json& json) const { write(name, json.dump()); }
  Result<FolderText> read() const { return read_folder_text(path_); }
  std::string error() const {
    const auto result = read();
    if (result.ok()) return "ok";
    const std::string& message = result.status().message();
    return message.starts_with(path_ + "/") ? message.substr(path_.size() + 1) : message;
  }

 private:
  std::string path_;
};

// tokenizer.json of the small vocabulary, as the reference writes it for pre-tokenizer `pre`.
Json byte_file(const std::string& pre) {
  const VocabSpec vocab = testing::small_vocab();
  Json file = golden("pipelines.json")[pre];
  file["added_tokens"] = Json::array();
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    if (TokenType(vocab.types[id]) == TokenType::kNormal) {
      file["model"]["vocab"][vocab.tokens[id]] = id;
    } else {
      file["added_tokens"].push_back({{"id", id},
                                      {"content", vocab.tokens[id]},
                                      {"single_word", false},
                                      {"lstrip", false},
                                      {"rstrip", false},
                                      {"normalized", false},
                                      {"special", TokenType(vocab.types[id]) == TokenType::kControl}});
    }
  }
  file["model"]["merges"] = vocab.merges;
  return file;
}

TEST(HfFolder, EveryPreTokenizerIsRecognised) {
  const Json pipelines = golden("pipelines.json");
  for (const auto& [pre, sections] : pipelines.items()) {
    const Folder folder;
    folder.write_json("tokenizer.json", byte_file(pre));
    FolderText text = folder.read().take();
    VocabSpec wanted = testing::small_vocab();
    wanted.pre = pre;
    set_implied(wanted);
    EXPECT_EQ(text.vocab.pre, pre == "glm4" ? "llama-bpe" : pre);  // the same but for ignore_merges
    EXPECT_EQ(text.vocab.nfc, wanted.nfc);
    EXPECT_EQ(text.vocab.ignore_merges, wanted.ignore_merges);
    EXPECT_EQ(text.vocab.tokens, wanted.tokens);
    EXPECT_EQ(text.vocab.types, wanted.types);
    EXPECT_EQ(text.vocab.merges, wanted.merges);
    EXPECT_FALSE(text.vocab.add_bos);
    const Tokenizer tokenizer = Tokenizer::create(std::move(text.vocab)).take();
    const Json goldens = golden("encode/" + pre + ".json");
    for (const auto& item : goldens["cases"]) {
      EXPECT_EQ(tokenizer.encode(item["text"].get<std::string>()), item["ids"].get<Ids>());
    }
  }
}

TEST(HfFolder, CharactersWithByteFallbackGiveTheIdsOfTheReference) {
  const Json merged = golden("sentencepiece.json")["by_merges"];
  const Folder folder;
  folder.write_json("tokenizer.json", merged["file"]);
  FolderText text = folder.read().take();
  EXPECT_EQ(text.vocab.model, "char-bpe");
  EXPECT_TRUE(text.vocab.add_space_prefix);
  const Tokenizer tokenizer = Tokenizer::create(std::move(text.vocab)).take();
  for (const auto& item : merged["cases"]) {
    const Ids ids = tokenizer.encode(item["text"].get<std::string>());
    EXPECT_EQ(ids, item["ids"].get<Ids>()) << item["text"];
  }
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(" a  b\n")), " a  b\n");
}

TEST(HfFolder, ConfigsNameSpecialTokensTemplatesAndEnds) {
  const Folder folder;
  folder.write_json("tokenizer.json", byte_file("smollm"));
  folder.write_json("special_tokens_map.json", Json{{"eos_token", {{"content", "<|endoftext|>"}}}});
  folder.write_json("config.json", Json{{"eos_token_id", 1}});
  const VocabSpec vocab = testing::small_vocab();
  FolderText text = folder.read().take();
  EXPECT_EQ(vocab.tokens[size_t(text.vocab.eos)], "<|endoftext|>");
  EXPECT_EQ(text.end_ids, (Ids{text.vocab.eos, 1}));
  EXPECT_EQ(text.chat_template, "");

  folder.write_json(
      "tokenizer_config.json",
      Json{{"add_bos_token", true},
           {"bos_token", "<|im_start|>"},
           {"eos_token", {{"content", "<|im_end|>"}}},
           {"unk_token", nullptr},
           {"chat_template",
            {{{"name", "tool_use"}, {"template", "t"}}, {{"name", "default"}, {"template", "d"}}}}});
  folder.write_json("generation_config.json", Json{{"eos_token_id", {2, 0}}});
  text = folder.read().take();
  EXPECT_TRUE(text.vocab.add_bos);
  EXPECT_EQ(text.vocab.bos, 1);
  EXPECT_EQ(text.vocab.eos, 2);
  EXPECT_EQ(text.end_ids, (Ids{2, 0}));
  EXPECT_EQ(text.chat_template, "d");

  folder.write("chat_template.jinja", "from the file\n");
  EXPECT_EQ(folder.read().take().chat_template, "from the file\n");
}

TEST(HfFolder, AProcessorAddsBosOnceWhateverAddsItElse) {
  Json file = byte_file("llama-bpe");
  const Json part = {{"SpecialToken", {{"id", "<|im_start|>"}, {"type_id", 0}}}};
  const Json sequence = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  Json processor = {{"type", "TemplateProcessing"},
                    {"single", {part, sequence}},
                    {"special_tokens", {{"<|im_start|>", {{"id", "<|im_start|>"}, {"ids", {1}}}}}}};
  file["post_processor"] = {{"type", "Sequence"}, {"processors", {{{"type", "ByteLevel"}}, processor}}};
  const Folder folder;
  folder.write_json("tokenizer.json", file);
  folder.write_json("tokenizer_config.json", Json{{"bos_token", "<|im_start|>"}});
  const Tokenizer tokenizer = Tokenizer::create(folder.read().take().vocab).take();
  EXPECT_EQ(tokenizer.encode("x").size(), 2u);
  EXPECT_EQ(tokenizer.encode("<|im_start|>x"), tokenizer.encode("x"));

  folder.write_json("tokenizer_config.json", Json{{"bos_token", "<|im_end|>"}});
  EXPECT_EQ(folder.error(),
            "tokenizer_config.json: bos_token is '<|im_end|>', but tokenizer.json adds '<|im_start|>'");
  processor["single"] = {part, part, sequence};
  file["post_processor"] = processor;
  folder.write_json("tokenizer.json", file);
  EXPECT_EQ(folder.error(),
            "tokenizer.json: post_processor: '<|im_start|>': at most one token before and one after a text");
}

TEST(HfFolder, WhatIsNotKnownIsRefusedByName) {
  const Folder folder;
  EXPECT_EQ(folder.read().status().code(), Code::kNotFound);
  EXPECT_EQ(folder.error(), "tokenizer.json: no such file");
  const auto with = [&](const char* pointer, const Json& value) {
    Json file = byte_file("qwen2");
    file[Json::json_pointer(pointer)] = value;
    folder.write_json("tokenizer.json", file);
    return folder.error();
  };
  EXPECT_EQ(with("/model/type", "Unigram"), "tokenizer.json: model: the type is 'Unigram', supported: BPE");
  EXPECT_EQ(with("/model/dropout", 0.1), "tokenizer.json: model: dropout is 0.1, supported: none");
  EXPECT_EQ(with("/model/end_of_word_suffix", "</w>"),
            "tokenizer.json: model: end_of_word_suffix is \"</w>\", supported: none");
  EXPECT_EQ(with("/normalizer", {{"type", "NFKC"}}),
            "tokenizer.json: normalizer: {\"type\":\"NFKC\"} is not known to this build");
  EXPECT_EQ(
      with("/pre_tokenizer/pretokenizers/0/pattern", {{"Regex", "\\w+"}}),
      "tokenizer.json: pre_tokenizer: the steps \\w+ are none of those known: gpt-2, smollm, llama-bpe, "
      "qwen2, qwen35, glm4, deepseek-v3, deepseek-llm, deepseek-coder");
  EXPECT_NE(with("/pre_tokenizer/pretokenizers/0/behavior", "Removed").find("pre_tokenizer: {"),
            std::string::npos);
  EXPECT_EQ(with("/pre_tokenizer", nullptr),
            "tokenizer.json: pre_tokenizer: BPE without byte_fallback and without ByteLevel");
  EXPECT_EQ(with("/decoder", {{"type", "WordPiece"}}),
            "tokenizer.json: decoder: {\"type\":\"WordPiece\"} is not known to this build");
  EXPECT_EQ(with("/post_processor", {{"type", "BertProcessing"}}),
            "tokenizer.json: post_processor: {\"type\":\"BertProcessing\"} is not known to this build");
  EXPECT_EQ(with("/model/byte_fallback", true).substr(0, 27), "tokenizer.json: normalizer:");
  EXPECT_EQ(with("/model/vocab/a", 1 << 30).substr(0, 45), "tokenizer.json: model: 'a' has the id 1073741");
  EXPECT_EQ(with("/model/vocab/q", 300).find("have the same id 300") != std::string::npos, true);
  EXPECT_NE(with("/added_tokens/0/id", 400).find("added_tokens: "), std::string::npos);
  EXPECT_NE(with("/added_tokens/0/id", -4).find("has the id -4"), std::string::npos);
}

TEST(HfFolder, BrokenFilesGiveOneLine) {
  const Folder folder;
  const std::string whole = byte_file("gpt-2").dump();
  for (const std::string& text : {std::string(),
                                  std::string("null "),
                                  std::string("[]"),
                                  whole.substr(0, whole.size() / 2),
                                  whole + "}",
                                  std::string("{\"model\": {}}"),
                                  std::string("{\"model\": []}"),
                                  std::string(100000, '['),
                                  std::string("{\"model\": {\"type\": 5}}"),
                                  std::string("\xff\xfe")}) {
    folder.write("tokenizer.json", text);
    const auto result = folder.read();
    EXPECT_FALSE(result.ok()) << text.substr(0, 50);
    EXPECT_EQ(result.status().message().find('\n'), std::string::npos) << result.status().message();
  }
  folder.write("tokenizer.json", whole);
  EXPECT_EQ(folder.error(), "ok");
  for (const char* name : {"tokenizer_config.json",
                           "special_tokens_map.json",
                           "chat_template.json",
                           "generation_config.json",
                           "config.json"}) {
    folder.write(name, "{\"chat_template\": 5, \"eos_token_id\": \"x\", \"bos_token\": 5");
    EXPECT_NE(folder.error(), "ok");
    folder.write(name, "{}");
  }
  folder.write("generation_config.json", "{\"eos_token_id\": [2, 99999]}");
  EXPECT_EQ(folder.error().substr(0, 49), "generation_config.json: eos_token_id has 99999, t");
  folder.write("generation_config.json", "{}");
  folder.write("tokenizer_config.json", "{\"eos_token\": \"<nope>\"}");
  EXPECT_EQ(folder.error(),
            "tokenizer_config.json: eos_token is '<nope>', which is no token of tokenizer.json");
}

TEST(HfFolder, ChangedBytesGiveAnErrorOrATokenizer) {
  const Folder folder;
  std::mt19937 random(5);
  const std::string files[] = {byte_file("qwen2").dump(),
                               golden("sentencepiece.json")["by_merges"]["file"].dump()};
  int refused = 0;
  for (int round = 0; round < 60; ++round) {
    std::string text = files[round % 2];
    for (int n = 1 + int(random() % 3); n > 0; --n) {
      text[random() % text.size()] = "0129-{}[]\",:a\xff"[random() % 14];
    }
    folder.write("tokenizer.json", text);
    Result<FolderText> read = folder.read();
    if (read.ok()) {
      const auto tokenizer = Tokenizer::create(std::move(read->vocab));
      if (tokenizer.ok()) tokenizer->decode(tokenizer->encode("a  <s> \u00e9\n"));
      refused += !tokenizer.ok();
    }
    refused += !read.ok();
  }
  EXPECT_GT(refused, 10);
}

}  // namespace
}  // namespace se::text
