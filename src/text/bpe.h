// text/bpe.h -- byte-level byte-pair encoding by merge ranks (GPT-2; Sennrich et al. 2016).
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/merge_table.h"

namespace se::text {

// GPT-2's printable stand-in for a byte: 33-126, 161-172 and 174-255 stand for themselves, the other 68
// bytes are U+0100, U+0101, ... in increasing order.
int32_t byte_to_code_point(uint8_t byte);

// The bytes a byte-level token stands for. A token with any other code point is taken verbatim.
std::string token_to_bytes(std::string_view token);

// Immutable once made; encode may be called from any thread.
class Bpe {
 public:
  // merges: "left right", split at the first space after position 0, best rank first. Of a pair named
  // twice the later line counts. Fails when a part or its concatenation is no token of `ids`.
  static Result<Bpe> create(const TokenIds& ids, const std::vector<std::string>& merges);

  // Makes `bytes` (which must outlive the Bpe) the token `id` wherever a pre-token is just that, whatever the
  // merges make of it: `ignore_merges` of tokenizer.json.
  void take_whole(std::string_view bytes, int32_t id) { whole_.try_emplace(bytes, id); }

  // Appends the ids of one pre-token. Merges the adjacent pair of the lowest rank first, the leftmost on
  // ties. A byte without a token of its own is dropped before merging, as the reference does for
  // vocabularies without an unknown token. O(n log n) in the bytes of the piece.
  void encode(std::string_view piece, MergeScratch& scratch, std::vector<int32_t>& out) const;

 private:
  std::array<int32_t, 256> byte_ids_{};  // -1 = the vocabulary has no such byte
  MergeTable merges_;
  TokenIds whole_;
};

}  // namespace se::text
