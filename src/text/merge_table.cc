#include "text/merge_table.h"

#include "base/fmt.h"
#include "base/quoted.h"

namespace se::text {

Result<MergeTable> MergeTable::create(const TokenIds& ids, const std::vector<std::string>& merges) {
  MergeTable table;
  const auto id_of = [&](std::string_view token) {
    const auto found = ids.find(token);
    return found == ids.end() ? -1 : found->second;
  };
  table.merges_.reserve(merges.size());
  std::string whole;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view line = merges[rank];
    const size_t space = line.find(' ', 1);
    if (space == line.npos || space + 1 == line.size()) {
      return invalid(
          format("merge {} is {}, wanted two tokens with a space between", rank, se::quoted(line)));
    }
    const std::string_view left = line.substr(0, space), right = line.substr(space + 1);
    whole.assign(left).append(right);
    const int32_t left_id = id_of(left), right_id = id_of(right), id = id_of(whole);
    if (left_id < 0 || right_id < 0 || id < 0) {
      const std::string_view missing = left_id < 0 ? left : right_id < 0 ? right : std::string_view(whole);
      return invalid(format(
          "merge {} is {}, but {} is not in the vocabulary", rank, se::quoted(line), se::quoted(missing)));
    }
    table.merges_[uint64_t(uint32_t(left_id)) << 32 | uint32_t(right_id)] = {int32_t(rank), id};
  }
  return table;
}

}  // namespace se::text
