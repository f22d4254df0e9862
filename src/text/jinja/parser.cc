#include "text/jinja/parser.h"

#include "base/fmt.h"

namespace se::text::jinja {
namespace {

using StmtPtr = std::unique_ptr<Stmt>;

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData:
      return "text";
    case TokenKind::kOutputBegin:
      return "'{{'";
    case TokenKind::kOutputEnd:
      return "'}}'";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kEnd:
      return "the end of the template";
    default:
      return format("'{}'", token.text);
  }
}

}  // namespace

Result<Body> parse(std::string_view source) {
  SE_ASSIGN(std::vector<Token> tokens, lex(source));
  return Parser(std::move(tokens)).parse_template();
}

Status Parser::fail(std::string_view wanted) const {
  return invalid(format("template line {}: found {}, wanted {}", now().line, describe(now()), wanted));
}

Status Parser::check_depth() const {
  if (depth_ <= kMaxSyntaxDepth) return ok();
  return invalid(format("template line {}: nested deeper than {}", now().line, kMaxSyntaxDepth));
}

bool Parser::skip_op(std::string_view op) { return now().is_op(op) && (take(), true); }
bool Parser::skip_name(std::string_view name) { return now().is_name(name) && (take(), true); }

Status Parser::want_op(std::string_view op) { return skip_op(op) ? ok() : fail(format("'{}'", op)); }

Result<std::string> Parser::want_name(std::string_view what) {
  if (now().kind != TokenKind::kName) return fail(what);
  return take().text;
}

ExprPtr Parser::make(Expr::Kind kind) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = now().line;
  return expr;
}

ExprPtr Parser::make(Expr::Kind kind, ExprPtr first) const {
  ExprPtr expr = make(kind);
  expr->args.push_back(std::move(first));
  return expr;
}

Status Parser::end_block() {
  if (now().kind != TokenKind::kBlockEnd) return fail("'%}'");
  take();
  return ok();
}

Result<Body> Parser::parse_template() { return parse_body({}); }

// Statements up to a block tag whose name is one of `ends`; that tag is left as the next token's name, its
// '{%' taken. Without ends: up to the end of the template.
Result<Body> Parser::parse_body(std::initializer_list<std::string_view> ends) {
  const Nesting nesting(depth_);
  SE_TRY(check_depth());
  Body body;
  while (now().kind != TokenKind::kEnd) {
    auto stmt = std::make_unique<Stmt>();
    stmt->line = now().line;
    const Token token = take();
    if (token.kind == TokenKind::kData) {
      stmt->text = token.text;
    } else if (token.kind == TokenKind::kOutputBegin) {
      stmt->kind = Stmt::Kind::kOutput;
      SE_ASSIGN(stmt->expr, parse_tuple());
      if (now().kind != TokenKind::kOutputEnd) return fail("'}}'");
      take();
    } else {
      for (const std::string_view end : ends) {
        if (now().is_name(end)) return body;
      }
      SE_ASSIGN(stmt, parse_statement());
    }
    body.push_back(std::move(stmt));
  }
  if (ends.size() > 0) return fail(format("'{{% {} %}}'", *(ends.end() - 1)));
  return body;
}

Result<StmtPtr> Parser::parse_statement() {
  auto stmt = std::make_unique<Stmt>();
  stmt->line = now().line;
  const Token tag = now();
  SE_ASSIGN(const std::string name, want_name("the name of a statement"));
  if (name == "if") return parse_if(std::move(stmt));
  if (name == "for") return parse_for(std::move(stmt));
  if (name == "set") return parse_set(std::move(stmt));
  if (name == "macro") return parse_macro(std::move(stmt));
  if (name == "with") return parse_with(std::move(stmt));
  if (name == "generation") {
    stmt->kind = Stmt::Kind::kScope;
    SE_TRY(end_block());
    return parse_enclosed(std::move(stmt), "endgeneration");
  }
  if (name == "filter") {
    stmt->kind = Stmt::Kind::kFilter;
    SE_ASSIGN(stmt->expr, parse_block_filters());
    SE_TRY(end_block());
    return parse_enclosed(std::move(stmt), "endfilter");
  }
  if (name == "break" || name == "continue") {
    if (loops_ == 0) return invalid(format("template line {}: '{}' outside a loop", tag.line, name));
    stmt->kind = name == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue;
    SE_TRY(end_block());
    return stmt;
  }
  for (const std::string_view end : {"else", "elif", "endif", "endfor", "endset", "endmacro", "endwith"}) {
    if (name == end) return invalid(format("template line {}: '{}' without its beginning", tag.line, name));
  }
  return unsupported(format(
      "template line {}: statement '{}' is not supported; supported: if, for, set, macro, with, filter, raw, "
      "break, continue, generation",
      tag.line,
      name));
}

// body {% end %}, the opening tag already taken.
Result<StmtPtr> Parser::parse_enclosed(StmtPtr stmt, std::string_view end) {
  SE_ASSIGN(stmt->body, parse_body({end}));
  take();
  SE_TRY(end_block());
  return stmt;
}

