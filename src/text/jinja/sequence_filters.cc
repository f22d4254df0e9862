#include <algorithm>

#include "base/fmt.h"
#include "base/quoted.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/format.h"
#include "text/jinja/functions.h"
#include "text/jinja/operators.h"
#include "text/jinja/string_case.h"

namespace se::text::jinja {
namespace {

// value.a.b.c for the path "a.b.c"; a part that is a number is an index.
Result<Value> follow(Value value, std::string_view path) {
  while (true) {
    const size_t dot = path.find('.');
    const std::string_view part = path.substr(0, dot);
    const bool index = !part.empty() && part.find_first_not_of("0123456789") == part.npos && part.size() < 10;
    if (index) {
      SE_ASSIGN(value, item(value, Value(int64_t(std::stoi(std::string(part))))));
    } else {
      SE_ASSIGN(value, item(value, Value(std::string(part))));
    }
    if (dot == path.npos) return value;
    path.remove_prefix(dot + 1);
  }
}

// What a sort, minimum or join looks at: an attribute or the item itself, strings in lower case unless
// `cased`.
Result<Value> key_of(const Value& value, const Value* path, bool cased) {
  Value key = value;
  if (path && !path->is_none()) {
    SE_ASSIGN(key, follow(value, to_text(*path).text));
  }
  return !cased && key.text() ? Value(to_lower(key.text()->text)) : key;
}

Result<Value> length(Evaluator&, const Value& self, const Args& args) {
  SE_TRY(bind("length", args, {}).status());
  if (self.is_undefined()) return Value(int64_t(0));
  if (self.list()) return Value(int64_t(self.list()->items.size()));
  if (self.text()) return Value(int64_t(character_offsets(self.text()->text).size()) - 1);
  if (self.dict() && self.dict()->kind == Dict::Kind::kDict) return Value(int64_t(self.dict()->items.size()));
  return invalid(format("length: a '{}' has none", self.type_name()));
}

template <bool kFirst>
Result<Value> end_of(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_TRY(bind(kFirst ? "first" : "last", args, {}).status());
  SE_ASSIGN(const std::vector<Value> items, items_of(evaluator, self));
  if (items.empty()) return Value(Undefined{"the sequence is empty"});
  return kFirst ? items.front() : items.back();
}

Result<Value> join(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("join", args, {"d", "attribute"}));
  const Marked separator = bound[0] ? to_text(*bound[0]) : Marked();
  SE_ASSIGN(const std::vector<Value> items, items_of(evaluator, self));
  Marked out;
  for (size_t n = 0; n < items.size(); ++n) {
    if (n > 0) out.append(separator);
    SE_ASSIGN(const Value part, key_of(items[n], bound[1], true));
    out.append(to_text(part));
    SE_TRY(evaluator.check_total(int64_t(out.text.size())));
  }
  return Value(std::move(out));
}

Result<Value> pairs(const std::vector<std::pair<Marked, Value>>& items) {
  std::vector<Value> out;
  for (const auto& [key, value] : items) {
    SE_ASSIGN(Value pair, Value::list({Value(key), value}, true));
    out.push_back(std::move(pair));
  }
  return Value::list(std::move(out));
}

Result<Value> items(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_TRY(bind("items", args, {}).status());
  if (self.is_undefined()) return Value::list({});
  const Dict* dict = self.dict();
  if (!dict) return invalid(format("items: wanted a dict, found '{}'", self.type_name()));
  SE_TRY(evaluator.charge(int64_t(dict->items.size())));
  return pairs(dict->items);
}

Result<Value> list(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_TRY(bind("list", args, {}).status());
  SE_ASSIGN(std::vector<Value> out, items_of(evaluator, self));
  return Value::list(std::move(out));
}

Result<Value> reverse(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_TRY(bind("reverse", args, {}).status());
  const Value none(None{});
  if (self.text()) return slice(evaluator, self, none, none, Value(int64_t(-1)));
  SE_ASSIGN(std::vector<Value> out, items_of(evaluator, self));
  std::reverse(out.begin(), out.end());
  return Value::list(std::move(out));
}

// Stable sort of the order of `keys`; fails when two of them cannot be ordered.
Result<std::vector<size_t>> order_of(const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> order(keys.size());
  for (size_t n = 0; n < order.size(); ++n) order[n] = n;
  Status status;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const Result<int> sign = compare(keys[a], keys[b]);
    if (!sign.ok()) status = sign.status();
    return sign.ok() && (reverse ? *sign > 0 : *sign < 0);
  });
  SE_TRY(status);
  return order;
}

