// kv/kv_test_model.h -- for tests: live sequences beside a trivial model of them (vectors of tokens), and the
// comparison.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "kv/kv_test_util.h"

namespace se::kv_testing {

struct Token {
  int32_t position;
  uint32_t seed;       // of its payload and index bytes
  uint32_t state = 0;  // of its state bytes
};
struct ModelGroup {
  std::vector<Token> tokens;  // paged, then tail
  int64_t paged = 0;
  int64_t tail() const { return int64_t(tokens.size()) - paged; }
};
struct Model {
  std::vector<ModelGroup> groups;
  uint32_t memory = 0;  // seed of the per-sequence state
  int32_t next = 0;     // position
};
struct Live {
  std::unique_ptr<KvSequence> seq;
  Model model;
};

struct Case {
  const char* name;
  ModelKv kv;
  std::vector<KvGroup> groups;
  std::vector<KvComponent> components;
  int64_t page, tail;
};

// A store, its sequences and what they must hold.
class ModelWorld {
 public:
  explicit ModelWorld(const Case& c) : case_(c) {
    store_ = KvStore::create(96 << 10).take();
    layout_ = KvLayout::make(c.kv, c.groups, c.components, c.page, c.tail).take();
    for (const KvComponent& comp : c.components) {
      if (comp.spec.block != Block::kIndex) grain_ = std::max<int64_t>(grain_, comp.spec.per);
      if (comp.spec.block == Block::kState) state_per_ = std::max<int64_t>(state_per_, comp.spec.per);
      for (int l = 0; l < layout_->layers(); ++l) planes_.emplace_back(*store_, *layout_, comp, l);
    }
  }

  void verify() {
    std::map<int64_t, int64_t> pages;  // id -> bytes
    for (const Live& live : live_) {
      verify(live);
      if (live.seq->sequence_block()) pages[live.seq->item()] = live.seq->sequence_block().bytes();
      for (size_t g = 0; g < case_.groups.size(); ++g) {
        const KvTable& t = live.seq->table(int(g));
        for (const auto* list : {&t.payload, &t.index, &t.state}) {
          for (const PageRef& page : *list) {
            if (page) pages[page.id()] = page.bytes();
          }
        }
      }
    }
    int64_t sum = 0;
    for (const auto& [id, bytes] : pages) sum += bytes;
    EXPECT_EQ(store_->arena().live_bytes(), sum) << "a page is lost or counted twice";
  }

  void clear() {
    live_.clear();
    EXPECT_EQ(store_->arena().live_pages(), 0);
    EXPECT_EQ(store_->arena().live_bytes(), 0);
  }

 protected:
  static std::vector<int32_t> positions(std::span<const Token> tokens) {
    std::vector<int32_t> out;
    for (const Token& t : tokens) out.push_back(t.position);
    return out;
  }

  // Calls f(plane, component number, head, address, first token of the item) for every item of `block` of a
  // group's row whose first token is one of begin .. end. Pages: the table's of that block.
  template <typename F>
  void each_item(
      const std::vector<PageRef>& pages, int group, Block block, int64_t begin, int64_t end, F f) const {
    for (const Plane& p : planes_) {
      const ComponentSpec& spec = p.component.spec;
      if (spec.block != block || spec.per == kPerSequence || layout_->group_of(p.layer) != group) continue;
      for (int64_t i = (begin + spec.per - 1) / spec.per * spec.per; i < end; i += spec.per) {
        const int64_t slot = pages[size_t(i / case_.page)].id() * case_.page + i % case_.page;
        for (int h = 0; h < p.heads; ++h) f(p, h, p.item(slot, h), i);
      }
    }
  }
  void write_payload(const KvTable& t, int group, std::span<const Token> tokens, int64_t begin, int64_t end) {
    each_item(t.payload, group, Block::kPayload, begin, end, [&](const Plane& p, int h, char* at, int64_t i) {
      fill(at, p.bytes, tokens[size_t(i)].seed, p.component.index, p.layer, h);
    });
  }
  // f(plane, address of tail token i's place) in the ring of a block.
  template <typename F>
  void each_ring(int64_t item, int group, int64_t place, F f) const {
    for (const Plane& p : planes_) {
      if (p.component.spec.name != "ring" || layout_->group_of(p.layer) != group) continue;
      f(p, p.of_sequence(item) + place * p.plane.stride[1], p.plane.stride[1]);
    }
  }
  void write_ring(int64_t item, int group, int64_t place, uint32_t seed) {
    each_ring(item, group, place, [&](const Plane& p, char* at, int64_t bytes) {
      fill(at, bytes, seed, p.component.index, p.layer, 0);
    });
  }

