// text/jinja/ast.h -- the parsed template. Immutable once made; shared by all renderings.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace se::text::jinja {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct Expr {
  enum class Kind {
    kConst,      // value
    kName,       // name
    kList,       // args
    kTuple,      // args
    kDict,       // args: key, value, key, value, ...
    kAttribute,  // args[0] . name
    kItem,       // args[0] [ args[1] ]
    kSlice,      // args[0] [ args[1] : args[2] : args[3] ], absent ones null
    kCall,       // args[0] ( args[1..], named )
    kFilter,     // args[0] | name ( args[1..], named )
    kTest,       // args[0] is name ( args[1..], named )
    kNot,        // args[0]
    kUnary,      // name is "-" or "+"
    kBinary,     // args[0] name args[1]; names: + - * / // % ** ~
    kAnd,        // args[0], args[1]
    kOr,
    kCompare,  // args[0] ops[0] args[1] ops[1] args[2] ...; ops: == != < <= > >= in notin
    kChoice    // args[1] if args[0] else args[2] (may be null)
  };
  Kind kind = Kind::kConst;
  int line = 1;
  std::string name;
  Value value;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<std::string> ops;
};

struct Parameter {
  std::string name;
  ExprPtr fallback;  // null = undefined when not given
};

struct Stmt {
  enum class Kind {
    kText,      // text
    kOutput,    // expr
    kIf,        // expr, body, other
    kFor,       // target in expr [if filter], body, other
    kSet,       // target = expr
    kSetBlock,  // target = body [| expr]: expr filters the value named by kBlockValue
    kFilter,    // body | expr
    kMacro,     // name, parameters, body
    kScope,     // body in a scope of its own ({% generation %})
    kWith,      // targets = exprs in a scope of its own: parameters, body
    kBreak,
    kContinue
  };
  Kind kind = Kind::kText;
  int line = 1;
  std::string text;  // or the macro's name
  ExprPtr target;    // kName, kAttribute (of a namespace) or kTuple of kName
  ExprPtr expr, filter;
  std::vector<Parameter> parameters;
  Body body, other;
};

// The name under which a filter block's expression finds the block's text; no template can spell it.
inline constexpr const char* kBlockValue = "<block>";

}  // namespace se::text::jinja