Result<Value> dictsort(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("dictsort", args, {"case_sensitive", "by", "reverse"}));
  const Dict* dict = self.dict();
  if (!dict) return invalid(format("dictsort: wanted a dict, found '{}'", self.type_name()));
  const bool cased = bound[0] && bound[0]->truthy();
  const std::string by = bound[1] ? to_text(*bound[1]).text : "key";
  if (by != "key" && by != "value")
    return invalid(format("dictsort: by is {}, wanted key or value", se::quoted(by)));
  SE_TRY(evaluator.charge(int64_t(dict->items.size())));
  std::vector<Value> keys;
  for (const auto& [key, value] : dict->items) {
    SE_ASSIGN(Value sort_key, key_of(by == "key" ? Value(key) : value, nullptr, cased));
    keys.push_back(std::move(sort_key));
  }
  SE_ASSIGN(const std::vector<size_t> order, order_of(keys, bound[2] && bound[2]->truthy()));
  std::vector<std::pair<Marked, Value>> sorted;
  for (const size_t n : order) sorted.push_back(dict->items[n]);
  return pairs(sorted);
}

Result<Value> sort(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("sort", args, {"reverse", "case_sensitive", "attribute"}));
  SE_ASSIGN(std::vector<Value> all, items_of(evaluator, self));
  std::vector<Value> keys, out;
  for (const Value& value : all) {
    SE_ASSIGN(Value key, key_of(value, bound[2], bound[1] && bound[1]->truthy()));
    keys.push_back(std::move(key));
  }
  SE_ASSIGN(const std::vector<size_t> order, order_of(keys, bound[0] && bound[0]->truthy()));
  for (const size_t n : order) out.push_back(std::move(all[n]));
  return Value::list(std::move(out));
}

template <int kSign>
Result<Value> extreme(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("min or max", args, {"case_sensitive", "attribute"}));
  SE_ASSIGN(const std::vector<Value> all, items_of(evaluator, self));
  if (all.empty()) return Value(Undefined{"the sequence is empty"});
  size_t best = 0;
  Value best_key;
  for (size_t n = 0; n < all.size(); ++n) {
    SE_ASSIGN(Value key, key_of(all[n], bound[1], bound[0] && bound[0]->truthy()));
    if (n > 0) {
      SE_ASSIGN(const int order, compare(key, best_key));
      if (order * kSign <= 0) continue;
    }
    best = n;
    best_key = std::move(key);
  }
  return all[best];
}

Result<Value> unique(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("unique", args, {"case_sensitive", "attribute"}));
  SE_ASSIGN(const std::vector<Value> all, items_of(evaluator, self));
  std::vector<Value> seen, out;
  for (const Value& value : all) {
    SE_ASSIGN(Value key, key_of(value, bound[1], bound[0] && bound[0]->truthy()));
    SE_TRY(evaluator.charge(int64_t(seen.size())));
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& old) { return equal(old, key); })) continue;
    seen.push_back(std::move(key));
    out.push_back(value);
  }
  return Value::list(std::move(out));
}

Result<Value> sum(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("sum", args, {"attribute", "start"}));
  SE_ASSIGN(const std::vector<Value> all, items_of(evaluator, self));
  Value total = bound[1] ? *bound[1] : Value(int64_t(0));
  for (const Value& value : all) {
    SE_ASSIGN(const Value part, key_of(value, bound[0], true));
    SE_ASSIGN(total, binary(evaluator, "+", total, part));
  }
  return total;
}

