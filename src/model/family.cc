#include "model/family.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/fmt.h"

namespace se {

const FamilyEntry* find_family(std::string_view architecture) {
  for (const FamilyEntry* family : families()) {
    const auto names = family->architectures;
    if (std::find(names.begin(), names.end(), architecture) != names.end()) return family;
  }
  return nullptr;
}

std::string architecture_names() {
  std::string text;
  for (const FamilyEntry* family : families()) {
    for (const std::string_view name : family->architectures)
      text += format("{}{}", text.empty() ? "" : ", ", name);
  }
  return text;
}

}  // namespace se
