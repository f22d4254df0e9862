#include "text/char_bpe.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/fmt.h"
#include "base/quoted.h"
#include "text/unicode.h"

namespace se::text {
namespace {

constexpr int kPairBits = 22;

uint32_t pair_hash(int32_t left, int32_t right) {
  return uint32_t((uint64_t(uint32_t(left)) << 32 | uint32_t(right)) * 0x9E3779B97F4A7C15u >>
                  (64 - kPairBits));
}

// Integers in the order of the scores, the best first; equal scores give equal ranks.
Result<std::vector<int32_t>> ranks_of(const std::vector<float>& scores) {
  std::vector<int32_t> ranks;
  ranks.reserve(scores.size());
  for (size_t id = 0; id < scores.size(); ++id) {
    if (std::isnan(scores[id])) return invalid(format("the score of token {} is not a number", id));
    int32_t bits = std::bit_cast<int32_t>(scores[id] + 0.0f);  // -0 as 0
    if (bits < 0) bits ^= INT32_MAX;                           // now ascending like the scores
    ranks.push_back(~bits);
  }
  return ranks;
}

int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

}  // namespace

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const int high = hex(token[3]), low = hex(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

Result<CharBpe> CharBpe::create(const VocabSpec& spec, TokenIds ids) {
  CharBpe bpe;
  bpe.ids_ = std::move(ids);
  bpe.unk_ = spec.unk;
  bpe.byte_ids_.fill(-1);
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (spec.types.empty() || TokenType(spec.types[id]) != TokenType::kByte) continue;
    const int byte = byte_of_token(spec.tokens[id]);
    if (byte < 0)
      return invalid(
          format("token {} stands for a byte but is {}, wanted <0xHH>", id, se::quoted(spec.tokens[id])));
    bpe.byte_ids_[size_t(byte)] = int32_t(id);
  }
  bpe.byte_fallback_ = std::find(bpe.byte_ids_.begin(), bpe.byte_ids_.end(), -1) == bpe.byte_ids_.end();
  if (spec.model == "llama") {
    if (spec.scores.size() != spec.tokens.size()) {
      return invalid(
          format("the vocabulary has {} tokens but {} scores", spec.tokens.size(), spec.scores.size()));
    }
    SE_ASSIGN(bpe.ranks_, ranks_of(spec.scores));
  } else {
    SE_ASSIGN(bpe.merges_, MergeTable::create(bpe.ids_, spec.merges));
  }
  bpe.pairs_.assign((size_t(1) << kPairBits) / 64, 0);
  for (const auto& [token, id] : bpe.ids_) {
    int32_t left = kInvalid;
    for (size_t at = 0; at < token.size();) {
      const CodePoint c = code_point_at(token, at);
      if (at > 0) bpe.add_pair(left, c.value);
      left = c.value;
      at += size_t(c.size);
    }
  }
  return bpe;
}

void CharBpe::add_pair(int32_t left, int32_t right) {
  const uint32_t hash = pair_hash(left, right);
  pairs_[hash / 64] |= uint64_t(1) << (hash % 64);
}

bool CharBpe::may_join(int32_t left, int32_t right) const {
  const uint32_t hash = pair_hash(left, right);
  return pairs_[hash / 64] >> (hash % 64) & 1;
}

// No token can reach over two characters that stand side by side in none: the text falls into pieces there,
// which are mostly words and met again.
void CharBpe::encode(std::string_view text,
                     MergeScratch& scratch,
                     PieceCache& cache,
                     std::vector<int32_t>& out) const {
  const size_t start = out.size();
  size_t begin = 0;
  int32_t left = kInvalid;
  for (size_t at = 0; at <= text.size();) {
    const CodePoint c = at < text.size() ? code_point_at(text, at) : CodePoint{};
    if (at > begin && (at == text.size() || !may_join(left, c.value))) {
      const std::string_view piece = text.substr(begin, at - begin);
      const size_t from = out.size();
      if (!cache.find(piece, out)) {
        encode_piece(piece, scratch, out);
        cache.add(piece, out, from);
      }
      const bool fuse =
          unk_ >= 0 && from > start && out.size() > from && out[from] == unk_ && out[from - 1] == unk_;
      if (fuse) out.erase(out.begin() + std::ptrdiff_t(from));
      begin = at;
    }
    left = c.value;
    at += size_t(c.size);
  }
}

void CharBpe::encode_piece(std::string_view piece, MergeScratch& scratch, std::vector<int32_t>& out) const {
  scratch.clear();
  for (size_t at = 0; at < piece.size();) {
    const size_t size = size_t(code_point_at(piece, at).size);
    const auto found = ids_.find(piece.substr(at, size));
    scratch.add(found == ids_.end() ? -1 : found->second, at, size);
    at += size;
  }
  if (ranks_.empty()) {
    merge_symbols(scratch, [this](const Symbol& left, const Symbol& right, Merge& merge) {
      const Merge* found = merges_.find(left.id, right.id);
      if (found) merge = *found;
      return found != nullptr;
    });
  } else {
    merge_symbols(scratch, [&](const Symbol& left, const Symbol& right, Merge& merge) {
      const auto found = ids_.find(piece.substr(left.begin, left.size + right.size));
      if (found == ids_.end()) return false;
      merge = {ranks_[size_t(found->second)], found->second};
      return true;
    });
  }
  bool unknown = false;
  for (int32_t i = scratch.symbols.empty() ? -1 : 0; i >= 0; i = scratch.symbols[size_t(i)].next) {
    const Symbol& symbol = scratch.symbols[size_t(i)];
    if (symbol.id >= 0) {
      out.push_back(symbol.id);
    } else if (byte_fallback_) {
      for (const char byte : piece.substr(symbol.begin, symbol.size)) out.push_back(byte_ids_[uint8_t(byte)]);
    } else if (unk_ >= 0 && !unknown) {
      out.push_back(unk_);
    }
    unknown = symbol.id < 0;
  }
}

}  // namespace se::text
