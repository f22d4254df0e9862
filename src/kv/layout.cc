#include "kv/layout.h"

#include <bit>

namespace se {
namespace {

constexpr int64_t kComponentAlign = 64;  // bytes

int64_t align(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }
bool power_of_two(int64_t n) { return n > 0 && std::has_single_bit(uint64_t(n)); }

std::string where(const KvComponent& c) {
  return format("component '{}' (stage {}, number {})", c.spec.name, c.owner, c.index);
}

// What does not depend on the layer.
Status check_component(const KvComponent& c, const ModelKv& model, int64_t page) {
  const ComponentSpec& s = c.spec;
  if (s.per != kPerSequence && (!power_of_two(s.per) || s.per > page)) {
    return invalid(
        format("{}: {} tokens per item, wanted a power of two up to the page of {}", where(c), s.per, page));
  }
  const int dims = 1 + (s.per != kPerSequence) + s.heads + int(s.shape.size());
  if (dims > TensorView::kMaxRank) {
    return invalid(
        format("{}: its view has {} dimensions, at most {} fit", where(c), dims, TensorView::kMaxRank));
  }
  if (!s.last.empty() && (s.shape.empty() || s.last.size() != model.layers.size())) {
    return invalid(format(
        "{}: `last` has {} entries for a shape of {} dimensions, wanted one per layer ({}) and a shape",
        where(c),
        s.last.size(),
        s.shape.size(),
        model.layers.size()));
  }
  for (int layer : s.layers) {
    if (layer < 0 || layer >= int(model.layers.size())) {
      return invalid(format("{}: layer {} of {}", where(c), layer, model.layers.size()));
    }
  }
  return ok();
}

// Layers a component lies in, ascending.
std::vector<int> layers_of(const ComponentSpec& spec, const ModelKv& model) {
  std::vector<bool> in(model.layers.size(), false);
  for (int l : spec.layers) in[size_t(l)] = true;
  std::vector<int> layers;
  for (size_t l = 0; l < in.size(); ++l) {
    if (spec.layers.empty() ? model.layers[l].kind == LayerKind::kFull : in[l]) layers.push_back(int(l));
  }
  return layers;
}

// The plane of one component in one layer, still at offset 0, and its bytes (of one page or sequence).
struct Shaped {
  KvPlane plane;
  KvItems items;
  int64_t bytes = 0;
};

Result<Shaped> shape_plane(const KvComponent& c, const LayerKv& layer, int number, int64_t page) {
  const ComponentSpec& s = c.spec;
  std::vector<int64_t> shape = s.shape;
  if (!s.last.empty()) shape.back() = s.last[size_t(number)];
  for (int64_t n : shape) {
    if (n <= 0) return invalid(format("{}, layer {}: an item of dimension {}", where(c), number, n));
  }
  const int64_t last = shape.empty() ? 1 : shape.back();
  if (last % block_elements(s.dtype) != 0) {
    return invalid(format("{}, layer {}: {} elements are no whole blocks of {} ({} elements)",
                          where(c),
                          number,
                          last,
                          to_string(s.dtype),
                          block_elements(s.dtype)));
  }
  if (s.heads && layer.kv_heads <= 0) {
    return invalid(
        format("{}, layer {}: one item per KV head, but the layer has {}", where(c), number, layer.kv_heads));
  }
  const bool paged = s.per != kPerSequence;
  const TensorView item = TensorView::of(nullptr, s.dtype, shape);
  Shaped out;
  KvPlane& p = out.plane;
  p.dtype = s.dtype, p.per_sequence = !paged, p.block = s.block;
  KvItems& it = out.items;
  it.per = paged ? s.per : 1;
  it.item_bytes = bytes_of(s.dtype, last);
  for (int i = 0; i + 1 < item.rank; ++i) it.item_bytes *= shape[size_t(i)];
  it.heads = s.heads ? layer.kv_heads : 1;
  const int64_t items = paged ? page / s.per : 1;
  it.head_bytes = items * it.item_bytes;
  int d = 0;
  const auto dim = [&](int64_t n, int64_t stride) { p.shape[size_t(d)] = n, p.stride[size_t(d++)] = stride; };
  dim(kPageIds, kPageStep);
  if (paged) dim(items, it.item_bytes);
  if (s.heads) dim(it.heads, it.head_bytes);
  for (int i = 0; i < item.rank; ++i) dim(shape[size_t(i)], item.stride[size_t(i)]);
  p.rank = d;
  out.bytes = it.heads * it.head_bytes;
  return out;
}

Result<std::vector<int>> assign_groups(const ModelKv& model, const std::vector<KvGroup>& groups) {
  std::vector<int> group_of(model.layers.size(), -1);
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].layers.empty()) return invalid(format("group {} of {} has no layer", g, groups.size()));
    for (int l : groups[g].layers) {
      if (l < 0 || l >= int(group_of.size()))
        return invalid(format("group {}: layer {} of {}", g, l, group_of.size()));
      int& owner = group_of[size_t(l)];
      if (owner >= 0) return invalid(format("layer {} is in groups {} and {}, wanted one", l, owner, g));
      owner = int(g);
    }
  }
  for (size_t l = 0; l < group_of.size(); ++l) {
    if (model.layers[l].kind == LayerKind::kFull && group_of[l] < 0) {
      return invalid(format("layer {} is in no group, wanted one: it keeps all its keys", l));
    }
  }
  return group_of;
}

}  // namespace

