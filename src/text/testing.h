// text/testing.h -- the small vocabulary of the goldens, for this module's tests.
#pragma once
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "text/tokenizer.h"

namespace se::text::testing {

inline nlohmann::ordered_json golden(const std::string& name) {
  std::ifstream file("tests/goldens/text/" + name);
  return nlohmann::ordered_json::parse(file);
}

inline VocabSpec small_vocab() {
  const auto json = golden("vocab.json");
  VocabSpec spec;
  spec.model = "gpt2";
  spec.pre = json["pre"];
  spec.tokens = json["tokens"].get<std::vector<std::string>>();
  spec.types = json["types"].get<std::vector<int32_t>>();
  spec.merges = json["merges"].get<std::vector<std::string>>();
  spec.unk = 0;
  spec.bos = 1;
  spec.eos = 2;
  return spec;
}

inline Tokenizer small_tokenizer() { return Tokenizer::create(small_vocab()).take(); }

}  // namespace se::text::testing
