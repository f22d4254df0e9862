#include "base/fmt.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/functions.h"
#include "text/jinja/operators.h"

namespace se::text::jinja {
namespace {

Result<bool> compare_op(std::string_view op, const Value& a, const Value& b) {
  if (op == "==") return equal(a, b);
  if (op == "!=") return !equal(a, b);
  if (op == "in") return contains(b, a);
  if (op == "notin") {
    SE_ASSIGN(const bool found, contains(b, a));
    return !found;
  }
  SE_ASSIGN(const int order, compare(a, b));
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  if (op == ">") return order > 0;
  return order >= 0;
}

}  // namespace

Status Evaluator::at_line(const Status& status, int line) {
  if (status.message().starts_with("template ")) return status;
  return status.in(format("template line {}", line));
}

Result<Value> Evaluator::eval(const Expr& expr) {
  const Deeper deeper(depth_);
  SE_TRY(check_depth(expr.line));
  SE_TRY(charge());
  Result<Value> value = eval_inner(expr);
  if (!value.ok()) return at_line(value.status(), expr.line);
  return value;
}

Result<Value> Evaluator::eval_inner(const Expr& expr) {
  switch (expr.kind) {
    case Expr::Kind::kConst:
      return expr.value;
    case Expr::Kind::kName: {
      const Value* found = scope_->find(expr.name);
      return found ? *found : Value(Undefined{format("'{}' is undefined", expr.name)});
    }
    case Expr::Kind::kList:
    case Expr::Kind::kTuple:
    case Expr::Kind::kDict:
      return eval_container(expr);
    case Expr::Kind::kSlice:
      return eval_slice(expr);
    case Expr::Kind::kCompare:
      return eval_compare(expr);
    default:
      break;
  }
  SE_ASSIGN(Value first, eval(*expr.args[0]));
  switch (expr.kind) {
    case Expr::Kind::kAttribute:
      return attribute(first, expr.name);
    case Expr::Kind::kNot:
      return Value(!first.truthy());
    case Expr::Kind::kUnary:
      return unary(expr.name, first);
    case Expr::Kind::kAnd:
      return first.truthy() ? eval(*expr.args[1]) : std::move(first);
    case Expr::Kind::kOr:
      return first.truthy() ? std::move(first) : eval(*expr.args[1]);
    case Expr::Kind::kChoice:
      if (first.truthy()) return eval(*expr.args[1]);
      if (expr.args[2]) return eval(*expr.args[2]);
      return Value(Undefined{"the inline if-expression was false and has no else"});
    case Expr::Kind::kItem: {
      SE_ASSIGN(const Value key, eval(*expr.args[1]));
      return item(first, key);
    }
    case Expr::Kind::kBinary: {
      SE_ASSIGN(const Value second, eval(*expr.args[1]));
      return binary(*this, expr.name, first, second);
    }
    default:
      break;
  }
  SE_ASSIGN(const Args args, eval_args(expr));
  if (expr.kind == Expr::Kind::kCall) return call(first, args);
  if (expr.kind == Expr::Kind::kFilter) return filter(expr.name, first, args);
  SE_ASSIGN(const bool holds, test(expr.name, first, args));
  return Value(holds);
}

Result<Value> Evaluator::eval_container(const Expr& expr) {
  std::vector<Value> items;
  for (const ExprPtr& arg : expr.args) {
    SE_ASSIGN(Value value, eval(*arg));
    items.push_back(std::move(value));
  }
  if (expr.kind != Expr::Kind::kDict) return Value::list(std::move(items), expr.kind == Expr::Kind::kTuple);
  Dict dict;
  for (size_t n = 0; n < items.size(); n += 2) {
    const Marked* key = items[n].text();
    if (key == nullptr) {
      return unsupported(format("a key of a dict is of type '{}', supported: str", items[n].type_name()));
    }
    dict.set(*key, std::move(items[n + 1]));
  }
  return Value::dict(std::move(dict));
}

Result<Value> Evaluator::eval_compare(const Expr& expr) {
  SE_ASSIGN(Value left, eval(*expr.args[0]));
  for (size_t n = 0; n < expr.ops.size(); ++n) {
    SE_ASSIGN(Value right, eval(*expr.args[n + 1]));
    SE_ASSIGN(const bool holds, compare_op(expr.ops[n], left, right));
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Result<Value> Evaluator::eval_slice(const Expr& expr) {
  Value parts[4];
  for (int n = 0; n < 4; ++n) {
    if (!expr.args[n]) {
      parts[n] = Value(None{});
    } else {
      SE_ASSIGN(parts[n], eval(*expr.args[n]));
    }
  }
  return slice(*this, parts[0], parts[1], parts[2], parts[3]);
}

Result<Args> Evaluator::eval_args(const Expr& expr) {
  Args args;
  for (size_t n = 1; n < expr.args.size(); ++n) {
    SE_ASSIGN(Value value, eval(*expr.args[n]));
    args.positional.push_back(std::move(value));
  }
  for (const auto& [name, arg] : expr.named) {
    SE_ASSIGN(Value value, eval(*arg));
    args.named.emplace_back(name, std::move(value));
  }
  return args;
}

Result<Value> Evaluator::call(const Value& callee, const Args& args) {
  if (callee.undefined()) return invalid(callee.undefined()->why);
  if (!callee.callable()) return invalid(format("a '{}' cannot be called", callee.type_name()));
  return callee.callable()->call(*this, args);
}

Result<Value> Evaluator::filter(std::string_view name, const Value& self, const Args& args) {
  const Filter found = find_filter(name);
  if (found == nullptr) return unsupported(format("there is no filter '{}'", name));
  return found(*this, self, args);
}

Result<bool> Evaluator::test(std::string_view name, const Value& self, const Args& args) {
  const Test found = find_test(name);
  if (found == nullptr) return unsupported(format("there is no test '{}'", name));
  return found(*this, self, args);
}

}  // namespace se::text::jinja
