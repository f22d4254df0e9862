// text/char_bpe.h -- byte-pair encoding of characters with byte fallback, as SentencePiece trains it.
// Source: Kudo and Richardson 2018 (SentencePiece); Sennrich et al. 2016.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/merge_table.h"
#include "text/piece_cache.h"
#include "text/vocab.h"

namespace se::text {

// SentencePiece's stand-in for a space, U+2581.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

// The byte a token like "<0x0A>" stands for, or -1.
int byte_of_token(std::string_view token);

// Immutable once made; encode may be called from any thread.
class CharBpe {
 public:
  // `ids`: the tokens that text may become; its strings must outlive the CharBpe. Without merges in `spec`
  // the adjacent pair merges first whose token has the highest score (model "llama"), with merges that of the
  // lowest rank. Fails for merges whose parts are no tokens and for scores that are not numbers.
  static Result<CharBpe> create(const VocabSpec& spec, TokenIds ids);

  // Appends the ids of `text`, spaces already replaced by kSpaceMark. A character that is in no token becomes
  // the tokens of its bytes where the vocabulary has them all, else the unknown token (one for a stretch of
  // such characters), else nothing. O(n log n).
  void encode(std::string_view text,
              MergeScratch& scratch,
              PieceCache& cache,
              std::vector<int32_t>& out) const;

 private:
  void encode_piece(std::string_view piece, MergeScratch& scratch, std::vector<int32_t>& out) const;
  void add_pair(int32_t left, int32_t right);
  bool may_join(int32_t left, int32_t right) const;

  TokenIds ids_;
  std::vector<int32_t> ranks_;  // by id, of scores: the best is the lowest. Empty: by merges
  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_{};
  bool byte_fallback_ = false;  // all 256 are there
  int32_t unk_ = -1;
  std::vector<uint64_t> pairs_;  // a bit per hash of two characters that stand side by side in some token
};

}  // namespace se::text
