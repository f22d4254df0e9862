// kv/kv_test_util.h -- for tests: where a component's item of a token lies, and bytes to recognise it by.
#pragma once
#include <cstring>

#include "kv/kv_store.h"

namespace se::kv_testing {

inline KvComponent component(int index,
                             std::string_view name,
                             Block block,
                             int per,
                             DType dtype,
                             std::vector<int64_t> shape,
                             bool heads = true) {
  KvComponent c;
  c.index = index;
  c.spec.name = name, c.spec.block = block, c.spec.per = per, c.spec.dtype = dtype, c.spec.heads = heads;
  c.spec.shape = std::move(shape);
  return c;
}

inline ModelKv model_of(std::initializer_list<int> kv_heads) {
  ModelKv m;
  for (int heads : kv_heads) {
    LayerKv l;
    l.q_heads = l.kv_heads = heads;
    m.layers.push_back(l);
  }
  return m;
}

// One component in one layer, addressed as a kernel does it: by slot, through plane and slice offset.
struct Plane {
  const KvStore* store;
  KvComponent component;
  int layer;
  KvPlane plane;
  int64_t page, slice, bytes;  // bytes: of one item
  int heads;

  Plane(const KvStore& s, const KvLayout& layout, const KvComponent& c, int l)
      : store(&s), component(c), layer(l), plane(layout.plane(l, c.owner, c.index)), page(layout.page()) {
    slice = plane.per_sequence ? 0 : layout.slice_bytes(l, c.spec.block);
    bytes = block_bytes(c.spec.dtype);
    for (int64_t n : c.spec.shape) bytes *= n;
    const size_t head_dim = plane.per_sequence ? 1 : 2;
    heads = c.spec.heads ? int(plane.shape[head_dim]) : 1;
  }
  bool exists() const { return plane.rank > 0; }
  // Item that holds the token at `slot` of the row's first slice.
  char* item(int64_t slot, int head) const {
    slot += slice / kPageStep * page;
    char* p = store->arena().base() + plane.offset + slot / page * kPageStep;
    p += slot % page / component.spec.per * plane.stride[1];
    return p + (component.spec.heads ? head * plane.stride[2] : 0);
  }
  char* of_sequence(int64_t id) const { return store->arena().base() + plane.offset + id * kPageStep; }
};

// Recognisable bytes that follow from a seed, the component and its place in the model; seed 0: zero bytes.
class Pattern {
 public:
  Pattern(uint32_t seed, int component, int layer, int head)
      : x_((seed * 2654435761u) ^ uint32_t(component * 977 + layer * 131 + head * 17)), zero_(seed == 0) {}
  char next() { return zero_ ? 0 : char((x_ = x_ * 1664525u + 1013904223u) >> 24); }

 private:
  uint32_t x_;
  bool zero_;
};

inline void fill(char* p, int64_t bytes, uint32_t seed, int component, int layer, int head) {
  Pattern pattern(seed, component, layer, head);
  for (int64_t i = 0; i < bytes; ++i) p[i] = pattern.next();
}

inline bool holds(const char* p, int64_t bytes, uint32_t seed, int component, int layer, int head) {
  Pattern pattern(seed, component, layer, head);
  for (int64_t i = 0; i < bytes; ++i) {
    if (p[i] != pattern.next()) return false;
  }
  return true;
}

}  // namespace se::kv_testing
