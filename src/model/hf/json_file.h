// model/hf/json_file.h -- the JSON files of a model folder: small, untrusted, read with a message for every
// surprise. Keeps the JSON library out of headers.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace se {

// The bytes of a regular file of at most `max_bytes`. Errors: kNotFound; kIo; kInvalid when it is larger.
Result<std::string> read_text(const std::string& path, int64_t max_bytes);

// A handle on an object of a parsed file; copies share the file's text. A value that is null counts as
// absent. Without a fallback an absent one is kNotFound; a value of another kind or out of range is kInvalid.
// Messages: PATH: OUTER.KEY is FOUND, expected WHAT.
class JsonObject {
 public:
  // Parses a whole file: one object, at most 32 deep, no key twice in an object, UTF-8.
  static Result<JsonObject> open(const std::string& path, int64_t max_bytes);

  const std::string& path() const { return path_; }
  bool has(std::string_view key) const;
  bool is_object(std::string_view key) const;
  std::vector<std::string> keys() const;

  Result<int64_t> integer(std::string_view key,
                          int64_t min,
                          int64_t max,
                          std::optional<int64_t> fallback = {}) const;
  Result<double> number(std::string_view key,
                        double min,
                        double max,
                        std::optional<double> fallback = {}) const;
  Result<bool> boolean(std::string_view key, std::optional<bool> fallback = {}) const;
  Result<std::string> string(std::string_view key, std::optional<std::string> fallback = {}) const;
  // An integer or an array of integers; absent: empty.
  Result<std::vector<int64_t>> integers(std::string_view key, int64_t min, int64_t max) const;
  Result<std::vector<std::string>> strings(std::string_view key) const;  // an array; absent: an error
  Result<JsonObject> object(std::string_view key) const;

  // "PATH: OUTER.KEY " + text.
  Status bad(std::string_view key, const std::string& text) const;
  std::string show(std::string_view key) const;  // the value as it may stand in a message

 private:
  const nlohmann::json* find(std::string_view key) const;
  Status wrong(std::string_view key, const std::string& expected) const;
  std::string path_, outer_;
  std::shared_ptr<const nlohmann::json> file_;
  const nlohmann::json* at_ = nullptr;
};

}  // namespace se
