#include <charconv>
#include <cmath>

#include "base/fmt.h"
#include "base/quoted.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/format.h"
#include "text/jinja/functions.h"
#include "text/jinja/lexer.h"
#include "text/jinja/percent.h"
#include "text/jinja/string_case.h"

namespace se::text::jinja {
namespace {

Result<Value> trim(Evaluator&, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("trim", args, {"chars"}));
  const Marked* set = nullptr;
  if (bound[0] && !bound[0]->is_none()) {
    SE_ASSIGN(set, want_text("trim", *bound[0]));
  }
  return Value(strip(to_text(self), set, true, true));
}

template <std::string (*map)(std::string_view)>
Result<Value> mapped(Evaluator&, const Value& self, const Args& args) {
  SE_TRY(bind("this filter", args, {}).status());
  const Marked text = to_text(self);
  return Value(Marked::like(text, map(text.text)));
}

Result<Value> string(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_TRY(bind("string", args, {}).status());
  return evaluator.text(to_text(self));
}

Result<Value> replace(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("replace", args, {"old", "new", "count"}));
  if (!bound[0] || !bound[1]) return invalid("replace: wanted the old and the new string");
  const Marked text = to_text(self), old = to_text(*bound[0]), fresh = to_text(*bound[1]);
  int64_t count = -1;
  if (bound[2] && !bound[2]->is_none()) {
    SE_ASSIGN(count, want_integer("replace", *bound[2]));
  }
  if (old.text.empty()) return unsupported("replace: the old string is empty");
  Marked out;
  size_t begin = 0;
  for (; count != 0; --count) {
    const size_t at = text.text.find(old.text, begin);
    if (at == text.text.npos) break;
    out.append(text, begin, at);
    out.append(fresh);
    SE_TRY(evaluator.check_total(int64_t(out.text.size())));
    begin = at + old.text.size();
  }
  out.append(text, begin, text.text.size());
  return evaluator.text(std::move(out));
}

Result<Value> indent(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("indent", args, {"width", "first", "blank"}));
  Marked margin("    ");
  if (bound[0] && bound[0]->text()) {
    margin = *bound[0]->text();
  } else if (bound[0]) {
    SE_ASSIGN(const int64_t width, want_integer("indent", *bound[0]));
    SE_TRY(evaluator.check_size(width));
    margin = Marked(std::string(size_t(std::max<int64_t>(width, 0)), ' '));
  }
  const bool first = bound[1] && bound[1]->truthy(), blank = bound[2] && bound[2]->truthy();
  const Marked text = to_text(self);
  Marked out;
  size_t begin = 0;
  for (bool start = true;; start = false) {
    const size_t newline = text.text.find('\n', begin);
    const size_t end = newline == text.text.npos ? text.text.size() : newline;
    if (start ? first : (blank || end > begin)) out.append(margin);
    out.append(text, begin, end);
    SE_TRY(evaluator.check_total(int64_t(out.text.size())));
    if (newline == text.text.npos) break;
    out.append(text, newline, newline + 1);
    begin = newline + 1;
  }
  return Value(std::move(out));
}

Result<Value> tojson(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ascii = bound[0] && bound[0]->truthy();
  style.sort_keys = bound[3] && bound[3]->truthy();
  if (bound[1] && !bound[1]->is_none()) {
    SE_ASSIGN(const int64_t width, want_integer("tojson", *bound[1]));
    if (width < 0 || width > 64) return invalid(format("tojson: indent is {}, wanted 0 to 64", width));
    style.indent = int(width);
  }
  if (const Value* separators = bound[2]; separators && !separators->is_none()) {
    const List* pair = separators->list();
    if (!pair || pair->items.size() != 2) return invalid("tojson: separators wants two strings");
    SE_ASSIGN(const Marked* item, want_text("tojson", pair->items[0]));
    SE_ASSIGN(const Marked* key, want_text("tojson", pair->items[1]));
    style.item_separator = item->text;
    style.key_separator = key->text;
  }
  SE_ASSIGN(Marked json, to_json(self, style));
  return evaluator.text(std::move(json));
}

Result<Value> fallback(Evaluator&, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("default", args, {"default_value", "boolean"}));
  const bool boolean = bound[1] && bound[1]->truthy();
  if (self.is_undefined() || (boolean && !self.truthy())) return bound[0] ? *bound[0] : Value("");
  return self;
}

