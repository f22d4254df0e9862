#include "model/check_finite.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/fmt.h"

namespace se {
namespace {

constexpr int64_t kChunkBytes = int64_t(8) << 20;  // between two reports

// The place of the first word of n whose bits, without the sign, are at least `infinity`; -1: none.
template <typename Word>
int64_t find_word(const uint8_t* data, int64_t n, Word infinity) {
  constexpr Word kMagnitude = Word(Word(~Word(0)) >> 1);
  const auto at = [&](int64_t i) {
    Word word;
    std::memcpy(&word, data + i * int64_t(sizeof word), sizeof word);
    return Word(word & kMagnitude);
  };
  Word worst = 0;
  for (int64_t i = 0; i < n; ++i) worst = std::max(worst, at(i));
  if (worst < infinity) return -1;
  int64_t i = 0;
  while (at(i) < infinity) ++i;
  return i;
}

// Bytes at which the f16 fields of a block lie (spec/models.md 8.2); -1: no second one.
std::array<int, 2> half_fields(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ8_0:
      return {0, -1};
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    case DType::kQ2_K:
      return {80, 82};
    case DType::kQ3_K:
      return {108, -1};
    case DType::kQ6_K:
      return {208, -1};
    default:
      return {-1, -1};
  }
}

// The element (first of its block) that is no number, or -1.
int64_t find_bad(DType dtype, const uint8_t* data, int64_t blocks) {
  if (dtype == DType::kF32) return find_word<uint32_t>(data, blocks, 0x7f800000u);
  if (dtype == DType::kF16) return find_word<uint16_t>(data, blocks, 0x7c00u);
  if (dtype == DType::kBF16) return find_word<uint16_t>(data, blocks, 0x7f80u);
  const int64_t step = block_bytes(dtype);
  for (const int field : half_fields(dtype)) {
    for (int64_t b = 0; field >= 0 && b < blocks; ++b) {
      if (find_word<uint16_t>(data + b * step + field, 1, 0x7c00u) == 0) return b * block_elements(dtype);
    }
  }
  return -1;
}

}  // namespace

Status check_finite(const ModelFile& file, const std::function<void(int64_t done, int64_t total)>& report) {
  int64_t total = 0, done = 0;
  for (const ModelTensor& t : file.tensors()) {
    for (const StoredTensor& part : t.parts) total += part.bytes;
  }
  for (const ModelTensor& t : file.tensors()) {
    for (const StoredTensor& part : t.parts) {
      const int64_t step = block_bytes(part.view.dtype), chunk = kChunkBytes / step * step;
      for (int64_t at = 0; at < part.bytes; at += chunk) {
        const int64_t n = std::min(chunk, part.bytes - at);
        part.file->prefetch(part.offset + at, n);
        if (const int64_t bad = find_bad(part.view.dtype, part.view.ptr<uint8_t>() + at, n / step);
            bad >= 0) {
          const int64_t element = at / step * block_elements(part.view.dtype) + bad;
          return part.bad(format("has no finite number at element {}, expected all to be finite", element));
        }
        done += n;
        if (report) report(done, total);
      }
    }
  }
  return ok();
}

}  // namespace se
