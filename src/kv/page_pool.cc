#include "kv/page_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "device/cpu/machine.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SE_KV_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define SE_KV_ASAN 1
#endif
#ifdef SE_KV_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace se {
namespace {

constexpr int64_t kHugePage = 2 << 20;

void forbid([[maybe_unused]] char* p, [[maybe_unused]] int64_t bytes) {
#ifdef SE_DEBUG
  std::memset(p, 0xff, size_t(bytes));
#endif
#ifdef SE_KV_ASAN
  __asan_poison_memory_region(p, size_t(bytes));
#endif
}

void allow([[maybe_unused]] char* p, [[maybe_unused]] int64_t bytes) {
#ifdef SE_KV_ASAN
  __asan_unpoison_memory_region(p, size_t(bytes));
#endif
}

// Hands the whole system pages inside [p, p + bytes) back; their addresses stay reserved.
void decommit(char* p, int64_t bytes) {
  static const auto system_page = uintptr_t(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (uintptr_t(p) + system_page - 1) / system_page * system_page;
  const uintptr_t end = (uintptr_t(p) + uintptr_t(bytes)) / system_page * system_page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace

PageRef::PageRef(const PageRef& other) : arena_(other.arena_), pool_(other.pool_), index_(other.index_) {
  if (arena_) ++arena_->pools_[size_t(pool_)].refs[size_t(index_)];
}

PageRef::~PageRef() {
  if (arena_) arena_->release(pool_, index_);
}

int64_t PageRef::id() const { return (data() - arena_->base_) / kPageStep; }

char* PageRef::data() const {
  SE_CHECK(arena_, "an empty page reference has no address");
  return arena_->address(pool_, index_);
}

int64_t PageRef::bytes() const { return arena_ ? arena_->pools_[size_t(pool_)].bytes : 0; }

bool PageRef::shared() const { return arena_ && arena_->pools_[size_t(pool_)].refs[size_t(index_)] > 1; }

Result<std::unique_ptr<PageArena>> PageArena::create(int64_t limit_bytes) {
  constexpr int64_t kMost = int64_t{1} << 40;  // 64 stretches of 1 TiB still fit 47 bits of address
  if (limit_bytes <= 0 || limit_bytes > kMost) {
    return invalid(format("a KV arena of {} bytes, wanted 1 to {}", limit_bytes, kMost));
  }
  const int64_t stretch = (limit_bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* p = ::mmap(nullptr,
                   size_t(stretch * kMaxSizes),
                   PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1,
                   0);
  if (p == MAP_FAILED) {
    return exhausted(
        format("cannot reserve {} MiB of address space for KV pages ({} MiB for each of {} page sizes)",
               (stretch * kMaxSizes) >> 20,
               stretch >> 20,
               kMaxSizes));
  }
  ::madvise(p, size_t(stretch * kMaxSizes), MADV_HUGEPAGE);
  ::madvise(p, size_t(stretch * kMaxSizes), MADV_DONTDUMP);
  // Any thread may read any page, so every memory node holds its part of them.
  const std::vector<CpuNode>& nodes = machine_nodes();
  if (nodes.size() > 1 && !interleave(p, stretch * kMaxSizes, nodes))
    SE_LOG(warn, "kv.interleave", "nodes", nodes.size(), "refused_by", "the system");
  std::unique_ptr<PageArena> arena(new PageArena);
  arena->base_ = static_cast<char*>(p);
  arena->limit_ = limit_bytes;
  arena->stretch_ = stretch;
  return arena;
}

PageArena::~PageArena() {
  SE_CHECK(live_pages_ == 0,
           "{} pages ({} bytes) are still referred to when their arena goes",
           live_pages_,
           live_);
  for (size_t p = 0; p < pools_.size(); ++p) allow(address(int(p), 0), pools_[p].next * pools_[p].bytes);
  if (base_) ::munmap(base_, size_t(stretch_ * kMaxSizes));
}

char* PageArena::address(int pool, int64_t index) const {
  return base_ + pool * stretch_ + index * pools_[size_t(pool)].bytes;
}

Status PageArena::announce(int64_t takes) {
  if (fail_after_ < 0 || fail_after_ >= takes) return ok();
  fail_after_ = -1;
  return exhausted("no page: told to fail");
}

Result<int> PageArena::pool_of(int64_t bytes) {
  const auto same = [&](const Pool& p) { return p.bytes == bytes; };
  auto at = std::find_if(pools_.begin(), pools_.end(), same);
  if (at == pools_.end() && pools_.size() < size_t(kMaxSizes)) {
    at = pools_.insert(pools_.end(), Pool{});
  } else if (at == pools_.end()) {
    at = std::find_if(pools_.begin(), pools_.end(), [](const Pool& p) { return p.live == 0; });
    if (at == pools_.end())
      return exhausted(format("no page of {} bytes: {} other sizes are in use", bytes, kMaxSizes));
    retire(int(at - pools_.begin()));
  }
  at->bytes = bytes;
  return int(at - pools_.begin());
}

void PageArena::retire(int pool) {
  Pool& p = pools_[size_t(pool)];
  committed_free_ -= int64_t(p.free.size()) * p.bytes;
  allow(address(pool, 0), p.next * p.bytes);
  decommit(address(pool, 0), p.next * p.bytes);
  p = Pool{};
}

void PageArena::make_room(int64_t bytes) {
  for (size_t i = 0; i < pools_.size() && live_ + committed_free_ + bytes > limit_;) {
    Pool& p = pools_[i];
    if (p.free.empty()) {
      ++i;
      continue;
    }
    decommit(address(int(i), p.free.back()), p.bytes);
    p.bare.push_back(p.free.back());
    p.free.pop_back();
    committed_free_ -= p.bytes;
  }
}

Result<PageRef> PageArena::take(int64_t bytes) {
  SE_CHECK(
      bytes > 0 && bytes % kPageStep == 0, "a page of {} bytes, wanted a multiple of {}", bytes, kPageStep);
  SE_TRY(announce(1));
  if (fail_after_ > 0) --fail_after_;
  if (bytes > limit_ - live_) {
    return exhausted(format("no page of {} bytes: {} of {} bytes are taken", bytes, live_, limit_));
  }
  SE_ASSIGN(const int pool, pool_of(bytes));
  Pool& p = pools_[size_t(pool)];
  int64_t index = 0;
  if (!p.free.empty()) {
    index = p.free.back();
    p.free.pop_back();
    committed_free_ -= bytes;
  } else {
    make_room(bytes);
    if (!p.bare.empty()) {
      index = p.bare.back();
      p.bare.pop_back();
    } else {
      index = p.next++;
      p.refs.push_back(0);
      SE_CHECK(
          p.next * bytes <= stretch_, "page {} of {} bytes leaves its stretch of {}", index, bytes, stretch_);
    }
  }
  allow(address(pool, index), bytes);
  SE_DCHECK(p.refs[size_t(index)] == 0, "a live page was free");
  p.refs[size_t(index)] = 1;
  ++p.live, ++live_pages_;
  live_ += bytes;
  peak_ = std::max(peak_, live_);
  return PageRef(this, pool, index);
}

void PageArena::release(int pool, int64_t index) {
  Pool& p = pools_[size_t(pool)];
  SE_CHECK(p.refs[size_t(index)] > 0, "page {} of {} bytes is released twice", index, p.bytes);
  if (--p.refs[size_t(index)] > 0) return;
  forbid(address(pool, index), p.bytes);
  p.free.push_back(index);
  committed_free_ += p.bytes;
  --p.live, --live_pages_;
  live_ -= p.bytes;
}

}  // namespace se
