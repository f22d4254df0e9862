// text/flat_map.h -- a hash map from 64-bit keys that lies in one array: merges and tries are looked up once
// or twice per byte of text, and a node per entry would miss the cache each time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace se::text {

// V is default-constructible and cheap to copy. No removal. The key kEmpty cannot be stored.
template <typename V>
class FlatMap {
 public:
  static constexpr uint64_t kEmpty = ~uint64_t(0);

  // Room for `count` keys without growing.
  void reserve(size_t count) {
    size_t slots = 16;
    while (slots < count * 2) slots *= 2;
    if (slots > slots_.size()) rehash(slots);
  }

  // The value of `key`, made if there is none.
  V& operator[](uint64_t key) {
    if ((size_ + 1) * 2 > slots_.size()) rehash(slots_.empty() ? 16 : slots_.size() * 2);
    Slot& slot = slots_[place(key)];
    if (slot.key == kEmpty) slot.key = key, ++size_;
    return slot.value;
  }

  // Null when there is none.
  const V* find(uint64_t key) const {
    if (slots_.empty()) return nullptr;
    const Slot& slot = slots_[place(key)];
    return slot.key == kEmpty ? nullptr : &slot.value;
  }

  size_t size() const { return size_; }

 private:
  struct Slot {
    uint64_t key = kEmpty;
    V value{};
  };

  // The slot of `key`, or the empty one where it belongs.
  size_t place(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    uint64_t h = key * 0x9E3779B97F4A7C15u;
    size_t at = size_t(h ^ (h >> 32)) & mask;
    while (slots_[at].key != kEmpty && slots_[at].key != key) at = (at + 1) & mask;
    return at;
  }

  void rehash(size_t slots) {
    std::vector<Slot> old(slots);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.key != kEmpty) slots_[place(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;  // a power of two of them, at most half full
  size_t size_ = 0;
};

}  // namespace se::text
