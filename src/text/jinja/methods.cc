#include <algorithm>

#include "base/fmt.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/format.h"
#include "text/jinja/functions.h"
#include "text/jinja/lexer.h"
#include "text/jinja/operators.h"
#include "text/jinja/string_case.h"
#include "text/unicode.h"

namespace se::text::jinja {
namespace {

Result<const Marked*> optional_text(std::string_view callee, const Value* value) {
  if (value == nullptr || value->is_none()) return nullptr;
  return want_text(callee, *value);
}

template <bool kBegin, bool kEnd>
Result<Value> strip_method(Evaluator&, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("strip", args, {"chars"}));
  SE_ASSIGN(const Marked* set, optional_text("strip", bound[0]));
  return Value(strip(*self.text(), set, kBegin, kEnd));
}

// Splits at white space: runs are one separator, none at the ends. `most` < 0 = no limit.
std::vector<Value> split_spaces(const Marked& text, int64_t most) {
  std::vector<Value> parts;
  const std::string_view s = text.text;
  for (size_t at = strip_begin(s); at < s.size();) {
    size_t end = at;
    if (most == 0) {
      end = s.size();  // the rest as it stands
    } else {
      for (CodePoint c; end < s.size() && !is_python_space((c = code_point_at(s, end)).value);) end += c.size;
    }
    parts.emplace_back(text.part(at, end));
    if (most-- == 0) break;
    at = end + strip_begin(s.substr(end));
  }
  return parts;
}

// The same from the right: with a limit, the rest is the first part.
std::vector<Value> rsplit_spaces(const Marked& text, int64_t most) {
  std::vector<Value> parts = split_spaces(text, -1);
  if (most < 0 || int64_t(parts.size()) <= most) return parts;
  const std::string_view s = text.text;
  size_t end = strip_end(s);
  for (int64_t n = 0; n < most; ++n) {
    end -= parts[parts.size() - 1 - size_t(n)].text()->text.size();
    end = strip_end(s.substr(0, end));
  }
  std::vector<Value> out;
  out.emplace_back(text.part(0, end));
  out.insert(out.end(), parts.end() - most, parts.end());
  return out;
}

std::vector<Value> split_at(const Marked& text, std::string_view separator, int64_t most, bool right) {
  std::vector<size_t> cuts;  // offsets of separators, ascending
  const std::string_view s = text.text;
  if (right) {
    for (size_t end = s.size(); most != 0 && end >= separator.size(); --most) {
      const size_t at = s.substr(0, end).rfind(separator);
      if (at == s.npos) break;
      cuts.insert(cuts.begin(), at);
      end = at;
    }
  } else {
    for (size_t at = s.find(separator); most != 0 && at != s.npos; --most) {
      cuts.push_back(at);
      at = s.find(separator, at + separator.size());
    }
  }
  std::vector<Value> parts;
  size_t begin = 0;
  for (const size_t cut : cuts) {
    parts.emplace_back(text.part(begin, cut));
    begin = cut + separator.size();
  }
  parts.emplace_back(text.part(begin, s.size()));
  return parts;
}

template <bool kRight>
Result<Value> split(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("split", args, {"sep", "maxsplit"}));
  SE_ASSIGN(const Marked* separator, optional_text("split", bound[0]));
  int64_t most = -1;
  if (bound[1]) {
    SE_ASSIGN(most, want_integer("split", *bound[1]));
  }
  if (separator && separator->text.empty()) return invalid("split: the separator is empty");
  std::vector<Value> parts = separator ? split_at(*self.text(), separator->text, most, kRight)
                             : kRight  ? rsplit_spaces(*self.text(), most)
                                       : split_spaces(*self.text(), most);
  SE_TRY(evaluator.charge(int64_t(parts.size())));
  return Value::list(std::move(parts));
}

Result<Value> splitlines(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("splitlines", args, {"keepends"}));
  const bool keep = bound[0] && bound[0]->truthy();
  const Marked& text = *self.text();
  std::vector<Value> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.text.size();) {
    const CodePoint c = code_point_at(text.text, at);
    const int32_t v = c.value;
    size_t end = at + c.size;
    if ((v >= 0x0A && v <= 0x0D) || (v >= 0x1C && v <= 0x1E) || v == 0x85 || v == 0x2028 || v == 0x2029) {
      if (v == '\r' && end < text.text.size() && text.text[end] == '\n') ++end;
      lines.emplace_back(text.part(begin, keep ? end : at));
      begin = end;
    }
    at = end;
  }
  if (begin < text.text.size()) lines.emplace_back(text.part(begin, text.text.size()));
  SE_TRY(evaluator.charge(int64_t(lines.size())));
  return Value::list(std::move(lines));
}

