// base/status.h -- expected failures: Status and Result<T>. Our code throws nothing.
// A message says what was wanted, what was found and what to change. SE_TRY and SE_ASSIGN hand an
// error on. Bugs are SE_CHECK's business (base/check.h).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace se {

enum class Code : uint8_t {
  kOk,
  kInvalid,      // bad input or configuration
  kNotFound,     // missing file, key or model
  kUnsupported,  // well formed, but not something this build does
  kExhausted,    // no page, no memory, no room
  kCancelled,
  kIo,       // the operating system said no
  kInternal  // an exception of a library, caught at a door
};
const char* to_string(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}
  bool ok() const { return code_ == Code::kOk; }
  explicit operator bool() const { return ok(); }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  // The same error with `where: ` in front of its message; ok stays ok.
  Status in(const std::string& where) const { return ok() ? *this : Status(code_, where + ": " + message_); }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status ok() { return {}; }
inline Status invalid(std::string m) { return {Code::kInvalid, std::move(m)}; }
inline Status not_found(std::string m) { return {Code::kNotFound, std::move(m)}; }
inline Status unsupported(std::string m) { return {Code::kUnsupported, std::move(m)}; }
inline Status exhausted(std::string m) { return {Code::kExhausted, std::move(m)}; }
inline Status cancelled(std::string m) { return {Code::kCancelled, std::move(m)}; }
inline Status io_error(std::string m) { return {Code::kIo, std::move(m)}; }
inline Status internal_error(std::string m) { return {Code::kInternal, std::move(m)}; }

// A value or the reason there is none. Reading the value of a failed Result aborts.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                    // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) { guard(); }  // NOLINT: implicit on purpose
  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Status& status() const { return status_; }
  T& operator*() { return need(), *value_; }
  const T& operator*() const { return need(), *value_; }
  T* operator->() { return need(), &*value_; }
  const T* operator->() const { return need(), &*value_; }
  T take() { return need(), std::move(*value_); }

 private:
  void need() const;
  void guard();
  std::optional<T> value_;
  Status status_;
};

namespace detail {
[[noreturn]] void no_value(const Status& status);
[[noreturn]] void ok_without_value();
}  // namespace detail

template <typename T>
void Result<T>::need() const {
  if (!value_) detail::no_value(status_);
}
template <typename T>
void Result<T>::guard() {
  if (status_.ok()) detail::ok_without_value();
}

#define SE_CONCAT_(a, b) a##b
#define SE_CONCAT(a, b) SE_CONCAT_(a, b)
// Returns the error of a Status expression from the enclosing function.
#define SE_TRY(expr)                                                           \
  do {                                                                         \
    if (::se::Status se_status_ = (expr); !se_status_.ok()) return se_status_; \
  } while (0)
// SE_ASSIGN(auto x, f()): x = value of a Result, or return its error.
#define SE_ASSIGN(decl, expr)                                                                 \
  auto SE_CONCAT(se_result_, __LINE__) = (expr);                                              \
  if (!SE_CONCAT(se_result_, __LINE__).ok()) return SE_CONCAT(se_result_, __LINE__).status(); \
  decl = SE_CONCAT(se_result_, __LINE__).take()

}  // namespace se