Result<StmtPtr> Parser::parse_if(StmtPtr stmt) {
  stmt->kind = Stmt::Kind::kIf;
  SE_ASSIGN(stmt->expr, parse_tuple(false));
  SE_TRY(end_block());
  SE_ASSIGN(stmt->body, parse_body({"elif", "else", "endif"}));
  const std::string name = take().text;
  if (name == "elif") {  // an if of its own in the else branch; it takes the endif
    const Nesting nesting(depth_);
    SE_TRY(check_depth());
    auto inner = std::make_unique<Stmt>();
    inner->line = now().line;
    SE_ASSIGN(inner, parse_if(std::move(inner)));
    stmt->other.push_back(std::move(inner));
    return stmt;
  }
  SE_TRY(end_block());
  if (name == "else") {
    SE_ASSIGN(stmt->other, parse_body({"endif"}));
    take();
    SE_TRY(end_block());
  }
  return stmt;
}

// name, name.attribute or a tuple of names.
Result<ExprPtr> Parser::parse_target(bool attributes) {
  ExprPtr tuple = make(Expr::Kind::kTuple);
  const bool bracket = skip_op("(");
  bool comma = false;
  do {
    if (!tuple->args.empty() && now().kind != TokenKind::kName) break;  // a trailing comma
    ExprPtr target = make(Expr::Kind::kName);
    SE_ASSIGN(target->name, want_name("the name of a variable"));
    if (attributes && skip_op(".")) {
      target = make(Expr::Kind::kAttribute, std::move(target));
      SE_ASSIGN(target->name, want_name("an attribute"));
    }
    tuple->args.push_back(std::move(target));
  } while (skip_op(",") && (comma = true));
  if (bracket) SE_TRY(want_op(")"));
  if (tuple->args.size() == 1 && !comma) return std::move(tuple->args[0]);
  return tuple;
}

Result<StmtPtr> Parser::parse_for(StmtPtr stmt) {
  stmt->kind = Stmt::Kind::kFor;
  SE_ASSIGN(stmt->target, parse_target(false));
  if (!skip_name("in")) return fail("'in'");
  SE_ASSIGN(stmt->expr, parse_tuple(false));
  if (skip_name("if")) {
    SE_ASSIGN(stmt->filter, parse_expression());
  }
  if (now().is_name("recursive")) return fail("'%}' (recursive loops are not supported)");
  SE_TRY(end_block());
  ++loops_;
  Result<Body> body = parse_body({"else", "endfor"});
  --loops_;
  SE_ASSIGN(stmt->body, std::move(body));
  const bool has_else = take().text == "else";
  SE_TRY(end_block());
  if (has_else) {
    SE_ASSIGN(stmt->other, parse_body({"endfor"}));
    take();
    SE_TRY(end_block());
  }
  return stmt;
}

// filter|filter(...): an expression on the text of the block.
Result<ExprPtr> Parser::parse_block_filters() {
  ExprPtr value = make(Expr::Kind::kName);
  value->name = kBlockValue;
  SE_ASSIGN(value, parse_filter(std::move(value)));
  return parse_filters(std::move(value));
}

Result<StmtPtr> Parser::parse_set(StmtPtr stmt) {
  SE_ASSIGN(stmt->target, parse_target(true));
  if (skip_op("=")) {
    stmt->kind = Stmt::Kind::kSet;
    SE_ASSIGN(stmt->expr, parse_tuple());
    SE_TRY(end_block());
    return stmt;
  }
  stmt->kind = Stmt::Kind::kSetBlock;
  if (skip_op("|")) {
    SE_ASSIGN(stmt->expr, parse_block_filters());
  }
  SE_TRY(end_block());
  return parse_enclosed(std::move(stmt), "endset");
}

Result<StmtPtr> Parser::parse_macro(StmtPtr stmt) {
  stmt->kind = Stmt::Kind::kMacro;
  SE_ASSIGN(stmt->text, want_name("the name of a macro"));
  SE_TRY(want_op("("));
  while (!now().is_op(")")) {
    Parameter parameter;
    SE_ASSIGN(parameter.name, want_name("the name of a parameter"));
    if (skip_op("=")) {
      SE_ASSIGN(parameter.fallback, parse_expression());
    } else if (!stmt->parameters.empty() && stmt->parameters.back().fallback) {
      return fail("'=', since the parameter before has a default");
    }
    stmt->parameters.push_back(std::move(parameter));
    if (!skip_op(",")) break;
  }
  SE_TRY(want_op(")"));
  SE_TRY(end_block());
  const int loops = std::exchange(loops_, 0);
  Result<StmtPtr> macro = parse_enclosed(std::move(stmt), "endmacro");
  loops_ = loops;
  return macro;
}

Result<StmtPtr> Parser::parse_with(StmtPtr stmt) {
  stmt->kind = Stmt::Kind::kWith;
  while (now().kind != TokenKind::kBlockEnd) {
    Parameter variable;
    SE_ASSIGN(variable.name, want_name("the name of a variable"));
    SE_TRY(want_op("="));
    SE_ASSIGN(variable.fallback, parse_expression());
    stmt->parameters.push_back(std::move(variable));
    if (!skip_op(",")) break;
  }
  SE_TRY(end_block());
  return parse_enclosed(std::move(stmt), "endwith");
}

}  // namespace se::text::jinja
