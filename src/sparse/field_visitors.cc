#include "sparse/field_visitors.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/fmt.h"
#include "sparse/later_stages.h"
#include "sparse/plan.h"

namespace se {
namespace {

std::string print_decimal(double value) {  // the shortest text that reads back as the same number
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  SE_CHECK(error == std::errc(), "{}", value);
  return std::string(text, end);
}
std::string print(const TokenBudget& b) {
  return b.percent > 0 ? format("{}%", b.percent) : format("{}", b.tokens);
}

struct PrintedField {
  Field field;
  std::string value;
};

class Printer final : public FieldVisitor {
 public:
  std::vector<PrintedField> fields;
  void operator()(const Field& f, int64_t& v) override { fields.push_back({f, format("{}", v)}); }
  void operator()(const Field& f, double& v) override { fields.push_back({f, print_decimal(v)}); }
  void operator()(const Field& f, bool& v) override { fields.push_back({f, v ? "on" : "off"}); }
  void operator()(const Field& f, TokenBudget& v) override { fields.push_back({f, print(v)}); }
  void operator()(const Field& f, std::string& v) override { fields.push_back({f, v}); }
  void choice(const Field& f, int& v, std::span<const char* const> names) override {
    SE_CHECK(v >= 0 && v < int(names.size()), "{} = {} of {} choices", f.name, v, names.size());
    fields.push_back({f, names[size_t(v)]});
  }
};

std::vector<PrintedField> printed(Stage& stage) {
  Printer printer;
  stage.visit(printer);
  return std::move(printer.fields);
}

int64_t to_integer(double limit) {  // limits are doubles: the default maximum is beyond int64_t
  return limit >= 9.2e18 ? std::numeric_limits<int64_t>::max() : int64_t(limit);
}

// Why `v` is not legal; empty if it is.
std::string fault(const Field& f, int64_t v) {
  if (v < to_integer(f.min)) return format("is below {}", to_integer(f.min));
  if (v > to_integer(f.max)) return format("is above {}", to_integer(f.max));
  if (f.power_of_two && !std::has_single_bit(uint64_t(v))) return "is not a power of two";
  if (v % f.multiple != 0) return format("is not a multiple of {}", f.multiple);
  if (f.odd && v % 2 == 0) return "is not odd";
  return {};
}

// The legal numbers next to v, below and above: " ; nearest: 2048, 2064".
std::string nearest(const Field& f, int64_t v) {
  v = std::clamp(v, to_integer(f.min), to_integer(f.max));
  std::string text;
  const auto add = [&](int64_t c) {
    if (fault(f, c).empty()) text += (text.empty() ? "; nearest: " : ", ") + format("{}", c);
  };
  if (fault(f, v).empty()) {
    add(v);
  } else if (f.power_of_two) {
    const int64_t below = v < 1 ? 1 : int64_t(std::bit_floor(uint64_t(v)));
    add(below);
    if (below < v && below <= std::numeric_limits<int64_t>::max() / 4) add(2 * below);
  } else if (f.odd) {
    add(v - 1);
    add(v + 1);
  } else {
    const int64_t below = v / f.multiple * f.multiple;
    add(below);
    if (below <= std::numeric_limits<int64_t>::max() - f.multiple) add(below + f.multiple);
  }
  return text;
}

class Setter final : public FieldVisitor {
 public:
  Setter(const StageEntry& entry, const Arguments& arguments)
      : entry_(entry), arguments_(arguments), used_(arguments.size(), false) {}

  void operator()(const Field& f, int64_t& v) override {
    if (const std::string* text = find(f)) integer(f, *text, v);
  }
  void operator()(const Field& f, double& v) override {
    const std::string* text = find(f);
    if (!text) return;
    double d = 0;
    if (!parse_decimal(*text, d)) return fail(f, *text, "is not a number");
    if (d < f.min)
      return fail(f, *text, format("is below {}; nearest: {}", print_decimal(f.min), print_decimal(f.min)));
    if (d > f.max)
      return fail(f, *text, format("is above {}; nearest: {}", print_decimal(f.max), print_decimal(f.max)));
    v = d;
  }
  void operator()(const Field& f, bool& v) override {
    const std::string* text = find(f);
    if (!text) return;
    if (*text != "on" && *text != "off") return fail(f, *text, "is neither on nor off");
    v = *text == "on";
  }
  void operator()(const Field& f, TokenBudget& v) override {
    const std::string* text = find(f);
    if (!text) return;
    if (text->back() != '%') {
      v.percent = 0;
      return integer(f, *text, v.tokens);
    }
    if (entry_.axis != Axis::kKeep) return percent_of_reader(f, *text);
    int64_t percent = 0;
    if (!parse_integer(text->substr(0, text->size() - 1), percent) || percent < 1 || percent > 100) {
      return fail(f, *text, "is not a whole percentage from 1% to 100% of the prompt");
    }
    v = {0, int(percent)};
  }
  void operator()(const Field& f, std::string& v) override {
    if (const std::string* text = find(f)) v = *text;
  }
  void choice(const Field& f, int& v, std::span<const char* const> names) override {
    const std::string* text = find(f);
    if (!text) return;
    std::string allowed;
    std::vector<std::string> words;
    for (size_t i = 0; i < names.size(); ++i) {
      if (*text == names[i]) return void(v = int(i));
      words.emplace_back(names[i]);
      allowed += (i ? ", " : "") + words.back();
    }
    const std::string near = nearest_name(*text, words);
    fail(f, *text, format("is not one of {}{}", allowed, near.empty() ? "" : "; nearest: " + near));
  }

