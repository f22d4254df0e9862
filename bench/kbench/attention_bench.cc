#include <algorithm>
#include <cmath>
#include <deque>

#include "base/fmt.h"
#include "kbench/attention_step.h"

namespace se::kbench {
namespace {

using cuda::DecodeType;
constexpr DecodeType kTypes[] = {
    DecodeType::kBF16, DecodeType::kF16, DecodeType::kE4M3, DecodeType::kE5M2, DecodeType::kKivi4};

// Of the largest output. q and the weights keep 16 bits (BF16, and what meets KIVI's minima; 2^-17 a term) or
// 21, KIVI's products with steps 21; sums of up to 2^17 terms in f32 add theirs.
constexpr double kTolerance = 1e-4;

void check_case(Bench& b, const std::string& what, const Case& c) {
  if (!b.next_is_ours()) return;
  Step step(c, b);
  step.enqueue(b);
  b.stream().synchronize();
  const double worst = step.error(b);
  b.check("attention " + what, worst <= kTolerance, worst, true);
}

// A row alone and the same row among others, on another grid: the same bits.
void check_batch_mates(Bench& b, DecodeType type) {
  if (!b.next_is_ours()) return;
  Case alone;
  alone.type = type;
  if (type == DecodeType::kKivi4) alone.page = alone.unit = 32;
  alone.rows = {{tokens_in_runs(992, alone.unit), 128}};
  alone.shuffle = false;
  Case among = alone;  // the first row keeps its pages and its q: both are drawn by position
  among.rows.push_back({tokens_in_runs(3008, alone.unit), 256});
  among.rows.push_back({tokens_in_runs(64, alone.unit), 128});
  Step one(alone, b), many(among, b);
  many.plan().grid = 7;
  one.enqueue(b), many.enqueue(b);
  b.stream().synchronize();
  const auto x = one.out(), y = many.out();
  b.check(format("attention {}: no batch mate and no grid shows", name_of(type)),
          std::equal(x.begin(), x.end(), y.begin()),
          0,
          true);
}

// What the kernel ahead still writes is not read before it is done, whatever else is read ahead of that.
void check_ahead(Bench& b, DecodeType type) {
  if (!b.next_is_ours()) return;
  constexpr const char* kWhat[] = {"nothing", "tables", "the past"};
  Case c;
  c.type = type;
  if (type == DecodeType::kKivi4) c.page = c.unit = 32;
  c.rows = {{tokens_in_runs(992, c.unit), 128}, {tokens_in_runs(352, c.unit), 64}};
  Step step(c, b);
  step.enqueue(b);
  b.stream().synchronize();
  const auto want = step.out();
  for (int ahead = 0; ahead < 3; ++ahead) {
    step.ahead = cuda::DecodeAhead(ahead);
    step.enqueue(b);
    b.stream().synchronize();
    const bool same = step.out() == want;
    step.enqueue_after_late_writer(b);
    b.stream().synchronize();
    b.check(
        format("attention {}: {} ahead", name_of(type), kWhat[ahead]), same && step.out() == want, 0, true);
  }
}

void time_case(Bench& b, const std::string& shape, const Case& c) {
  Step step(c, b);
  step.enqueue(b);
  b.stream().synchronize();
  const double worst = step.error(b);
  b.check("attention " + shape, worst <= kTolerance, worst);
  b.report("attend_decode", shape, step.bytes(), worst, b.measure([&] { step.enqueue(b); }));
  if (c.rows.size() == 8 && step.bytes() > 1e9) return;
  std::deque<Step> all;
  for (int i = 0; i < copies_in_a_row(step.bytes()); ++i) {
    Case other = c;
    other.seed = c.seed + 1 + uint64_t(i);
    all.emplace_back(other, b);
  }
  for (auto ahead : {cuda::DecodeAhead::kTables, cuda::DecodeAhead::kPast}) {
    for (Step& s : all) s.ahead = ahead;
    const bool past = ahead == cuda::DecodeAhead::kPast;
    b.report(past ? "attend_decode in a row, the past ahead" : "attend_decode in a row, tables ahead",
             shape,
             step.bytes(),
             worst,
             b.measure_in_a_row(int(all.size()), [&](int i) { all[size_t(i)].enqueue(b); }));
  }
}

void check_groups(Bench& b) {
  Case c;
  c.rows = {{tokens_in_runs(700, 1), 64}, {tokens_in_runs(33, 1), 48}};
  c.unit = 1;
  check_case(b, "single tokens, splits of 64 and 48", c);
  c.rows = {{tokens_in_runs(2000, 64), 512}, {{64, 3, 64, 17, 1, 64}, 128}};
  c.unit = c.page = 64;
  check_case(b, "pages of 64, partial runs in the middle", c);
  c.rows = {{tokens_in_runs(500, 16), 96}, {tokens_in_runs(20, 16), 512, 2}, {{16, 0, 5}, 16, 3}};
  c.unit = c.page = 16, c.per_head = true;
  check_case(b, "a table per KV head, several present tokens, an empty run", c);
  c.per_head = false, c.with_present = false, c.rows.push_back({{}, 512});
  check_case(b, "no present, an empty row", c);
  c.kv_heads = 3, c.group = 5;
  check_case(b, "3 KV heads, groups of 5", c);
  c.kv_heads = 2, c.group = 12, c.with_present = true;
  check_case(b, "2 KV heads, groups of 12", c);
  c.kv_heads = 1, c.group = 1;
  check_case(b, "one head", c);
}

// The ceiling of "2,048 tokens as 16-token pages": the same bytes, in pieces of 4 KiB in random order.
void time_gather(Bench& b) {
  const int64_t pieces = 64 * 128 * 4 * 2, bytes = pieces * 4096;
  cuda::Buffer from = device_memory(bytes), sink = device_memory(256);
  fill_random(from.data(), bytes / 2, true, 1, 3, b.stream());
  std::vector<int64_t> offsets(static_cast<size_t>(pieces));
  for (int64_t i = 0; i < pieces; ++i) offsets[size_t(i)] = i * 4096;
  for (int64_t i = pieces - 1; i > 0; --i)
    std::swap(offsets[size_t(i)],
              offsets[std::min(size_t(i),
                               size_t((double(random_float(4, uint64_t(i))) * 0.5 + 0.5) * double(i + 1)))]);
  const cuda::Buffer table = upload(offsets);
  for (int per : {2, 4, 8}) {
    const Stats s = b.measure(
        [&] { gather_all(from.data(), table.ptr<int64_t>(), pieces, per * 132, sink.data(), b.stream()); });
    b.report("gather", format("256 MiB in pieces of 4 KiB, {} blocks a processor", per), double(bytes), 0, s);
  }
}

}  // namespace

void attention_checks(Bench& b) {
  for (DecodeType type : kTypes) {
    const bool wide = type == DecodeType::kBF16 || type == DecodeType::kF16;
    for (int dim : {128, 64}) {
      if (dim == 64 && !wide) continue;
      Case c;
      c.type = type, c.dim = dim;
      for (int tokens : {0, 1, 15, 16, 17, 255, 256, 257, 1000})
        c.rows.push_back({tokens_in_runs(tokens, 16), 256});
      if (type == DecodeType::kKivi4) {
        c.rows.clear(), c.page = 64, c.unit = 32;
        for (int tokens : {0, 32, 64, 96, 1024}) c.rows.push_back({tokens_in_runs(tokens, 32), 256});
      }
      check_case(b, format("odd lengths, {} x {}", name_of(type), dim), c);
      c.rows = {{tokens_in_runs(5024, c.unit), 1024}, {{}, 2048}, {tokens_in_runs(2048, c.unit), 2048}};
      check_case(b, format("long splits, {} x {}", name_of(type), dim), c);
      if (wide) continue;
      c.page = c.unit = 64, c.kv_heads = 2, c.group = 12;
      c.rows = {{{64, 64, 32, 64}, 64}, {{64}, 128}, {tokens_in_runs(1280, 64), 512, 2}};
      check_case(b, format("{}: pages of 64, groups of 12", name_of(type)), c);
    }
    check_batch_mates(b, type);
    check_ahead(b, type);
  }
  check_groups(b);
}

void attention_cases(Bench& b) {
  for (DecodeType type : {DecodeType::kBF16, DecodeType::kE4M3, DecodeType::kKivi4}) {
    const int unit = type == DecodeType::kKivi4 ? 32 : 16;
    for (int batch : {1, 8}) {
      for (int split : {2016, 4000, 4096, 8192, 16384}) {
        if (batch == 1 ? split > 4096 : split < 4000) continue;
        Case c;
        c.type = type, c.page = c.unit = unit;
        for (int r = 0; r < batch; ++r) c.rows.push_back({tokens_in_runs(131072, unit), split});
        time_case(b, format("{} 4x8x128, 131072 tokens, batch {}, split {}", name_of(type), batch, split), c);
      }
    }
    for (int batch : {1, 3, 8, 64}) {
      for (int split : {64, 128, 256, 2048}) {
        if ((batch == 64) != (split == 2048)) continue;
        Case c;
        c.type = type, c.page = c.unit = unit;
        for (int r = 0; r < batch; ++r) c.rows.push_back({tokens_in_runs(2048, unit), split});
        time_case(b, format("{} 4x8x128, 2048 tokens, batch {}, split {}", name_of(type), batch, split), c);
      }
    }
  }
  time_gather(b);
}

}  // namespace se::kbench
