#include "text/hf_folder.h"

#include <algorithm>
#include <exception>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/fmt.h"
#include "base/quoted.h"
#include "text/hf_tokenizer.h"

namespace se::text {
namespace {

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Whether brackets outside of strings lie in each other deeper than kMostNesting: what follows is recursive.
constexpr int kMostNesting = 64;
bool too_deep(std::string_view json) {
  int depth = 0;
  bool quoted = false;
  for (size_t at = 0; at < json.size(); ++at) {
    const char c = json[at];
    if (quoted) {
      at += c == '\\';
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMostNesting) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

// A file of the folder and its JSON; errors and exceptions while it is read carry its name.
template <typename F>
Status with_json(const std::string& folder, const char* name, const F& use) {
  const std::string path = folder + "/" + name;
  try {  // a door: the library reports errors by exceptions
    const std::optional<std::string> text = read_file(path);
    if (text && too_deep(*text)) return invalid(format("{}: nested deeper than {}", path, kMostNesting));
    const HfJson json = text ? HfJson::parse(*text) : HfJson();
    if (!json.is_null() && !json.is_object()) return invalid(path + ": wanted a JSON object");
    return use(json).in(path);
  } catch (const std::exception& error) {
    return invalid(format("{}: {}", path, error.what()));
  }
}

int32_t find_token(const VocabSpec& spec, const std::string& token) {
  const auto at = std::find(spec.tokens.begin(), spec.tokens.end(), token);
  return at == spec.tokens.end() ? -1 : int32_t(at - spec.tokens.begin());
}

// "bos_token": "<s>", or {"content": "<s>"}, or null. Sets `id` where it names a token.
Status read_special(const HfJson& json, const char* key, const VocabSpec& spec, int32_t& id) {
  HfJson value = json.value(key, HfJson());
  if (value.is_object()) value = value.value("content", HfJson());
  if (value.is_null()) return ok();
  const std::string token = value.get<std::string>();
  const int32_t found = find_token(spec, token);
  if (found < 0)
    return invalid(format("{} is {}, which is no token of tokenizer.json", key, se::quoted(token)));
  id = found;
  return ok();
}

// What a processor adds must be what the config calls it, else the name would be a lie.
Status check_same(const char* key, bool adds, int32_t added, int32_t named, const VocabSpec& spec) {
  if (!adds || added < 0 || named < 0 || added == named) return ok();
  return unsupported(format(
      "{} is {}, but tokenizer.json adds {}",
      key,
      se::quoted(spec.tokens[size_t(named)]),
      se::quoted(size_t(added) < spec.tokens.size() ? spec.tokens[size_t(added)] : std::to_string(added))));
}

Status read_specials(const HfJson& json, VocabSpec& spec) {
  int32_t bos = spec.bos, eos = spec.eos;
  SE_TRY(read_special(json, "bos_token", spec, bos));
  SE_TRY(read_special(json, "eos_token", spec, eos));
  SE_TRY(check_same("bos_token", spec.add_bos, spec.bos, bos, spec));
  SE_TRY(check_same("eos_token", spec.add_eos, spec.eos, eos, spec));
  spec.bos = bos;
  spec.eos = eos;
  SE_TRY(read_special(json, "unk_token", spec, spec.unk));
  return read_special(json, "pad_token", spec, spec.pad);
}

// A string, or a list of {name, template}.
Status read_template(const HfJson& value, std::string& out) {
  if (value.is_string()) out = value.get<std::string>();
  if (!value.is_array()) return ok();
  std::string names;
  for (const HfJson& entry : value) {
    if (entry.at("name") == "default") out = entry.at("template").get<std::string>();
    names += (names.empty() ? "" : ", ") + entry.at("name").get<std::string>();
  }
  if (out.empty()) return unsupported(format("chat_template: none is called default, found: {}", names));
  return ok();
}

Status read_config(const HfJson& json, FolderText& out) {
  SE_TRY(read_specials(json, out.vocab));
  // The classes that know these flags rebuild the post-processor from them.
  if (const HfJson flag = json.value("add_bos_token", HfJson()); flag.is_boolean()) out.vocab.add_bos = flag;
  if (const HfJson flag = json.value("add_eos_token", HfJson()); flag.is_boolean()) out.vocab.add_eos = flag;
  return read_template(json.value("chat_template", HfJson()), out.chat_template);
}

Status read_end_ids(const HfJson& json, FolderText& out) {
  const HfJson value = json.value("eos_token_id", HfJson());
  const HfJson list = value.is_array() ? value : value.is_null() ? HfJson::array() : HfJson::array({value});
  for (const HfJson& entry : list) {
    const int64_t id = whole_number(entry);
    if (id < 0 || id >= int64_t(out.vocab.tokens.size())) {
      return invalid(
          format("eos_token_id has {}, the vocabulary has {} tokens", id, out.vocab.tokens.size()));
    }
    if (std::find(out.end_ids.begin(), out.end_ids.end(), id) == out.end_ids.end()) {
      out.end_ids.push_back(int32_t(id));
    }
  }
  return ok();
}

Status read_chat_template(const std::string& folder, FolderText& out) {
  if (const auto text = read_file(folder + "/chat_template.jinja")) {
    out.chat_template = *text;
    return ok();
  }
  if (!out.chat_template.empty()) return ok();
  return with_json(folder, "chat_template.json", [&](const HfJson& json) {
    return json.is_null() ? ok() : read_template(json.value("chat_template", HfJson()), out.chat_template);
  });
}

}  // namespace

Result<FolderText> read_folder_text(const std::string& folder) {
  FolderText out;
  SE_TRY(with_json(folder, "tokenizer.json", [&](const HfJson& json) -> Status {
    if (json.is_null()) return not_found("no such file");
    SE_ASSIGN(out.vocab, read_tokenizer_json(json));
    return ok();
  }));
  bool named = false;
  SE_TRY(with_json(folder, "tokenizer_config.json", [&](const HfJson& json) {
    named = json.contains("bos_token") || json.contains("eos_token");
    return json.is_null() ? ok() : read_config(json, out);
  }));
  if (!named) {
    SE_TRY(with_json(folder, "special_tokens_map.json", [&](const HfJson& json) {
      return json.is_null() ? ok() : read_specials(json, out.vocab);
    }));
  }
  SE_TRY(read_chat_template(folder, out));
  if (out.vocab.eos >= 0) out.end_ids.push_back(out.vocab.eos);
  bool generation = false;
  SE_TRY(with_json(folder, "generation_config.json", [&](const HfJson& json) {
    generation = json.contains("eos_token_id");
    return json.is_null() ? ok() : read_end_ids(json, out);
  }));
  if (!generation) {
    SE_TRY(with_json(folder, "config.json", [&](const HfJson& json) {
      return json.is_null() ? ok() : read_end_ids(json, out);
    }));
  }
  return out;
}

}  // namespace se::text
