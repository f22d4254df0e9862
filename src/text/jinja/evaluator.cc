#include "text/jinja/evaluator.h"

#include "base/fmt.h"
#include "text/jinja/format.h"
#include "text/jinja/functions.h"

namespace se::text::jinja {
namespace {

// What one round of a loop costs beside its body: a scope and a loop object.
constexpr int64_t kLoopSteps = 16;

}  // namespace

Evaluator::Evaluator(const Limits& limits, int64_t now)
    : limits_(limits), now_(now), scope_(std::make_shared<Scope>()) {
  for (const auto& [name, function] : global_functions()) {
    const Function f = function;
    scope_->variables.emplace(name,
                              Value(Callable{std::string(name), [f](Evaluator& evaluator, const Args& args) {
                                               return f(evaluator, args);
                                             }}));
  }
}

Evaluator::~Evaluator() {
  for (const auto& scope : macro_scopes_) scope->variables.clear();
}

const Value* Evaluator::Scope::find(const std::string& name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->outer.get()) {
    const auto found = scope->variables.find(name);
    if (found != scope->variables.end()) return &found->second;
  }
  return nullptr;
}

Evaluator::Inner::Inner(Evaluator& evaluator, std::shared_ptr<Scope> outer)
    : evaluator_(evaluator), previous_(evaluator.scope_) {
  evaluator.scope_ = std::make_shared<Scope>();
  evaluator.scope_->outer = std::move(outer);
}
Evaluator::Inner::~Inner() { evaluator_.scope_ = std::move(previous_); }

Status Evaluator::charge(int64_t steps) {
  steps_ += steps;
  if (steps_ <= limits_.steps) return ok();
  return exhausted(format("the template took more than {} steps", limits_.steps));
}

Status Evaluator::check_size(int64_t bytes) {
  SE_TRY(check_total(bytes));
  return charge(bytes >> 8);
}

Status Evaluator::check_total(int64_t bytes) const {
  if (bytes <= limits_.output_bytes) return ok();
  return exhausted(format("the template made a text of more than {} bytes", limits_.output_bytes));
}

Status Evaluator::check_depth(int line) const {
  if (depth_ <= limits_.depth) return ok();
  return exhausted(format("template line {}: evaluation nested deeper than {}", line, limits_.depth));
}

Result<Value> Evaluator::text(Marked text) {
  SE_TRY(check_size(int64_t(text.text.size())));
  return Value(std::move(text));
}

Status Evaluator::output(const Marked& text) {
  out_->append(text);
  SE_TRY(check_total(int64_t(out_->text.size())));
  return charge(int64_t(text.text.size()) >> 8);
}

Result<Marked> Evaluator::run(const Body& body, const Dict& context) {
  for (const auto& [name, value] : context.items) scope_->variables[name.text] = value;
  Marked result;
  out_ = &result;
  const Inner inner(*this, scope_);
  SE_TRY(exec(body).status());
  return result;
}

