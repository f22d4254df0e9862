// kv/page_pool.h -- one arena of pages of any size, counted references.
//
// Each page size draws from its own stretch of address space (reserved, not committed), so sizes mix without
// fragmentation; the arena's limit counts the bytes of live pages of all sizes. A stretch is as long as the
// limit, so a page can be had whenever its bytes fit the limit. Freed pages stay committed for the next take
// of their size; when live and freed pages together would pass the limit, freed ones go back to the system
// (in whole pages of the system). Not thread-safe: the engine thread owns it. The first 64th of the reserved
// space belongs to the first size taken, and so on: ids fit 32 bits while kMaxSizes x limit <= 512 GiB, and
// beyond it for the sizes taken early.
#pragma once
#include <memory>
#include <vector>

#include "device/device.h"
#include "kv/layout.h"

namespace se {

class PageArena;

// Value handle of a page: copy = share, destruction = release (the last one frees the page).
class PageRef {
 public:
  PageRef() = default;
  PageRef(const PageRef& other);
  PageRef(PageRef&& other) noexcept : arena_(other.arena_), pool_(other.pool_), index_(other.index_) {
    other.arena_ = nullptr;
  }
  PageRef& operator=(PageRef other) noexcept {
    std::swap(arena_, other.arena_), std::swap(pool_, other.pool_), std::swap(index_, other.index_);
    return *this;
  }
  ~PageRef();
  explicit operator bool() const { return arena_ != nullptr; }
  int64_t id() const;  // byte offset in the arena / kPageStep
  char* data() const;
  int64_t bytes() const;
  bool shared() const;  // more than one reference

 private:
  friend class PageArena;
  PageRef(PageArena* arena, int pool, int64_t index) : arena_(arena), pool_(pool), index_(index) {}
  PageArena* arena_ = nullptr;
  int pool_ = 0;
  int64_t index_ = 0;
};

class PageArena {
 public:
  static constexpr int kMaxSizes = 64;
  // limit_bytes: most bytes of live pages. kExhausted if the address space cannot be reserved.
  static Result<std::unique_ptr<PageArena>> create(int64_t limit_bytes);
  ~PageArena();  // every page must have been released

  // A page of `bytes` (a multiple of kPageStep). Its contents are unspecified; in debug builds they are
  // poisoned (0xff: NaN in every float format) when a page is freed, and under the address sanitizer no one
  // may touch them until they are taken again. kExhausted over the limit, over kMaxSizes sizes in use at
  // once, or when told to fail.
  Result<PageRef> take(int64_t bytes);

  char* base() const { return base_; }
  int64_t limit_bytes() const { return limit_; }
  int64_t live_bytes() const { return live_; }
  int64_t peak_bytes() const { return peak_; }  // of live_bytes since reset_peak()
  int64_t live_pages() const { return live_pages_; }
  int64_t free_bytes() const { return limit_ - live_; }
  void reset_peak() { peak_ = live_; }
  void fail_after_for_test(int64_t takes) {
    fail_after_ = takes;
  }  // the take after so many fails once; -1: never

 private:
  friend class PageRef;
  friend class KvStore;
  struct Pool {
    int64_t bytes = 0, next = 0;  // page size; pages ever handed out
    int64_t live = 0;             // pages
    std::vector<int64_t> free;    // committed; last in, first out
    std::vector<int64_t> bare;    // given back to the system
    std::vector<int32_t> refs;
  };
  PageArena() = default;
  // Fails if one of the next `takes` takes is told to fail. After ok, they fail only for want of room: what
  // lets the store know before it frees anything that a mutation in several steps will end.
  Status announce(int64_t takes);
  Result<int> pool_of(int64_t bytes);
  void make_room(
      int64_t bytes);     // gives freed pages back until `bytes` more can be committed within the limit
  void retire(int pool);  // forgets a pool without live pages, so that another size can have its stretch
  void release(int pool, int64_t index);
  char* address(int pool, int64_t index) const;
  char* base_ = nullptr;
  int64_t limit_ = 0, stretch_ = 0, live_ = 0, peak_ = 0, live_pages_ = 0, committed_free_ = 0,
          fail_after_ = -1;
  std::vector<Pool> pools_;
};

}  // namespace se
