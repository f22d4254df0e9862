#include "base/status.h"

#include <cstdio>
#include <cstdlib>

#include "base/check.h"

namespace se {

const char* to_string(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalid:
      return "invalid";
    case Code::kNotFound:
      return "not found";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kExhausted:
      return "exhausted";
    case Code::kCancelled:
      return "cancelled";
    case Code::kIo:
      return "i/o";
    case Code::kInternal:
      return "internal";
  }
  return "?";
}

namespace detail {
void no_value(const Status& status) {
  check_failed("base/status.h", 0, "Result holds a value", status.message());
}
void ok_without_value() { check_failed("base/status.h", 0, "a failed Result needs an error", ""); }
void check_failed(const char* file, int line, const char* expr, const std::string& message) {
  std::fprintf(stderr,
               "%s:%d: check failed: %s%s%s\n",
               file,
               line,
               expr,
               message.empty() ? "" : ": ",
               message.c_str());
  std::fflush(stderr);
  std::abort();
}
}  // namespace detail
}  // namespace se
