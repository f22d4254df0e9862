// text/jinja/format.h -- values as text: Python's str() and repr(), and json.dumps.
#pragma once
#include <string>

#include "text/jinja/value.h"

namespace se::text::jinja {

// What {{ value }} prints; strings keep their marks, other values are marked if a string in them is.
Marked to_text(const Value& value);

// What {{ [value] }} prints between the brackets: Python's repr().
Marked to_repr(const Value& value);

struct JsonStyle {
  bool ascii = false;                         // escape every other character
  int indent = -1;                            // -1: one line, with ", " and ": "
  bool sort_keys = false;                     // default: the order of insertion
  std::string item_separator, key_separator;  // empty: as json.dumps chooses
};
// As json.dumps (no HTML escapes). Fails for values JSON does not have.
Result<Marked> to_json(const Value& value, const JsonStyle& style);

}  // namespace se::text::jinja