template <bool kStart>
Result<Value> starts_or_ends(Evaluator&, const Value& self, const Args& args) {
  static constexpr const char* kName = kStart ? "startswith" : "endswith";
  SE_ASSIGN(const auto bound, bind(kName, args, {"affix"}));
  if (!bound[0]) return invalid(format("{}: wanted a string", kName));
  const std::string& text = self.text()->text;
  const auto matches = [&](const std::string& affix) {
    return kStart ? text.starts_with(affix) : text.ends_with(affix);
  };
  if (const List* list = bound[0]->list(); list && list->tuple) {
    for (const Value& item : list->items) {
      SE_ASSIGN(const Marked* affix, want_text(kName, item));
      if (matches(affix->text)) return Value(true);
    }
    return Value(false);
  }
  SE_ASSIGN(const Marked* affix, want_text(kName, *bound[0]));
  return Value(matches(affix->text));
}

template <bool kStart>
Result<Value> remove_affix(Evaluator&, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("removeprefix or removesuffix", args, {"affix"}));
  if (!bound[0]) return invalid("removeprefix or removesuffix: wanted a string");
  SE_ASSIGN(const Marked* affix, want_text("removeprefix or removesuffix", *bound[0]));
  const Marked& text = *self.text();
  const size_t size = text.text.size(), n = affix->text.size();
  if (kStart) return Value(text.text.starts_with(affix->text) ? text.part(n, size) : text);
  return Value(text.text.ends_with(affix->text) ? text.part(0, size - n) : text);
}

template <std::string (*map)(std::string_view)>
Result<Value> mapped(Evaluator&, const Value& self, const Args& args) {
  SE_TRY(bind("this method", args, {}).status());
  return Value(Marked::like(*self.text(), map(self.text()->text)));
}

template <bool kRight>
Result<Value> find(Evaluator&, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("find", args, {"sub"}));
  if (!bound[0]) return invalid("find: wanted a string");
  SE_ASSIGN(const Marked* part, want_text("find", *bound[0]));
  const std::string& text = self.text()->text;
  const size_t at = kRight ? text.rfind(part->text) : text.find(part->text);
  if (at == text.npos) return Value(int64_t(-1));
  return Value(int64_t(character_offsets(std::string_view(text).substr(0, at)).size()) - 1);
}

Result<Value> count(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("count", args, {"value"}));
  if (!bound[0]) return invalid("count: wanted a value");
  if (const List* list = self.list()) {
    const auto same = [&](const Value& v) { return equal(v, *bound[0]); };
    return Value(int64_t(std::count_if(list->items.begin(), list->items.end(), same)));
  }
  SE_ASSIGN(const Marked* part, want_text("count", *bound[0]));
  if (part->text.empty()) return Value(int64_t(character_offsets(self.text()->text).size()));
  const auto parts = split_at(*self.text(), part->text, -1, false);
  SE_TRY(evaluator.charge(int64_t(parts.size())));
  return Value(int64_t(parts.size()) - 1);
}

// The filter of the same name.
template <const char* name>
Result<Value> filter_of(Evaluator& evaluator, const Value& self, const Args& args) {
  return evaluator.filter(name, self, args);
}
constexpr char kReplace[] = "replace";

Result<Value> join(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("join", args, {"items"}));
  if (!bound[0]) return invalid("join: wanted a list");
  SE_ASSIGN(const std::vector<Value> items, items_of(evaluator, *bound[0]));
  for (const Value& item : items) SE_TRY(want_text("join", item).status());
  return evaluator.filter("join", *bound[0], {{self}, {}});
}

template <bool (*holds)(int32_t)>
Result<Value> all_characters(Evaluator&, const Value& self, const Args&) {
  const std::string& text = self.text()->text;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (!holds(c.value)) return Value(false);
    at += c.size;
  }
  return Value(!text.empty());
}
// Some character has case, and none the other one.
template <std::string (*map)(std::string_view), std::string (*other)(std::string_view)>
Result<Value> cased(Evaluator&, const Value& self, const Args& args) {
  SE_TRY(bind("this method", args, {}).status());
  const std::string& text = self.text()->text;
  return Value(map(text) == text && other(text) != text);
}

