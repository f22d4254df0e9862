// text/merge_table.h -- the merges of a BPE vocabulary, by the ids of their two parts.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "text/flat_map.h"
#include "text/merge.h"

namespace se::text {

using TokenIds = std::unordered_map<std::string_view, int32_t>;

class MergeTable {
 public:
  // merges: "left right", split at the first space after position 0, best rank first. Of a pair named
  // twice the later line counts. Fails when a part or its concatenation is no token of `ids`.
  static Result<MergeTable> create(const TokenIds& ids, const std::vector<std::string>& merges);

  // Null when the two do not merge.
  const Merge* find(int32_t left, int32_t right) const {
    return left < 0 || right < 0 ? nullptr : merges_.find(uint64_t(uint32_t(left)) << 32 | uint32_t(right));
  }

 private:
  FlatMap<Merge> merges_;
};

}  // namespace se::text