  // The first error; also keys that no field took.
  Status status() const {
    for (size_t i = 0; i < used_.size(); ++i) {
      if (!used_[i]) return unknown(arguments_[i].first);
    }
    return status_;
  }

 private:
  const std::string* find(const Field& f) {
    keys_.emplace_back(f.name);
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (arguments_[i].first == f.name) return used_[i] = true, &arguments_[i].second;
    }
    return nullptr;
  }
  void fail(const Field& f, const std::string& found, const std::string& why) {
    if (status_.ok()) status_ = invalid(format("{}.{} = {} {}", entry_.name, f.name, found, why));
  }
  void percent_of_reader(const Field& f, const std::string& text) {
    fail(f,
         text,
         format("is a share of the prompt, which only keepers take: {} has a fixed capacity, wanted a number "
                "of tokens",
                entry_.name));
  }
  void integer(const Field& f, const std::string& text, int64_t& v) {
    int64_t n = 0;
    if (text.back() == '%') return percent_of_parameter(f, text);
    if (!parse_integer(text, n)) return fail(f, text, "is not a whole number (2048, 2k, 1m)");
    const std::string why = fault(f, n);
    if (!why.empty()) return fail(f, text, why + nearest(f, n));
    v = n;
  }
  void percent_of_parameter(const Field& f, const std::string& text) {
    if (entry_.axis == Axis::kRead) return percent_of_reader(f, text);
    fail(f, text, "is a share of the prompt, which only a keeper's budget takes: wanted a whole number");
  }
  Status unknown(const std::string& key) const {
    for (const LaterParameter& later : kLaterParameters) {
      if (later.stage == entry_.name && later.key == key) {
        return unsupported(
            format("{}({}=...) is known but not built yet in this version: {}", entry_.name, key, later.why));
      }
    }
    if (keys_.empty()) return invalid(format("{} has no parameter {}; it takes none", entry_.name, key));
    std::string allowed;
    for (const std::string& k : keys_) allowed += (allowed.empty() ? "" : ", ") + k;
    const std::string near = nearest_name(key, keys_);
    return invalid(format("{} has no parameter {}; it has {}{}",
                          entry_.name,
                          key,
                          allowed,
                          near.empty() ? "" : "; nearest: " + near));
  }

  const StageEntry& entry_;
  const Arguments& arguments_;
  std::vector<bool> used_;
  std::vector<std::string> keys_;
  Status status_;
};

}  // namespace

Status set_fields(Stage& stage, const StageEntry& entry, const Arguments& arguments) {
  Setter setter(entry, arguments);
  stage.visit(setter);
  SE_TRY(setter.status());
  const Status status = stage.validate();
  return status.message().starts_with(entry.name) ? status : status.in(entry.name);
}

std::string print_stage(const StageEntry& entry, Stage& stage) {
  const auto defaults = printed(*entry.make()), values = printed(stage);
  std::string list;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].value == defaults[i].value) continue;
    list += (list.empty() ? "" : ",") + format("{}={}", values[i].field.name, values[i].value);
  }
  return list.empty() ? entry.name : format("{}({})", entry.name, list);
}

void add_fields(Fingerprint& fingerprint, Stage& stage, Affects what) {
  for (const PrintedField& p : printed(stage)) {
    if (p.field.affects >= what) fingerprint.add(p.field.name).add(p.value);
  }
}

std::vector<FieldInfo> describe_fields(Stage& stage) {
  std::vector<FieldInfo> infos;
  for (PrintedField& p : printed(stage)) {
    infos.push_back({p.field.name, p.field.help, std::move(p.value), p.field.affects});
  }
  return infos;
}

}  // namespace se
