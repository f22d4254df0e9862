#include "text/jinja/lexer.h"

#include <algorithm>

#include "base/fmt.h"
#include "text/jinja/string_literal.h"
#include "text/unicode.h"

namespace se::text::jinja {
namespace {

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || (c & 0x80);
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size()) SE_TRY(lex_data());
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  bool here(std::string_view s) const { return source_.compare(at_, s.size(), s) == 0; }
  Status fail(std::string_view what) const { return invalid(format("template line {}: {}", line_, what)); }
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void advance(size_t to) {
    line_ += int(std::count(source_.begin() + at_, source_.begin() + to, '\n'));
    if (to > at_) line_starting_ = source_[to - 1] == '\n';
    at_ = to;
  }

  // Start of the next tag, or the end of the source.
  size_t next_tag() const {
    for (size_t at = source_.find('{', at_); at != source_.npos; at = source_.find('{', at + 1)) {
      if (at + 1 < source_.size() &&
          (source_[at + 1] == '{' || source_[at + 1] == '%' || source_[at + 1] == '#')) {
        return at;
      }
    }
    return source_.size();
  }

  // The data before a tag, shortened as the tag's sign and lstrip_blocks say.
  std::string data_before(size_t tag, char sign, bool output) const {
    std::string_view data = std::string_view(source_).substr(at_, tag - at_);
    if (sign == '-') return std::string(data.substr(0, strip_end(data)));
    if (sign == '+' || output) return std::string(data);
    const size_t newline = data.rfind('\n');
    const size_t line = newline == data.npos ? 0 : newline + 1;
    if (line == 0 && !line_starting_) return std::string(data);
    const bool blank = strip_begin(data.substr(line)) == data.size() - line;
    return std::string(blank ? data.substr(0, line) : data);
  }

  Status lex_data() {
    const size_t tag = next_tag();
    if (tag == source_.size()) {
      add(TokenKind::kData, source_.substr(at_));
      at_ = tag;
      return ok();
    }
    const char kind = source_[tag + 1], sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    const bool has_sign = sign == '-' || (sign == '+' && kind != '{');
    std::string data = data_before(tag, sign, kind == '{');
    if (!data.empty()) add(TokenKind::kData, std::move(data));
    advance(tag);
    const size_t inside = tag + (has_sign ? 3 : 2);
    if (kind == '#') return skip_comment(inside);
    if (kind == '%' && is_raw(inside)) return lex_raw(inside);
    add(kind == '{' ? TokenKind::kOutputBegin : TokenKind::kBlockBegin, "");
    advance(inside);
    return lex_tag(kind == '{' ? "}}" : "%}");
  }

  // Moves behind a closing bracket `close` at `at` and what it swallows: after '-' all white space, after
  // nothing one newline (blocks and comments only).
  void leave(size_t at, char sign, std::string_view close) {
    at += close.size() + (sign != ' ' ? 1 : 0);
    if (sign == '-') at += strip_begin(std::string_view(source_).substr(at));
    if (sign == ' ' && close != "}}" && at < source_.size() && source_[at] == '\n') ++at;
    advance(at);
  }

  Status skip_comment(size_t from) {
    const size_t end = source_.find("#}", from);
    if (end == source_.npos) return fail("a comment '{#' has no '#}'");
    const bool sign = end > from && (source_[end - 1] == '-' || source_[end - 1] == '+');
    leave(sign ? end - 1 : end, sign ? source_[end - 1] : ' ', "#}");
    return ok();
  }

  // A block tag `{% name %}` with only white space around the name; the offset of its end sign, or npos.
  size_t lone_name(size_t from, std::string_view name) const {
    from += strip_begin(std::string_view(source_).substr(from));
    if (source_.compare(from, name.size(), name) != 0) return source_.npos;
    from += name.size();
    from += strip_begin(std::string_view(source_).substr(from));
    const bool sign = from < source_.size() && (source_[from] == '-' || source_[from] == '+');
    return source_.compare(from + (sign ? 1 : 0), 2, "%}") == 0 ? from : source_.npos;
  }
  bool is_raw(size_t inside) const { return lone_name(inside, "raw") != source_.npos; }

  Status lex_raw(size_t inside) {
    const size_t end_sign = lone_name(inside, "raw");
    const bool dash = source_[end_sign] == '-';
    size_t begin = end_sign + (source_[end_sign] == '%' ? 2 : 3);
    if (dash) begin += strip_begin(std::string_view(source_).substr(begin));
    advance(begin);
    for (size_t tag = source_.find("{%", at_); tag != source_.npos; tag = source_.find("{%", tag + 2)) {
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
      const bool has_sign = sign == '-' || sign == '+';
      const size_t end = lone_name(tag + (has_sign ? 3 : 2), "endraw");
      if (end == source_.npos) continue;
      add(TokenKind::kData, data_before(tag, sign, false));
      leave(end, source_[end] == '%' ? ' ' : source_[end], "%}");
      return ok();
    }
    return fail("'{% raw %}' has no '{% endraw %}'");
  }