// The arguments after the first `count`.
Args rest(const Args& args, size_t count) {
  Args out = args;
  out.positional.erase(out.positional.begin(),
                       out.positional.begin() + std::min(count, args.positional.size()));
  return out;
}

Result<Value> map(Evaluator& evaluator, const Value& self, const Args& args) {
  SE_ASSIGN(const std::vector<Value> all, items_of(evaluator, self));
  std::vector<Value> out;
  if (args.positional.empty()) {
    SE_ASSIGN(const auto bound, bind("map", args, {"attribute", "default"}));
    if (!bound[0]) return invalid("map: wanted the name of a filter or attribute=...");
    for (const Value& value : all) {
      SE_ASSIGN(Value found, follow(value, to_text(*bound[0]).text));
      out.push_back(found.is_undefined() && bound[1] ? *bound[1] : std::move(found));
    }
    return Value::list(std::move(out));
  }
  SE_ASSIGN(const Marked* name, want_text("map", args.positional[0]));
  const Args others = rest(args, 1);
  for (const Value& value : all) {
    SE_ASSIGN(Value mapped, evaluator.filter(name->text, value, others));
    out.push_back(std::move(mapped));
  }
  return Value::list(std::move(out));
}

// select, reject, selectattr, rejectattr: the items for which a test (truth, if none is named) holds or not.
template <bool kKeep, bool kAttribute>
Result<Value> select(Evaluator& evaluator, const Value& self, const Args& args) {
  constexpr size_t kTestAt = kAttribute ? 1 : 0;
  if (args.positional.size() < kTestAt) return invalid("selectattr or rejectattr: wanted an attribute");
  SE_ASSIGN(const std::vector<Value> all, items_of(evaluator, self));
  const Args others = rest(args, kTestAt + 1);
  std::vector<Value> out;
  for (const Value& value : all) {
    Value subject = value;
    if (kAttribute) {
      SE_ASSIGN(subject, follow(value, to_text(args.positional[0]).text));
    }
    bool holds = subject.truthy();
    if (args.positional.size() > kTestAt) {
      SE_ASSIGN(holds, evaluator.test(to_text(args.positional[kTestAt]).text, subject, others));
    }
    if (holds == kKeep) out.push_back(value);
  }
  return Value::list(std::move(out));
}

Result<Value> attr(Evaluator&, const Value& self, const Args& args) {
  SE_ASSIGN(const auto bound, bind("attr", args, {"name"}));
  if (!bound[0]) return invalid("attr: wanted a name");
  SE_ASSIGN(const Marked* name, want_text("attr", *bound[0]));
  if (self.dict() == nullptr || self.dict()->kind != Dict::Kind::kDict) return attribute(self, name->text);
  if (const Method method = find_method(self, name->text)) {
    return Value(Callable{name->text, [self, method](Evaluator& evaluator, const Args& given) {
                            return method(evaluator, self, given);
                          }});
  }
  return Value(Undefined{format("'{}' has no attribute '{}'", self.type_name(), name->text)});
}

constexpr Named<Filter> kFilters[] = {{"length", length},
                                      {"attr", attr},
                                      {"count", length},
                                      {"first", end_of<true>},
                                      {"last", end_of<false>},
                                      {"join", join},
                                      {"items", items},
                                      {"list", list},
                                      {"reverse", reverse},
                                      {"dictsort", dictsort},
                                      {"sort", sort},
                                      {"min", extreme<-1>},
                                      {"max", extreme<1>},
                                      {"unique", unique},
                                      {"sum", sum},
                                      {"map", map},
                                      {"select", select<true, false>},
                                      {"reject", select<false, false>},
                                      {"selectattr", select<true, true>},
                                      {"rejectattr", select<false, true>}};

}  // namespace

std::span<const Named<Filter>> sequence_filters() { return kFilters; }

}  // namespace se::text::jinja