  void verify(const Live& live) const {
    store_->check(*live.seq);
    std::vector<int64_t> paged, all;
    for (size_t n = 0; n < case_.groups.size(); ++n) {
      const int g = int(n);
      const ModelGroup& group = live.model.groups[n];
      const KvTable& t = live.seq->table(g);
      ASSERT_EQ(t.paged, group.paged);
      ASSERT_EQ(t.tail, group.tail());
      ASSERT_EQ(t.positions, positions(group.tokens));
      paged.push_back(t.paged), all.push_back(t.tokens());
      each_item(t.payload, g, Block::kPayload, 0, t.paged, [&](const Plane& p, int h, char* at, int64_t i) {
        EXPECT_TRUE(holds(at, p.bytes, group.tokens[size_t(i)].seed, p.component.index, p.layer, h))
            << p.component.spec.name << " of token " << i << " of " << t.paged << ", layer " << p.layer
            << ", head " << h;
      });
      if (!t.state.empty()) {
        each_item(t.state, g, Block::kState, 0, t.tokens(), [&](const Plane& p, int h, char* at, int64_t i) {
          EXPECT_TRUE(holds(at, p.bytes, group.tokens[size_t(i)].state, p.component.index, p.layer, h))
              << p.component.spec.name << " of token " << i << " of " << t.tokens() << ", layer " << p.layer;
        });
      }
      for (size_t page = 0; page < t.indexed.size(); ++page) {
        const int64_t first = int64_t(page) * case_.page;
        each_item(
            t.index,
            g,
            Block::kIndex,
            first,
            first + t.indexed[page],
            [&](const Plane& p, int h, char* at, int64_t i) {
              EXPECT_TRUE(holds(at, p.bytes, group.tokens[size_t(i)].seed, p.component.index, p.layer, h))
                  << "index of " << i;
            });
      }
      for (int64_t i = 0; i < t.tail; ++i) {
        const int64_t slot = store_->ring_slot(*live.seq, g, i);
        each_ring(
            slot / case_.tail, g, slot % case_.tail, [&](const Plane& p, const char* at, int64_t bytes) {
              EXPECT_TRUE(
                  holds(at, bytes, group.tokens[size_t(t.paged + i)].seed, p.component.index, p.layer, 0))
                  << "tail token " << i << " of " << t.tail << ", layer " << p.layer;
            });
      }
    }
    for (const Plane& p : planes_) {
      for (int h = 0; p.component.spec.name == "memory" && h < p.heads; ++h) {
        const char* at = p.of_sequence(live.seq->item()) + h * p.plane.stride[1];
        EXPECT_TRUE(holds(at, p.bytes, live.model.memory, p.component.index, p.layer, h))
            << "memory of layer " << p.layer;
      }
    }
    EXPECT_EQ(store_->bytes(*live.seq), layout_->bytes(paged, all));
  }

  const Case& case_;
  std::unique_ptr<KvStore> store_;
  std::shared_ptr<const KvLayout> layout_;
  std::vector<Plane> planes_;
  std::vector<Live> live_;
  int64_t grain_ = 1, state_per_ = 1;  // tokens that move together; of them, those of a state item
};

}  // namespace se::kv_testing
