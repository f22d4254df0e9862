#include "kv/page_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "base/rng.h"

namespace se {
namespace {

std::unique_ptr<PageArena> arena_of(int64_t bytes) {
  auto made = PageArena::create(bytes);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.take();
}

TEST(PageArena, CountsReferencesLikeAMapAndGivesEverythingBack) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(format("seed {}", seed));
    Rng rng(seed);
    auto arena = arena_of(64 << 10);
    std::vector<PageRef> held;
    std::map<int64_t, std::pair<int, int64_t>> model;  // id -> references, bytes
    int64_t live = 0, peak = 0;
    for (int step = 0; step < 2000; ++step) {
      const int64_t what = rng.below(4);
      if (what <= 1) {
        const int64_t bytes = kPageStep * (int64_t{1} << rng.below(6));
        auto page = arena->take(bytes);
        ASSERT_EQ(page.ok(), live + bytes <= (64 << 10));
        if (!page.ok()) continue;
        ASSERT_EQ(model.count(page->id()), 0u) << "a live page was handed out";
        std::memset(page->data(), int(page->id() & 0x7f), size_t(bytes));
        model[page->id()] = {1, bytes};
        live += bytes, peak = std::max(peak, live);
        held.push_back(page.take());
      } else if (!held.empty() && what == 2) {
        held.push_back(held[size_t(rng.below(int64_t(held.size())))]);
        ++model[held.back().id()].first;
      } else if (!held.empty()) {
        std::swap(held[size_t(rng.below(int64_t(held.size())))], held.back());
        auto it = model.find(held.back().id());
        held.pop_back();
        if (--it->second.first == 0) live -= it->second.second, model.erase(it);
      }
      ASSERT_EQ(arena->live_bytes(), live);
      ASSERT_EQ(arena->peak_bytes(), peak);
      ASSERT_EQ(arena->live_pages(), int64_t(model.size()));
    }
    for (const PageRef& page : held) {
      ASSERT_EQ(page.shared(), model[page.id()].first > 1);
      for (int64_t i = 0; i < page.bytes(); ++i) ASSERT_EQ(page.data()[i], char(page.id() & 0x7f));
    }
    held.clear();
    EXPECT_EQ(arena->live_bytes(), 0);
    EXPECT_EQ(arena->free_bytes(), 64 << 10);
  }
}

TEST(PageArena, FailsOnceWhenToldAndSaysWhatIsTaken) {
  auto arena = arena_of(1024);
  arena->fail_after_for_test(1);
  auto a = arena->take(256);
  EXPECT_TRUE(a.ok());
  EXPECT_EQ(arena->take(256).status().code(), Code::kExhausted);
  EXPECT_TRUE(arena->take(256).ok());
  auto over = arena->take(1024);
  EXPECT_EQ(over.status().code(), Code::kExhausted);
  EXPECT_NE(over.status().message().find("256 of 1024"), std::string::npos) << over.status().message();
  EXPECT_EQ(PageArena::create(0).status().code(), Code::kInvalid);
}

TEST(PageArena, ReusesTheStretchOfASizeThatIsGone) {
  auto arena = arena_of(1 << 20);
  for (int64_t bytes = kPageStep; bytes <= kPageStep * 200; bytes += kPageStep) {
    auto page = arena->take(bytes);
    ASSERT_TRUE(page.ok()) << page.status().message();
    std::memset(page->data(), 1, size_t(bytes));
  }
  std::vector<PageRef> held;
  for (int i = 1; i <= PageArena::kMaxSizes; ++i) held.push_back(arena->take(kPageStep * i).take());
  EXPECT_EQ(arena->take(kPageStep * 100).status().code(), Code::kExhausted);
  held.pop_back();
  EXPECT_TRUE(arena->take(kPageStep * 100).ok());
}

TEST(PageArena, MovesAndAssignmentsKeepTheCount) {
  auto arena = arena_of(4096);
  PageRef a = arena->take(512).take();
  PageRef b = std::move(a);
  EXPECT_FALSE(a);  // NOLINT: a moved-from reference is empty
  EXPECT_FALSE(b.shared());
  a = b;
  EXPECT_TRUE(a.shared() && b.shared());
  b = PageRef();
  EXPECT_FALSE(a.shared());
  a = PageRef(a);
  EXPECT_FALSE(a.shared());
  a = {};
  EXPECT_EQ(arena->live_pages(), 0);
}

#if defined(SE_DEBUG) && !defined(__SANITIZE_ADDRESS__)
TEST(PageArena, PoisonsFreedPages) {
  auto arena = arena_of(4096);
  PageRef page = arena->take(512).take();
  const char* data = page.data();
  std::memset(page.data(), 0, 512);
  page = {};
  for (int i = 0; i < 512; ++i) ASSERT_EQ(data[i], char(0xff));
}
#endif
#if defined(__SANITIZE_ADDRESS__)
TEST(PageArenaDeath, FreedPagesMayNotBeRead) {
  auto arena = arena_of(4096);
  PageRef page = arena->take(512).take();
  const volatile char* data = page.data();
  page = {};
  EXPECT_DEATH((void)data[17], "use-after-poison");
}
#endif

}  // namespace
}  // namespace se
