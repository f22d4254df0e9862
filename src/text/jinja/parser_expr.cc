#include <charconv>

#include "base/fmt.h"
#include "text/jinja/parser.h"

namespace se::text::jinja {
namespace {

// Binary operators by binding strength, weakest first; all associate to the left.
const std::vector<std::string_view> kBinaryLevels[] = {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};
constexpr int kLevels = 4;

}  // namespace

bool Parser::ends_tuple() const {
  return now().kind == TokenKind::kOutputEnd || now().kind == TokenKind::kBlockEnd || now().is_op(")") ||
         now().is_name("recursive");
}

// a, b, c is a tuple; a alone is an expression. `required`: refuse an empty one.
Result<ExprPtr> Parser::parse_tuple(bool choice, bool required) {
  ExprPtr tuple = make(Expr::Kind::kTuple);
  bool comma = false;
  while (!ends_tuple()) {
    SE_ASSIGN(ExprPtr item, parse_expression(choice));
    tuple->args.push_back(std::move(item));
    if (!skip_op(",")) break;
    comma = true;
  }
  if (tuple->args.size() == 1 && !comma) return std::move(tuple->args[0]);
  if (tuple->args.empty() && required) return fail("an expression");
  return tuple;
}

Result<ExprPtr> Parser::parse_expression(bool choice) {
  const Nesting nesting(depth_);
  SE_TRY(check_depth());
  return choice ? parse_choice() : parse_or();
}

Result<ExprPtr> Parser::parse_choice() {
  SE_ASSIGN(ExprPtr expr, parse_or());
  while (skip_name("if")) {
    SE_ASSIGN(ExprPtr condition, parse_or());
    ExprPtr choice = make(Expr::Kind::kChoice, std::move(condition));
    choice->args.push_back(std::move(expr));
    choice->args.push_back(nullptr);
    if (skip_name("else")) {
      SE_ASSIGN(choice->args[2], parse_expression());
    }
    expr = std::move(choice);
  }
  return expr;
}

Result<ExprPtr> Parser::parse_or() {
  SE_ASSIGN(ExprPtr expr, parse_and());
  while (skip_name("or")) {
    SE_ASSIGN(ExprPtr right, parse_and());
    expr = make(Expr::Kind::kOr, std::move(expr));
    expr->args.push_back(std::move(right));
  }
  return expr;
}

Result<ExprPtr> Parser::parse_and() {
  SE_ASSIGN(ExprPtr expr, parse_not());
  while (skip_name("and")) {
    SE_ASSIGN(ExprPtr right, parse_not());
    expr = make(Expr::Kind::kAnd, std::move(expr));
    expr->args.push_back(std::move(right));
  }
  return expr;
}

Result<ExprPtr> Parser::parse_not() {
  if (!skip_name("not")) return parse_compare();
  const Nesting nesting(depth_);
  SE_TRY(check_depth());
  SE_ASSIGN(ExprPtr expr, parse_not());
  return make(Expr::Kind::kNot, std::move(expr));
}

Result<ExprPtr> Parser::parse_compare() {
  SE_ASSIGN(ExprPtr expr, parse_binary(0));
  ExprPtr compare;
  while (true) {
    std::string op;
    for (const std::string_view candidate : {"==", "!=", "<", "<=", ">", ">="}) {
      if (now().is_op(candidate)) op = candidate;
    }
    if (now().is_name("in")) op = "in";
    if (now().is_name("not") && next().is_name("in")) op = "notin";
    if (op.empty()) return compare ? std::move(compare) : std::move(expr);
    take();
    if (op == "notin") take();
    if (!compare) compare = make(Expr::Kind::kCompare, std::move(expr));
    SE_ASSIGN(ExprPtr right, parse_binary(0));
    compare->ops.push_back(std::move(op));
    compare->args.push_back(std::move(right));
  }
}

Result<ExprPtr> Parser::parse_binary(int level) {
  if (level == kLevels) return parse_unary(true);
  SE_ASSIGN(ExprPtr expr, parse_binary(level + 1));
  int operators = 0;  // a + b + c ... nests to the left
  while (now().kind == TokenKind::kOp) {
    bool mine = false;
    for (const std::string_view op : kBinaryLevels[level]) mine = mine || now().text == op;
    if (!mine) break;
    if (++operators > kMaxSyntaxDepth) return fail("fewer operators in one expression");
    ExprPtr binary = make(Expr::Kind::kBinary, std::move(expr));
    binary->name = take().text;
    SE_ASSIGN(ExprPtr right, parse_binary(level + 1));
    binary->args.push_back(std::move(right));
    expr = std::move(binary);
  }
  return expr;
}

Result<ExprPtr> Parser::parse_unary(bool filters) {
  const Nesting nesting(depth_);
  SE_TRY(check_depth());
  ExprPtr expr;
  if (now().is_op("-") || now().is_op("+")) {
    const std::string op = take().text;
    SE_ASSIGN(ExprPtr operand, parse_unary(false));
    expr = make(Expr::Kind::kUnary, std::move(operand));
    expr->name = op;
  } else {
    SE_ASSIGN(expr, parse_primary());
  }
  SE_ASSIGN(expr, parse_postfix(std::move(expr)));
  if (!filters) return expr;
  return parse_filters(std::move(expr));
}

Result<ExprPtr> Parser::parse_number() {
  ExprPtr expr = make(Expr::Kind::kConst);
  const Token token = take();
  const char *begin = token.text.data(), *end = begin + token.text.size();
  int64_t integer = 0;
  double real = 0;
  const bool whole = token.kind == TokenKind::kInteger;
  const auto result = whole ? std::from_chars(begin, end, integer) : std::from_chars(begin, end, real);
  if (result.ec != std::errc()) {
    return invalid(format("template line {}: the number {} is out of range", token.line, token.text));
  }
  expr->value = whole ? Value(integer) : Value(real);
  return expr;
}

Result<ExprPtr> Parser::parse_primary() {
  if (now().kind == TokenKind::kInteger || now().kind == TokenKind::kReal) return parse_number();
  if (now().is_op("[")) return parse_list();
  if (now().is_op("{")) return parse_dict();
  if (skip_op("(")) {
    SE_ASSIGN(ExprPtr expr, parse_tuple(true, false));
    SE_TRY(want_op(")"));
    return expr;
  }
  ExprPtr expr = make(Expr::Kind::kConst);
  if (now().kind == TokenKind::kString) {  // adjacent strings are one
    std::string text;
    while (now().kind == TokenKind::kString) text += take().text;
    expr->value = Value(std::move(text));
    return expr;
  }
  if (now().kind != TokenKind::kName) return fail("an expression");
  const std::string name = take().text;
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    expr->value = Value(name == "true" || name == "True");
  } else if (name == "none" || name == "None") {
    expr->value = Value(None{});
  } else {
    expr->kind = Expr::Kind::kName;
    expr->name = name;
  }
  return expr;
}

