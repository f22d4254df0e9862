#include "sparse/parser.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/fmt.h"
#include "sparse/field_visitors.h"
#include "sparse/later_stages.h"

namespace se {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool breaks(char c) { return is_blank(c) && c != ' '; }  // ends a value: messages print it, on one line
bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-'; }

class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}
  bool at_end() { return skip(), at_ >= text_.size(); }
  bool take(char c) {
    if (at_end() || text_[at_] != c) return false;
    return ++at_, true;
  }
  std::string name() {
    skip();
    const size_t begin = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }
  std::string value() {
    skip();
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != ',' && text_[at_] != ')' && !breaks(text_[at_])) ++at_;
    size_t end = at_;
    while (end > begin && is_blank(text_[end - 1])) --end;
    return std::string(text_.substr(begin, end - begin));
  }
  // What the text is made of, so that messages may print any piece of it.
  Status check_characters() const {
    for (size_t i = 0; i < text_.size(); ++i) {
      const auto c = static_cast<unsigned char>(text_[i]);
      if (is_blank(text_[i]) || (c >= 0x20 && c < 0x7f)) continue;
      return invalid(format("column {}: found byte 0x{:02x}, wanted printable ASCII", i + 1, c));
    }
    return ok();
  }
  Status wanted(std::string_view what) {
    const std::string found = at_end() ? "the end" : format("'{}'", text_[at_]);
    return invalid(format("column {}: found {}, wanted {}", at_ + 1, found, what));
  }

 private:
  void skip() {
    while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
  }
  std::string_view text_;
  size_t at_ = 0;
};

Result<Arguments> parse_arguments(Cursor& cursor, const std::string& stage) {
  Arguments arguments;
  do {
    std::string key = cursor.name();
    if (key.empty()) return cursor.wanted(format("a parameter of {}, as in {}(budget=2048)", stage, stage));
    if (!cursor.take('=')) return cursor.wanted(format("'=' after {}.{}", stage, key));
    std::string value = cursor.value();
    if (value.empty()) return cursor.wanted(format("a value of {}.{}", stage, key));
    for (const auto& [other, _] : arguments) {
      if (other == key) return invalid(format("{}.{} is given twice, wanted once", stage, key));
    }
    arguments.emplace_back(std::move(key), std::move(value));
  } while (cursor.take(','));
  if (!cursor.take(')')) return cursor.wanted(format("',' or ')' in the parameters of {}", stage));
  return arguments;
}

// Words that answer an axis with "nothing": legal, and gone from the canonical text.
struct Nothing {
  Axis axis;
  const char* name;
};
constexpr std::array kNothing = {
    Nothing{Axis::kPrefill, "dense"}, Nothing{Axis::kRead, "all"}, Nothing{Axis::kPlace, "device"}};

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::vector<std::string> names_of(std::span<const StageEntry* const> stages, const Axis* axis) {
  std::vector<std::string> names;
  for (const Nothing& n : kNothing) {
    if (!axis || n.axis == *axis) names.emplace_back(n.name);
  }
  for (const StageEntry* entry : stages) {
    if (!axis || entry->axis == *axis) names.emplace_back(entry->name);
  }
  return names;
}

const StageEntry* find(std::span<const StageEntry* const> stages, std::string_view name) {
  for (const StageEntry* entry : stages) {
    if (entry->name == name) return entry;
  }
  return nullptr;
}

Status refuse_name(const std::string& name, std::span<const StageEntry* const> stages) {
  for (const LaterStage& later : kLaterStages) {
    if (later.name != name) continue;
    return unsupported(format("{} ({}) is known but not built yet in this version: {} has {}",
                              name,
                              to_string(later.axis),
                              to_string(later.axis),
                              join(names_of(stages, &later.axis))));
  }
  const std::vector<std::string> names = names_of(stages, nullptr);
  const std::string nearest = nearest_name(name, names);
  return invalid(format("there is no stage '{}'; there are {}{}",
                        name,
                        join(names),
                        nearest.empty() ? "" : "; nearest: " + nearest));
}

// One answer per question, each stage once; several keepers may follow one another.
class Answers {
 public:
  Status add(Axis axis, const std::string& name) {
    for (const auto& [other_axis, other] : given_) {
      if (other == name) return invalid(format("{} appears twice, wanted once", name));
      if (other_axis == axis && axis != Axis::kKeep) {
        return invalid(format("one {} per plan: {} and {} both answer it", to_string(axis), other, name));
      }
    }
    given_.emplace_back(axis, name);
    return ok();
  }

 private:
  std::vector<std::pair<Axis, std::string>> given_;
};

}  // namespace

Result<std::vector<StageText>> parse_stage_texts(std::string_view text) {
  std::vector<StageText> stages;
  Cursor cursor(text);
  SE_TRY(cursor.check_characters());
  if (cursor.at_end()) return stages;
  do {
    StageText stage;
    stage.name = cursor.name();
    if (stage.name.empty()) return cursor.wanted("the name of a stage");
    if (cursor.take('(')) {
      SE_ASSIGN(stage.arguments, parse_arguments(cursor, stage.name));
    }
    stages.push_back(std::move(stage));
  } while (cursor.take('+'));
  if (!cursor.at_end()) return cursor.wanted("'+' and another stage, or the end");
  return stages;
}

Result<std::vector<ChosenStage>> choose_stages(std::string_view text,
                                               std::span<const StageEntry* const> stages) {
  SE_ASSIGN(const std::vector<StageText> texts, parse_stage_texts(text));
  std::vector<ChosenStage> chosen;
  Answers answers;
  for (const StageText& t : texts) {
    const auto* nothing =
        std::find_if(kNothing.begin(), kNothing.end(), [&](const Nothing& n) { return n.name == t.name; });
    if (nothing != kNothing.end()) {
      if (!t.arguments.empty()) {
        return invalid(format("{} has no parameter {}; it takes none", t.name, t.arguments[0].first));
      }
      SE_TRY(answers.add(nothing->axis, t.name));
      continue;
    }
    const StageEntry* entry = find(stages, t.name);
    if (!entry) return refuse_name(t.name, stages);
    SE_TRY(answers.add(entry->axis, t.name));
    ChosenStage c{entry, entry->make()};
    SE_TRY(set_fields(*c.stage, *entry, t.arguments));
    chosen.push_back(std::move(c));
  }
  std::stable_sort(chosen.begin(), chosen.end(), [](const ChosenStage& a, const ChosenStage& b) {
    return a.entry->axis < b.entry->axis;
  });
  return chosen;
}

}  // namespace se
