// text/jinja/percent.h -- Python's string formatting with %.
// Source: Python Library Reference, "printf-style String Formatting".
#pragma once
#include "text/jinja/value.h"

namespace se::text::jinja {

// pattern % values. A tuple gives one value per conversion, a dict those named in %(name)s, anything else is
// the only value. Conversions: d i u o x X e E f F g G c r s %, with flags, width and precision, * included.
// Text that is put in keeps its marks. Fails as Python does: too few values, values left over, values of a
// wrong type.
Result<Value> percent(Evaluator& evaluator, const Marked& pattern, const Value& values);

}  // namespace se::text::jinja