Result<ExprPtr> Parser::parse_list() {
  ExprPtr list = make(Expr::Kind::kList);
  SE_TRY(want_op("["));
  while (!now().is_op("]")) {
    SE_ASSIGN(ExprPtr item, parse_expression());
    list->args.push_back(std::move(item));
    if (!skip_op(",")) break;
  }
  SE_TRY(want_op("]"));
  return list;
}

Result<ExprPtr> Parser::parse_dict() {
  ExprPtr dict = make(Expr::Kind::kDict);
  SE_TRY(want_op("{"));
  while (!now().is_op("}")) {
    SE_ASSIGN(ExprPtr key, parse_expression());
    SE_TRY(want_op(":"));
    SE_ASSIGN(ExprPtr value, parse_expression());
    dict->args.push_back(std::move(key));
    dict->args.push_back(std::move(value));
    if (!skip_op(",")) break;
  }
  SE_TRY(want_op("}"));
  return dict;
}

Result<ExprPtr> Parser::parse_postfix(ExprPtr expr) {
  for (int links = 0;; ++links) {
    if (links > kMaxSyntaxDepth) return fail("fewer subscripts in one expression");
    if (now().is_op(".") || now().is_op("[")) {
      SE_ASSIGN(expr, parse_subscript(std::move(expr)));
    } else if (now().is_op("(")) {
      expr = make(Expr::Kind::kCall, std::move(expr));
      SE_TRY(parse_arguments(*expr));
    } else {
      return expr;
    }
  }
}

