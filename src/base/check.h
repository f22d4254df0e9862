// base/check.h -- bugs: SE_CHECK is always on, SE_DCHECK only in debug builds. Both print and abort.
// User input must never reach one: that is what Status is for.
#pragma once
#include "base/fmt.h"

namespace se::detail {
[[noreturn]] void check_failed(const char* file, int line, const char* expr, const std::string& message);
}

// SE_CHECK(cond) or SE_CHECK(cond, "format {}", values...)
#define SE_CHECK(cond, ...)                                                                         \
  do {                                                                                              \
    if (!(cond)) [[unlikely]]                                                                       \
      ::se::detail::check_failed(__FILE__, __LINE__, #cond, ::se::detail::check_text(__VA_ARGS__)); \
  } while (0)
#ifdef SE_DEBUG
#define SE_DCHECK(cond, ...) SE_CHECK(cond __VA_OPT__(, ) __VA_ARGS__)
#else
#define SE_DCHECK(cond, ...) \
  do {                       \
    if (false) (void)(cond); \
  } while (0)
#endif

namespace se::detail {
inline std::string check_text() { return {}; }
template <typename... Args>
std::string check_text(fmt::format_string<Args...> f, Args&&... args) {
  return ::se::format(f, std::forward<Args>(args)...);
}
}  // namespace se::detail
