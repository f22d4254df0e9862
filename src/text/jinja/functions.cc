#include "text/jinja/functions.h"

#include <algorithm>

#include "base/fmt.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/format.h"
#include "text/jinja/lexer.h"
#include "text/jinja/operators.h"
#include "text/unicode.h"

namespace se::text::jinja {
namespace {

template <typename F>
F find_in(std::span<const Named<F>> table, std::string_view name) {
  for (const Named<F>& entry : table) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace

Filter find_filter(std::string_view name) {
  const Filter found = find_in(string_filters(), name);
  return found ? found : find_in(sequence_filters(), name);
}

Test find_test(std::string_view name) { return find_in(tests(), name); }

Result<std::vector<const Value*>> bind(std::string_view callee,
                                       const Args& args,
                                       std::initializer_list<std::string_view> names) {
  std::vector<const Value*> bound(names.size(), nullptr);
  if (args.positional.size() > names.size()) {
    return invalid(format("{} takes {} arguments, found {}", callee, names.size(), args.positional.size()));
  }
  for (size_t n = 0; n < args.positional.size(); ++n) bound[n] = &args.positional[n];
  for (const auto& [name, value] : args.named) {
    const size_t n = size_t(std::find(names.begin(), names.end(), name) - names.begin());
    if (n == names.size()) return invalid(format("{} takes no argument '{}'", callee, name));
    if (bound[n]) return invalid(format("{}: two values for argument '{}'", callee, name));
    bound[n] = &value;
  }
  return bound;
}

Result<const Marked*> want_text(std::string_view callee, const Value& value) {
  if (value.text()) return value.text();
  if (value.undefined()) return invalid(format("{}: {}", callee, value.undefined()->why));
  return invalid(format("{}: wanted a string, found '{}'", callee, value.type_name()));
}

Result<int64_t> want_integer(std::string_view callee, const Value& value) {
  int64_t out = 0;
  if (value.to_integer(out)) return out;
  return invalid(format("{}: wanted an integer, found '{}'", callee, value.type_name()));
}

Result<std::vector<Value>> items_of(Evaluator& evaluator, const Value& value) {
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (const List* list = value.list()) {
    SE_TRY(evaluator.charge(int64_t(list->items.size())));
    return list->items;
  }
  if (const Dict* dict = value.dict(); dict && dict->kind == Dict::Kind::kDict) {
    SE_TRY(evaluator.charge(int64_t(dict->items.size())));
    for (const auto& [key, entry] : dict->items) items.emplace_back(key);
    return items;
  }
  if (const Marked* text = value.text()) {
    const std::vector<size_t> offsets = character_offsets(text->text);
    SE_TRY(evaluator.charge(int64_t(offsets.size())));
    for (size_t n = 0; n + 1 < offsets.size(); ++n)
      items.emplace_back(text->part(offsets[n], offsets[n + 1]));
    return items;
  }
  return invalid(format("a '{}' cannot be iterated over", value.type_name()));
}

Marked strip(const Marked& text, const Marked* set, bool begin, bool end) {
  const std::string_view s = text.text;
  if (set == nullptr) {
    const size_t to = end ? strip_end(s) : s.size();
    return text.part(begin ? std::min(strip_begin(s), to) : 0, to);
  }
  const std::vector<size_t> offsets = character_offsets(s);
  const auto in_set = [&](size_t n) {
    const std::string_view character = s.substr(offsets[n], offsets[n + 1] - offsets[n]);
    for (size_t at = 0; at < set->text.size();) {
      const int size = code_point_at(set->text, at).size;
      if (std::string_view(set->text).substr(at, size) == character) return true;
      at += size;
    }
    return false;
  };
  size_t first = 0, last = offsets.size() - 1;
  while (begin && first < last && in_set(first)) ++first;
  while (end && first < last && in_set(last - 1)) --last;
  return text.part(offsets[first], offsets[last]);
}

}  // namespace se::text::jinja
