#include "text/bpe.h"

#include "text/unicode.h"

namespace se::text {
namespace {

bool stands_for_itself(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

struct ByteTables {
  std::array<int32_t, 256> to_code_point{};
  std::array<int16_t, 0x144> to_byte{};  // -1 = no stand-in
  ByteTables() {
    to_byte.fill(-1);
    int32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      to_code_point[byte] = stands_for_itself(byte) ? byte : next++;
      to_byte[to_code_point[byte]] = int16_t(byte);
    }
  }
};
const ByteTables& tables() {
  static const ByteTables kTables;
  return kTables;
}

}  // namespace

int32_t byte_to_code_point(uint8_t byte) { return tables().to_code_point[byte]; }

std::string token_to_bytes(std::string_view token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const CodePoint c = code_point_at(token, at);
    const bool known = c.value >= 0 && c.value < int32_t(tables().to_byte.size());
    const int16_t byte = known ? tables().to_byte[c.value] : int16_t(-1);
    if (byte < 0) return std::string(token);
    bytes += char(byte);
    at += c.size;
  }
  return bytes;
}

Result<Bpe> Bpe::create(const TokenIds& ids, const std::vector<std::string>& merges) {
  Bpe bpe;
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    append_utf8(token, byte_to_code_point(uint8_t(byte)));
    const auto found = ids.find(token);
    bpe.byte_ids_[size_t(byte)] = found == ids.end() ? -1 : found->second;
  }
  SE_ASSIGN(bpe.merges_, MergeTable::create(ids, merges));
  return bpe;
}

void Bpe::encode(std::string_view piece, MergeScratch& scratch, std::vector<int32_t>& out) const {
  if (!whole_.empty()) {
    const auto found = whole_.find(piece);
    if (found != whole_.end()) return out.push_back(found->second);
  }
  scratch.clear();
  for (size_t at = 0; at < piece.size(); ++at) {
    const int32_t id = byte_ids_[uint8_t(piece[at])];
    if (id >= 0) scratch.add(id, at, 1);
  }
  merge_symbols(scratch, [this](const Symbol& left, const Symbol& right, Merge& merge) {
    const Merge* found = merges_.find(left.id, right.id);
    if (found) merge = *found;
    return found != nullptr;
  });
  for (int32_t i = scratch.symbols.empty() ? -1 : 0; i >= 0; i = scratch.symbols[size_t(i)].next) {
    out.push_back(scratch.symbols[size_t(i)].id);
  }
}

}  // namespace se::text
