// base/log.h -- log lines are events with fields, on stderr:  SE_LOG(info, "kv.pool", "pages", n)
// Levels: error (a request or the engine failed), warn (degraded), info (start-up and rare), debug.
// Nothing per token at info. SE_LOG_LEVEL=error|warn|info|debug chooses (default warn). Thread-safe.
#pragma once
#include <string>

#include "base/fmt.h"

namespace se {
enum class LogLevel : int { error, warn, info, debug };

bool log_enabled(LogLevel level);
void log_line(LogLevel level, const char* event, const std::string& fields);

namespace detail {
inline void append_fields(std::string&) {}
template <typename V, typename... Rest>
void append_fields(std::string& out, const char* key, const V& value, const Rest&... rest) {
  out += format(" {}={}", key, value);
  append_fields(out, rest...);
}
}  // namespace detail

#define SE_LOG(level, event, ...)                                         \
  do {                                                                    \
    if (::se::log_enabled(::se::LogLevel::level)) {                       \
      std::string se_fields_;                                             \
      ::se::detail::append_fields(se_fields_ __VA_OPT__(, ) __VA_ARGS__); \
      ::se::log_line(::se::LogLevel::level, event, se_fields_);           \
    }                                                                     \
  } while (0)
}  // namespace se
