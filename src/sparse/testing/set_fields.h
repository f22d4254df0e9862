// sparse/testing/set_fields.h -- sets fields of a stage by name, for tests that make stages without the plan
// parser.
#pragma once
#include <map>
#include <memory>
#include <string>

#include "sparse/contract.h"

namespace se {

// Numbers and indices of choices by field name; "budget%" sets a TokenBudget in percent.
class SetFields final : public FieldVisitor {
 public:
  explicit SetFields(std::map<std::string, double> values) : values_(std::move(values)) {}
  void operator()(const Field& f, int64_t& value) override { set(f.name, value); }
  void operator()(const Field& f, double& value) override { set(f.name, value); }
  void operator()(const Field& f, bool& value) override { set(f.name, value); }
  void operator()(const Field& f, TokenBudget& value) override {
    set(f.name, value.tokens), set(std::string(f.name) + "%", value.percent);
  }
  void operator()(const Field& f, std::string&) override {
    SE_CHECK(values_.count(f.name) == 0, "{} is a text", f.name);
  }
  void choice(const Field& f, int& value, std::span<const char* const>) override { set(f.name, value); }
  size_t used() const { return used_; }

 private:
  template <typename T>
  void set(const std::string& name, T& value) {
    const auto found = values_.find(name);
    if (found != values_.end()) value = T(found->second), ++used_;
  }
  std::map<std::string, double> values_;
  size_t used_ = 0;
};

// A stage of an entry as its interface, with some fields set; every name must exist.
template <typename T>
std::unique_ptr<T> make_stage(const StageEntry& entry, const std::map<std::string, double>& values = {}) {
  std::unique_ptr<T> stage(static_cast<T*>(entry.make().release()));
  SetFields set(values);
  stage->visit(set);
  SE_CHECK(set.used() == values.size(), "{}: {} of {} fields set", entry.name, set.used(), values.size());
  return stage;
}

}  // namespace se
