#include "text/jinja/format.h"

#include <utf8proc.h>

#include <algorithm>
#include <cmath>

#include "base/fmt.h"
#include "text/unicode.h"

namespace se::text::jinja {
namespace {

std::string real_text(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  std::string s = se::format("{}", d);
  if (s.find_first_of(".e") == s.npos) s += ".0";
  return s;
}

bool printable(int32_t c) {
  if (c < 0) return false;
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

std::string quoted(std::string_view text) {
  const bool twice = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = twice ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (c.value == '\\' || c.value == quote) {
      out += '\\';
      out += char(c.value);
    } else if (c.value == '\n') {
      out += "\\n";
    } else if (c.value == '\r') {
      out += "\\r";
    } else if (c.value == '\t') {
      out += "\\t";
    } else if (printable(c.value)) {
      out += text.substr(at, c.size);
    } else {
      const uint32_t v = c.value < 0 ? uint8_t(text[at]) : c.value;
      out += v < 0x100     ? format("\\x{:02x}", v)
             : v < 0x10000 ? format("\\u{:04x}", v)
                           : format("\\U{:08x}", v);
    }
    at += c.size;
  }
  return out + quote;
}

void append_repr(Marked& out, const Value& value) {
  if (const Marked* text = value.text()) return out.append(Marked::like(*text, quoted(text->text)));
  if (const List* list = value.list()) {
    out.text += list->tuple ? "(" : "[";
    for (size_t n = 0; n < list->items.size(); ++n) {
      if (n > 0) out.text += ", ";
      append_repr(out, list->items[n]);
    }
    if (list->tuple && list->items.size() == 1) out.text += ",";
    out.text += list->tuple ? ")" : "]";
    return;
  }
  if (const Dict* dict = value.dict()) {
    if (dict->kind == Dict::Kind::kLoop) {
      out.text += "<LoopContext>";
      return;
    }
    out.text += dict->kind == Dict::Kind::kNamespace ? "<Namespace {" : "{";
    for (size_t n = 0; n < dict->items.size(); ++n) {
      if (n > 0) out.text += ", ";
      out.append(Marked::like(dict->items[n].first, quoted(dict->items[n].first.text)));
      out.text += ": ";
      append_repr(out, dict->items[n].second);
    }
    out.text += dict->kind == Dict::Kind::kNamespace ? "}>" : "}";
    return;
  }
  if (value.is_undefined()) {
    out.text += "Undefined";
  } else {
    out.append(to_text(value));
  }
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {
    item_ = !style.item_separator.empty() ? style.item_separator : style.indent >= 0 ? "," : ", ";
    key_ = !style.key_separator.empty() ? style.key_separator : ": ";
  }

  Status write(const Value& value, int level) {
    if (const bool* b = value.as_bool()) return put(*b ? "true" : "false");
    if (const double* d = value.real()) return put(real(*d));
    if (const Marked* text = value.text()) return out_.append(Marked::like(*text, string(text->text))), ok();
    if (value.is_none()) return put("null");
    if (value.integer()) return put(format("{}", *value.integer()));
    if (value.list()) return write_list(*value.list(), level);
    if (value.dict() && value.dict()->kind == Dict::Kind::kDict) return write_dict(*value.dict(), level);
    return invalid(format("object of type {} is not JSON serializable", value.type_name()));
  }

  Marked take() { return std::move(out_); }

 private:
  Status put(std::string_view s) { return out_.text += s, ok(); }

  void line(int level) {
    if (style_.indent < 0) return;
    out_.text += "\n";
    out_.text += std::string(size_t(style_.indent) * level, ' ');
  }

  Status write_list(const List& list, int level) {
    if (list.items.empty()) return put("[]");
    out_.text += "[";
    for (size_t n = 0; n < list.items.size(); ++n) {
      if (n > 0) out_.text += item_;
      line(level + 1);
      SE_TRY(write(list.items[n], level + 1));
    }
    line(level);
    return put("]");
  }

  Status write_dict(const Dict& dict, int level) {
    if (dict.items.empty()) return put("{}");
    std::vector<const std::pair<Marked, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(
          items.begin(), items.end(), [](auto* a, auto* b) { return a->first.text < b->first.text; });
    }
    out_.text += "{";
    for (size_t n = 0; n < items.size(); ++n) {
      if (n > 0) out_.text += item_;
      line(level + 1);
      out_.append(Marked::like(items[n]->first, string(items[n]->first.text)));
      out_.text += key_;
      SE_TRY(write(items[n]->second, level + 1));
    }
    line(level);
    return put("}");
  }

  static std::string real(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d > 0 ? "Infinity" : "-Infinity";
    return real_text(d);
  }

  static void escape(std::string& out, int32_t c) {
    if (c >= 0x10000) {  // a surrogate pair
      out += format("\\u{:04x}\\u{:04x}", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + ((c - 0x10000) & 0x3FF));
    } else {
      out += format("\\u{:04x}", c);
    }
  }

  std::string string(std::string_view text) const {
    static constexpr std::string_view kFrom = "\"\\\n\r\t\f\b", kTo = "\"\\nrtfb";
    std::string out = "\"";
    for (size_t at = 0; at < text.size();) {
      const CodePoint c = code_point_at(text, at);
      const size_t named = c.value >= 0 && c.value < 0x80 ? kFrom.find(char(c.value)) : kFrom.npos;
      if (named != kFrom.npos) {
        out += '\\';
        out += kTo[named];
      } else if (c.value >= 0 && (c.value < 0x20 || (style_.ascii && c.value > 0x7E))) {
        escape(out, c.value);
      } else {
        out += text.substr(at, c.size);
      }
      at += c.size;
    }
    return out + '"';
  }

  const JsonStyle& style_;
  std::string item_, key_;
  Marked out_;
};

}  // namespace

Marked to_text(const Value& value) {
  if (value.text()) return *value.text();
  if (const bool* b = value.as_bool()) return *b ? "True" : "False";
  if (value.integer()) return format("{}", *value.integer());
  if (value.real()) return real_text(*value.real());
  if (value.is_none()) return "None";
  if (value.is_undefined()) return "";
  if (value.callable()) return format("<function {}>", value.callable()->name);
  return to_repr(value);
}

Marked to_repr(const Value& value) {
  Marked out;
  append_repr(out, value);
  return out;
}

Result<Marked> to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  SE_TRY(writer.write(value, 0));
  return writer.take();
}

}  // namespace se::text::jinja