Result<std::shared_ptr<const KvLayout>> KvLayout::make(const ModelKv& model,
                                                       std::vector<KvGroup> groups,
                                                       std::vector<KvComponent> components,
                                                       int64_t page,
                                                       int64_t tail) {
  if (!power_of_two(page) || page < 16 || page > 32768) {
    return invalid(format("a page of {} tokens, wanted a power of two from 16 to 32768", page));
  }
  if (tail < 0 || tail > 65535) return invalid(format("a ring of {} tokens, wanted 0 to 65535", tail));
  auto layout = std::make_shared<KvLayout>();
  layout->page_ = page, layout->tail_ = tail;
  SE_ASSIGN(layout->group_of_, assign_groups(model, groups));
  layout->groups_ = std::move(groups);
  layout->slice_.resize(model.layers.size());
  layout->page_bytes_.resize(layout->groups_.size());
  layout->items_.resize(layout->groups_.size());

  // Shapes first, then places: slices go layer by layer, and a layer needs all its components at once.
  std::vector<std::vector<Shaped>> shaped;  // by component and layer
  for (const KvComponent& c : components) {
    SE_TRY(check_component(c, model, page));
    for (const Placed& other : layout->placed_) {
      if (other.owner == c.owner && other.index == c.index)
        return invalid(format("{} is declared twice", where(c)));
    }
    layout->placed_.push_back({c.owner, c.index, std::vector<KvPlane>(model.layers.size())});
    auto& by_layer = shaped.emplace_back(model.layers.size());
    for (int l : layers_of(c.spec, model)) {
      if (c.spec.per != kPerSequence && layout->group_of_[size_t(l)] < 0) {
        return invalid(format("{}: layer {} is in no group and has no pages", where(c), l));
      }
      SE_ASSIGN(by_layer[size_t(l)], shape_plane(c, model.layers[size_t(l)], l, page));
    }
  }

  for (size_t g = 0; g < layout->groups_.size(); ++g) {
    for (int l : layout->groups_[g].layers) {
      for (size_t block = 0; block < 3; ++block) {
        int64_t& end = layout->page_bytes_[g][block];
        layout->slice_[size_t(l)][block] = end;
        int64_t used = 0;
        for (size_t c = 0; c < components.size(); ++c) {
          Shaped& s = shaped[c][size_t(l)];
          if (s.plane.rank == 0 || s.plane.per_sequence || size_t(s.plane.block) != block) continue;
          s.plane.offset = align(used, kComponentAlign);
          used = s.plane.offset + s.bytes;
          s.items.offset = end + s.plane.offset;
          layout->items_[g][block].push_back(s.items);
        }
        end += align(used, kPageStep);
      }
    }
  }
  int64_t block_end = 0;
  for (size_t l = 0; l < model.layers.size(); ++l) {
    for (size_t c = 0; c < components.size(); ++c) {
      Shaped& s = shaped[c][l];
      if (s.plane.rank > 0 && s.plane.per_sequence) {
        s.plane.offset = align(block_end, kComponentAlign);
        block_end = s.plane.offset + s.bytes;
      }
      layout->placed_[c].by_layer[l] = s.plane;
    }
  }
  layout->sequence_bytes_ = align(block_end, kPageStep);
  return std::shared_ptr<const KvLayout>(std::move(layout));
}

int64_t KvLayout::page_bytes(int group, Block block) const {
  return page_bytes_[size_t(group)][size_t(block)];
}
int64_t KvLayout::slice_bytes(int layer, Block block) const { return slice_[size_t(layer)][size_t(block)]; }

KvPlane KvLayout::plane(int layer, int owner, int index) const {
  SE_CHECK(layer >= 0 && layer < layers(), "layer {} of {}", layer, layers());
  for (const Placed& p : placed_) {
    if (p.owner == owner && p.index == index) return p.by_layer[size_t(layer)];
  }
  return {};
}

int64_t KvLayout::bytes(std::span<const int64_t> paged, std::span<const int64_t> all) const {
  SE_CHECK(paged.size() == groups_.size() && all.size() == groups_.size(),
           "{} and {} counts for {} groups",
           paged.size(),
           all.size(),
           groups_.size());
  int64_t sum = sequence_bytes_;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto& b = page_bytes_[g];
    sum += pages(paged[g]) * (b[size_t(Block::kPayload)] + b[size_t(Block::kIndex)]);
    sum += pages(all[g]) * b[size_t(Block::kState)];
  }
  return sum;
}

}  // namespace se
