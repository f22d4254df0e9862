// text/jinja/evaluator.h -- runs a parsed template. One rendering, one thread.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/jinja/ast.h"

namespace se::text::jinja {

struct Limits {
  int64_t output_bytes = int64_t(64) << 20;  // of the result and of every string on the way
  int64_t steps = 4'000'000;                 // statements, expressions, items, 256 bytes of text
  int depth = 400;                           // nested evaluations, macro calls included
};

class Evaluator {
 public:
  // now: seconds since 1970 that strftime_now shows.
  Evaluator(const Limits& limits, int64_t now);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;

  Result<Marked> run(const Body& body, const Dict& context);

  // evaluator_expr.cc
  Result<Value> eval(const Expr& expr);
  Result<Value> call(const Value& callee, const Args& args);
  Result<Value> filter(std::string_view name, const Value& self, const Args& args);
  Result<bool> test(std::string_view name, const Value& self, const Args& args);

  // Counts work; fails when the rendering has had its share.
  Status charge(int64_t steps = 1);
  // A string value, if it is not too long.
  Result<Value> text(Marked text);
  // Fails for a string that is too long; check_size also charges for making it.
  Status check_total(int64_t bytes) const;
  Status check_size(int64_t bytes);
  int64_t now() const { return now_; }

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // The variables of a block. Reading looks outwards, writing is local, as in jinja2. Shared: a macro keeps
  // the scope in which it was defined.
  struct Scope {
    std::shared_ptr<Scope> outer;
    std::unordered_map<std::string, Value> variables;
    const Value* find(const std::string& name) const;
  };
  // Makes an inner scope current for as long as it lives.
  class Inner {
   public:
    Inner(Evaluator& evaluator, std::shared_ptr<Scope> outer);
    ~Inner();
    Inner(const Inner&) = delete;

   private:
    Evaluator& evaluator_;
    std::shared_ptr<Scope> previous_;
  };
  // Counts nested evaluations.
  struct Deeper {
    explicit Deeper(int& depth) : depth_(depth) { ++depth_; }
    ~Deeper() { --depth_; }
    Deeper(const Deeper&) = delete;
    int& depth_;
  };
  Status check_depth(int line) const;
  // Errors name the innermost line: those that come from further inside already do.
  static Status at_line(const Status& status, int line);

  // evaluator.cc
  Result<Flow> exec(const Body& body);
  Result<Flow> exec(const Stmt& stmt);
  Result<Flow> exec_for(const Stmt& stmt);
  Result<Flow> exec_with(const Stmt& stmt);
  Status exec_set_block(const Stmt& stmt);
  void define_macro(const Stmt& stmt);
  Result<Value> call_macro(const Stmt& macro, const std::shared_ptr<Scope>& scope, const Args& args);
  Result<Value> capture(const Stmt& stmt);  // the output of stmt.body through stmt.expr
  Result<Value> loop_object(const std::vector<Value>& items, size_t index);
  Status assign(const Expr& target, Value value);
  Status output(const Marked& text);

  // evaluator_expr.cc
  Result<Value> eval_inner(const Expr& expr);
  Result<Value> eval_container(const Expr& expr);
  Result<Value> eval_compare(const Expr& expr);
  Result<Value> eval_slice(const Expr& expr);
  Result<Args> eval_args(const Expr& expr);

  Limits limits_;
  int64_t now_;
  int64_t steps_ = 0;
  int depth_ = 0;
  std::shared_ptr<Scope> scope_;
  std::vector<std::shared_ptr<Scope>> macro_scopes_;  // emptied at the end: macros in them refer back to them
  Marked* out_ = nullptr;
};

}  // namespace se::text::jinja
