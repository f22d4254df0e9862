#include "kv/layout.h"

#include <gtest/gtest.h>

namespace se {
namespace {

// Three layers, kv_heads 2, 1, 2; the middle one could be any kind.
ModelKv three_layers() {
  ModelKv m;
  for (int heads : {2, 1, 2}) {
    LayerKv l;
    l.kv_heads = heads, l.q_heads = 2 * heads, l.k_dim = l.v_dim = 8;
    m.layers.push_back(l);
  }
  return m;
}

KvComponent component(int owner,
                      int index,
                      std::string_view name,
                      Block block,
                      int per,
                      DType dtype,
                      std::vector<int64_t> shape,
                      bool heads = true) {
  KvComponent c;
  c.owner = owner, c.index = index;
  c.spec.name = name, c.spec.block = block, c.spec.per = per, c.spec.dtype = dtype, c.spec.heads = heads;
  c.spec.shape = std::move(shape);
  return c;
}

// shape, stride: without the page id.
void expect_plane(const KvPlane& p, int64_t offset, std::vector<int64_t> shape, std::vector<int64_t> stride) {
  EXPECT_EQ(p.offset, offset);
  ASSERT_EQ(p.rank, int(shape.size()) + 1);
  EXPECT_EQ(p.stride[0], kPageStep);
  EXPECT_EQ(p.shape[0], kPageIds);
  for (size_t i = 0; i < shape.size(); ++i) {
    EXPECT_EQ(p.shape[i + 1], shape[i]) << "dimension " << i + 1;
    EXPECT_EQ(p.stride[i + 1], stride[i]) << "dimension " << i + 1;
  }
}

// Page of 16 tokens. Group 0: layers 0 and 1, group 1: layer 2.
//
//   payload of group 0, 1280 bytes                      index of group 0, 512 bytes
//   0    +- layer 0 ------------------------+           0    +- layer 0 -----------------+
//        | k  [2 heads][16][8] f16  512 B   |                | lo [2][4 units][2] f32 64B|
//   512  | vc [2 heads][2][4]  u8    16 B   |           256  +- layer 1 -----------------+
//   768  +- layer 1 ------------------------+                | lo [1][4 units][2] f32 32B|
//        | k  [1 head ][16][8] f16  256 B   |           512  +---------------------------+
//   1024 | vc [1 head ][2][4]  u8     8 B   |
//   1280 +----------------------------------+           state of group 0: s [16] f32, 64 B, in each slice
//
//   sequence block, 256 bytes: layer 0 ring [4][2][1] f16 at 0, layer 1 at 64, layer 2 at 128
TEST(KvLayout, PlacesComponentsSliceAfterSlice) {
  const ModelKv model = three_layers();
  auto made =
      KvLayout::make(model,
                     {{{0, 1}, 0}, {{2}, 1}},
                     {component(1, 0, "k", Block::kPayload, 1, DType::kF16, {8}),
                      component(1, 1, "vc", Block::kPayload, 8, DType::kU8, {4}),
                      component(2, 0, "lo", Block::kIndex, 4, DType::kF32, {2}),
                      component(3, 0, "s", Block::kState, 1, DType::kF32, {}, false),
                      component(1, 2, "ring", Block::kPayload, kPerSequence, DType::kF16, {4, 2, 1}, false)},
                     16,
                     4);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const KvLayout& layout = **made;

  EXPECT_EQ(layout.page_bytes(0, Block::kPayload), 1280);
  EXPECT_EQ(layout.page_bytes(1, Block::kPayload), 768);
  EXPECT_EQ(layout.page_bytes(0, Block::kIndex), 512);
  EXPECT_EQ(layout.page_bytes(1, Block::kIndex), 256);
  EXPECT_EQ(layout.page_bytes(0, Block::kState), 512);
  EXPECT_EQ(layout.sequence_bytes(), 256);
  EXPECT_EQ(layout.slice_bytes(0, Block::kPayload), 0);
  EXPECT_EQ(layout.slice_bytes(1, Block::kPayload), 768);
  EXPECT_EQ(layout.slice_bytes(2, Block::kPayload), 0);
  EXPECT_EQ(layout.slice_bytes(1, Block::kIndex), 256);
  EXPECT_EQ(layout.group_of(1), 0);
  EXPECT_EQ(layout.group_of(2), 1);

  expect_plane(layout.plane(0, 1, 0), 0, {16, 2, 8}, {16, 256, 2});
  expect_plane(layout.plane(1, 1, 0), 0, {16, 1, 8}, {16, 256, 2});
  expect_plane(layout.plane(0, 1, 1), 512, {2, 2, 4}, {4, 8, 1});
  expect_plane(layout.plane(1, 1, 1), 256, {2, 1, 4}, {4, 8, 1});
  expect_plane(layout.plane(2, 2, 0), 0, {4, 2, 2}, {8, 32, 4});
  expect_plane(layout.plane(1, 3, 0), 0, {16}, {4});
  expect_plane(layout.plane(0, 1, 2), 0, {4, 2, 1}, {4, 2, 2});
  expect_plane(layout.plane(2, 1, 2), 128, {4, 2, 1}, {4, 2, 2});
  EXPECT_TRUE(layout.plane(2, 1, 2).per_sequence);
  EXPECT_EQ(layout.plane(0, 9, 0).rank, 0);

  // 17 paged + 3 in the ring: 2 pages of payload and index, 2 of state; 16 + 1: a state page more than of
  // payload.
  const std::vector<int64_t> paged = {17, 16}, all = {20, 17};
  EXPECT_EQ(layout.bytes(paged, all), 2 * (1280 + 512) + 2 * 512 + (768 + 256) + 2 * 256 + 256);
}

TEST(KvLayout, FollowsLayerListsAndLastDimensions) {
  ModelKv model = three_layers();
  model.layers[1].kind = LayerKind::kWindow;  // no group needed, none of the default layers
  KvComponent ranks = component(1, 0, "r", Block::kPayload, 1, DType::kF16, {8}, false);
  ranks.spec.last = {8, 1, 24};
  KvComponent some = component(1, 1, "w", Block::kPayload, kPerSequence, DType::kF32, {2});
  some.spec.layers = {1};
  auto made = KvLayout::make(model, {{{0, 2}, 0}}, {ranks, some}, 16, 0);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const KvLayout& layout = **made;
  EXPECT_EQ(layout.group_of(1), -1);
  EXPECT_EQ(layout.plane(1, 1, 0).rank, 0);
  expect_plane(layout.plane(2, 1, 0), 0, {16, 24}, {48, 2});
  EXPECT_EQ(layout.slice_bytes(2, Block::kPayload), 256);
  EXPECT_EQ(layout.page_bytes(0, Block::kPayload), 256 + 768);
  EXPECT_EQ(layout.plane(0, 1, 1).rank, 0);
  expect_plane(layout.plane(1, 1, 1), 0, {1, 2}, {8, 4});
}

TEST(KvLayout, MeasuresBlockTypesInWholeBlocks) {
  auto made = KvLayout::make(three_layers(),
                             {{{0, 1, 2}, 0}},
                             {component(1, 0, "q", Block::kPayload, 1, DType::kQ8_0, {2, 64})},
                             16,
                             0);
  ASSERT_TRUE(made.ok()) << made.status().message();
  expect_plane((*made)->plane(0, 1, 0), 0, {16, 2, 2, 64}, {136, 16 * 136, 68, 34});
}

TEST(KvLayout, RefusesWhatDoesNotFit) {
  const ModelKv model = three_layers();
  const std::vector<KvGroup> all = {{{0, 1, 2}, 0}};
  const KvComponent k = component(1, 0, "k", Block::kPayload, 1, DType::kF16, {8});
  const auto refusal =
      [&](std::vector<KvGroup> groups, std::vector<KvComponent> c, int64_t page, int64_t tail) {
        auto made = KvLayout::make(model, std::move(groups), std::move(c), page, tail);
        EXPECT_FALSE(made.ok());
        EXPECT_EQ(made.status().code(), Code::kInvalid);
        return made.ok() ? std::string() : made.status().message();
      };
  EXPECT_NE(refusal(all, {k}, 24, 0).find("24 tokens"), std::string::npos);
  EXPECT_NE(refusal(all, {k}, 8, 0).find("8 tokens"), std::string::npos);
  EXPECT_NE(refusal(all, {k}, 16, 70000).find("70000"), std::string::npos);
  EXPECT_NE(refusal({{{0, 1}, 0}}, {k}, 16, 0).find("layer 2 is in no group"), std::string::npos);
  EXPECT_NE(refusal({{{0, 1, 2}, 0}, {{1}, 0}}, {k}, 16, 0).find("groups 0 and 1"), std::string::npos);
  EXPECT_NE(refusal({{{0, 1, 2}, 0}, {{}, 0}}, {k}, 16, 0).find("no layer"), std::string::npos);
  EXPECT_NE(refusal({{{0, 1, 2, 3}, 0}}, {k}, 16, 0).find("layer 3 of 3"), std::string::npos);
  EXPECT_NE(refusal(all, {k, k}, 16, 0).find("declared twice"), std::string::npos);
  const auto with = [&](auto change) {
    KvComponent c = k;
    change(c.spec);
    return refusal(all, {c}, 16, 0);
  };
  EXPECT_NE(with([](ComponentSpec& s) { s.per = 32; }).find("32 tokens per item"), std::string::npos);
  EXPECT_NE(with([](ComponentSpec& s) { s.per = 3; }).find("3 tokens per item"), std::string::npos);
  EXPECT_NE(with([](ComponentSpec& s) { s.shape = {2, 2, 2}; }).find("6 dimensions"), std::string::npos);
  EXPECT_NE(with([](ComponentSpec& s) { s.shape = {0}; }).find("dimension 0"), std::string::npos);
  EXPECT_NE(with([](ComponentSpec& s) { s.dtype = DType::kQ8_0; }).find("whole blocks"), std::string::npos);
  EXPECT_NE(with([](ComponentSpec& s) { s.last = {1}; }).find("one per layer"), std::string::npos);
  EXPECT_NE(with([](ComponentSpec& s) { s.layers = {7}; }).find("layer 7"), std::string::npos);
}

}  // namespace
}  // namespace se