Result<Evaluator::Flow> Evaluator::exec(const Body& body) {
  const Deeper deeper(depth_);
  for (const auto& stmt : body) {
    SE_TRY(check_depth(stmt->line));
    SE_TRY(charge());
    const Result<Flow> flow = exec(*stmt);
    if (!flow.ok()) return at_line(flow.status(), stmt->line);
    if (*flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Result<Evaluator::Flow> Evaluator::exec(const Stmt& stmt) {
  switch (stmt.kind) {
    case Stmt::Kind::kText:
      SE_TRY(output(stmt.text));
      return Flow::kNext;
    case Stmt::Kind::kOutput: {
      SE_ASSIGN(const Value value, eval(*stmt.expr));
      SE_TRY(output(to_text(value)));
      return Flow::kNext;
    }
    case Stmt::Kind::kIf: {
      SE_ASSIGN(const Value condition, eval(*stmt.expr));
      return exec(condition.truthy() ? stmt.body : stmt.other);
    }
    case Stmt::Kind::kFor:
      return exec_for(stmt);
    case Stmt::Kind::kSet: {
      SE_ASSIGN(Value value, eval(*stmt.expr));
      SE_TRY(assign(*stmt.target, std::move(value)));
      return Flow::kNext;
    }
    case Stmt::Kind::kSetBlock: {
      SE_ASSIGN(Value value, capture(stmt));
      SE_TRY(assign(*stmt.target, std::move(value)));
      return Flow::kNext;
    }
    case Stmt::Kind::kFilter: {
      SE_ASSIGN(const Value value, capture(stmt));
      SE_TRY(output(to_text(value)));
      return Flow::kNext;
    }
    case Stmt::Kind::kMacro:
      define_macro(stmt);
      return Flow::kNext;
    case Stmt::Kind::kScope:
    case Stmt::Kind::kWith:
      return exec_with(stmt);
    case Stmt::Kind::kBreak:
      return Flow::kBreak;
    case Stmt::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Result<Evaluator::Flow> Evaluator::exec_with(const Stmt& stmt) {
  std::vector<Value> values;  // all evaluated outside the new scope
  for (const Parameter& variable : stmt.parameters) {
    SE_ASSIGN(Value value, eval(*variable.fallback));
    values.push_back(std::move(value));
  }
  const Inner inner(*this, scope_);
  for (size_t n = 0; n < values.size(); ++n)
    scope_->variables[stmt.parameters[n].name] = std::move(values[n]);
  return exec(stmt.body);
}

Result<Evaluator::Flow> Evaluator::exec_for(const Stmt& stmt) {
  SE_ASSIGN(const Value iterable, eval(*stmt.expr));
  SE_ASSIGN(std::vector<Value> items, items_of(*this, iterable));
  if (stmt.filter) {
    std::vector<Value> kept;
    for (Value& value : items) {
      const Inner inner(*this, scope_);
      SE_TRY(assign(*stmt.target, value));
      SE_ASSIGN(const Value keep, eval(*stmt.filter));
      if (keep.truthy()) kept.push_back(std::move(value));
    }
    items = std::move(kept);
  }
  if (items.empty()) {
    const Inner inner(*this, scope_);
    return exec(stmt.other);
  }
  for (size_t index = 0; index < items.size(); ++index) {
    SE_TRY(charge(kLoopSteps));
    const Inner inner(*this, scope_);
    SE_ASSIGN(Value loop_value, loop_object(items, index));
    scope_->variables["loop"] = std::move(loop_value);
    SE_TRY(assign(*stmt.target, items[index]));
    SE_ASSIGN(const Flow flow, exec(stmt.body));
    if (flow == Flow::kBreak) break;
  }
  return Flow::kNext;
}

Result<Value> Evaluator::loop_object(const std::vector<Value>& items, size_t index) {
  const int64_t at = int64_t(index), length = int64_t(items.size());
  Dict loop;
  loop.items = {{"index", Value(at + 1)},
                {"index0", Value(at)},
                {"revindex", Value(length - at)},
                {"revindex0", Value(length - at - 1)},
                {"first", Value(at == 0)},
                {"last", Value(at + 1 == length)},
                {"length", Value(length)},
                {"depth", Value(int64_t(1))},  // counts recursive loops only
                {"depth0", Value(int64_t(0))},
                {"previtem", at > 0 ? items[index - 1] : Value(Undefined{"there is no previous item"})},
                {"nextitem", at + 1 < length ? items[index + 1] : Value(Undefined{"there is no next item"})}};
  const auto cycle = [at](Evaluator&, const Args& args) -> Result<Value> {
    if (args.positional.empty()) return invalid("loop.cycle: wanted at least one value");
    return args.positional[size_t(at) % args.positional.size()];
  };
  loop.items.emplace_back("cycle", Value(Callable{"cycle", cycle}));
  SE_ASSIGN(Value value, Value::dict(std::move(loop)));
  value.dict()->kind = Dict::Kind::kLoop;
  return value;
}

Status Evaluator::assign(const Expr& target, Value value) {
  if (target.kind == Expr::Kind::kName) {
    scope_->variables[target.name] = std::move(value);
    return ok();
  }
  if (target.kind == Expr::Kind::kAttribute) {
    SE_ASSIGN(const Value object, eval(*target.args[0]));
    if (object.dict() == nullptr || object.dict()->kind != Dict::Kind::kNamespace) {
      return invalid(format("template line {}: cannot assign an attribute of a '{}', only of a namespace",
                            target.line,
                            object.type_name()));
    }
    SE_ASSIGN(const Value checked, Value::list({value}));  // no namespace in it, not too deep
    object.dict()->set(target.name, std::move(value));
    return ok();
  }
  SE_ASSIGN(std::vector<Value> items, items_of(*this, value));
  if (items.size() != target.args.size()) {
    return invalid(format(
        "template line {}: {} values for {} variables", target.line, items.size(), target.args.size()));
  }
  for (size_t n = 0; n < items.size(); ++n) SE_TRY(assign(*target.args[n], std::move(items[n])));
  return ok();
}

Result<Value> Evaluator::capture(const Stmt& stmt) {
  Marked text;
  const Inner inner(*this, scope_);
  Marked* const outside = std::exchange(out_, &text);
  const Result<Flow> flow = exec(stmt.body);
  out_ = outside;
  SE_TRY(flow.status());
  if (!stmt.expr) return Value(std::move(text));
  scope_->variables[kBlockValue] = Value(std::move(text));
  return eval(*stmt.expr);
}

void Evaluator::define_macro(const Stmt& stmt) {
  // The macro's value lies in the scope that it keeps: a circle, cut when the evaluator ends.
  macro_scopes_.push_back(scope_);
  const auto call = [&stmt, scope = scope_](Evaluator& evaluator, const Args& args) {
    return evaluator.call_macro(stmt, scope, args);
  };
  scope_->variables[stmt.text] = Value(Callable{stmt.text, call});
}

Result<Value> Evaluator::call_macro(const Stmt& macro,
                                    const std::shared_ptr<Scope>& scope,
                                    const Args& args) {
  const size_t count = macro.parameters.size();
  if (args.positional.size() > count) {
    return invalid(
        format("macro '{}' takes {} arguments, found {}", macro.text, count, args.positional.size()));
  }
  const Inner inner(*this, scope);
  std::vector<bool> given(count, false);
  for (size_t n = 0; n < args.positional.size(); ++n) {
    scope_->variables[macro.parameters[n].name] = args.positional[n];
    given[n] = true;
  }
  for (const auto& [name, value] : args.named) {
    size_t n = 0;
    while (n < count && macro.parameters[n].name != name) ++n;
    if (n == count) return invalid(format("macro '{}' takes no argument '{}'", macro.text, name));
    if (given[n]) return invalid(format("macro '{}': two values for argument '{}'", macro.text, name));
    scope_->variables[name] = value;
    given[n] = true;
  }
  for (size_t n = 0; n < count; ++n) {
    if (given[n]) continue;
    const Parameter& parameter = macro.parameters[n];
    Value value(Undefined{format("parameter '{}' was not provided", parameter.name)});
    if (parameter.fallback) {
      SE_ASSIGN(value, eval(*parameter.fallback));
    }
    scope_->variables[parameter.name] = std::move(value);
  }
  Marked text;
  Marked* const outside = std::exchange(out_, &text);
  const Result<Flow> flow = exec(macro.body);
  out_ = outside;
  SE_TRY(flow.status());
  return Value(std::move(text));
}

}  // namespace se::text::jinja
