// kv/layout.h -- how a plan's components lie in pages. Immutable, made once per plan, shared by its
// sequences.
//
// A page holds `page` tokens of a group: the layers of the group slice after slice, each slice 256-byte
// aligned, in it the components one after another (64-byte aligned), each as [head][item][shape] (heads off:
// [item][shape]). Payload, index and state of a group lie in pages of their own. What a stage declared
// kPerSequence lies in one block per sequence: layer after layer, component after component,
// [item][head?][shape] with one item.
#pragma once
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/attention/model_kv.h"

namespace se {

inline constexpr int64_t kPageStep = 256;              // bytes a page id counts
inline constexpr int64_t kPageIds = int64_t{1} << 38;  // more than there can be

struct KvGroup {  // layers that share one page table; formed by the plan, never by a stage
  std::vector<int> layers;
  int domain = 0;  // groups of one domain hold the same tokens: ordinals mean the same in all
  int window = 0;  // > 0: of windowed layers; rows have no gaps and lose the pages before the window
};

struct KvComponent {
  ComponentSpec spec;
  int owner = 0;  // number of the stage in its plan: chosen by the plan, opaque here
  int index = 0;  // of the component in the stage's list
};

// Where one component of one layer lies: byte offset from the start of the layer's slice (per sequence: from
// the start of the sequence's block) and the shape and byte strides of its view:
//   paged         [page id, item in page, head?, shape...]   page / per items; memory runs
//   [head][item][shape] per sequence  [item id, head?, shape...]
// The first dimension has stride kPageStep and kPageIds entries: any page of any arena. A view's data is
// arena base + offset (paged: the slice's place in the page is in the slots, KvIndex::offset). rank 0: the
// component does not exist in that layer.
struct KvPlane {
  int64_t offset = 0;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, TensorView::kMaxRank> shape{}, stride{};
  bool per_sequence = false;
  Block block = Block::kPayload;
};

// One component of one layer as the store copies it: item i of head h lies at offset + h * head_bytes + i *
// item_bytes of a page.
struct KvItems {
  int64_t offset = 0, heads = 1, head_bytes = 0, item_bytes = 0;
  int per = 1;  // tokens of an item
};

class KvLayout {
 public:
  // page: tokens of a page, a power of two in 16 .. 32768; tail: tokens of the codec's ring (0: none), at
  // most 65535: a run counts tokens in 16 bits. Every layer of kind kFull must be in exactly one group,
  // others may be in one. A component without a list of layers is in every layer of kind kFull; a paged one
  // needs a group in each of its layers. ComponentSpec::last has one entry per layer of the model; heads =
  // kv_heads of the layer. kInvalid, with the component and the layer, if a shape, a `per` or a list does not
  // fit.
  static Result<std::shared_ptr<const KvLayout>> make(const ModelKv& model,
                                                      std::vector<KvGroup> groups,
                                                      std::vector<KvComponent> components,
                                                      int64_t page,
                                                      int64_t tail);

  int64_t page() const { return page_; }
  int64_t tail() const { return tail_; }
  const std::vector<KvGroup>& groups() const { return groups_; }
  int group_of(int layer) const { return group_of_[size_t(layer)]; }  // -1: in none
  int layers() const { return int(group_of_.size()); }

  int64_t page_bytes(int group, Block block) const;   // of one page, a multiple of kPageStep; 0: no component
  int64_t slice_bytes(int layer, Block block) const;  // offset of the layer's slice in its page
  int64_t sequence_bytes() const { return sequence_bytes_; }  // block of the kPerSequence items; 0: none
  // Plane of component `index` of stage `owner` in `layer`; rank 0 if undeclared.
  KvPlane plane(int layer, int owner, int index) const;

  // Bytes of a sequence whose groups hold `tokens[g]` paged and tail tokens (tail ones lie in the ring):
  // exactly what KvStore allocates. `paged[g]` and `all[g]` (paged + tail) by group.
  int64_t bytes(std::span<const int64_t> paged, std::span<const int64_t> all) const;
  int64_t pages(int64_t tokens) const { return (tokens + page_ - 1) / page_; }
  // What lies in a page of a group, for whoever moves tokens.
  const std::vector<KvItems>& items(int group, Block block) const {
    return items_[size_t(group)][size_t(block)];
  }

 private:
  struct Placed {
    int owner, index;
    std::vector<KvPlane> by_layer;
  };
  int64_t page_ = 16, tail_ = 0, sequence_bytes_ = 0;
  std::vector<KvGroup> groups_;
  std::vector<int> group_of_;
  std::vector<Placed> placed_;
  std::vector<std::array<int64_t, 3>> page_bytes_;          // by group and Block
  std::vector<std::array<int64_t, 3>> slice_;               // by layer and Block
  std::vector<std::array<std::vector<KvItems>, 3>> items_;  // by group and Block
};

}  // namespace se