// The number that a whole text spells (white space around it allowed); false if it spells none.
bool parse_real(std::string_view text, double& out) {
  text = text.substr(0, strip_end(text));
  text.remove_prefix(strip_begin(text));
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_integer(std::string_view text, int base, int64_t& out) {
  text = text.substr(0, strip_end(text));
  text.remove_prefix(strip_begin(text));
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, base);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

Result<Value> to_int(Evaluator&, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("int", args, {"default", "base"}));
  int64_t base = 10, integer = 0;
  if (bound[1]) {
    SE_ASSIGN(base, want_integer("int", *bound[1]));
    if (base < 2 || base > 36) return invalid(format("int: base is {}, wanted 2 to 36", base));
  }
  if (self.to_integer(integer)) return Value(integer);
  double real = 0;
  const bool spelled = self.text() && parse_integer(self.text()->text, int(base), integer);
  if (spelled) return Value(integer);
  const bool number =
      self.real() ? (real = *self.real(), true) : self.text() && parse_real(self.text()->text, real);
  if (number && std::abs(real) < 9.2e18) return Value(int64_t(real));
  return bound[0] ? *bound[0] : Value(int64_t(0));
}

Result<Value> to_float(Evaluator&, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("float", args, {"default"}));
  double real = 0;
  if (self.to_real(real) || (self.text() && parse_real(self.text()->text, real))) return Value(real);
  return bound[0] ? *bound[0] : Value(0.0);
}

Result<Value> absolute(Evaluator&, const Value& self, const Args& args) {
  SE_TRY(bind("abs", args, {}).status());
  int64_t integer = 0;
  if (self.to_integer(integer) && integer != INT64_MIN) return Value(integer < 0 ? -integer : integer);
  if (self.real()) return Value(std::abs(*self.real()));
  return invalid(format("abs: wanted a number, found '{}'", self.type_name()));
}

Result<Value> rounded(Evaluator&, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("round", args, {"precision", "method"}));
  double real = 0;
  if (!self.to_real(real)) return invalid(format("round: wanted a number, found '{}'", self.type_name()));
  int64_t precision = 0;
  if (bound[0]) {
    SE_ASSIGN(precision, want_integer("round", *bound[0]));
  }
  const std::string method = bound[1] ? to_text(*bound[1]).text : "common";
  if (self.integer() && precision >= 0) return self;
  const double scale = std::pow(10.0, double(precision)), scaled = real * scale;
  if (method == "ceil") return Value(std::ceil(scaled) / scale);
  if (method == "floor") return Value(std::floor(scaled) / scale);
  if (method != "common")
    return invalid(format("round: method is {}, wanted common, ceil or floor", se::quoted(method)));
  return Value(std::nearbyint(scaled) / scale);  // half to even, as Python's round
}

// self % args, or % the named ones.
Result<Value> format_text(Evaluator& evaluator, const Value& self, const Args& args) {
  if (!args.named.empty() && !args.positional.empty())
    return invalid("format: wanted positional or named values");
  Dict named;
  for (const auto& [name, value] : args.named) named.set(name, value);
  SE_ASSIGN(const Value values,
            args.named.empty() ? Value::list(args.positional, true) : Value::dict(std::move(named)));
  return percent(evaluator, to_text(self), values);
}

Result<Value> escape(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_TRY(bind("escape", args, {}).status());
  const Marked text = to_text(self);
  Marked out;
  for (size_t at = 0; at < text.text.size(); ++at) {
    const char c = text.text[at];
    const char* entity = c == '&'    ? "&amp;"
                         : c == '<'  ? "&lt;"
                         : c == '>'  ? "&gt;"
                         : c == '"'  ? "&#34;"
                         : c == '\'' ? "&#39;"
                                     : nullptr;
    if (entity == nullptr) {
      out.append(text, at, at + 1);
    } else {
      out.append(Marked::like(text.part(at, at + 1), entity));
    }
  }
  return evaluator.text(std::move(out));
}

constexpr Named<Filter> kFilters[] = {{"trim", trim},
                                      {"upper", mapped<to_upper>},
                                      {"lower", mapped<to_lower>},
                                      {"capitalize", mapped<capitalize>},
                                      {"title", mapped<[](std::string_view s) { return title(s, true); }>},
                                      {"string", string},
                                      {"safe", string},
                                      {"format", format_text},
                                      {"escape", escape},
                                      {"e", escape},
                                      {"replace", replace},
                                      {"indent", indent},
                                      {"tojson", tojson},
                                      {"default", fallback},
                                      {"d", fallback},
                                      {"int", to_int},
                                      {"float", to_float},
                                      {"abs", absolute},
                                      {"round", rounded}};

}  // namespace

std::span<const Named<Filter>> string_filters() { return kFilters; }

}  // namespace se::text::jinja
