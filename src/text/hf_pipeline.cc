// The sections of tokenizer.json that say how text is cut and joined, recognised by their structure.
#include <algorithm>
#include <span>

#include "base/fmt.h"
#include "base/quoted.h"
#include "text/char_bpe.h"
#include "text/deepseek_letters.h"
#include "text/hf_tokenizer.h"
#include "text/pretokenizer.h"
#include "text/unicode.h"

namespace se::text {
namespace {

using Steps = std::vector<HfJson>;

// A section as a list of steps: none for null, the inner ones of a Sequence.
void append_steps(const HfJson& section, const char* list, Steps& out) {
  if (section.is_null()) return;
  if (section.at("type") != "Sequence") return out.push_back(section);
  for (const HfJson& step : section.at(list)) append_steps(step, list, out);
}
Steps steps_of(const HfJson& json, const char* section, const char* list) {
  Steps steps;
  append_steps(json.value(section, HfJson()), list, steps);
  return steps;
}

Status refuse(const char* section, const HfJson& step) {
  std::string text = step.dump();
  if (text.size() > 300) text.replace(300, text.npos, "...");
  return unsupported(format("{}: {} is not known to this build", section, text));
}

// {"type": "Replace", "pattern": {"String": from}, "content": to}
bool is_replace(const HfJson& step, std::string_view from, std::string_view to) {
  return step.at("type") == "Replace" && step.at("pattern").value("String", "") == from &&
         step.at("content") == to;
}

// ---- bytes ---------------------------------------------------------------------------------------------

// The regular expressions as files write them, line breaks as \r and \n, in the order in which their steps
// come.
constexpr std::string_view kGpt2[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kSmollm[] = {"digits", kGpt2[0]};
constexpr std::string_view kLlama3[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kQwen2[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kQwen35[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kDeepseekV3[] = {
    R"(\p{N}{1,3})",
    "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
// \s?[kDeepseekLetters]+
const std::string& deepseek_words() {
  static const std::string kRegex = [] {
    std::string text = R"(\s?[)";
    for (const auto [first, last] : kDeepseekLetters) {
      append_utf8(text, first);
      if (last > first + 1) text += '-';
      if (last > first) append_utf8(text, last);
    }
    return text + "]+";
  }();
  return kRegex;
}
constexpr std::string_view kEastAsian =
    "[\xE4\xB8\x80-\xE9\xBE\xA5\xE0\xA0\x80-\xE4\xB8\x80\xEA\xB0\x80-\xED\x9F\xBF]+";
const std::string_view kDeepseekLlm[] = {
    R"([\r\n])",
    deepseek_words(),
    "\\s?[!-/:-~\xEF\xBC\x81-\xEF\xBC\x8F\xEF\xBC\x9A-\xEF\xBD\x9E\xE2\x80\x98-\xE2\x80\x9F"
    "\xE3\x80\x80-\xE3\x80\x82]+",
    R"(\s+$)",
    kEastAsian,
    "digits"};
constexpr std::string_view kDeepseekCoder[] = {
    R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kEastAsian, "digits"};
struct Known {
  std::string_view pre;
  std::span<const std::string_view> steps;
};
const Known kKnown[] = {{"gpt-2", kGpt2},
                        {"smollm", kSmollm},
                        {"llama-bpe", kLlama3},
                        {"qwen2", kQwen2},
                        {"qwen35", kQwen35},
                        {"deepseek-v3", kDeepseekV3},
                        {"deepseek-llm", kDeepseekLlm},
                        {"deepseek-coder", kDeepseekCoder}};

std::string with_escapes(std::string_view regex) {
  std::string out;
  for (const char c : regex) {
    if (c == '\r') {
      out += "\\r";
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

// Steps that cut, as kKnown writes them; then ByteLevel, which must be the last.
Status read_byte_splits(const Steps& steps, VocabSpec& spec) {
  std::vector<std::string> cuts;
  bool bytes = false;
  for (const HfJson& step : steps) {
    const std::string type = step.at("type");
    if (bytes) return refuse("pre_tokenizer", step);
    if (type == "ByteLevel" && !step.value("add_prefix_space", true)) {
      bytes = true;
      if (step.value("use_regex", true)) cuts.emplace_back(kGpt2[0]);
    } else if (type == "Digits" && step.value("individual_digits", false)) {
      cuts.emplace_back("digits");
    } else if (type == "Split" && step.at("behavior") == "Isolated" && !step.value("invert", false) &&
               step.at("pattern").contains("Regex")) {
      cuts.push_back(with_escapes(step.at("pattern").at("Regex").get<std::string>()));
    } else {
      return refuse("pre_tokenizer", step);
    }
  }
  if (!bytes) return unsupported("pre_tokenizer: BPE without byte_fallback and without ByteLevel");
  for (const Known& known : kKnown) {
    if (std::equal(known.steps.begin(), known.steps.end(), cuts.begin(), cuts.end())) {
      spec.pre = known.pre;
      return ok();
    }
  }
  std::string found;
  for (const std::string& cut : cuts) found += " " + cut;
  return unsupported(
      format("pre_tokenizer: the steps{} are none of those known: {}", found, pretokenizer_names()));
}

Status read_bytes(const HfJson& json, VocabSpec& spec) {
  spec.model = "gpt2";
  for (const HfJson& step : steps_of(json, "normalizer", "normalizers")) {
    if (step.at("type") != "NFC") return refuse("normalizer", step);
    spec.nfc = true;
  }
  SE_TRY(read_byte_splits(steps_of(json, "pre_tokenizer", "pretokenizers"), spec));
  const Steps decoder = steps_of(json, "decoder", "decoders");
  if (decoder.size() == 1 && decoder[0].at("type") == "ByteLevel") return ok();
  return refuse("decoder", json.value("decoder", HfJson()));
}

// ---- characters ----------------------------------------------------------------------------------------

Status read_metaspace(const HfJson& step, VocabSpec& spec) {
  const std::string scheme =
      step.value("prepend_scheme", step.value("add_prefix_space", true) ? "always" : "never");
  if (step.value("replacement", "") != kSpaceMark || step.value("split", true))
    return refuse("pre_tokenizer", step);
  if (scheme != "always" && scheme != "first" && scheme != "never") return refuse("pre_tokenizer", step);
  spec.add_space_prefix = scheme != "never";
  spec.prefix_once = scheme == "first";
  spec.prefix_spares_space = true;
  return ok();
}

Status read_characters(const HfJson& json, VocabSpec& spec) {
  spec.model = "char-bpe";
  bool marks = false;  // spaces are replaced
  for (const HfJson& step : steps_of(json, "normalizer", "normalizers")) {
    if (step.at("type") == "Prepend" && step.at("prepend") == kSpaceMark) {
      spec.add_space_prefix = true;
    } else if (is_replace(step, " ", kSpaceMark)) {
      marks = true;
    } else {
      return refuse("normalizer", step);
    }
  }
  for (const HfJson& step : steps_of(json, "pre_tokenizer", "pretokenizers")) {
    if (step.at("type") == "Metaspace" && !spec.add_space_prefix) {
      SE_TRY(read_metaspace(step, spec));
      marks = true;
      continue;
    }
    // Gemma: a split at spaces, of which none is left.
    const bool idle = marks && step.at("type") == "Split" && step.at("pattern").value("String", "") == " ";
    if (!idle) return refuse("pre_tokenizer", step);
  }
  if (!marks) return unsupported("normalizer: BPE with byte_fallback that does not replace spaces by U+2581");
  bool restores = false, strips = false;
  for (const HfJson& step : steps_of(json, "decoder", "decoders")) {
    const std::string type = step.at("type");
    if (type == "Metaspace") {
      restores = true;
      strips =
          step.value("prepend_scheme", step.value("add_prefix_space", true) ? "always" : "never") != "never";
    } else if (is_replace(step, kSpaceMark, " ")) {
      restores = true;
    } else if (type == "Strip" && step.at("content") == " " && step.value("start", HfJson()) == 1 &&
               step.value("stop", HfJson(0)) == 0) {
      strips = true;
    } else if (type != "ByteFallback" && type != "Fuse") {
      return refuse("decoder", step);
    }
  }
  if (restores && strips == spec.add_space_prefix) return ok();
  return refuse("decoder", json.value("decoder", HfJson()));
}

}  // namespace

Status read_pipeline(const HfJson& json, bool byte_fallback, VocabSpec& spec) {
  return byte_fallback ? read_characters(json, spec) : read_bytes(json, spec);
}

Status read_post_processor(const HfJson& section, VocabSpec& spec) {
  Steps steps;
  append_steps(section, "processors", steps);
  for (const HfJson& step : steps) {
    if (step.at("type") == "ByteLevel") continue;  // moves offsets only
    if (step.at("type") != "TemplateProcessing") return refuse("post_processor", step);
    bool after = false;
    for (const HfJson& part : step.at("single")) {
      if (part.contains("Sequence")) {
        after = true;
        continue;
      }
      const std::string name = part.at("SpecialToken").at("id");
      const HfJson& ids = step.at("special_tokens").at(name).at("ids");
      bool& adds = after ? spec.add_eos : spec.add_bos;
      if (ids.size() != 1 || adds) {
        return unsupported(
            format("post_processor: {}: at most one token before and one after a text", se::quoted(name)));
      }
      const int64_t id = whole_number(ids.at(0));
      if (id < 0 || id >= int64_t(spec.tokens.size())) {
        return invalid(format("post_processor: {} has the id {}, there are {} tokens",
                              se::quoted(name),
                              id,
                              spec.tokens.size()));
      }
      adds = true;
      (after ? spec.eos : spec.bos) = int32_t(id);
    }
  }
  return ok();
}

}  // namespace se::text