// Text before, the separator, and text after its first or last place.
template <bool kRight>
Result<Value> partition(Evaluator&, const Value& self, const Args& args) {
  static constexpr const char* kName = kRight ? "rpartition" : "partition";
  SE_ASSIGN(const auto bound, bind(kName, args, {"sep"}));
  if (!bound[0]) return invalid(format("{}: wanted a separator", kName));
  SE_ASSIGN(const Marked* separator, want_text(kName, *bound[0]));
  if (separator->text.empty()) return invalid(format("{}: the separator is empty", kName));
  const Marked& text = *self.text();
  const size_t at = kRight ? text.text.rfind(separator->text) : text.text.find(separator->text);
  std::vector<Value> parts(3, Value(""));
  if (at == std::string::npos) {
    parts[kRight ? 2 : 0] = self;
  } else {
    const size_t end = at + separator->text.size();
    parts = {Value(text.part(0, at)), Value(text.part(at, end)), Value(text.part(end, text.text.size()))};
  }
  return Value::list(std::move(parts), true);
}

bool is_letter(int32_t c) { return char_class(c) == CharClass::kLetter; }
bool is_number(int32_t c) { return char_class(c) == CharClass::kNumber; }
bool is_letter_or_number(int32_t c) { return is_letter(c) || is_number(c); }

constexpr Named<Method> kStringMethods[] = {
    {"strip", strip_method<true, true>},
    {"lstrip", strip_method<true, false>},
    {"rstrip", strip_method<false, true>},
    {"split", split<false>},
    {"rsplit", split<true>},
    {"splitlines", splitlines},
    {"startswith", starts_or_ends<true>},
    {"endswith", starts_or_ends<false>},
    {"removeprefix", remove_affix<true>},
    {"removesuffix", remove_affix<false>},
    {"upper", mapped<to_upper>},
    {"lower", mapped<to_lower>},
    {"capitalize", mapped<capitalize>},
    {"title", mapped<[](std::string_view s) { return title(s, false); }>},
    {"replace", filter_of<kReplace>},
    {"find", find<false>},
    {"rfind", find<true>},
    {"count", count},
    {"join", join},
    {"isalpha", all_characters<is_letter>},
    {"isdigit", all_characters<is_number>},
    {"isspace", all_characters<is_python_space>},
    {"isalnum", all_characters<is_letter_or_number>},
    {"isupper", cased<to_upper, to_lower>},
    {"islower", cased<to_lower, to_upper>},
    {"partition", partition<false>},
    {"rpartition", partition<true>}};

Result<Value> dict_items(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_TRY(bind("items", args, {}).status());
  return evaluator.filter("items", self, {});
}
template <bool kKeys>
Result<Value> keys_or_values(Evaluator&, const Value& self, const Args& args) {
  SE_TRY(bind(kKeys ? "keys" : "values", args, {}).status());
  std::vector<Value> out;
  for (const auto& [key, value] : self.dict()->items) out.push_back(kKeys ? Value(key) : value);
  return Value::list(std::move(out));
}
Result<Value> get(Evaluator&, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("get", args, {"key", "default"}));
  if (!bound[0]) return invalid("get: wanted a key");
  const Value* found = bound[0]->text() ? self.dict()->find(bound[0]->text()->text) : nullptr;
  return found ? *found : bound[1] ? *bound[1] : Value(None{});
}
Result<Value> index(Evaluator&, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("index", args, {"value"}));
  const auto& items = self.list()->items;
  for (size_t n = 0; bound[0] && n < items.size(); ++n) {
    if (equal(items[n], *bound[0])) return Value(int64_t(n));
  }
  return invalid("index: the value is not in the list");
}

constexpr Named<Method> kDictMethods[] = {
    {"items", dict_items}, {"keys", keys_or_values<true>}, {"values", keys_or_values<false>}, {"get", get}};
constexpr Named<Method> kListMethods[] = {{"index", index}, {"count", count}};

}  // namespace

Method find_method(const Value& self, std::string_view name) {
  std::span<const Named<Method>> methods;
  if (self.text()) methods = kStringMethods;
  if (self.list()) methods = kListMethods;
  if (self.dict() && self.dict()->kind == Dict::Kind::kDict) methods = kDictMethods;
  for (const auto& method : methods) {
    if (method.name == name) return method.function;
  }
  return nullptr;
}

}  // namespace se::text::jinja
