#include "kv/kv_store.h"

#include <gtest/gtest.h>

#include <numeric>

#include "kv/kv_test_util.h"

namespace se {
namespace {
using namespace kv_testing;

std::vector<int32_t> range(int64_t begin, int64_t end) {
  std::vector<int32_t> v(static_cast<size_t>(end - begin));
  std::iota(v.begin(), v.end(), int32_t(begin));
  return v;
}

std::unique_ptr<KvStore> store_of(int64_t bytes) {
  auto made = KvStore::create(bytes);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.take();
}

// Two groups of one layer each. A page: 256 B payload, 256 B index and 256 B state in group 0 and 1.
std::shared_ptr<const KvLayout> two_groups(int64_t tail = 0, bool state = true) {
  std::vector<KvComponent> c = {component(0, "k", Block::kPayload, 1, DType::kF32, {4}, false),
                                component(1, "lo", Block::kIndex, 16, DType::kF32, {4}, false)};
  if (state) c.push_back(component(2, "sum", Block::kState, 1, DType::kF32, {1}, false));
  if (tail) c.push_back(component(3, "ring", Block::kPayload, kPerSequence, DType::kF32, {tail, 4}, false));
  auto made = KvLayout::make(model_of({1, 1}), {{{0}, 0}, {{1}, 1}}, c, 16, tail);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.take();
}

TEST(KvStore, DropBeforeGivesBackWholePagesInFront) {
  auto store = store_of(1 << 20);
  auto a = store->create_sequence(two_groups()).take();
  ASSERT_TRUE(store->append(*a, range(0, 50)).ok());
  auto b = store->fork(*a).take();
  const int64_t slot = store->slot(*a, 0, 40);
  a->table(0).indexed[2] = 16;
  store->drop_before(*a, 0, 31);  // token 31 stays, and its page with it
  EXPECT_EQ(a->table(0).paged, 34);
  EXPECT_EQ(a->table(0).positions, range(16, 50));
  store->drop_before(*a, 0, 48);
  EXPECT_EQ(a->table(0).paged, 2);
  EXPECT_EQ(a->table(0).positions, range(48, 50));
  store->check(*a), store->check(*b);
  store->drop_before(*a, 0, 1000);  // the last page is not full: it keeps its place
  EXPECT_EQ(a->table(0).paged, 2);
  EXPECT_EQ(a->table(1).paged, 50) << "the other group is not touched";
  EXPECT_EQ(store->slot(*b, 0, 40), slot) << "nor the fork";

  const int64_t live = store->arena().live_bytes();
  KvTable taken = store->take_table(*a, 0);
  EXPECT_EQ(taken.paged, 2);
  EXPECT_EQ(a->table(0).tokens(), 0);
  EXPECT_EQ(store->arena().live_bytes(), live) << "what is taken lives";
  ASSERT_TRUE(store->append(*a, range(64, 70), std::array{0}).ok());
  EXPECT_EQ(store->arena().live_bytes(), live + 3 * 256);
  store->check(*a);
  taken = {};
  a.reset(), b.reset();
  EXPECT_EQ(store->arena().live_pages(), 0);
}

TEST(KvStore, ForkSharesAPartialPageUntilSomeoneAppends) {
  auto store = store_of(1 << 20);
  const auto layout = two_groups();
  auto a = store->create_sequence(layout).take();
  ASSERT_TRUE(store->append(*a, range(0, 20)).ok());
  a->table(0).indexed = {16, 0};
  std::memset(a->table(0).index[1].data(), 7, 256);
  const int64_t one = store->arena().live_bytes();
  EXPECT_EQ(one, 2 * 2 * (256 + 256 + 256));
  auto b = store->fork(*a).take();
  EXPECT_EQ(store->arena().live_bytes(), one + 2 * 2 * 256) << "state pages are cloned, others are not";
  EXPECT_EQ(a->table(0).payload[1].id(), b->table(0).payload[1].id());

  ASSERT_TRUE(store->append(*b, range(20, 21)).ok());
  EXPECT_EQ(a->table(0).payload[0].id(), b->table(0).payload[0].id());
  EXPECT_NE(a->table(0).payload[1].id(), b->table(0).payload[1].id());
  EXPECT_NE(a->table(0).index[1].id(), b->table(0).index[1].id());
  EXPECT_EQ(b->table(0).index[1].data()[255], 7) << "copy on write copies the index too";
  EXPECT_EQ(b->table(0).indexed, (std::vector<int32_t>{16, 0}));
  const int64_t page = a->table(0).payload[1].id();
  ASSERT_TRUE(store->append(*a, range(20, 21)).ok());
  EXPECT_EQ(a->table(0).payload[1].id(), page) << "the only owner left writes in place";
  a.reset(), b.reset();
  EXPECT_EQ(store->arena().live_pages(), 0);
}

TEST(KvStore, KeepNeedsLiveBytesAndTheFreshPagesOfOneGroup) {
  auto store = store_of(1 << 20);
  auto seq = store->create_sequence(two_groups()).take();
  ASSERT_TRUE(store->append(*seq, range(0, 160)).ok());  // 10 pages of 768 B in each group
  store->arena().reset_peak();
  const int64_t before = store->arena().live_bytes();
  // Group 0: two pages stay, 70 tokens go to 5 fresh ones: needs 3840. Group 1: 8 whole, 5 tokens to one:
  // 768.
  std::vector<int32_t> first = range(0, 32), second = range(0, 133);
  for (int32_t i = 0; i < 70; ++i) first.push_back(33 + i);
  const std::vector<GroupKeep> lists = {{0, first}, {1, second}};
  ASSERT_TRUE(store->keep(*seq, lists).ok());
  EXPECT_EQ(store->arena().peak_bytes(), before + 5 * 768);
  EXPECT_EQ(store->arena().live_bytes(), (7 + 9) * 768);
  EXPECT_EQ(store->bytes(*seq), store->arena().live_bytes());
  EXPECT_EQ(seq->table(0).positions[32], 33);
  EXPECT_EQ(seq->table(1).tokens(), 133);
}

TEST(KvStore, KeepSeesItsFailureBeforeItMovesAnything) {
  const int64_t pages = 2 * 10 * 3;
  auto store = store_of((pages + 9) * 256);  // room for the fresh pages of group 0 (3 x 3), not of 1 (10 x 3)
  auto seq = store->create_sequence(two_groups()).take();
  ASSERT_TRUE(store->append(*seq, range(0, 160)).ok());
  EXPECT_EQ(store->fork(*seq).status().code(), Code::kExhausted);
  const std::vector<int32_t> first = range(1, 48), second = range(1, 160), old = range(0, 160);
  const std::vector<GroupKeep> both = {{0, first}, {1, second}}, one = {{0, first}};
  {
    const KvTable& t = seq->table(0);
    const auto payload = t.payload, index = t.index;  // shared: group 0 gives only its state pages back
    const Status failed = store->keep(*seq, both);
    EXPECT_EQ(failed.code(), Code::kExhausted);
    EXPECT_NE(failed.message().find("group 1 needs 7680 bytes"), std::string::npos) << failed.message();
  }
  EXPECT_EQ(seq->table(0).positions, old);
  EXPECT_EQ(store->arena().live_bytes(), pages * 256);
  for (int64_t takes = 0; takes < 9; ++takes) {
    store->arena().fail_after_for_test(takes);
    EXPECT_EQ(store->keep(*seq, one).code(), Code::kExhausted);
    EXPECT_EQ(seq->table(0).positions, old);
  }
  store->arena().fail_after_for_test(9);
  EXPECT_TRUE(store->keep(*seq, one).ok());
  EXPECT_EQ(seq->table(0).tokens(), 47);
  store->arena().fail_after_for_test(-1);
}

TEST(KvStore, KeepingEverythingTouchesNothing) {
  auto store = store_of(20 * 256);
  auto seq = store->create_sequence(two_groups()).take();
  ASSERT_TRUE(store->append(*seq, range(0, 40)).ok());
  const int64_t page = seq->table(1).payload[2].id();
  seq->table(1).indexed = {16, 16, 0};
  const std::vector<int32_t> all = range(0, 40);
  const std::vector<GroupKeep> lists = {{1, all}};
  ASSERT_TRUE(store->keep(*seq, lists).ok());
  EXPECT_EQ(seq->table(1).payload[2].id(), page);
  EXPECT_EQ(seq->table(1).indexed, (std::vector<int32_t>{16, 16, 0}));
}

TEST(KvStore, TailTokensPassThroughTheRing) {
  auto store = store_of(1 << 20);
  const auto layout = two_groups(12);
  auto seq = store->create_sequence(layout).take();
  EXPECT_EQ(store->bytes(*seq), layout->sequence_bytes());
  for (int64_t i = 0; i < layout->sequence_bytes(); ++i) ASSERT_EQ(seq->sequence_block().data()[i], 0);
  ASSERT_TRUE(store->append_tail(*seq, 0, range(0, 10)).ok());
  EXPECT_EQ(seq->table(0).state.size(), 1u);
  EXPECT_EQ(seq->table(0).payload.size(), 0u);
  EXPECT_EQ(store->ring_slot(*seq, 0, 9), seq->item() * 12 + 9);
  ASSERT_TRUE(store->close_tail(*seq, 0, 8).ok());
  EXPECT_EQ(seq->table(0).paged, 8);
  EXPECT_EQ(store->ring_slot(*seq, 0, 0), seq->item() * 12 + 8);
  ASSERT_TRUE(store->append_tail(*seq, 0, range(10, 20)).ok());
  EXPECT_EQ(store->ring_slot(*seq, 0, 11), seq->item() * 12 + 7) << "the ring goes round";
  EXPECT_EQ(seq->table(0).state.size(), 2u);
  store->arena().fail_after_for_test(0);
  EXPECT_EQ(store->close_tail(*seq, 0, 12).code(), Code::kExhausted);
  EXPECT_EQ(seq->table(0).tail, 12);
  ASSERT_TRUE(store->close_tail(*seq, 0, 12).ok());
  EXPECT_EQ(seq->table(0).positions, range(0, 20));
  EXPECT_EQ(seq->table(1).tokens(), 0);
}

// What can_keep says of a pick and the ring closed after it is what then happens, at any room and any take.
TEST(KvStore, CanKeepPromisesThePickAndTheClose) {
  const auto layout = two_groups(12);
  for (const bool pick : {false, true}) {
    for (const bool share : {false, true}) {
      int promised = 0, refused = 0;
      for (int64_t limit = 30; limit < 60; ++limit) {
        for (int64_t takes = -1; takes < 12; ++takes) {
          auto store = store_of(limit * 256);
          auto seq = store->create_sequence(layout).take();
          std::unique_ptr<KvSequence> other;
          bool built = store->append(*seq, range(0, 40)).ok();
          if (built && share) {
            auto fork = store->fork(*seq);
            built = fork.ok();
            if (built) other = fork.take();
          }
          for (int g : {0, 1}) built = built && store->append_tail(*seq, g, range(40, 52)).ok();
          if (!built) continue;
          std::vector<int32_t> first = range(0, 16);
          for (int32_t i = 20; i < 37; ++i) first.push_back(i);
          const std::vector<GroupKeep> lists =
              pick ? std::vector<GroupKeep>{{0, first}} : std::vector<GroupKeep>{};
          store->arena().fail_after_for_test(takes);
          const bool ok = store->can_keep(*seq, lists, std::vector<int64_t>{12, 12}).ok();
          store->arena().fail_after_for_test(takes);
          bool done = store->keep(*seq, lists).ok();
          for (int g : {0, 1}) done = done && store->close_tail(*seq, g, 12).ok();
          store->arena().fail_after_for_test(-1);
          EXPECT_EQ(ok, done) << limit << " pages, failing after " << takes << (share ? ", shared" : "");
          ++(ok ? promised : refused);
        }
      }
      EXPECT_GT(promised, 20);
      EXPECT_GT(refused, 20);
    }
  }
}

TEST(KvStore, StagedTablesServeAsideUntilInstalled) {
  auto store = store_of(1 << 20);
  const auto layout = two_groups(12);
  auto seq = store->create_sequence(layout).take();
  ASSERT_TRUE(store->append(*seq, range(0, 40)).ok());
  for (int g = 0; g < 2; ++g) ASSERT_TRUE(store->append_tail(*seq, g, range(40, 44)).ok());
  float* sums = reinterpret_cast<float*>(seq->table(0).state[2].data());
  for (int i = 0; i < 12; ++i) sums[i] = float(32 + i);
  const std::vector<int32_t> old = seq->table(0).positions, survivors = range(0, 40), none;
  std::vector<KvTable> tables;
  // Group 0 keeps all paged tokens and carries the tail at the head of fresh; group 1 starts anew.
  tables.push_back(store->stage_table(*seq, {0, survivors}, range(40, 60), range(60, 70)).take());
  tables.push_back(store->stage_table(*seq, {1, none}, range(90, 100), none).take());
  EXPECT_EQ(seq->table(0).positions, old);
  EXPECT_EQ(tables[0].payload[1].id(), seq->table(0).payload[1].id());
  EXPECT_NE(tables[0].payload[2].id(), seq->table(0).payload[2].id()) << "the shared partial page is copied";
  EXPECT_NE(tables[0].state[0].id(), seq->table(0).state[0].id()) << "state is private";
  EXPECT_EQ(tables[0].payload.size(), 4u);
  EXPECT_EQ(tables[0].state.size(), 5u);
  const float* carried = reinterpret_cast<const float*>(tables[0].state[2].data());
  for (int i = 0; i < 12; ++i) EXPECT_EQ(carried[i], float(32 + i));
  for (int i = 12; i < 16; ++i) EXPECT_EQ(carried[i], 0);
  PageRef block = store->clone_block(*seq).take();
  const int64_t id = block.id();
  store->install(*seq, std::move(tables), std::move(block));
  EXPECT_EQ(seq->item(), id);
  EXPECT_EQ(seq->table(0).positions, range(0, 70));
  EXPECT_EQ(seq->table(0).tail, 10);
  EXPECT_EQ(seq->table(1).positions, range(90, 100));
  store->check(*seq);
  EXPECT_EQ(store->arena().live_bytes(), store->bytes(*seq));
}

TEST(KvStoreDeath, MisuseAborts) {
  auto store = store_of(1 << 20);
  auto made = KvLayout::make(model_of({1}),
                             {{{0}, 0}},
                             {component(0, "codes", Block::kPayload, 8, DType::kU8, {8, 4}, false)},
                             16,
                             4);
  auto seq = store->create_sequence(made.take()).take();
  ASSERT_TRUE(store->append(*seq, range(0, 32)).ok());
  const auto keep = [&](std::vector<int32_t> ordinals) {
    const std::vector<GroupKeep> lists = {{0, ordinals}};
    (void)store->keep(*seq, lists);
  };
  EXPECT_DEATH(keep({1, 2, 3, 4, 5, 6, 7, 8}), "whole group of 8");
  EXPECT_DEATH(keep({8, 9, 10, 11}), "whole group of 8");
  EXPECT_DEATH(keep({9, 8}), "ordinal 8 after 9");
  EXPECT_DEATH(keep({40}), "of 32 paged");
  ASSERT_TRUE(store->append_tail(*seq, 0, range(32, 34)).ok());
  EXPECT_DEATH((void)store->append_tail(*seq, 0, range(34, 37)), "in a ring of 4");
  EXPECT_DEATH((void)store->append(*seq, range(34, 35)), "close them first");
  EXPECT_DEATH((void)store->close_tail(*seq, 0, 3), "3 of 2 tail tokens");
}

}  // namespace
}  // namespace se