Result<ExprPtr> Parser::parse_filters(ExprPtr expr) {
  for (int links = 0;; ++links) {
    if (links > kMaxSyntaxDepth) return fail("fewer filters in one expression");
    if (skip_op("|")) {
      SE_ASSIGN(expr, parse_filter(std::move(expr)));
    } else if (skip_name("is")) {
      SE_ASSIGN(expr, parse_test(std::move(expr)));
    } else if (now().is_op("(")) {
      expr = make(Expr::Kind::kCall, std::move(expr));
      SE_TRY(parse_arguments(*expr));
    } else {
      return expr;
    }
  }
}

Result<ExprPtr> Parser::parse_filter(ExprPtr expr) {
  ExprPtr filter = make(Expr::Kind::kFilter, std::move(expr));
  SE_ASSIGN(filter->name, want_name("the name of a filter"));
  if (now().is_op("(")) SE_TRY(parse_arguments(*filter));
  return filter;
}

// x is divisibleby 3: a test may take one argument without brackets.
bool Parser::starts_test_argument() const {
  switch (now().kind) {
    case TokenKind::kString:
    case TokenKind::kInteger:
    case TokenKind::kReal:
      return true;
    case TokenKind::kName:
      return !now().is_name("else") && !now().is_name("or") && !now().is_name("and") &&
             !now().is_name("is") && !now().is_name("if") && !now().is_name("in") && !now().is_name("not");
    default:
      return now().is_op("[") || now().is_op("{");
  }
}

Result<ExprPtr> Parser::parse_test(ExprPtr expr) {
  const bool negated = skip_name("not");
  ExprPtr test = make(Expr::Kind::kTest, std::move(expr));
  SE_ASSIGN(test->name, want_name("the name of a test"));
  if (now().is_op("(")) {
    SE_TRY(parse_arguments(*test));
  } else if (starts_test_argument()) {
    SE_ASSIGN(ExprPtr argument, parse_primary());
    SE_ASSIGN(argument, parse_postfix(std::move(argument)));
    test->args.push_back(std::move(argument));
  }
  return negated ? make(Expr::Kind::kNot, std::move(test)) : std::move(test);
}

Result<ExprPtr> Parser::parse_subscript(ExprPtr expr) {
  if (skip_op(".")) {
    if (now().kind == TokenKind::kInteger) {
      SE_ASSIGN(ExprPtr index, parse_number());
      expr = make(Expr::Kind::kItem, std::move(expr));
      expr->args.push_back(std::move(index));
      return expr;
    }
    expr = make(Expr::Kind::kAttribute, std::move(expr));
    SE_ASSIGN(expr->name, want_name("an attribute"));
    return expr;
  }
  SE_TRY(want_op("["));
  ExprPtr parts[3];  // start, stop, step
  int part = 0;
  bool slice = false;
  while (!now().is_op("]")) {
    if (skip_op(":")) {
      slice = true;
      if (++part > 2) return fail("']' after start:stop:step");
      continue;
    }
    if (parts[part]) break;
    SE_ASSIGN(parts[part], parse_expression());
  }
  SE_TRY(want_op("]"));
  if (!slice && !parts[0]) return fail("an index");
  expr = make(slice ? Expr::Kind::kSlice : Expr::Kind::kItem, std::move(expr));
  for (int n = 0; n < (slice ? 3 : 1); ++n) expr->args.push_back(std::move(parts[n]));
  return expr;
}

Status Parser::parse_arguments(Expr& call) {
  SE_TRY(want_op("("));
  while (!now().is_op(")")) {
    if (now().is_op("*") || now().is_op("**")) return fail("an argument ('*' and '**' are not supported)");
    if (now().kind == TokenKind::kName && next().is_op("=")) {
      std::string name = take().text;
      take();
      SE_ASSIGN(ExprPtr value, parse_expression());
      call.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call.named.empty()) return fail("a named argument, since they come last");
      SE_ASSIGN(ExprPtr value, parse_expression());
      call.args.push_back(std::move(value));
    }
    if (!skip_op(",")) break;
  }
  return want_op(")");
}

}  // namespace se::text::jinja