  // Tokens of one tag up to its closing bracket.
  Status lex_tag(std::string_view close) {
    std::string open;  // brackets that wait for their partner
    while (at_ < source_.size()) {
      const char c = source_[at_];
      const CodePoint point = code_point_at(source_, at_);
      if (is_python_space(point.value)) {
        advance(at_ + point.size);
        continue;
      }
      const bool sign = (c == '-' || (c == '+' && close == "%}")) && source_.compare(at_ + 1, 2, close) == 0;
      if (open.empty() && (sign || here(close))) {
        add(close == "}}" ? TokenKind::kOutputEnd : TokenKind::kBlockEnd, "");
        leave(at_, sign ? c : ' ', close);
        return ok();
      }
      if (c == '"' || c == '\'') {
        SE_TRY(lex_string(c));
      } else if (is_digit(c)) {
        lex_number();
      } else if (is_name_byte(c)) {
        size_t end = at_;
        while (end < source_.size() && is_name_byte(source_[end])) ++end;
        add(TokenKind::kName, source_.substr(at_, end - at_));
        advance(end);
      } else {
        SE_TRY(lex_operator(open));
      }
    }
    return fail(format("a tag has no '{}'", close));
  }

  Status lex_string(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return fail("a string has no closing quote");
    SE_ASSIGN(std::string text, unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1), line_));
    add(TokenKind::kString, std::move(text));
    advance(end + 1);
    return ok();
  }

  size_t digits(size_t at) const {
    while (at < source_.size() && (is_digit(source_[at]) || source_[at] == '_')) ++at;
    return at;
  }

  void lex_number() {
    size_t end = digits(at_);
    bool real = false;
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';  // x.0.1 is two subscripts
    if (!after_dot && end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      end = digits(end + 1);
      real = true;
    }
    if (!after_dot && end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const size_t sign =
          end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-') ? 1 : 0;
      if (end + 1 + sign < source_.size() && is_digit(source_[end + 1 + sign])) {
        end = digits(end + 1 + sign);
        real = true;
      }
    }
    std::string text = source_.substr(at_, end - at_);
    std::erase(text, '_');
    add(real ? TokenKind::kReal : TokenKind::kInteger, std::move(text));
    advance(end);
  }

  Status lex_operator(std::string& open) {
    static constexpr std::string_view kOperators[] = {"**", "//", "==", "!=", "<=", ">=", "+", "-", "*",
                                                      "/",  "%",  "~",  "<",  ">",  "=",  ".", ",", ":",
                                                      "|",  "(",  ")",  "[",  "]",  "{",  "}"};
    for (const std::string_view op : kOperators) {
      if (!here(op)) continue;
      const size_t closing = std::string_view(")]}").find(op);
      if (op == "(" || op == "[" || op == "{") open += op;
      if (closing != std::string_view::npos) {
        if (open.empty() || open.back() != "([{"[closing]) return fail(format("unexpected '{}'", op));
        open.pop_back();
      }
      add(TokenKind::kOp, std::string(op));
      advance(at_ + op.size());
      return ok();
    }
    return fail(format("unexpected character '{}'", source_.substr(at_, code_point_at(source_, at_).size)));
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the last tag ended together with a line
  std::vector<Token> tokens_;
};

// "\r\n" and "\r" become "\n"; a single newline at the end of the source is dropped.
std::string normalized(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t at = 0; at < source.size(); ++at) {
    if (source[at] != '\r') {
      out += source[at];
    } else {
      out += '\n';
      if (at + 1 < source.size() && source[at + 1] == '\n') ++at;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

}  // namespace

Result<std::vector<Token>> lex(std::string_view source) { return Lexer(normalized(source)).run(); }

bool is_python_space(int32_t c) { return (c >= 0x1C && c <= 0x1F) || char_class(c) == CharClass::kSpace; }

size_t strip_begin(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const CodePoint c = code_point_at(text, at);
    if (!is_python_space(c.value)) break;
    at += c.size;
  }
  return at;
}

size_t strip_end(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t start = end - 1;  // walk back over continuation bytes to the start of the character
    while (start > 0 && end - start < 4 && (uint8_t(text[start]) & 0xC0) == 0x80) --start;
    const CodePoint c = code_point_at(text, start);
    if (start + c.size != end || !is_python_space(c.value)) break;
    end = start;
  }
  return end;
}

}  // namespace se::text::jinja
