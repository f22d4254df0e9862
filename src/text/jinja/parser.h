// text/jinja/parser.h -- tokens to statements and expressions, after jinja2's grammar.
#pragma once
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace se::text::jinja {

// Errors name the line and what was found; statements that chat templates do not use (extends, include,
// import, block, call, autoescape) are refused by name.
Result<Body> parse(std::string_view source);

// Brackets, blocks and operators nested deeper are refused: bounds the recursion of parser and evaluator.
inline constexpr int kMaxSyntaxDepth = 150;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  Result<Body> parse_template();

 private:
  // parser.cc: statements.
  Result<Body> parse_body(std::initializer_list<std::string_view> ends);
  Result<std::unique_ptr<Stmt>> parse_statement();
  Result<std::unique_ptr<Stmt>> parse_if(std::unique_ptr<Stmt> stmt);
  Result<std::unique_ptr<Stmt>> parse_for(std::unique_ptr<Stmt> stmt);
  Result<std::unique_ptr<Stmt>> parse_set(std::unique_ptr<Stmt> stmt);
  Result<std::unique_ptr<Stmt>> parse_macro(std::unique_ptr<Stmt> stmt);
  Result<std::unique_ptr<Stmt>> parse_with(std::unique_ptr<Stmt> stmt);
  Result<std::unique_ptr<Stmt>> parse_enclosed(std::unique_ptr<Stmt> stmt, std::string_view end);
  Result<ExprPtr> parse_target(bool attributes);
  Result<ExprPtr> parse_block_filters();
  Status end_block();

  // parser_expr.cc: expressions.
  Result<ExprPtr> parse_tuple(bool choice = true, bool required = true);
  Result<ExprPtr> parse_expression(bool choice = true);
  Result<ExprPtr> parse_choice();
  Result<ExprPtr> parse_or();
  Result<ExprPtr> parse_and();
  Result<ExprPtr> parse_not();
  Result<ExprPtr> parse_compare();
  Result<ExprPtr> parse_binary(int level);
  Result<ExprPtr> parse_unary(bool filters);
  Result<ExprPtr> parse_primary();
  Result<ExprPtr> parse_number();
  Result<ExprPtr> parse_list();
  Result<ExprPtr> parse_dict();
  Result<ExprPtr> parse_postfix(ExprPtr expr);
  Result<ExprPtr> parse_filters(ExprPtr expr);
  Result<ExprPtr> parse_filter(ExprPtr expr);
  Result<ExprPtr> parse_test(ExprPtr expr);
  Result<ExprPtr> parse_subscript(ExprPtr expr);
  Status parse_arguments(Expr& call);
  bool starts_test_argument() const;
  bool ends_tuple() const;

  const Token& now() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  Token take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  Status want_op(std::string_view op);
  Result<std::string> want_name(std::string_view what);
  Status fail(std::string_view wanted) const;
  ExprPtr make(Expr::Kind kind) const;
  ExprPtr make(Expr::Kind kind, ExprPtr first) const;

  // Counts nesting for as long as it lives.
  struct Nesting {
    explicit Nesting(int& depth) : depth_(depth) { ++depth_; }
    ~Nesting() { --depth_; }
    Nesting(const Nesting&) = delete;
    int& depth_;
  };
  Status check_depth() const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;  // enclosing for statements: break and continue need one
};

}  // namespace se::text::jinja
