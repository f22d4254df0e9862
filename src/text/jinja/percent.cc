#include "text/jinja/percent.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/fmt.h"
#include "base/quoted.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/format.h"
#include "text/jinja/operators.h"
#include "text/unicode.h"

namespace se::text::jinja {
namespace {

constexpr int64_t kMostDigits = 300;  // of a precision
constexpr std::string_view kConversions = "diuoxXeEfFgGcrs";

struct Spec {
  bool left = false, plus = false, space = false, zero = false, alt = false;
  int64_t width = 0, precision = -1;
  char type = 's';
};

class Formatter {
 public:
  Formatter(Evaluator& evaluator, const Marked& pattern, const Value& values)
      : evaluator_(evaluator), pattern_(pattern), values_(values) {}

  Result<Value> run() {
    const std::string& text = pattern_.text;
    while (at_ < text.size()) {
      const size_t next = std::min(text.find('%', at_), text.size());
      out_.append(pattern_, at_, next);
      at_ = next + 1;
      if (next == text.size()) break;
      SE_TRY(convert());
      SE_TRY(evaluator_.check_size(int64_t(out_.text.size())));
    }
    const bool left = values_.list() && values_.list()->tuple
                          ? used_ < values_.list()->items.size()
                          : used_ == 0 && !values_.dict() && !values_.list();
    if (left) return invalid("not all values were used in formatting a string");
    return Value(std::move(out_));
  }

 private:
  char peek() const { return at_ < pattern_.text.size() ? pattern_.text[at_] : '\0'; }

  Result<const Value*> next_value() {
    if (values_.list() && values_.list()->tuple) {
      if (used_ >= values_.list()->items.size()) return invalid("there are fewer values than a format wants");
      return &values_.list()->items[used_++];
    }
    if (used_++ > 0) return invalid("there are fewer values than a format wants");
    return &values_;
  }

  // Digits, or * for the next value.
  Status number(int64_t& out) {
    if (peek() == '*') {
      ++at_;
      SE_ASSIGN(const Value* value, next_value());
      if (!value->integer()) return invalid("'*' in a format wants an integer");
      out = *value->integer();
    } else {
      out = 0;
      for (; peek() >= '0' && peek() <= '9'; ++at_)
        out = std::min<int64_t>(out * 10 + (peek() - '0'), INT32_MAX);
    }
    return ok();
  }

  Status convert() {
    const Value* value = nullptr;
    if (peek() == '(') {
      const size_t end = pattern_.text.find(')', at_);
      if (end == std::string::npos) return invalid("a format lacks the ')' of its key");
      const std::string key = pattern_.text.substr(at_ + 1, end - at_ - 1);
      if (!values_.dict()) return invalid("a format with a key wants a dict");
      value = values_.dict()->find(key);
      if (value == nullptr) return invalid(format("a format wants the key {}", se::quoted(key)));
      at_ = end + 1;
      ++used_;
    }
    Spec spec;
    for (;; ++at_) {
      const char c = peek();
      bool* flag = c == '-'   ? &spec.left
                   : c == '+' ? &spec.plus
                   : c == ' ' ? &spec.space
                   : c == '0' ? &spec.zero
                   : c == '#' ? &spec.alt
                              : nullptr;
      if (flag == nullptr) break;
      *flag = true;
    }
    SE_TRY(number(spec.width));
    if (spec.width < 0) spec.left = true, spec.width = -std::max<int64_t>(spec.width, -INT32_MAX);
    if (peek() == '.') {
      ++at_;
      SE_TRY(number(spec.precision));
      spec.precision = std::max<int64_t>(spec.precision, 0);
    }
    if (peek() == 'h' || peek() == 'l' || peek() == 'L') ++at_;
    spec.type = peek();
    ++at_;
    if (spec.type == '%') return out_.append("%"), ok();
    if (spec.type == '\0' || kConversions.find(spec.type) == kConversions.npos) {
      return invalid(
          format("'%{}' is no conversion of a format", spec.type ? std::string(1, spec.type) : ""));
    }
    if (value == nullptr) {
      SE_ASSIGN(value, next_value());
    }
    return put(spec, *value);
  }

  Status put(const Spec& spec, const Value& value) {
    switch (spec.type) {
      case 's':
      case 'r':
      case 'c':
        return put_text(spec, value);
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X':
        return put_integer(spec, value);
      default:
        return put_real(spec, value);
    }
  }

