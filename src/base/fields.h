// base/fields.h -- one visitor per config struct. A struct names each field once, in table order; the
// plan parser, canonical printing, --help, JSON, tables and fingerprints are visitors.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace se {

// What a change of the field changes: nothing that is computed, what decode reads, or what made the bytes.
enum class Affects : uint8_t { kNothing, kReads, kState };

struct Field {
  const char* name;
  const char* help;
  Affects affects = Affects::kState;
  double min = 0;
  double max = 0x1p63;        // integers: beyond the largest
  int64_t multiple = 1;       // integers: must be a multiple of it ...
  bool power_of_two = false;  // ... or a power of two
  bool odd = false;
};

// A number of tokens, or a share of the prompt's length in percent (then tokens is unused).
struct TokenBudget {
  int64_t tokens = 0;
  int percent = 0;
  int64_t of(int64_t prompt) const { return percent > 0 ? prompt * percent / 100 : tokens; }
  bool operator==(const TokenBudget&) const = default;
};

// A visitor may read or write the values; `choice` values are indices into `names`.
class FieldVisitor {
 public:
  virtual ~FieldVisitor() = default;
  virtual void operator()(const Field& f, int64_t& value) = 0;
  virtual void operator()(const Field& f, double& value) = 0;
  virtual void operator()(const Field& f, bool& value) = 0;  // on, off
  virtual void operator()(const Field& f, TokenBudget& value) = 0;
  virtual void operator()(const Field& f, std::string& value) = 0;
  virtual void choice(const Field& f, int& value, std::span<const char* const> names) = 0;
};

// "123", "8k", "1m" as integers; used by the plan parser and by size flags of the command line.
// Returns false for anything else, also for overflow.
bool parse_integer(std::string_view text, int64_t& value);
bool parse_decimal(std::string_view text, double& value);
// Of `names`, the one with the smallest edit distance to `name`; empty if none is within 3 edits.
std::string nearest_name(std::string_view name, std::span<const std::string> names);

}  // namespace se
