// Compaction of pages, against the CPU's KvStore::keep in this very program.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/fmt.h"
#include "base/rng.h"
#include "kbench/kbench.h"
#include "kv/keep_cuda.h"
#include "kv/kv_store.h"

namespace se::kbench {
namespace {

enum Format { kBF16, kFP8, kKivi, kOdd };
constexpr const char* kNames[] = {"bf16", "fp8", "kivi", "odd bytes"};

std::vector<KvComponent> components(Format f) {
  std::vector<KvComponent> all;
  const auto add = [&](int per, DType dtype, std::vector<int64_t> shape, bool heads = true) {
    static constexpr const char* kLabels[] = {"a", "b", "c", "d", "e", "f"};
    KvComponent c;
    c.index = int(all.size());
    c.spec.name = kLabels[all.size()], c.spec.per = per, c.spec.dtype = dtype, c.spec.heads = heads;
    c.spec.shape = std::move(shape);
    all.push_back(std::move(c));
  };
  for (int kv = 0; kv < 2; ++kv) {
    if (f == kBF16) add(1, DType::kBF16, {128});
    if (f == kFP8) add(1, DType::kF8E4M3, {128}), add(1, DType::kF32, {1});
    if (f == kKivi) add(32, DType::kU8, {32, 64}), add(32, DType::kBF16, {128}), add(32, DType::kF16, {128});
    if (f == kOdd) add(1, DType::kU8, {3}), add(2, DType::kU8, {10}, false), add(8, DType::kF16, {1});
  }
  return all;
}

std::shared_ptr<const KvLayout> layout_of(Format f, const std::vector<int>& kv_heads, int64_t page) {
  ModelKv model;
  KvGroup group;
  for (int heads : kv_heads) {
    LayerKv l;
    l.q_heads = l.kv_heads = heads;
    group.layers.push_back(int(model.layers.size()));
    model.layers.push_back(l);
  }
  auto layout = KvLayout::make(model, {group}, components(f), page, 0);
  SE_CHECK(layout.ok(), "{}", layout.status().message());
  return layout.take();
}

int grain_of(const KvLayout& layout) {
  int per = 1;
  for (const KvItems& it : layout.items(0, Block::kPayload)) per = std::max(per, it.per);
  return per;
}

// About `share` of the row in whole groups, after `whole` tokens that all stay.
std::vector<int32_t> pick(int64_t tokens, int64_t grain, int64_t whole, double share, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> kept;
  for (int64_t g = 0; g < tokens; g += grain) {
    if (g >= whole && rng.uniform() >= share) continue;
    for (int64_t t = g; t < std::min(tokens, g + grain); ++t) kept.push_back(int32_t(t));
  }
  return kept;
}

// The row before and after keep() on the CPU, and the fresh pages as the device made them, byte by byte.
bool keeps_alike(Bench& b,
                 const KvLayout& shape,
                 std::shared_ptr<const KvLayout> layout,
                 int64_t tokens,
                 const std::vector<int32_t>& kept) {
  const int64_t bytes = shape.page_bytes(0, Block::kPayload), page = shape.page();
  auto store = KvStore::create(int64_t{256} << 20).take();
  auto seq = store->create_sequence(layout).take();
  std::vector<int32_t> positions(size_t(tokens), 0);
  std::iota(positions.begin(), positions.end(), 0);
  SE_CHECK(store->append(*seq, positions).ok(), "{} tokens", tokens);
  const std::vector<PageRef> old = seq->table(0).payload;  // keeps them alive
  Rng rng(uint64_t(tokens) + kept.size());
  for (const PageRef& p : old)
    for (int64_t i = 0; i < bytes; ++i) p.data()[i] = char(rng.below(256));
  const GroupKeep list{0, kept};
  SE_CHECK(store->keep(*seq, std::span(&list, 1)).ok(), "no room for {} tokens", kept.size());
  const std::vector<PageRef>& now = seq->table(0).payload;
  size_t whole = 0;  // pages that stayed
  while (whole < now.size() && whole < old.size() && now[whole].id() == old[whole].id()) ++whole;

  // The device's arena: old pages, then fresh ones, each in an order of its own.
  const size_t fresh = now.size() - whole, pages = old.size() + fresh;
  std::vector<int64_t> from, to;
  std::vector<char> arena(pages * size_t(bytes), char(0xee));
  for (size_t i = 0; i < old.size(); ++i) {
    const size_t at = old.size() - 1 - i;
    std::memcpy(arena.data() + at * size_t(bytes), old[i].data(), size_t(bytes));
    from.push_back(int64_t(at) * bytes / kPageStep);
  }
  for (size_t i = 0; i < fresh; ++i)
    to.push_back(int64_t(old.size() + (i * 7 + 3) % fresh) * bytes / kPageStep);
  if (fresh % 7 == 0)
    for (size_t i = 0; i < fresh; ++i) to[i] = int64_t(old.size() + i) * bytes / kPageStep;
  const std::vector<int32_t> row(kept.begin() + int64_t(std::min(kept.size(), whole * size_t(page))),
                                 kept.end());
  cuda::Buffer arena_on = upload(arena), row_on = upload(row), from_on = upload(from), to_on = upload(to);
  auto plan = cuda::plan_keep(shape.items(0, Block::kPayload), page, b.stream()).take();
  cuda::keep_tokens(plan,
                    {arena_on.data(),
                     row_on.ptr<int32_t>(),
                     int64_t(row.size()),
                     from_on.ptr<int64_t>(),
                     to_on.ptr<int64_t>()},
                    b.stream());
  b.stream().synchronize();
  const auto got = download<char>(arena_on.data(), int64_t(arena.size()));
  for (size_t i = 0; i < fresh; ++i) {  // what keep() wrote on the CPU, into the poisoned page
    char* want = arena.data() + to[i] * kPageStep;
    const int64_t held = std::min(page, int64_t(row.size()) - int64_t(i) * page);
    for (const KvItems& it : shape.items(0, Block::kPayload))
      for (int64_t h = 0; h < it.heads; ++h)
        std::memcpy(want + it.offset + h * it.head_bytes,
                    now[whole + i].data() + it.offset + h * it.head_bytes,
                    size_t((held + it.per - 1) / it.per * it.item_bytes));
  }
  return got == arena;  // old pages and gaps included: nothing else was touched
}

}  // namespace

void keep_checks(Bench& b) {
  for (Format f : {kBF16, kFP8, kKivi, kOdd}) {
    for (int64_t page : {32, 64, 256}) {
      const auto layout = layout_of(f, {3, 1, 2}, page);
      const int64_t grain = grain_of(*layout);
      int lists = 0;
      bool good = true;
      for (int64_t tokens : {int64_t{0}, int64_t{1}, page - 1, page, page + 1, 5 * page + 3, 20 * page}) {
        for (double share : {0.0, 0.1, 0.5, 1.0}) {
          for (int64_t whole : {int64_t{0}, 2 * page}) {
            const auto kept = pick(tokens, grain, std::min(tokens, whole), share, uint64_t(tokens + lists));
            good = keeps_alike(b, *layout, layout, tokens, kept) && good;
            ++lists;
          }
        }
      }
      b.check(format("keep: {}, pages of {}, {} lists", kNames[f], page, lists), good, 0, true);
    }
  }
}

void keep_cases(Bench& b) {
  struct Case {
    Format format;
    int layers;
    int64_t page, tokens, kept;
  };
  for (const Case& c : {Case{kBF16, 48, 16, 32768, 8192},
                        Case{kBF16, 48, 16, 32768, 2048},
                        Case{kBF16, 1, 16, 131072, 8192},
                        Case{kBF16, 1, 16, 131072, 2048},
                        Case{kFP8, 48, 16, 32768, 8192},
                        Case{kKivi, 48, 32, 32768, 8192}}) {
    const auto layout = layout_of(c.format, std::vector<int>(size_t(c.layers), 4), c.page);
    const int64_t bytes = layout->page_bytes(0, Block::kPayload), grain = grain_of(*layout);
    const int64_t old = c.tokens / c.page, fresh = c.kept / c.page, step = bytes / kPageStep;
    cuda::Buffer arena = device_memory((old + fresh) * bytes);
    fill_bytes(arena.data(), arena.bytes(), true, 3, b.stream());
    std::vector<int64_t> from(size_t(old), 0), to(size_t(fresh), 0);
    std::vector<int64_t> order(size_t(old + fresh), 0);
    std::iota(order.begin(), order.end(), 0);
    Rng rng(7);
    for (size_t i = order.size() - 1; i > 0; --i)
      std::swap(order[i], order[size_t(rng.below(int64_t(i) + 1))]);
    for (size_t i = 0; i < from.size(); ++i) from[i] = order[i] * step;
    for (size_t i = 0; i < to.size(); ++i) to[i] = order[from.size() + i] * step;
    std::vector<int32_t> groups(size_t(c.tokens / grain), 0), row;
    std::iota(groups.begin(), groups.end(), 0);
    for (size_t i = groups.size() - 1; i > 0; --i)
      std::swap(groups[i], groups[size_t(rng.below(int64_t(i) + 1))]);
    groups.resize(size_t(c.kept / grain));
    std::sort(groups.begin(), groups.end());
    for (int32_t g : groups)
      for (int64_t t = 0; t < grain; ++t) row.push_back(int32_t(g * grain + t));
    cuda::Buffer row_on = upload(row), from_on = upload(from), to_on = upload(to);
    const auto plan = cuda::plan_keep(layout->items(0, Block::kPayload), c.page, b.stream()).take();
    const cuda::KeepParams p{
        arena.data(), row_on.ptr<int32_t>(), c.kept, from_on.ptr<int64_t>(), to_on.ptr<int64_t>()};
    double moved = 0;  // read and written
    for (const KvItems& it : layout->items(0, Block::kPayload))
      moved += 2.0 * double(c.kept / it.per * it.heads * it.item_bytes);
    const Stats s = b.measure([&] { cuda::keep_tokens(plan, p, b.stream()); });
    b.report("keep",
             format("{}, {} layers x 4 heads x 128, {} of {} tokens, pages of {}",
                    kNames[c.format],
                    c.layers,
                    c.kept,
                    c.tokens,
                    c.page),
             moved,
             0,
             s);
  }
  const int64_t half = int64_t{1} << 30;  // what a plain copy does
  cuda::Buffer copy = device_memory(2 * half);
  fill_bytes(copy.data(), copy.bytes(), true, 5, b.stream());
  b.report("copy", "1 GiB by cudaMemcpyAsync, read and written", 2.0 * double(half), 0, b.measure([&] {
    SE_CUDA(cudaMemcpyAsync(
        copy.data() + half, copy.data(), size_t(half), cudaMemcpyDeviceToDevice, b.stream().get()));
  }));
}

}  // namespace se::kbench