  Status put_text(const Spec& spec, const Value& value) {
    Marked text = spec.type == 'r' ? to_repr(value) : to_text(value);
    if (spec.type == 'c') {
      if (value.integer()) {
        const int64_t c = *value.integer();
        if (c < 0 || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return invalid("%c wants a code point");
        text = Marked();
        append_utf8(text.text, int32_t(c));
      } else if (!value.text() || character_offsets(text.text).size() != 2) {
        return invalid("%c wants an integer or one character");
      }
    }
    const std::vector<size_t> offsets = character_offsets(text.text);
    const int64_t length = int64_t(offsets.size()) - 1;
    const int64_t kept = spec.precision < 0 || spec.type == 'c' ? length : std::min(length, spec.precision);
    SE_TRY(evaluator_.check_size(spec.width));
    const Marked pad(std::string(size_t(std::max<int64_t>(spec.width - kept, 0)), ' '));
    if (!spec.left) out_.append(pad);
    out_.append(text, 0, offsets[size_t(kept)]);
    if (spec.left) out_.append(pad);
    return ok();
  }

  static std::string_view sign_of(const Spec& spec, bool negative) {
    return negative ? "-" : spec.plus ? "+" : spec.space ? " " : "";
  }

  // sign, prefix and digits, filled to the width.
  Status put_number(const Spec& spec,
                    std::string_view sign,
                    std::string_view prefix,
                    const std::string& digits) {
    SE_TRY(evaluator_.check_size(spec.width));
    const int64_t fill = spec.width - int64_t(sign.size() + prefix.size() + digits.size());
    const std::string pad(size_t(std::max<int64_t>(fill, 0)), spec.zero && !spec.left ? '0' : ' ');
    const bool zeros = spec.zero && !spec.left;
    std::string text;
    if (!spec.left && !zeros) text += pad;
    text.append(sign).append(prefix);
    if (zeros) text += pad;
    text += digits;
    if (spec.left) text += pad;
    out_.append(text);
    return ok();
  }

  Status put_integer(const Spec& spec, const Value& value) {
    int64_t number = 0;
    const bool decimal = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
    if (const double* real = value.real(); real && decimal) {
      if (!(std::fabs(*real) < 9e18)) return invalid("a number is over 64 bits");
      number = int64_t(*real);
    } else if (!value.to_integer(number)) {
      return invalid(format("%{} wants a number, found '{}'", std::string(1, spec.type), value.type_name()));
    }
    const uint64_t size = number < 0 ? 0 - uint64_t(number) : uint64_t(number);
    std::string digits = decimal            ? format("{}", size)
                         : spec.type == 'o' ? format("{:o}", size)
                         : spec.type == 'x' ? format("{:x}", size)
                                            : format("{:X}", size);
    SE_TRY(evaluator_.check_size(spec.precision));
    if (spec.precision > int64_t(digits.size()))
      digits.insert(0, size_t(spec.precision) - digits.size(), '0');
    const std::string_view prefix = !spec.alt || decimal ? ""
                                    : spec.type == 'o'   ? "0o"
                                    : spec.type == 'x'   ? "0x"
                                                         : "0X";
    return put_number(spec, sign_of(spec, number < 0), prefix, digits);
  }

  Status put_real(const Spec& spec, const Value& value) {
    double number = 0;
    if (!value.to_real(number)) {
      return invalid(format("%{} wants a number, found '{}'", std::string(1, spec.type), value.type_name()));
    }
    if (spec.precision > kMostDigits) return unsupported(format("a precision over {} digits", kMostDigits));
    const std::string printf = std::string("%") + (spec.alt ? "#" : "") + ".*" + spec.type;
    char digits[1024];
    const int precision = spec.precision < 0 ? 6 : int(spec.precision);
    std::snprintf(digits, sizeof digits, printf.c_str(), precision, std::fabs(number));
    return put_number(spec, sign_of(spec, std::signbit(number) && !std::isnan(number)), "", digits);
  }

  Evaluator& evaluator_;
  const Marked& pattern_;
  const Value& values_;
  Marked out_;
  size_t at_ = 0;    // in the pattern
  size_t used_ = 0;  // values
};

}  // namespace

Result<Value> percent(Evaluator& evaluator, const Marked& pattern, const Value& values) {
  return Formatter(evaluator, pattern, values).run();
}

}  // namespace se::text::jinja
