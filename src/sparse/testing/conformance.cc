#include "sparse/testing/conformance.h"

#include <map>

namespace se::testing {
namespace {

// Reads what fields a stage has.
class FieldNames final : public FieldVisitor {
 public:
  void operator()(const Field& f, int64_t&) override { add(f); }
  void operator()(const Field& f, double&) override { add(f); }
  void operator()(const Field& f, bool&) override { add(f); }
  void operator()(const Field& f, TokenBudget&) override { add(f); }
  void operator()(const Field&, std::string&) override {}
  void choice(const Field&, int&, std::span<const char* const>) override {}
  std::map<std::string, Field> fields;

 private:
  void add(const Field& f) { fields[f.name] = f; }
};

}  // namespace

std::string small_stage(const StageEntry& entry, const ModelKv& model, bool unlimited, int64_t every) {
  FieldNames names;
  entry.make()->visit(names);
  if (every > 0 && !names.fields.count("every")) return {};
  std::map<std::string, int64_t> values{
      {"budget", unlimited ? 4096 : 64}, {"sink", 4}, {"recent", 16}, {"window", 8}, {"dense_layers", 1}};
  if (entry.axis == Axis::kPrefill) {  // counts of blocks; a threshold of 0 reads all
    values = {{"sink", 1}, {"window", 1}, {"last", 1}, {"block", 16}, {"min_len", 24}, {"dense_layers", 1}};
    values["threshold"] = unlimited ? 0 : 1;
  }
  if (every > 0) values["every"] = every;
  const auto text = [&] {
    std::string s;
    for (const auto& [name, value] : values) {
      if (names.fields.count(name)) s += (s.empty() ? "" : ",") + name + "=" + std::to_string(value);
    }
    return std::string(entry.name) + (s.empty() ? "" : "(" + s + ")");
  };
  for (int64_t group : {16, 8}) {  // heads narrower than the default group
    if (names.fields.count("group") && !parse_plan(text(), model).ok()) values["group"] = group;
  }
  return text();
}

std::vector<Composition> compositions(const ModelKv& model) {
  std::map<Axis, std::vector<std::array<std::string, 2>>> by_axis;  // {small, unlimited}
  for (Axis a : {Axis::kPrefill, Axis::kKeep, Axis::kStore, Axis::kRead}) by_axis[a].push_back({"", ""});
  for (const StageEntry* e : stage_entries()) {
    by_axis[e->axis].push_back({small_stage(*e, model, false), small_stage(*e, model, true)});
    if (const std::string s = small_stage(*e, model, false, 16); !s.empty())
      by_axis[e->axis].push_back({s, small_stage(*e, model, true, 16)});
  }
  const auto join = [](std::initializer_list<std::string> parts) {
    std::string s;
    for (const std::string& p : parts) {
      if (!p.empty()) s += (s.empty() ? "" : "+") + p;
    }
    return s.empty() ? "dense" : s;
  };
  std::vector<Composition> out;
  for (const auto& prefill : by_axis[Axis::kPrefill]) {
    for (const auto& keep : by_axis[Axis::kKeep]) {
      for (const auto& store : by_axis[Axis::kStore]) {
        for (const auto& read : by_axis[Axis::kRead]) {
          Composition c{join({prefill[0], keep[0], store[0], read[0]}),
                        join({prefill[1], keep[1], store[1], read[1]}),
                        join({keep[1], store[1]})};
          if (parse_plan(c.text, model).ok()) out.push_back(std::move(c));
        }
      }
    }
  }
  return out;
}

}  // namespace se::testing
